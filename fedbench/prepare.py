"""`python -m fedbench.prepare`: fetch and prepare data sets; see `python -m fedbench.prepare --help`."""

from __future__ import annotations

import sys

from fedbench.cli.prepare import main

if __name__ == "__main__":
    sys.exit(main())
