"""`python -m fedbench.plot`: pictures of runs and tables; see `python -m fedbench.plot --help`."""

from __future__ import annotations

import sys

from fedbench.cli.plot import main

if __name__ == "__main__":
    sys.exit(main())
