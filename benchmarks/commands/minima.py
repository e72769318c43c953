"""`python -m benchmarks minima`: several minima in one run."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from bayesrule.app.commands import options, text
from benchmarks.beyond import minima
from benchmarks.commands.kept import check_files, kept, say


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "minima",
        help="several minima of a function in one run",
        description=f"Lets br.find_minima with {minima.COMPONENTS} components look for the five "
        "arms of a star-shaped density and the four minima of Himmelblau's function. Ends with "
        f"code 1 if fewer than {minima.BAR:.0%} of the seeds find all of them, or if the "
        f"divergence from the star exceeds {minima.LARGEST_DIVERGENCE:g} nats.",
        examples="""
            python -m benchmarks minima --seeds 2
            python -m benchmarks minima --out minima.json
        """,
    )
    options.add_option(
        parser, "--seeds", "N", "how many runs of each", read=options.whole(), default=10
    )
    parser.add_argument("--out", metavar="FILE", help="write the result as json")
    options.add_json(parser)
    parser.set_defaults(run=run, interrupted="Nothing was written.")


def run(args: argparse.Namespace) -> int:
    """Looks for the minima and prints a table; returns 1 if too few were found."""
    check_files(args.out)
    torch.set_num_threads(1)
    result = minima.run(args.seeds, progress=say)
    if not kept(args, result):
        _show(result)
    return int(not minima.good(result))


def _show(result: dict[str, Any]) -> None:
    rows = [
        [
            one["function"],
            str(one["seed"]),
            f"{one['found']} of {one['known']}",
            f"{one['divergence']:.4f}" if "divergence" in one else "–",
            f"{one['seconds']:.1f}",
        ]
        for one in result["results"]
    ]
    print(text.table(["function", "seed", "found", "KL", "seconds"], rows))
    print(f"{result['components']} components; {result['machine']}.")
