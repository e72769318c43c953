"""`bayesrule predict`: a trained model on new rows."""

from __future__ import annotations

import argparse
import csv
import io
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from bayesrule.app.commands import faults, numbers, options, text
from bayesrule.app.data import DataError, Encoder, Table, open_table
from bayesrule.app.report.columns import label
from bayesrule.app.saved import SavedModel, read_model
from bayesrule.expectations import AtMean, Draws, Moments
from bayesrule.predicting.evaluate import scores
from bayesrule.predicting.predict import How, Linearised
from bayesrule.predicting.prediction import Prediction
from bayesrule.training.checkpoint import write_atomically

_CLOSED_FORMS: dict[str, How] = {
    "mean": AtMean(), "linearised": Linearised(), "moments": Moments()
}  # fmt: skip
_SUMMARY = "predict new rows with a trained model"
_DESCRIPTION = """
Predicts each row of a table. For numbers: the mean, the standard deviation that more data would
remove (epistemic), the one that it would not (aleatoric), and an interval. For classes: the most
probable one, all probabilities, the entropy and its epistemic part (mutual_information). Where the
table holds the target too, scores are printed.
"""
_EXAMPLES = """
bayesrule predict run/ new.csv                    csv on standard output
bayesrule predict run/ new.csv --out predictions.csv --level 0.95
bayesrule predict run/ new.csv --draws 500        more weight draws, smoother figures
bayesrule predict run/ new.csv --unseen ignore --json
"""


def add(commands: Any) -> None:
    """Adds the command, its help and its options."""
    parser = options.add_command(commands, "predict", _SUMMARY, _DESCRIPTION, _EXAMPLES)
    parser.add_argument("folder", metavar="FOLDER", help="made by `bayesrule fit --out FOLDER`")
    parser.add_argument("data", metavar="NEW", help="a csv, tsv, parquet or npz file")
    add_option = partial(options.add_option, parser)
    add_option("--out", "FILE", "a csv file; default: standard output")
    add_option("--level", "L", "of the interval", read=numbers.between, default=0.9)
    parser.add_argument(
        "--how",
        choices=("draws", *_CLOSED_FORMS),
        help="average over weight draws, use the mean weights, linearise the network, or carry "
        "means and variances through it in closed form; default: depends on the method",
    )
    many = "how many weight draws, for --how draws (default: 100)"
    add_option("--draws", "N", many, read=numbers.whole())
    unseen = "a category that training did not have: stop (default: error), or encode it as none"
    parser.add_argument("--unseen", choices=("error", "ignore"), default="error", help=unseen)
    options.add_seed(parser)
    options.add_json(parser)
    parser.set_defaults(run=run, interrupted="Nothing was written.")


def run(args: argparse.Namespace) -> int:
    """Predicts and writes one line for each row."""
    how = _how(args)
    model = read_model(Path(args.folder))
    model = SavedModel(replace(model.encoder, unseen=args.unseen), model.run)
    table = open_table(args.data)
    # A --how that does not fit the method is the caller's choice, not a bug.
    with faults.of_the_call():
        prediction = model.predict(table, how, seed=args.seed)
    columns = _columns(prediction, model.encoder, args.level)
    measured, notes = _score(prediction, table, model.encoder)
    for note in (*model.encoder.notes_for(table), *notes):
        faults.say(note)
    if args.out or not args.json:
        _write(columns, args.out)
    if args.json:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        print(options.as_json({"predictions": rows, "metrics": measured, "out": args.out}))
        return 0
    for key, value in measured.items():
        faults.say(f"{label(key)} {text.figure(value)}")
    return 0


def _how(args: argparse.Namespace) -> How | None:
    if args.draws is not None and args.how not in (None, "draws"):
        raise faults.CallError(f"--draws does not go with --how {args.how}.")
    if args.how == "draws" or args.draws is not None:
        return Draws(args.draws or 100)
    return _CLOSED_FORMS.get(args.how)


def _columns(prediction: Prediction, encoder: Encoder, level: float) -> dict[str, list[Any]]:
    if encoder.task.classification:
        labels = [encoder.classes[int(i)] for i in prediction.labels]
        probs = zip(encoder.classes, prediction.probs.T.tolist(), strict=True)
        return {
            # The prefix keeps the target's name apart from those of the other columns.
            f"predicted_{encoder.target}": labels,
            **{f"p({name})": column for name, column in probs},
            "entropy": prediction.entropy.tolist(),
            "mutual_information": prediction.mutual_information.tolist(),
        }
    lower, upper = prediction.interval(level)
    columns = {
        "mean": prediction.mean,
        "std": prediction.std,
        "epistemic_std": prediction.epistemic.sqrt(),
        "aleatoric_std": prediction.aleatoric.sqrt(),
        f"lower_{level:g}": lower,
        f"upper_{level:g}": upper,
    }
    return {name: value.reshape(-1).tolist() for name, value in columns.items()}


def _score(
    prediction: Prediction, table: Table, encoder: Encoder
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Scores where the new table happens to hold the target, or why there are none."""
    if encoder.target not in table.columns or table.frame[encoder.target].isna().any():
        return {}, ()
    try:
        y = encoder.original_targets(table)
    except DataError as problem:
        # The predictions do not need the target, so they are printed all the same.
        return {}, (f"No scores: {problem}",)
    with faults.of_the_training():
        return scores(prediction, y), ()


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
