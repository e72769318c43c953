"""`python -m benchmarks table`: a UCI set as a csv file, for the command line of the library."""

from __future__ import annotations

import argparse
from typing import Any

from bayesrule.app.commands import options
from benchmarks.commands.kept import check_files
from benchmarks.data.uci import UCI, uci_set, uci_table


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "table",
        help="write a UCI set as a csv file",
        description="Writes all rows of a UCI set as csv, with the columns x0, x1, ... and the "
        "target y, for `bayesrule fit` and `bayesrule compare`.",
        examples="""
            python -m benchmarks table boston --out boston.csv
        """,
    )
    parser.add_argument("name", metavar="SET", help=f"one of {', '.join(UCI)}")
    parser.add_argument("--out", metavar="FILE", help="the csv file (default: SET.csv)")
    parser.set_defaults(run=run, interrupted="Nothing was written.")


def run(args: argparse.Namespace) -> int:
    """Writes the table and prints how to use it."""
    file = args.out or f"{uci_set(args.name).name}.csv"
    check_files(file)
    table = uci_table(args.name)
    table.frame.to_csv(file, index=False)
    print(f"{len(table)} rows: {file}. Next: bayesrule fit {file} --target {table.target}")
    return 0
