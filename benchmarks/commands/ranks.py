"""`python -m benchmarks ranks`: is the truth ranked evenly among the draws of NUTS?"""

from __future__ import annotations

import argparse
from typing import Any

from bayesrule.app.commands import options, text
from benchmarks.commands.coverage import add_simulated
from benchmarks.commands.defaults import add_keeping, grown
from benchmarks.commands.kept import printed
from benchmarks.hmc import ranks
from benchmarks.hmc.ranks import PARTS, Plan


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "ranks",
        help="whether the truth is ranked evenly among draws of NUTS",
        description="Draws nets 1-20-1 with weights from the prior, makes 50 points of each, and "
        "samples the posterior with br.hmc, which takes two minutes for each set and needs "
        "nutpie. Prints whether ranks of the true function among the draws are uniform (the "
        "p-value of Kolmogorov and Smirnov, from one point of each set), and how many of its "
        "values lie in intervals of 90 % (f90), inside the range of the data and outside. With "
        "--out, each set is kept when it is done.",
        examples="""
            python -m benchmarks ranks --sets 4
            python -m benchmarks ranks --jobs 2 --out benchmarks/results/ranks.json
        """,
    )
    add_simulated(parser, Plan.sets, Plan.noise)
    add_keeping(parser)
    parser.set_defaults(run=run, interrupted="Finished sets are in --out, if it was given.")


def run(args: argparse.Namespace) -> int:
    """Samples all sets and prints the summary; 1 if ranks are not even."""
    rows = ranks.ranks(Plan(args.sets, args.noise, args.seed))
    found = grown(args, rows, args.jobs)
    if not printed(args, found):
        _show(found)
    return 0 if ranks.good(found) else 1


def _show(found: dict[str, Any]) -> None:
    means = found["summary"]
    cells = [
        [part, f"{means[part]['p_value']:.2g}", *_share(means[part])]
        for part in PARTS
        if part in means
    ]
    print(text.table(["points", "p of even ranks", "f90", "error", "targets in 90 %"], cells))
    for row in found["results"]:
        if "failed" in row:
            print(f"(set {row['set']}: {row['failed']})")
    print(f"\n{means.get('sets', 0)} data sets; {found['machine']}")


def _share(part: dict[str, float]) -> list[str]:
    return [f"{100 * part[name]:.1f} %" for name in ("f90", "f90_error", "90")]
