"""`python -m fedbench`: see `python -m fedbench --help`."""

from __future__ import annotations

import sys

from fedbench.cli.program import main

if __name__ == "__main__":
    sys.exit(main())
