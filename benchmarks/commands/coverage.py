"""`python -m benchmarks coverage`: do intervals at defaults hold what they promise?"""

from __future__ import annotations

import argparse
from typing import Any

from bayesrule.app.commands import faults, options, text
from bayesrule.app.data.errors import listing, nearest
from benchmarks.commands.defaults import add_keeping, grown
from benchmarks.commands.kept import printed
from benchmarks.defaults import coverage
from benchmarks.defaults.coverage import ENTRIES, Plan


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "coverage",
        help="intervals of methods at their defaults on data simulated from the prior",
        description="Draws nets 1-20-1 with weights from N(0, 1), makes 50 points of each with "
        f"known noise and inputs in [-{coverage.RANGE:g}, {coverage.RANGE:g}], and trains each "
        "method on them at its defaults, with the true noise. Prints the share of new targets in "
        "intervals of 50, 90 and 95 %, of values of the function in those of 90 % (f90), the "
        "RMSE of the mean and the epistemic standard deviation, inside of the range and outside "
        f"(up to {coverage.OUTSIDE:g}). map-5000 is map with 5,000 steps, for its RMSE. With "
        "--out, each row is kept when it is done.",
        examples="""
            python -m benchmarks coverage --sets 20 --methods map,vogn,laplace
            python -m benchmarks coverage --out coverage.json --jobs 2
        """,
    )
    parser.add_argument(
        "--methods", type=options.names, default=list(ENTRIES), metavar="A,B",
        help=f"(default: all, {','.join(ENTRIES)})",
    )  # fmt: skip
    parser.add_argument(
        "--epochs", type=options.whole(), metavar="N", help="default: those of fit itself"
    )
    parser.add_argument(
        "--members", type=options.whole(), default=Plan.members, metavar="N",
        help="nets whose predictions are averaged, as `bayesrule fit` does with five "
        f"(default: {Plan.members})",
    )  # fmt: skip
    add_simulated(parser, Plan.sets, Plan.noise)
    add_keeping(parser)
    parser.set_defaults(run=run, interrupted="Finished rows are in --out, if it was given.")


def add_simulated(parser: argparse.ArgumentParser, sets: int, noise: float) -> None:
    """Adds the options of benchmarks on data that nets with weights from the prior make."""
    parser.add_argument(
        "--sets", type=options.whole(), default=sets, metavar="N",
        help=f"how many data sets (default: {sets})",
    )  # fmt: skip
    parser.add_argument(
        "--noise", type=options.positive, default=noise, metavar="S",
        help=f"the deviation of the noise (default: {noise:g})",
    )  # fmt: skip
    options.add_seed(parser, "of the first data set (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Trains on simulated sets and prints a row for each method."""
    for name in args.methods:
        if name not in ENTRIES:
            raise faults.CallError(
                f"No method '{name}'.{nearest(name, ENTRIES)} There are {listing(ENTRIES)}."
            )
    plan = Plan(args.sets, args.noise, args.epochs, args.seed, args.members)
    rows = coverage.coverage(args.methods, plan)
    found = grown(args, rows, args.jobs)
    if not printed(args, found):
        _show(found)
    return 0


def _show(found: dict[str, Any]) -> None:
    head = ["method", "epochs", "inside", "f90", "RMSE", "worst", "deviation"]
    head += ["outside", "f90", "RMSE", "deviation", "diverged", "seconds"]
    print(text.table(head, [_cells(row) for row in found["results"] if "failed" not in row]))
    for row in found["results"]:
        if "failed" in row:
            print(f"({row['method']}: {row['failed']})")
    print(f"\n{found['plan']['sets']} data sets; {found['machine']}")


def _cells(row: dict[str, Any]) -> list[str]:
    inside, outside = row["inside"], row["outside"]
    epochs = text.figure(row["epochs"]) if "epochs" in row else "–"
    return [
        *(row["method"], epochs, _levels(inside), f"{100 * inside['f90']:.0f}"),
        *(text.figure(inside[name]) for name in ("rmse", "worst_rmse", "epistemic")),
        *(_levels(outside), f"{100 * outside['f90']:.0f}"),
        *(text.figure(outside[name]) for name in ("rmse", "epistemic")),
        *(str(row.get("diverged", 0)), text.figure(row["seconds"])),
    ]


def _levels(part: dict[str, float]) -> str:
    return "/".join(f"{100 * part[name]:.0f}" for name in ("50", "90", "95"))
