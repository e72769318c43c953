"""`python -m benchmarks graphical`: mixtures, topics and hidden Markov models beside others'."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from bayesrule.app.commands import options, text
from benchmarks.beyond import graphical
from benchmarks.commands.kept import check_places, drawn, kept, say
from benchmarks.pictures import growth


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "graphical",
        help="graphical models beside scikit-learn's and hmmlearn's",
        description="Fits Gaussian mixtures, topics of film reviews and hidden Markov models of "
        "hourly loads, beside scikit-learn and, if it is installed, hmmlearn, on one thread. "
        f"Ends with code 1 if a pass takes more than {graphical.LARGEST_RATIO:g} times as long as "
        "theirs, a fit is less likely, or twice the data take more than "
        f"{graphical.LARGEST_GROWTH:g} times as long.",
        examples="""
            python -m benchmarks graphical --rows 40000 --documents 1000 --passes 2
            python -m benchmarks graphical --out graphical.json
        """,
    )
    whole = options.whole()
    options.add_option(parser, "--rows", "N", "rows of the mixture", read=whole, default=1_000_000)
    options.add_option(parser, "--documents", "N", "reviews at most", read=whole, default=25_000)
    options.add_option(parser, "--passes", "N", "passes that are timed", read=whole, default=5)
    parser.add_argument("--out", metavar="FILE", help="write the result as json")
    parser.add_argument("--pictures", metavar="FOLDER", help="draw how time grows with the data")
    options.add_json(parser)
    parser.set_defaults(run=run, interrupted="Nothing was written.")


def run(args: argparse.Namespace) -> int:
    """Fits all models and prints a table; 1 if one is too slow or too unlikely."""
    check_places(args)
    torch.set_num_threads(1)
    result = graphical.run(args.rows, args.documents, args.passes, progress=say)
    drawn(args, "graphical", result, growth.of_graphical)
    if not kept(args, result):
        _show(result)
    return int(not graphical.good(result))


def _show(result: dict[str, Any]) -> None:
    names = ["model", "size", "seconds", "their_seconds", "ratio", "objective", "their_objective"]
    rows = [[_cell(one.get(name)) for name in names] for one in result["results"]]
    print(text.table(names, rows))
    print(f"{result['passes']} passes; {result['machine']}.")


def _cell(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
