"""`python -m flowjax`: the command line."""

import sys

from flowjax.cli import main

if __name__ == "__main__":
    sys.exit(main())
