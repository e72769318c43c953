"""`bayesrule predict`: a trained model on new rows."""

from __future__ import annotations

import argparse
import csv
import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from bayesrule.app.commands import faults, numbers, options, text
from bayesrule.app.data import DataError, Encoder, Table, open_table
from bayesrule.app.report import METRICS
from bayesrule.app.saved import SavedModel, read_model
from bayesrule.expectations import AtMean, Draws, Moments
from bayesrule.predicting.evaluate import scores
from bayesrule.predicting.predict import How, Linearised
from bayesrule.predicting.prediction import Prediction
from bayesrule.training.checkpoint import write_atomically


def add(commands: Any) -> None:
    """The grammar of the command."""
    parser = options.add_command(
        commands,
        "predict",
        help="predict new rows with a trained model",
        description="Predicts each row of a table. For numbers: mean, the standard deviation that "
        "more data would remove (epistemic), the one it would not (aleatoric), and an interval. "
        "For classes: the most probable one, all probabilities, entropy and its epistemic part "
        "(mutual_information). Where the table holds the target too, the scores are told.",
        examples="""
            bayesrule predict run/ new.csv                    csv on standard output
            bayesrule predict run/ new.csv --out predictions.csv --level 0.95
            bayesrule predict run/ new.csv --draws 500        more weight draws, smoother figures
            bayesrule predict run/ new.csv --unseen ignore --json
        """,
    )
    parser.add_argument("folder", metavar="FOLDER", help="made by `bayesrule fit --out FOLDER`")
    parser.add_argument("data", metavar="NEW", help="a csv, tsv, parquet or npz file")
    parser.add_argument("--out", metavar="FILE", help="a csv file; default: standard output")
    parser.add_argument(
        "--level",
        type=numbers.between,
        default=0.9,
        metavar="L",
        help="of the interval (default: 0.9)",
    )
    parser.add_argument(
        "--how",
        choices=("draws", "mean", "linearised", "moments"),
        help="weight draws, the mean weights, the linearised network, or means and variances "
        "carried through it in closed form; default: the method's own",
    )
    parser.add_argument(
        "--draws",
        type=numbers.whole(),
        metavar="N",
        help="how many weight draws, for --how draws (default: 100)",
    )
    parser.add_argument(
        "--unseen",
        choices=("error", "ignore"),
        default="error",
        help="a category unknown to training is refused by name (default) or encoded as none",
    )
    options.add_seed(parser)
    options.add_json(parser)
    parser.set_defaults(run=run, interrupted="Nothing was written.")


def run(args: argparse.Namespace) -> int:
    """Predicts and writes one line for each row."""
    how = _how(args)
    model = read_model(Path(args.folder))
    model = SavedModel(replace(model.encoder, unseen=args.unseen), model.run)
    table = open_table(args.data)
    # A way of predicting that does not fit the method is the caller's choice, not a bug.
    with faults.of_the_call():
        found = model.predict(table, how, seed=args.seed)
    columns = _columns(found, model.encoder, args.level)
    measured, notes = _score(found, table, model.encoder)
    for note in (*model.encoder.notes_for(table), *notes):
        faults.say(note)
    if args.out or not args.json:
        _write(columns, args.out)
    if args.json:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        print(options.as_json({"predictions": rows, "metrics": measured, "out": args.out}))
        return 0
    for key, value in measured.items():
        label = METRICS[key].label if key in METRICS else key
        faults.say(f"{label} {text.figure(value)}")
    return 0


def _how(args: argparse.Namespace) -> How | None:
    if args.draws is not None and args.how not in (None, "draws"):
        raise faults.CallError(f"--draws does not go with --how {args.how}.")
    if args.how == "draws" or args.draws is not None:
        return Draws(args.draws or 100)
    ways: dict[str, How] = {"mean": AtMean(), "linearised": Linearised(), "moments": Moments()}
    return ways.get(args.how)


def _columns(found: Prediction, encoder: Encoder, level: float) -> dict[str, list[Any]]:
    if encoder.task.classification:
        labels = [encoder.classes[int(i)] for i in found.labels]
        probs = {f"p({name})": found.probs[:, i].tolist() for i, name in enumerate(encoder.classes)}
        return {
            # With a word before it, the target's name cannot meet another column's.
            f"predicted_{encoder.target}": labels,
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


def _score(
    found: Prediction, table: Table, encoder: Encoder
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Scores where the new table happens to hold the target, or why there are none."""
    if encoder.target not in table.columns or table.frame[encoder.target].isna().any():
        return {}, ()
    try:
        y = encoder.targets(table)
    except DataError as problem:
        # The predictions do not need the target, so they are given all the same.
        return {}, (f"No scores: {problem}",)
    if not encoder.task.classification:
        y = encoder.target_mean + encoder.target_std * y
    with faults.of_the_training():
        return scores(found, y), ()


def _write(columns: dict[str, list[Any]], out: str | None) -> None:
    if out is None:
        _rows(columns, sys.stdout)
        return
    buffer = io.StringIO()
    _rows(columns, buffer)
    write_atomically(Path(out), buffer.getvalue().encode())
    faults.say(f"{len(next(iter(columns.values())))} predictions: {out}")


def _rows(columns: dict[str, list[Any]], file: TextIO) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow([f"{v:.6g}" if isinstance(v, float) else v for v in row])
