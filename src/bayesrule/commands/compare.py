"""`bayesrule compare`: every method side by side, a table and a report."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from bayesrule.commands import options, text
from bayesrule.compare import Outcome, compare
from bayesrule.report import METRICS, Comparison, MethodResult, write_report

_KEYS = {
    "regression": ("log_likelihood", "rmse", "crps", "coverage_90", "seconds"),
    "classification": ("nll", "accuracy", "brier", "ece", "seconds"),
}


def add(commands: Any) -> None:
    """The grammar of the command."""
    parser = commands.add_parser(
        "compare",
        help="train every method on the same splits; a table and a report",
        description="Trains each method on the same random splits of a table, prints the scores on "
        "the rows that were held out, and writes report.html, one file that opens anywhere.",
    )
    options.add_data(parser)
    parser.add_argument(
        "--methods", metavar="A,B,C", help="only these; default: all that fit the task"
    )
    parser.add_argument(
        "--splits", type=int, default=3, metavar="N", help="random splits (default: 3)"
    )
    parser.add_argument(
        "--test-fraction", type=float, default=0.2, metavar="F", help="rows held out (default: 0.2)"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count(),
        metavar="N",
        help="processes (default: one a core)",
    )
    parser.add_argument(
        "--out",
        default="comparison",
        metavar="FOLDER",
        help="for report.html (default: comparison)",
    )
    options.add_training(parser)
    options.add_common(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compares, prints the table, writes the report."""
    table = options.table(args)
    folder = Path(args.out)
    folder.mkdir(parents=True, exist_ok=True)
    names = args.methods.split(",") if args.methods else None
    bar = _Bar(quiet=args.json)
    comparison = compare(
        table,
        args.target,
        methods=names,
        splits=args.splits,
        test_fraction=args.test_fraction,
        recipe=options.recipe(args),
        encoder_options=options.encoder_options(args),
        seed=args.seed,
        jobs=args.jobs,
        command=_command(args),
        progress=bar,
    )
    bar.close()
    report = write_report(comparison, folder / "report.html")
    if args.json:
        options.show_json({**_document(comparison), "report": str(report)})
    else:
        _show(comparison, report)
    return 1 if all(method.error for method in comparison.methods) else 0


def _command(args: argparse.Namespace) -> str:
    words = [w for w in ("bayesrule", "compare", args.data) if w]
    if args.target:
        words += ["--target", args.target]
    return " ".join([*words, "--splits", str(args.splits), "--seed", str(args.seed)])


def _show(comparison: Comparison, report: Path) -> None:
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
            print(f"\n{method.name} failed: {method.error}")
    print(f"\n{comparison.seconds:.0f} s in all. Report: {report}")


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
            cells.append(f"{text.figure(found.mean)} ± {text.figure(found.sem)}")
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

    def close(self) -> None:
        """Removes the bar."""
        if self._bar is not None:
            self._bar.close()
