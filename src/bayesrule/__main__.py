"""`python -m bayesrule` is the command line."""

import sys

from bayesrule.cli import main

if __name__ == "__main__":
    sys.exit(main())
