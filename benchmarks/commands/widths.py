"""`python -m benchmarks widths`: a step's time and state by the width of the layers."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bayesrule.app.commands import faults, options, text
from bayesrule.methods import find
from benchmarks.commands.kept import add_threads, check_files, printed, say, several, write
from benchmarks.speed import widths


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "widths",
        help="the time and memory of a step, by the width of the layers",
        description="Times steps of nets with two square layers. A method that estimates the "
        "curvature in every 10th step and inverts it in every 100th has three kinds of steps; "
        "each kind is timed separately, and the mean is that of a whole cycle. The state is "
        "counted in bytes after a step. Layers of 4096 units take minutes.",
        examples="""
            python -m benchmarks widths --widths 32,64,128
            python -m benchmarks widths --methods map,noisy_kfac --picture widths.svg
        """,
    )
    parser.add_argument(
        "--widths",
        type=several(options.whole()),
        default=list(widths.WIDTHS),
        metavar="N,N",
        help=f"(default: {','.join(map(str, widths.WIDTHS))})",
    )
    parser.add_argument(
        "--methods",
        type=options.names,
        default=list(widths.METHODS),
        metavar="A,B",
        help=f"(default: {','.join(widths.METHODS)})",
    )
    add_threads(parser)
    parser.add_argument("--out", metavar="FILE", help="write the result as json as it grows")
    parser.add_argument("--picture", metavar="FILE", help="draw an svg file of the result")
    options.add_json(parser)
    parser.set_defaults(run=run, interrupted="Finished timings are in --out, if that was given.")


def run(args: argparse.Namespace) -> int:
    """Times all methods at all widths and prints a table."""
    with faults.of_the_call():
        for name in args.methods:
            find(name)
    check_files(args.out, args.picture)
    torch.set_num_threads(args.threads)
    result = widths.run(args.widths, args.methods, keep=partial(write, args), progress=say)
    if args.picture:
        Path(args.picture).write_text(widths.picture(result["results"]))
    if not printed(args, result):
        _show(result)
    return 0


def _show(result: dict[str, Any]) -> None:
    rows = [
        [str(one["width"]), one["method"], widths.line(one), f"{one['state_bytes'] / 1e6:.2f}"]
        for one in result["results"]
        if "refused" not in one
    ]
    print(text.table(["width", "method", "a mean step", "state, MB"], rows))
    print(f"{result['machine']}.")
