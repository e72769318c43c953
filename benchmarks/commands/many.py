"""`python -m benchmarks many`: nets trained together and one after another."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from bayesrule.app.commands import faults, options, text
from benchmarks.commands.kept import add_timing, check_files, kept
from benchmarks.regression import uci
from benchmarks.speed import many


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "many",
        help="nets trained together, compared with one after another",
        description="Trains a net for each split of a UCI set for an epoch, all together "
        "(br.fit_many) and one after another (br.fit), in turn, and compares the predictions of "
        f"both. Ends with code 1 if a method is not {many.BAR:g} times faster together.",
        examples="""
            python -m benchmarks many
            python -m benchmarks many --set yacht --nets 5 --rounds 3 --out many.json
        """,
    )
    parser.add_argument("--set", default="boston", metavar="NAME", help="(default: boston)")
    parser.add_argument(
        "--nets", type=options.whole(), default=20, metavar="N", help="splits (default: 20)"
    )
    add_timing(parser, rounds=5)
    parser.set_defaults(run=run, interrupted="Nothing was written.")


def run(args: argparse.Namespace) -> int:
    """Times the methods and prints a table; returns 1 if one misses its bar."""
    with faults.of_the_call():
        uci.check([args.set], ())
    check_files(args.out)
    torch.set_num_threads(args.threads)
    result = many.run(args.set, args.nets, args.rounds)
    if not kept(args, result):
        _show(result)
    return int(min(one["ratio"] for one in result["results"]) < many.BAR)


def _show(result: dict[str, Any]) -> None:
    rows = [
        [
            one["method"],
            f"{one['seconds']['together']:.2f}",
            f"{one['seconds']['apart']:.2f}",
            f"{one['ratio']:.1f}",
            f"{one['largest_difference']:.0e}",
        ]
        for one in result["results"]
    ]
    heads = ["method", "together, s", "one by one, s", "× faster", "difference"]
    print(f"An epoch of {result['nets']} nets on {result['set']}")
    print(text.table(heads, rows))
    print(f"{result['machine']}; medians of {result['rounds']} rounds.")
