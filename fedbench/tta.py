"""`python -m fedbench.tta`: time to accuracy; see `python -m fedbench.tta --help`."""

from __future__ import annotations

import sys

from fedbench.cli.tta import main

if __name__ == "__main__":
    sys.exit(main())
