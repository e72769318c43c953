"""`bayesrule compare`: every method side by side, a table and a report."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from bayesrule.app.commands import faults, numbers, options, text
from bayesrule.app.compare import applicable, compare
from bayesrule.app.data import Encoder
from bayesrule.app.report import METRICS, Comparison, MethodResult, Statistic, write_report
from bayesrule.app.report.columns import order, primary
from bayesrule.training.progress import Progress

_KEYS = {
    "regression": ("log_likelihood", "rmse", "crps", "coverage_90", "seconds"),
    "classification": ("nll", "accuracy", "brier", "ece", "seconds"),
}
_FIELDS = ("dataset", "task", "summary", "rows", "features", "splits", "seed", "command",
           "versions", "machine", "seconds", "notes")  # fmt: skip


_SUMMARY = "train every method on the same splits; prints a table, writes a report"
_DESCRIPTION = """
Trains each method on the same random splits of a table, prints the scores on the rows that were
held out, and writes report.html, one file that opens anywhere. An existing report is replaced. A
method that fails is listed with its error.
"""
_EXAMPLES = """
bayesrule compare                                 on a built-in set
bayesrule compare house.csv --target price --out house/
bayesrule compare house.csv --target price --methods vogn,laplace,map --splits 5
bayesrule compare iris --steps 500 --jobs 2 --json
"""


def add(commands: Any) -> None:
    """Adds the command, its help and its options."""
    parser = options.add_command(commands, "compare", _SUMMARY, _DESCRIPTION, _EXAMPLES)
    options.add_table_and_training(parser)
    add_option = partial(options.add_option, parser.add_argument_group("the comparison"))
    only = "only these; default: all that fit the task"
    add_option("--methods", "A,B,C", only, read=numbers.names)
    add_option("--splits", "N", "random splits", read=numbers.whole(), default=3)
    add_option("--test-fraction", "F", "rows held out", read=numbers.between, default=0.2)
    add_option("--jobs", "N", "processes; default: one for each core", read=numbers.whole())
    add_option("--out", "FOLDER", "for report.html", default="comparison")
    parser.set_defaults(run=run, interrupted="No report was written.")


def run(args: argparse.Namespace) -> int:
    """Compares the methods, prints the table and writes the report."""
    table = options.table(args)
    recipe, chosen = options.recipe(args), options.encoder_options(args)
    task = Encoder.fit(table, args.target, **chosen).task.kind
    with faults.of_the_call():
        names = applicable(args.methods, task)
    folder = options.writable(Path(args.out))
    show = False if args.json else None
    with Progress(len(names) * args.splits, 0, "compare", show) as bar:
        comparison = compare(
            table,
            args.target,
            methods=names,
            splits=args.splits,
            test_fraction=args.test_fraction,
            recipe=recipe,
            encoder_options=chosen,
            seed=args.seed,
            jobs=args.jobs or _cores(),
            command=options.command(args),
            progress=lambda *_: bar.advance(),
        )
    return _conclude(args, comparison, folder / "report.html")


def _cores() -> int:
    # Unlike os.cpu_count, joblib's counts what this process may use, as in a container.
    import joblib

    return int(joblib.cpu_count())


def _conclude(args: argparse.Namespace, comparison: Comparison, report: Path) -> int:
    """Prints the scores before the report is written: a full disk must not lose them."""
    if args.json:
        print(options.as_json({**_document(comparison), "report": str(report)}))
    else:
        _show(comparison)
    write_report(comparison, report)
    if not args.json:
        print(f"\n{comparison.seconds:.0f} s in all. Report: {report}")
    if all(method.error for method in comparison.methods):
        faults.say(f"No method ran on every split: {comparison.methods[0].error}")
        return 1
    return 0


def _show(comparison: Comparison) -> None:
    keys = _KEYS[comparison.task]
    rows = [[m.name, *(_cell(m.metrics.get(k), k) for k in keys)] for m in _ranked(comparison)]
    size = comparison.rows, comparison.features
    print(text.data_summary(comparison.dataset, *size, comparison.summary, comparison.notes))
    print()
    print(text.table(["method", *(METRICS[k].label.lower() for k in keys)], rows))
    for method in comparison.methods:
        if method.error:
            print(f"\n{method.name} failed {method.error}")


def _ranked(comparison: Comparison) -> list[MethodResult]:
    """The methods, best likelihood of the held-out rows first."""
    return [comparison.methods[i] for i in order(comparison, primary(comparison))]


def _cell(statistic: Statistic | None, key: str) -> str:
    if statistic is None:
        return "–"
    if key == "seconds" or statistic.sem != statistic.sem:
        return text.figure(statistic.mean)
    return text.with_error(statistic.mean, statistic.sem)


def _document(comparison: Comparison) -> dict[str, Any]:
    methods = [
        {
            "method": method.name,
            "parts": dict(method.parts),
            "error": method.error,
            "metrics": {k: {"mean": v.mean, "sem": v.sem} for k, v in method.metrics.items()},
        }
        for method in _ranked(comparison)
    ]
    return {**{name: getattr(comparison, name) for name in _FIELDS}, "methods": methods}
