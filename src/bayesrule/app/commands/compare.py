"""`bayesrule compare`: every method side by side, a table and a report."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from bayesrule.app.commands import faults, numbers, options, text
from bayesrule.app.compare import Outcome, applicable, compare
from bayesrule.app.data import Encoder
from bayesrule.app.report import METRICS, Comparison, MethodResult, write_report

_KEYS = {
    "regression": ("log_likelihood", "rmse", "crps", "coverage_90", "seconds"),
    "classification": ("nll", "accuracy", "brier", "ece", "seconds"),
}


def add(commands: Any) -> None:
    """The grammar of the command."""
    parser = options.add_command(
        commands,
        "compare",
        help="train every method on the same splits; a table and a report",
        description="Trains each method on the same random splits of a table, prints the scores on "
        "the rows that were held out, and writes report.html, one file that opens anywhere; a "
        "report that is there is replaced. A method that fails is listed with its error.",
        examples="""
            bayesrule compare                                 on a built-in set
            bayesrule compare house.csv --target price --out house/
            bayesrule compare house.csv --target price --methods vogn,laplace,map --splits 5
            bayesrule compare iris --steps 500 --jobs 2 --json
        """,
    )
    options.add_data(parser)
    _add_comparison(parser)
    options.add_training(parser)
    options.add_seed(parser)
    options.add_json(parser)
    parser.set_defaults(run=run, interrupted="No report was written.")


def _add_comparison(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the comparison")
    group.add_argument(
        "--methods",
        type=numbers.names,
        metavar="A,B,C",
        help="only these; default: all that fit the task",
    )
    group.add_argument(
        "--splits",
        type=numbers.whole(),
        default=3,
        metavar="N",
        help="random splits (default: 3)",
    )
    group.add_argument(
        "--test-fraction",
        type=numbers.between,
        default=0.2,
        metavar="F",
        help="rows held out (default: 0.2)",
    )
    group.add_argument(
        "--jobs", type=numbers.whole(), metavar="N", help="processes (default: one a core)"
    )
    group.add_argument(
        "--out",
        default="comparison",
        metavar="FOLDER",
        help="for report.html (default: comparison)",
    )


def run(args: argparse.Namespace) -> int:
    """Compares, prints the table, writes the report."""
    table = options.table(args)
    recipe, chosen = options.recipe(args), options.encoder_options(args)
    task = Encoder.fit(table, args.target, **chosen).task.kind
    with faults.of_the_call():
        names = applicable(args.methods, task)
    folder = options.writable(Path(args.out))
    with _Bar(quiet=args.json) as bar:
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
            progress=bar,
        )
    return _conclude(args, comparison, folder / "report.html")


def _cores() -> int:
    # Unlike os.cpu_count, joblib's counts what this process may use, as in a container.
    import joblib

    return int(joblib.cpu_count())


def _conclude(args: argparse.Namespace, comparison: Comparison, report: Path) -> int:
    """Scores first: they took long, and a full disk must not lose them."""
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
    rows = [[m.name, *_cells(m, keys)] for m in ranked(comparison)]
    print(f"{comparison.dataset}: {comparison.rows} rows, {comparison.features} features. "
          f"{comparison.summary}")  # fmt: skip
    for note in comparison.notes:
        print(f"  {note}")
    print()
    print(text.table(["method", *(METRICS[k].label.lower() for k in keys)], rows))
    for method in comparison.methods:
        if method.error:
            print(f"\n{method.name} failed {method.error}")


def ranked(comparison: Comparison) -> list[MethodResult]:
    """The methods, best first by the likelihood of what was held out."""
    key = _KEYS[comparison.task][0]
    sign = -1.0 if key == "log_likelihood" else 1.0

    def order(method: MethodResult) -> tuple[bool, float]:
        score = method.metrics[key].mean if key in method.metrics else float("nan")
        return score != score, sign * score

    return sorted(comparison.methods, key=order)


def _cells(method: MethodResult, keys: tuple[str, ...]) -> list[str]:
    cells = []
    for key in keys:
        found = method.metrics.get(key)
        if found is None:
            cells.append("–")
        elif key == "seconds" or found.sem != found.sem:
            cells.append(text.figure(found.mean))
        else:
            cells.append(text.with_error(found.mean, found.sem))
    return cells


def _document(comparison: Comparison) -> dict[str, Any]:
    return {
        "dataset": comparison.dataset,
        "task": comparison.task,
        "summary": comparison.summary,
        "rows": comparison.rows,
        "features": comparison.features,
        "splits": comparison.splits,
        "seed": comparison.seed,
        "command": comparison.command,
        "versions": dict(comparison.versions),
        "machine": comparison.machine,
        "seconds": comparison.seconds,
        "notes": list(comparison.notes),
        "methods": [
            {
                "method": m.name,
                "parts": dict(m.parts),
                "error": m.error,
                "metrics": {k: {"mean": v.mean, "sem": v.sem} for k, v in m.metrics.items()},
            }
            for m in ranked(comparison)
        ],
    }


class _Bar:
    """A bar over the runs on a terminal; silent elsewhere."""

    def __init__(self, quiet: bool) -> None:
        self._show = sys.stderr.isatty() and not quiet
        self._bar: Any = None

    def __call__(self, done: int, total: int, outcome: Outcome) -> None:
        if not self._show:
            return
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(total=total, unit="run", leave=False, dynamic_ncols=True)
        self._bar.update(1)
        self._bar.set_postfix_str(outcome.method)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
