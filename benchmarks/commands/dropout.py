"""`python -m benchmarks dropout`: dropout compared with the same net without it."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from bayesrule.app.commands import options, text
from benchmarks.beyond import dropout
from benchmarks.commands.kept import check_files, kept, say, several


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "dropout",
        help="dropout, compared with the same net without it",
        description="Trains the same net by `map` and by `dropout`: on splits of a UCI set, "
        f"with learned noise, and on {dropout.PICTURES.most:,} images of Fashion-MNIST from as "
        "many seeds. The drop probability is chosen on held-out training rows. Ends with code 1 "
        "if dropout is not ahead in log-likelihood and in calibration.",
        examples="""
            python -m benchmarks dropout --sets boston --splits 1
            python -m benchmarks dropout --sets boston,fashion_mnist --out dropout.json
        """,
    )
    options.add_option(
        parser,
        "--sets",
        "A,B",
        f"UCI sets, and {dropout.IMAGES}",
        read=options.names,
        default=["boston", dropout.IMAGES],
    )
    options.add_option(
        parser, "--splits", "N", "how many of its splits", read=options.whole(), default=3
    )
    options.add_option(
        parser,
        "--drops",
        "P,P",
        "probabilities that a unit is dropped, to choose from",
        read=several(options.positive),
        default=[0.02, 0.05, 0.1, 0.2],
    )
    parser.add_argument("--out", metavar="FILE", help="write the result as json")
    options.add_json(parser)
    parser.set_defaults(run=run, interrupted="Nothing was written.")


def run(args: argparse.Namespace) -> int:
    """Trains both on all splits and prints their means; returns 1 if dropout is not ahead."""
    check_files(args.out)
    torch.set_num_threads(1)
    result = dropout.run(args.sets, args.splits, args.drops, progress=say)
    if not kept(args, result):
        _show(result)
    return int(not dropout.better(result))


def _show(result: dict[str, Any]) -> None:
    names = ["log_likelihood", "error", "calibration_error"]
    rows = [
        [data, one, *(f"{found[name]:.3f}" for name in names)]
        for data, both in result["means"].items()
        for one, found in both.items()
    ]
    print(text.table(["set", "method", *names], rows))
    drops = ", ".join(f"{drop:g} on {name}" for name, drop in result["drop"].items())
    print(
        f"Errors are root mean squares, or percent of {dropout.IMAGES}; dropped are {drops}; "
        f"{result['splits']} splits; {result['machine']}."
    )
