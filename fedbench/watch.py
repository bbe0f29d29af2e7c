"""`python -m fedbench.watch`: the state of a table that is being filled; see `python -m fedbench.watch --help`."""

from __future__ import annotations

import sys

from fedbench.cli.watch import main

if __name__ == "__main__":
    sys.exit(main())
