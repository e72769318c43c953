"""`python -m benchmarks gaussians`: regression, Gaussian processes and series beside others'."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from bayesrule.app.commands import options, text
from benchmarks.beyond import gaussian_models
from benchmarks.commands.kept import check_files, kept, say


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "gaussians",
        help="regression, Gaussian processes and series beside scikit-learn's and statsmodels'",
        description="Fits linear and logistic regression and Gaussian processes beside "
        "scikit-learn, and a series with missing values beside statsmodels if that is installed, "
        "on one thread. Ends with code 1 if held-out data are less likely by more than "
        f"{gaussian_models.MARGIN:g} nats a row, or a pass takes more than "
        f"{gaussian_models.LARGEST_RATIO:g} times as long as theirs.",
        examples="""
            python -m benchmarks gaussians --splits 1
            python -m benchmarks gaussians --out gaussian_models.json
        """,
    )
    options.add_option(
        parser, "--splits", "N", "how many splits of each set", read=options.whole(), default=3
    )
    parser.add_argument("--out", metavar="FILE", help="write the result as json")
    options.add_json(parser)
    parser.set_defaults(run=run, interrupted="Nothing was written.")


def run(args: argparse.Namespace) -> int:
    """Fits all models and prints a table; 1 if one is too slow or too unlikely."""
    check_files(args.out)
    torch.set_num_threads(1)
    result = gaussian_models.run(args.splits, progress=say)
    if not kept(args, result):
        _show(result)
    return int(not gaussian_models.good(result["results"]))


def _show(result: dict[str, Any]) -> None:
    names = ["model", "set", "split", "objective", "their_objective", "seconds", "their_seconds"]
    rows = [[_cell(one.get(name)) for name in names] for one in result["results"]]
    print(text.table(names, rows))
    print(f"{result['machine']}.")


def _cell(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
