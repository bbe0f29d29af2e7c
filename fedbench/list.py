"""`python -m fedbench.list`: what can be chosen; see `python -m fedbench.list --help`."""

from __future__ import annotations

import sys

from fedbench.cli.list import main

if __name__ == "__main__":
    sys.exit(main())
