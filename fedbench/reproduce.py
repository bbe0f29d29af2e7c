"""`python -m fedbench.reproduce`: fill a table; see `python -m fedbench.reproduce --help`."""

from __future__ import annotations

import sys

from fedbench.cli.reproduce import main

if __name__ == "__main__":
    sys.exit(main())
