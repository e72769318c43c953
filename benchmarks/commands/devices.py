"""`python -m benchmarks devices`: checkpoints that move between devices."""

from __future__ import annotations

import argparse
from typing import Any

from bayesrule.app.commands import options, text
from benchmarks.commands.kept import check_files, kept
from benchmarks.trust import devices


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "devices",
        help="checkpoints of every method, written on one device and loaded on another",
        description="Trains every method for a few steps, saves its state, loads it on the "
        "other device, compares the posteriors and trains on.",
        examples="""
            python -m benchmarks devices --devices cpu,cuda
        """,
    )
    parser.add_argument(
        "--devices", type=options.names, default=["cpu"], metavar="A,B", help="(default: cpu)"
    )
    parser.add_argument("--out", metavar="FILE", help="write the result as json")
    options.add_json(parser)
    parser.set_defaults(run=run, interrupted="Nothing was written.")


def run(args: argparse.Namespace) -> int:
    """Moves all methods and prints a table."""
    check_files(args.out)
    result = devices.run(args.devices)
    if not kept(args, result):
        heads = ["method", "from", "to", "largest difference", "loss after"]
        rows = [
            [
                *(one["method"], one["from"], one["to"]),
                *(f"{one[key]:.2g}" for key in ("largest_difference", "loss_after")),
            ]
            for one in result["results"]
        ]
        print(text.table(heads, rows))
    return 0
