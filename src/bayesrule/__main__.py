"""`python -m bayesrule` is the command line."""

import sys

from bayesrule.app.cli import main

if __name__ == "__main__":
    sys.exit(main())
