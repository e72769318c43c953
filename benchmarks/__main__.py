"""`python -m benchmarks WHAT`: speed, the papers' tables, and the tables in the docs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bayesrule.app import cli
from benchmarks.commands import (
    active,
    adversarial,
    bandits,
    coverage,
    defaults,
    devices,
    dropout,
    folders,
    gaussian_models,
    graphical,
    heteroscedastic,
    hmc,
    hostile,
    images,
    linearised,
    many,
    minima,
    permuted,
    predictions,
    qlearning,
    ranks,
    resnet,
    speed,
    squares,
    table,
    tables,
    tagi,
    transformer,
    uci,
    versions,
    widths,
)

_EXAMPLES = """\
examples:
  python -m benchmarks speed                       the cost of a training step, relative to Adam's
  python -m benchmarks uci --sets boston,yacht     the papers' regression tables
  python -m benchmarks images mnist-fnn            TAGI on handwritten digits
  python -m benchmarks table boston                a UCI set as a csv file, for `bayesrule fit`
  python -m benchmarks images --help               all options of a benchmark

Data come from the folder named by BAYESRULE_DATA, then from a cache; else they are downloaded.
"""

COMMANDS = (
    *(speed.add, tagi.add_speed, versions.add, many.add, widths.add, linearised.add),
    *(predictions.add, squares.add),
    *(uci.add, active.add, hmc.add, heteroscedastic.add, minima.add),
    *(dropout.add, permuted.add, bandits.add, qlearning.add),
    *(graphical.add, gaussian_models.add),
    *(defaults.add_families, defaults.add_uci, coverage.add, ranks.add),
    *(images.add, images.add_text, adversarial.add, resnet.add),
    transformer.add,
    *(devices.add, folders.add, hostile.add, table.add, tables.add),
)
"""What adds each command: speed, regression, decisions, defaults, images, files and docs."""


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    top = cli.Parser(
        prog="python -m benchmarks",
        description="Times the library and reproduces the papers' tables. Results can be kept as "
        "json, with command, versions and machine.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = top.add_subparsers(dest="command", required=True, metavar="WHAT")
    for add in COMMANDS:
        add(kinds)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one benchmark and returns the exit code."""
    return cli.run(parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
