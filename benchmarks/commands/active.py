"""`python -m benchmarks active`: active learning on UCI sets, with the published table."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from bayesrule.app.commands import faults, options, text
from benchmarks.commands.kept import check_files, keeper, printed
from benchmarks.regression import active

# The paper's columns: R for random rows, A for those of the largest variance.
_LETTERS = {"random": "R", "variance": "A"}


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "active",
        help="active learning on UCI sets, beside the noisy natural gradient paper",
        description=f"Learns from {active.START} rows, then {active.STEPS} times asks for one "
        "more label and learns again from scratch: for a random row, or for the row whose "
        f"prediction varies most. Prints the RMSE on {active.TEST} test rows after the last label "
        "(mean over trials and standard error), beside Table 2 of Zhang et al. (2018), which "
        "does not say how many trials it has. All randomness of a trial follows from its number, "
        "so criteria and methods start from the same rows. With --out, finished trials are "
        "written at once, and the same call resumes. A trial takes some seconds on one core; set "
        "OMP_NUM_THREADS=1, because the nets are small.",
        examples="""
            python -m benchmarks active --sets boston,yacht --trials 5
            python -m benchmarks active --methods vogn,laplace --criteria random,variance,bald,epig
            python -m benchmarks active --trials 40 --out active.json
        """,
    )
    for name, default, what in (
        ("methods", "vogn", "methods"),
        ("sets", ",".join(active.PUBLISHED), "data sets"),
        ("criteria", ",".join(_LETTERS), f"of {', '.join(active.CRITERIA)}"),
    ):
        parser.add_argument(
            f"--{name}",
            type=options.names,
            default=default,
            metavar="A,B",
            help=f"{what} (default: {default})",
        )
    parser.add_argument(
        "--trials", type=options.whole(), default=10, metavar="N", help="(default: 10)"
    )
    parser.add_argument(
        "--epochs", type=options.whole(), metavar="N", help="(default: the method's own)"
    )
    parser.add_argument(
        "--out", metavar="FILE", help="write trials and result as json, and resume from there"
    )
    options.add_seed(parser, "of rows, first weights and draws (default: 0)")
    options.add_json(parser)
    parser.set_defaults(run=run, interrupted="Finished trials are in --out, if that was given.")


def run(args: argparse.Namespace) -> int:
    """Runs the missing trials and prints a table for each method."""
    with faults.of_the_call():
        active.check(args.methods, args.sets, args.criteria)
    plan = active.Plan(epochs=args.epochs, seed=args.seed)
    check_files(args.out)
    keep = keeper(args)
    found = active.run(
        args.methods,
        args.sets,
        args.criteria,
        num=args.trials,
        plan=plan,
        known=active.read(Path(args.out), plan) if args.out else (),
        keep=keep,
        progress=lambda line: print(line, file=sys.stderr, flush=True),
    )
    keep(found)
    if printed(args, found):
        return 0
    for method in dict.fromkeys(one["method"] for one in found["results"]):
        _show(method, [one for one in found["results"] if one["method"] == method])
    print(
        f"\n{found['machine']}; means over trials and their standard errors. R: random rows, A: "
        "those of the largest variance; Zhang et al. (2018), Table 2."
    )
    return 0


def _show(method: str, results: list[dict[str, Any]]) -> None:
    by_place = {(one["set"], one["criterion"]): one for one in results}
    sets = list(dict.fromkeys(one["set"] for one in results))
    own = [c for c in active.CRITERIA if any(one["criterion"] == c for one in results)]
    others = [(who, c) for who in ("NNG-MVG", "PBP", "HMC") for c in _LETTERS]
    head = ["set", *own, *(f"{who} {_LETTERS[c]}" for who, c in others)]
    rows = [
        [
            name,
            *(_cell(by_place.get((name, criterion))) for criterion in own),
            *(_published(name, who, criterion) for who, criterion in others),
        ]
        for name in sets
    ]
    counts = sorted({one["trials"] for one in results})
    spoken = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    print(f"\n{method}: test RMSE after {active.STEPS} labels, {spoken} trials")
    print(text.table(head, rows))
    if failed := sum(one["failed"] for one in results):
        print(f"({failed} trials failed and are left out.)")
    better, both = _better(by_place, sets)
    if both:
        print(f"The largest variance is better than random rows on {better} of {both} sets.")


def _cell(one: dict[str, Any] | None) -> str:
    if one is None or not one["trials"]:
        return "–"
    return text.with_error(one["rmse"]["mean"], one["rmse"]["error"])


def _published(name: str, who: str, criterion: str) -> str:
    figures = active.PUBLISHED.get(name)
    return f"{figures[who][criterion][0]:.3f}" if figures else "–"


def _better(by_place: dict[tuple[str, str], dict[str, Any]], sets: list[str]) -> tuple[int, int]:
    """On how many sets the criterion has the smaller mean RMSE, among those that have both."""
    places = [(by_place.get((n, "variance")), by_place.get((n, "random"))) for n in sets]
    means = [
        (chosen["rmse"]["mean"], random["rmse"]["mean"])
        for chosen, random in places
        if chosen and random and chosen["trials"] and random["trials"]
    ]
    return sum(chosen < random for chosen, random in means), len(means)
