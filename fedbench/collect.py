"""`python -m fedbench.collect`: runs as one table; see `python -m fedbench.collect --help`."""

from __future__ import annotations

import sys

from fedbench.cli.collect import main

if __name__ == "__main__":
    sys.exit(main())
