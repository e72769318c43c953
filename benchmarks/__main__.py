"""`python -m benchmarks speed | uci | images | text | tagi | active | hmc`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bayesrule.app import cli
from benchmarks.commands import active, hmc, images, speed, tagi, uci

_EXAMPLES = """\
examples:
  python -m benchmarks speed                       what a step costs, as a multiple of Adam's
  python -m benchmarks uci --sets boston,yacht     the papers' regression tables
"""


def parser() -> argparse.ArgumentParser:
    """The whole grammar of the benchmarks."""
    top = cli.Parser(
        prog="python -m benchmarks",
        description="Speed, and the papers' tables, reproduced. Results can be kept as json with "
        "command, versions and machine.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = top.add_subparsers(dest="command", required=True, metavar="WHAT")
    for add in (
        speed.add,
        uci.add,
        images.add,
        images.add_text,
        tagi.add_speed,
        active.add,
        hmc.add,
    ):
        add(kinds)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one benchmark and returns the exit code."""
    return cli.run(parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
