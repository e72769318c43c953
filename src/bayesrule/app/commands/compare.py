"""`bayesrule compare`: scores of methods and baselines, a report and a recommendation."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any, get_args

from bayesrule.app.commands import faults, options, text
from bayesrule.app.compare import Noise, compare, train_rows
from bayesrule.app.data import Encoder, Table
from bayesrule.app.lineup import lineup
from bayesrule.app.report import (
    METRICS,
    Comparison,
    MethodResult,
    Statistic,
    recommend,
    write_report,
)
from bayesrule.training.progress import Progress

_KEYS = {
    "regression": ("log_likelihood", "rmse", "crps", "coverage_90", "seconds"),
    "classification": ("nll", "accuracy", "balanced_accuracy", "auroc", "ece", "seconds"),
}
_FIELDS = ("dataset", "task", "summary", "rows", "features", "splits", "seed", "command",
           "versions", "machine", "seconds", "notes")  # fmt: skip


_SUMMARY = "train several methods and baselines on a table and recommend one"
_DESCRIPTION = """
Splits a table at random into rows to train on and rows to test on, several times. On each split it
trains one method of each group of near relatives, and models of scikit-learn as baselines. Prints
their scores on the test rows, which none of them saw in training, recommends one, and writes
report.html, one file that opens in any browser. An existing report is replaced. A method that fails
is listed with its error.
"""
_EXAMPLES = """
bayesrule compare                                 on a built-in data set
bayesrule compare house.csv --target price --out house/
bayesrule compare house.csv --target price --methods vogn,laplace,map --splits 5
bayesrule compare house.csv --target price --all --noise by-row
bayesrule compare iris --steps 500 --jobs 2 --json
"""


def add(commands: Any) -> None:
    """Adds the command, its help and its options."""
    parser = options.add_command(commands, "compare", _SUMMARY, _DESCRIPTION, _EXAMPLES)
    options.add_table_and_training(parser)
    group = parser.add_argument_group("the comparison")
    add_option = partial(options.add_option, group)
    only = "the methods to train; default: one of each group of near relatives"
    add_option("--methods", "A,B,C", only, read=options.names)
    every = "train every method that fits the task"
    group.add_argument("--all", action="store_true", help=every)
    alone = "leave out the models of scikit-learn"
    group.add_argument("--no-baselines", action="store_true", help=alone)
    noise = (
        "regression: noise of the same size in all rows, or depending on the inputs of each row "
    )
    noise += "(default: constant)"
    group.add_argument("--noise", choices=get_args(Noise), default="constant", help=noise)
    often = "number of random splits; more of them show how much of a lead is chance"
    add_option("--splits", "N", often, read=options.whole(1, 1000), default=3)
    held = "share of the rows to test on"
    add_option("--test-fraction", "F", held, read=options.between, default=0.2)
    jobs = "parallel processes; default: one for each core"
    add_option("--jobs", "N", jobs, read=options.whole(1, 1000))
    report = "the folder for report.html"
    add_option("--out", "FOLDER", report, read=options.place, default="comparison")
    parser.set_defaults(run=run, interrupted="No report was written.")


def run(args: argparse.Namespace) -> int:
    """Compares the methods, prints the table and writes the report."""
    table = options.table(args.data)
    recipe, chosen = options.recipe(args), options.encoder_options(args, table)
    runs = _runs(args, table, Encoder.fit(table, args.target, **chosen))
    folder = options.writable(Path(args.out))
    show = False if args.json else None
    with Progress(runs, 0, "compare", show) as bar:
        comparison = compare(
            table,
            args.target,
            methods=args.methods,
            every=args.all,
            baselines=not args.no_baselines,
            noise=args.noise,
            splits=args.splits,
            test_fraction=args.test_fraction,
            recipe=recipe,
            encoder_options=chosen,
            seed=args.seed,
            jobs=args.jobs or -1,  # one for each core that this process may use
            command=options.command(args),
            progress=lambda *_: bar.advance(),
        )
    return _conclude(args, comparison, folder / "report.html")


def _runs(args: argparse.Namespace, table: Table, encoder: Encoder) -> int:
    """How many runs there will be; refuses impossible choices before the first one."""
    if args.all and args.methods:
        raise faults.CallError(
            "--all is for every method, --methods for some: leave one of them out."
        )
    if args.noise == "by-row" and encoder.task.classification:
        raise faults.CallError("--noise by-row is for regression; the target here is a class.")
    rows = train_rows(table, encoder, args.test_fraction)
    with faults.of_the_call():
        present = lineup(
            encoder, rows, args.methods, every=args.all, with_baselines=not args.no_baselines
        )
    return len(present) * args.splits


def _conclude(args: argparse.Namespace, comparison: Comparison, report: Path) -> int:
    """Prints the scores even if the report cannot be written: a full disk must not lose them."""
    args.found = {**_document(comparison), "report": str(report)}
    if not args.json:
        _show(comparison)
    write_report(comparison, report)
    if args.json:
        print(text.as_json(args.found))
    else:
        print(f"\n{comparison.seconds:.0f} s in all. Report: {report}")
        print(f"\n{recommend(comparison).text}")
    failed = [method.error for method in comparison.methods if not method.baseline]
    if all(failed):
        faults.say(f"No method ran on every split: {failed[0]}")
        return 1
    return 0


def _show(comparison: Comparison) -> None:
    keys = _KEYS[comparison.task]
    rows = [[_name(m), *(_cell(m.statistic(k), k) for k in keys)] for m in comparison.methods]
    size = comparison.rows, comparison.features
    print(text.data_summary(comparison.dataset, *size, comparison.summary, comparison.notes))
    print()
    print(text.table(["method", *(METRICS[k].label.lower() for k in keys)], rows))
    for method in comparison.methods:
        if method.error:
            print(f"\n{method.name} failed {method.error}")


def _name(method: MethodResult) -> str:
    return f"{method.name} (baseline)" if method.baseline else method.name


def _cell(statistic: Statistic, key: str) -> str:
    if key == "seconds" or statistic.sem != statistic.sem:
        return text.figure(statistic.mean)
    return text.with_error(statistic.mean, statistic.sem)


def _document(comparison: Comparison) -> dict[str, Any]:
    methods = [
        {
            "method": method.name,
            "baseline": method.baseline,
            "parts": dict(method.parts),
            "error": method.error,
            "metrics": {k: {"mean": v.mean, "sem": v.sem} for k, v in method.metrics.items()},
        }
        for method in comparison.methods
    ]
    advice = recommend(comparison)
    return {
        **{name: getattr(comparison, name) for name in _FIELDS},
        "recommendation": {"take": advice.take, "text": advice.text},
        "methods": methods,
    }
