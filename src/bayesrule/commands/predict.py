"""`bayesrule predict`: a trained model on new rows."""

from __future__ import annotations

import argparse
import csv
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import torch

from bayesrule.checkpoint import write_atomically
from bayesrule.commands import options, text
from bayesrule.data import Encoder, Table, open_table
from bayesrule.evaluate import scores
from bayesrule.expectations import AtMean, Draws
from bayesrule.predict import How, Linearised
from bayesrule.prediction import Prediction
from bayesrule.report import METRICS
from bayesrule.saved import SavedModel, read_model


def add(commands: Any) -> None:
    """The grammar of the command."""
    parser = commands.add_parser(
        "predict",
        help="predict new rows with a trained model",
        description="Predicts each row of a table. For numbers: mean, the standard deviation that "
        "more data would remove (epistemic), the one it would not (aleatoric), and an interval. "
        "For classes: the most probable one, all probabilities, entropy and its epistemic part.",
    )
    parser.add_argument("folder", metavar="FOLDER", help="made by `bayesrule fit --out FOLDER`")
    parser.add_argument("data", metavar="NEW", help="a csv, tsv, parquet or npz file")
    parser.add_argument("--out", metavar="FILE", help="a csv file; default: standard output")
    parser.add_argument(
        "--level", type=float, default=0.9, metavar="L", help="of the interval (default: 0.9)"
    )
    parser.add_argument(
        "--how",
        choices=("draws", "mean", "linearised"),
        help="weight draws, the mean weights, or the linearised network; default: the method's own",
    )
    parser.add_argument("--draws", type=int, default=100, metavar="N", help="with --how draws")
    parser.add_argument(
        "--unseen",
        choices=("error", "ignore"),
        default="error",
        help="a category unknown to training is refused by name (default) or encoded as none",
    )
    options.add_common(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Predicts and writes one line for each row."""
    if not 0.0 < args.level < 1.0:
        raise ValueError(f"--level lies strictly between 0 and 1, got {args.level}.")
    model = read_model(Path(args.folder))
    model = SavedModel(replace(model.encoder, unseen=args.unseen), model.run)
    table = open_table(args.data)
    found = model.predict(table, _how(args), seed=args.seed)
    columns = _columns(found, model.encoder, args.level)
    for note in model.encoder.notes_for(table):
        print(f"bayesrule: {note}", file=sys.stderr)
    measured = _score(found, table, model.encoder)
    if args.json:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        options.show_json({"predictions": rows, "metrics": measured})
        return 0
    _write(columns, args.out)
    for key, value in measured.items():
        label = METRICS[key].label if key in METRICS else key
        print(f"bayesrule: {label} {text.figure(value)}", file=sys.stderr)
    return 0


def _how(args: argparse.Namespace) -> How | None:
    ways: dict[str, How] = {
        "draws": Draws(args.draws),
        "mean": AtMean(),
        "linearised": Linearised(),
    }
    return None if args.how is None else ways[args.how]


def _columns(found: Prediction, encoder: Encoder, level: float) -> dict[str, list[Any]]:
    if encoder.task.classification:
        labels = [encoder.classes[int(i)] for i in found.labels]
        probs = {f"p({name})": found.probs[:, i].tolist() for i, name in enumerate(encoder.classes)}
        return {
            f"{encoder.target}": labels,
            **probs,
            "entropy": found.entropy.tolist(),
            "mutual_information": found.mutual_information.tolist(),
        }
    lower, upper = found.interval(level)
    columns = {
        "mean": found.mean,
        "std": found.std,
        "epistemic_std": found.epistemic.sqrt(),
        "aleatoric_std": found.aleatoric.sqrt(),
        f"lower_{level:g}": lower,
        f"upper_{level:g}": upper,
    }
    return {name: value.reshape(-1).tolist() for name, value in columns.items()}


def _score(found: Prediction, table: Table, encoder: Encoder) -> dict[str, float]:
    """Scores where the new table happens to hold the target."""
    if encoder.target not in table.columns or table.frame[encoder.target].isna().any():
        return {}
    y: torch.Tensor = encoder.targets(table)
    if not encoder.task.classification:
        y = encoder.target_mean + encoder.target_std * y
    return scores(found, y)


def _write(columns: dict[str, list[Any]], out: str | None) -> None:
    if out is None:
        _rows(columns, sys.stdout)
        return
    import io

    buffer = io.StringIO()
    _rows(columns, buffer)
    write_atomically(Path(out), buffer.getvalue().encode())
    print(f"{len(next(iter(columns.values())))} predictions: {out}", file=sys.stderr)


def _rows(columns: dict[str, list[Any]], file: TextIO) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow([f"{v:.6g}" if isinstance(v, float) else v for v in row])
