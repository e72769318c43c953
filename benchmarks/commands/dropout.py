"""`python -m benchmarks dropout`: dropout as a belief beside the same net without it."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from bayesrule.app.commands import options, text
from benchmarks.beyond import dropout
from benchmarks.commands.kept import check_files, kept, say


def add(kinds: Any) -> None:
    """The grammar of the command."""
    parser = options.add_command(
        kinds,
        "dropout",
        help="dropout as a belief beside the same net without it",
        description="Trains the same net by `map` and by `dropout` on splits of a UCI set, both "
        "with learned noise. Ends with code 1 where dropout is not ahead in log-likelihood and in "
        "calibration.",
        examples="""
            python -m benchmarks dropout --splits 1
            python -m benchmarks dropout --set concrete --out dropout.json
        """,
    )
    options.add_option(parser, "--set", "NAME", "a UCI set", default="concrete")
    options.add_option(
        parser, "--splits", "N", "how many of its splits", read=options.whole(), default=3
    )
    options.add_option(
        parser, "--drop", "P", "probability that a unit is dropped", read=float, default=0.1
    )
    parser.add_argument("--out", metavar="FILE", help="keep the result as json")
    options.add_json(parser)
    parser.set_defaults(run=run, interrupted="Nothing was written.")


def run(args: argparse.Namespace) -> int:
    """Trains both on all splits and prints their means; 1 if dropout is not ahead."""
    check_files(args.out)
    torch.set_num_threads(1)
    result = dropout.run(args.set, args.splits, args.drop, progress=say)
    if not kept(args, result):
        names = ["log_likelihood", "rmse", "calibration_error"]
        means = result["means"].items()
        rows = [[one, *(f"{found[name]:.3f}" for name in names)] for one, found in means]
        print(text.table(["method", *names], rows))
        print(f"{result['set']}, {result['splits']} splits; {result['machine']}.")
    return int(not dropout.better(result))
