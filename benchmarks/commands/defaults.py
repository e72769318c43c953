"""`python -m benchmarks families` and `defaults`: every method at its defaults on many tables."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from bayesrule.app.commands import faults, options, text
from bayesrule.app.data.errors import listing
from benchmarks.commands.kept import check_files, keeper, printed, say
from benchmarks.data.uci import UCI, uci_set
from benchmarks.defaults import tables
from benchmarks.defaults.rows import Rows
from benchmarks.trust.families import FAMILIES

_KEPT = "Finished rows are in --out, if that was given."
_ABOUT = (
    "Scores are mean test log-likelihoods in units of standardised targets. Each method is held "
    "against map on the same rows: at least as good by the mean, and within one standard error of "
    "the paired differences. With --out, each row is kept when it is done, and the same call goes "
    "on from there."
)


def add_families(kinds: Any) -> None:
    """Adds `python -m benchmarks families` and its options."""
    parser = options.add_command(
        kinds,
        "families",
        help="methods at their defaults on generated tables, one family for each difficulty",
        description="Generates tables of seven families (heavy tails, few rows, many columns, "
        "collinear columns, growing noise, waves, a rare class), trains every method at its "
        f"defaults and baselines of scikit-learn, and tests on 1,000 rows of the same function. "
        f"{_ABOUT}",
        examples="""
            python -m benchmarks families --seeds 1 --families few_rows,periodic
            python -m benchmarks families --methods map,ivon --jobs 2
            python -m benchmarks families --all --seeds 5 --jobs 8 --out families.json
        """,
    )
    worth = "default: those that are worth their time, and all baselines"
    _add_names(parser, "methods", f"methods and baselines ({worth})")
    _add_names(parser, "families", f"(default: {','.join(FAMILIES)})")
    parser.add_argument("--all", action="store_true", help="every method that fits")
    parser.add_argument(
        "--seeds", type=options.whole(), default=5, metavar="N",
        help="tables of each family (default: 5)",
    )  # fmt: skip
    add_keeping(parser)
    parser.set_defaults(run=run_families, interrupted=_KEPT)


def add_uci(kinds: Any) -> None:
    """Adds `python -m benchmarks defaults` and its options."""
    parser = options.add_command(
        kinds,
        "defaults",
        help="methods at their defaults on the nine UCI sets, beside baselines",
        description="Trains methods at the front's defaults, the same for all sets, and two "
        f"baselines of scikit-learn on the standard splits of the nine UCI sets. {_ABOUT}",
        examples="""
            python -m benchmarks defaults --sets boston,yacht --splits 2
            python -m benchmarks defaults --splits 5 --jobs 8 --out uci_defaults.json
        """,
    )
    _add_names(
        parser, "methods", f"methods and baselines (default: {','.join(tables.UCI_METHODS)})"
    )
    _add_names(parser, "sets", f"(default: {','.join(UCI)})")
    parser.add_argument(
        "--splits", type=options.whole(), metavar="N",
        help="only the first N of each set (default: all, 20, and 5 of protein)",
    )  # fmt: skip
    add_keeping(parser)
    parser.set_defaults(run=run_uci, interrupted=_KEPT)


def _add_names(parser: argparse.ArgumentParser, name: str, what: str) -> None:
    parser.add_argument(f"--{name}", type=options.names, metavar="A,B", help=what)


def add_keeping(parser: argparse.ArgumentParser, *, jobs: bool = True) -> None:
    """Adds the options of benchmarks that keep their rows."""
    if jobs:
        parser.add_argument(
            "--jobs", type=options.whole(), default=1, metavar="N",
            help="processes, each with one thread (default: 1)",
        )  # fmt: skip
    parser.add_argument(
        "--out", metavar="FILE", help="write the result as json, and resume from there"
    )
    options.add_json(parser)


def run_families(args: argparse.Namespace) -> int:
    """Trains on the missing generated tables."""
    with faults.of_the_call():
        names = args.families or list(FAMILIES)
        if strange := [name for name in names if name not in FAMILIES]:
            raise faults.CallError(f"No family '{strange[0]}'. There are {listing(FAMILIES)}.")
        methods = tables.known_names(args.methods) if args.methods else None
        rows = tables.families(names, args.seeds, methods, every=args.all or bool(methods))
    return _finish(args, rows)


def run_uci(args: argparse.Namespace) -> int:
    """Trains on the missing splits."""
    with faults.of_the_call():
        names = [uci_set(name).name for name in args.sets or UCI]
        methods = tables.known_names(args.methods or tables.UCI_METHODS)
        rows = tables.uci_splits(names, args.splits, methods)
    return _finish(args, rows)


def grown(args: argparse.Namespace, rows: Rows, jobs: int = 1) -> dict[str, Any]:
    """The result with all rows, written as it grows."""
    check_files(args.out)
    if not rows.items:
        raise faults.CallError("None of these methods fits any of these tables.")
    known, keep = rows.read(args.out), keeper(args)
    found = rows.run(known, jobs=jobs, keep=keep, progress=say)
    keep(found)
    return found


def _finish(args: argparse.Namespace, rows: Rows) -> int:
    torch.set_num_threads(1)
    found = grown(args, rows, args.jobs)
    if not printed(args, found):
        _show(found)
    return 0


def _show(found: dict[str, Any]) -> None:
    sets, methods = found["sets"], found["methods"]
    for score, title in (("log_likelihood", "mean test log-likelihood"), ("rmse", "RMSE")):
        shown = [name for name, own in sets.items() if any(score in one for one in own.values())]
        if shown:
            cells = [
                [method, *(_cell(sets[name].get(method), score) for name in shown)]
                for method in methods
            ]
            print(f"\n{title}")
            print(text.table(["method", *shown], cells))
    _show_methods(methods)
    for row in found["results"]:
        if "failed" in row:
            print(f"({row['method']} on {row['set']}, {row['part']}: {row['failed']})")
    print(f"\n{found['machine']}")


def _cell(one: dict[str, Any] | None, score: str) -> str:
    if one is None or score not in one:
        return "–"
    return text.figure(one[score]) + "*" * (one["failed"] > 0)


def _show_methods(methods: dict[str, dict[str, Any]]) -> None:
    head = ["method", "≥ map", "within error", "of sets", "failed", "< constant", "rank", "seconds"]
    cells = []
    for method, one in sorted(methods.items(), key=lambda pair: pair[1]["mean_rank"]):
        counts = ("as_good", "as_good_within_error", "compared", "failed", "worse_than_constant")
        cells.append([method, *(str(one[name]) for name in counts)])
        cells[-1] += [f"{one['mean_rank']:.2f}", text.figure(one["seconds"])]
    print("\nover all sets (* failed in some)")
    print(text.table(head, cells))
