"""`python -m benchmarks predictions`: what predictions by weight draws cost."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from bayesrule.app.commands import faults, options, text
from benchmarks.commands.kept import add_timing, check_files, kept
from benchmarks.speed import predictions
from benchmarks.trials import usable


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "predictions",
        help="the cost of predictions by weight draws",
        description="Times predictions by 100 weight draws and PyTorch's own calls of the "
        "module with one draw after another, in turn within one run, and compares their outputs.",
        examples="""
            python -m benchmarks predictions --cases small,few --rounds 3
            python -m benchmarks predictions --device cuda --out predictions_gpu.json
        """,
    )
    parser.add_argument(
        "--cases",
        type=options.names,
        metavar="A,B",
        help=f"of {','.join(predictions.CASES)} (default: "
        f"{','.join(predictions.default_cases('cpu'))}, and on cuda all)",
    )
    parser.add_argument(
        "--methods",
        type=options.names,
        metavar="A,B",
        default=list(predictions.METHODS),
        help=f"(default: {','.join(predictions.METHODS)})",
    )
    parser.add_argument(
        "--device", default="cpu", metavar="NAME", help="cpu or cuda (default: cpu)"
    )
    add_timing(parser, rounds=5)
    parser.set_defaults(run=run, interrupted="Nothing was written.")


def run(args: argparse.Namespace) -> int:
    """Times the predictions and prints a table."""
    cases = args.cases or predictions.default_cases(args.device)
    with faults.of_the_call():
        predictions.check(cases)
        usable(args.device)
    check_files(args.out)
    torch.set_num_threads(args.threads)
    found = predictions.run(cases, args.methods, args.rounds, args.device)
    if not kept(args, found):
        _show(found)
    return 0


def _show(found: dict[str, Any]) -> None:
    rows = [
        [
            f"{one['title']}, {one['method']}",
            *(f"{one['milliseconds'][way]:.1f}" for way in ("one_by_one", "outputs_at", "predict")),
            f"{one['times_faster']:.2f}",
            f"{one['error']:.0e}",
        ]
        for one in found["results"]
    ]
    heads = ["predictions", "one by one, ms", "together, ms", "predict, ms", "× faster", "error"]
    print(text.table(heads, rows))
    print(f"{found['machine']}, {found['precision']}; medians of {found['rounds']} rounds.")
