"""`python -m benchmarks heteroscedastic`: noise that depends on the input, learned by TAGI."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bayesrule.app.commands import options, text
from benchmarks.commands.kept import check_files, kept
from benchmarks.regression import heteroscedastic


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "heteroscedastic",
        help="noise that depends on the input, learned by TAGI",
        description="Learns a curve whose noise grows with the input, the example of Deka, "
        "Nguyen & Goulet (2024), for each seed with new data, and compares the learned noise "
        "with the true one. Ends with code 1 if the relative error is above "
        f"{heteroscedastic.BAR:g}.",
        examples="""
            python -m benchmarks heteroscedastic --seeds 1
            python -m benchmarks heteroscedastic --out noise.json --picture noise.svg
        """,
    )
    parser.add_argument(
        "--seeds", type=options.whole(), default=5, metavar="N", help="how many (default: 5)"
    )
    parser.add_argument("--out", metavar="FILE", help="write the result as json")
    parser.add_argument("--picture", metavar="FILE", help="draw an svg file of the curves")
    options.add_json(parser)
    parser.set_defaults(run=run, interrupted="Nothing was written.")


def run(args: argparse.Namespace) -> int:
    """Trains for each seed and prints a table; returns 1 if one misses the bar."""
    check_files(args.out, args.picture)
    predictions = [heteroscedastic.train(seed) for seed in range(args.seeds)]
    result = heteroscedastic.run(predictions)
    if args.picture:
        Path(args.picture).write_text(heteroscedastic.picture(predictions))
    worst = max(one["noise_error"] for one in result["results"])
    if not kept(args, result):
        _show(result, worst)
    return int(worst > heteroscedastic.BAR)


def _show(result: dict[str, Any], worst: float) -> None:
    rows = [
        [str(one["seed"]), f"{one['noise_error']:.3f}", f"{one['mean_rmse']:.3f}"]
        for one in result["results"]
    ]
    print(text.table(["seed", "error of the noise", "RMSE of the mean"], rows))
    verdict = "misses" if worst > result["bar"] else "meets"
    print(f"The worst of them {verdict} the bar of {result['bar']:g}. {result['machine']}.")
