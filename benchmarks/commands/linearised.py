"""`python -m benchmarks linearised`: what a linearised prediction costs."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from bayesrule.app.commands import options, text
from benchmarks.commands.kept import add_timing, check_files, kept
from benchmarks.speed import linearised


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "linearised",
        help="the cost of linearised predictions with Kronecker factors",
        description=f"Times the mean and covariance of the outputs at {linearised.BATCH} inputs "
        "of an MLP 784-400-400-10, and compares the covariance of two inputs with rows of the "
        "Jacobian in float64. Ends with code 1 if a prediction takes more than "
        f"{linearised.BAR:g} ms.",
        examples="""
            python -m benchmarks linearised --rounds 5
            python -m benchmarks linearised --out linearised.json
        """,
    )
    add_timing(parser, rounds=21)
    parser.set_defaults(run=run, interrupted="Nothing was written.")


def run(args: argparse.Namespace) -> int:
    """Times the predictions and prints a table; returns 1 if one misses its bar."""
    check_files(args.out)
    torch.set_num_threads(args.threads)
    result = linearised.run(args.rounds)
    if not kept(args, result):
        _show(result)
    return int(max(one["milliseconds"] for one in result["results"]) > linearised.BAR)


def _show(result: dict[str, Any]) -> None:
    rows = [
        [
            one["belief"],
            *(f"{one[name]:.1f}" for name in ("milliseconds", "fastest", "first_call")),
            f"{one['covariance_error']:.0e}",
        ]
        for one in result["results"]
    ]
    print(text.table(["belief", "ms", "fastest", "first call", "error"], rows))
    print(f"{result['machine']}; medians of {result['rounds']} rounds.")
