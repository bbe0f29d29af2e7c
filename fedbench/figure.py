"""`python -m fedbench.figure`: draw a paper's figure; see `python -m fedbench.figure --help`."""

from __future__ import annotations

import sys

from fedbench.cli.figure import main

if __name__ == "__main__":
    sys.exit(main())
