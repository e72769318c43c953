"""`python -m benchmarks folders`: run folders with flipped bits, and runs that are killed."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from bayesrule.app.commands import options, text
from benchmarks.commands.kept import check_files, kept, say
from benchmarks.trust import folders


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "folders",
        help="flipped bits in the files of a run, and runs killed at random moments",
        description="Flips single bits in all files of a finished run and checks whether they "
        "are noticed; kills runs at random moments and checks whether they end bit for bit like "
        "one that was not killed. Ends with code 1 if a flip was missed or an end differs.",
        examples="""
            python -m benchmarks folders
            python -m benchmarks folders --flips 1000 --kills 200 --out folders.json
        """,
    )
    for name, default in (("flips", 100), ("kills", 20)):
        parser.add_argument(
            f"--{name}", type=options.whole(), default=default, metavar="N",
            help=f"(default: {default})",
        )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(default: 0)")
    parser.add_argument("--out", metavar="FILE", help="write the result as json")
    options.add_json(parser)
    parser.set_defaults(run=run, interrupted="Nothing was written.")


def run(args: argparse.Namespace) -> int:
    """Flips bits and kills runs, and prints the outcomes; returns 1 if something was missed."""
    check_files(args.out)
    torch.set_num_threads(1)
    result = folders.run(args.flips, args.kills, args.seed, say)
    if not kept(args, result):
        _show(result)
    ends = result["kills"]
    return int(result["flips"]["missed"] + ends["unequal"] + ends["refused"] > 0)


def _show(result: dict[str, Any]) -> None:
    flips, kills = result["flips"], result["kills"]
    rows = [
        [name, *(str(one[what]) for what in ("detected", "harmless", "missed"))]
        for name, one in {**flips["by_file"], "all": flips}.items()
    ]
    print(f"{flips['number']} flipped bits")
    print(text.table(["file", "detected", "harmless", "missed"], rows))
    print(
        f"{kills['kills']} kills of {kills['runs']} runs: {kills['bit_equal']} ended bit for bit "
        f"like one that was not killed, {kills['unequal']} otherwise, {kills['refused']} refused."
    )
    print(f"{result['machine']}; {result['seconds']} s.")
