"""The command line: `bayesrule methods | fit | predict | compare | bench`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from bayesrule import __version__
from bayesrule.checkpoint import CheckpointError
from bayesrule.commands import bench, compare, fit, methods, predict
from bayesrule.data.errors import DataError
from bayesrule.train import TrainingError

_EXAMPLES = """\
examples:
  bayesrule compare                                  every method on a built-in set; writes a report
  bayesrule compare house.csv --target price         the same on your own table
  bayesrule fit house.csv --target price --method vogn --out run/
  bayesrule predict run/ new.csv --out predictions.csv
  bayesrule methods                                  what there is, and of which parts it is made
  bayesrule bench speed                              what a step costs, as a multiple of Adam's

exit codes:
  0  done        1  a run failed        2  the call or the data has a fault        130  interrupted
"""


def parser() -> argparse.ArgumentParser:
    """The whole grammar of the command line."""
    top = argparse.ArgumentParser(
        prog="bayesrule",
        description="Neural networks that know what they do not know.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"bayesrule {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (methods, fit, predict, compare, bench):
        module.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; what a person can put right is one line on stderr, not a traceback."""
    args = parser().parse_args(argv)
    try:
        return int(args.run(args))
    except (DataError, CheckpointError, ValueError, TypeError, OSError, ImportError) as problem:
        if isinstance(problem, BrokenPipeError):
            # The reader of a pipe has left; nothing more can be said to it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return _say(problem, 2)
    except TrainingError as problem:
        return _say(problem, 1)
    except KeyboardInterrupt:
        return _say(
            "Interrupted. With --out, the same command goes on from the last checkpoint.", 130
        )


def _say(problem: object, code: int) -> int:
    print(f"bayesrule: {problem}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
