"""`python -m benchmarks hostile`: odd tables, odd options, and many threads at once."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import torch

from bayesrule.app.commands import options, text
from benchmarks.commands.kept import check_files, kept, say
from benchmarks.trust.hostile import whole

_OUTCOMES = ("read", "done", "failed", "refused", "wrong", "traceback")


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "hostile",
        help="odd tables, odd options, and eight threads at once",
        description="Draws odd tables (csv, tsv, npz, parquet, whole and damaged) and checks "
        "that each is refused in one line or means what its cells say, alone and among other "
        "rows. Some are trained on and predicted, and the predictions read back. Then it calls "
        "the command line with random options, and one learner and one scikit-learn estimator "
        "from eight threads. Ends with code 1 if anything was wrong.",
        examples="""
            python -m benchmarks hostile
            python -m benchmarks hostile --tables 10000 --calls 5000 --rounds 100 --out hostile.json
            python -m benchmarks hostile --first 1298 --tables 1 --calls 0 --rounds 0
        """,
    )
    sizes = (
        ("tables", 500, "odd tables"),
        ("calls", 250, "calls with random options, a fifth of them with the work"),
        ("rounds", 5, "how often each thing is asked of eight threads"),
        ("first", 0, "the number of the first table, to see one again"),
    )
    for name, default, meaning in sizes:
        options.add_option(
            parser, f"--{name}", "N", meaning, read=options.whole(0), default=default
        )
    options.add_option(parser, "--seed", "N", "of all tables and calls", read=int, default=0)
    parser.add_argument("--out", metavar="FILE", help="write the result as json")
    options.add_json(parser)
    parser.set_defaults(run=run, interrupted="Nothing was written.")


def run(args: argparse.Namespace) -> int:
    """Tries everything and prints the outcomes; returns 1 if anything was wrong."""
    check_files(args.out)
    torch.set_num_threads(1)
    result = whole.run(
        args.tables, args.calls, args.rounds, first=args.first, seed=args.seed, progress=say
    )
    if not kept(args, result):
        _show(result)
    return int(result["number_of_faults"] > 0)


def _show(result: dict[str, Any]) -> None:
    print(f"{result['number_of_tables']} tables, {result['number_of_calls']} calls")
    print(_table("kind", {**result["tables"], **result["options"]}, _OUTCOMES))
    if result["threads"]:
        print(f"\n{result['number_of_threads']} threads at once")
        columns = ("answers", "unequal", "modules changed")
        print(_table("asked", result["threads"], columns))
    print()
    for fault in result["faults"]:
        print("{kind} {number}: {fault}: {what}".format_map(fault))
    read_back = result["tables"].get("trained on", {}).get("cells read back", 0)
    print(
        f"{read_back} cells of predictions were read back. {result['number_of_faults']} faults. "
        f"{result['machine']}; {result['seconds']} s."
    )


def _table(first: str, counts: Mapping[str, Mapping[str, int]], columns: tuple[str, ...]) -> str:
    rows = [
        [name, *(str(found.get(column, 0)) for column in columns)] for name, found in counts.items()
    ]
    return text.table([first, *columns], rows)
