"""`bayesrule predict`: a trained model on new rows."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from bayesrule.app.commands import faults, options, predicted, text, ways
from bayesrule.app.commands.output import Lasting, write_file
from bayesrule.app.data import DataError, Encoder, Table
from bayesrule.app.report.columns import label
from bayesrule.app.saved import SavedModel, belongs_to_a_run, read_model
from bayesrule.predicting.evaluate import scores
from bayesrule.predicting.prediction import Prediction

_SUMMARY = "predict new rows with a trained model"
_DESCRIPTION = """
Predicts each row of a table. For a number: the mean, the standard deviation and its two parts,
epistemic (what more training data would reduce) and aleatoric (noise, which would stay), and an
interval. For a class: the most probable one, the probability of each, the entropy (0 where the
model is certain) and the part of it that more training data would reduce (mutual_information).
Where the table holds the target too, scores are printed.
"""
_EXAMPLES = """
bayesrule predict run/ new.csv                    csv on standard output
bayesrule predict run/ new.csv --out predictions.csv --level 0.95
bayesrule predict run/ new.csv --id customer      each row beside its own name
bayesrule predict run/ new.csv --draws 500        more weight draws, less chance in the figures
bayesrule predict run/ new.csv --unseen ignore --json
"""


def add(commands: Any) -> None:
    """Adds the command, its help and its options."""
    parser = options.add_command(commands, "predict", _SUMMARY, _DESCRIPTION, _EXAMPLES)
    options.add_folder(parser)
    parser.add_argument("data", metavar="NEW", help="a csv, tsv, parquet or npz file")
    add_option = partial(options.add_option, parser)
    add_option("--out", "FILE", "a csv file; default: standard output", read=options.place)
    add_option("--id", "COLUMN", "a column of NEW to copy into the output, such as a row's name")
    options.add_level(parser)
    ways.add(parser)
    options.add_unseen(parser)
    options.add_seed(parser)
    options.add_json(parser)
    parser.set_defaults(run=run, interrupted="Nothing was written.")


def run(args: argparse.Namespace) -> int:
    """Predicts and writes one line for each row."""
    how, out = ways.how(args), _place(args)
    model = read_model(Path(args.folder))
    ways.refuse_no_spread(model, how)
    encoder = replace(model.encoder, unseen=args.unseen)
    table = options.table(args.data)
    # A --how that does not fit the method is the caller's choice, not a bug.
    with faults.of_the_call():
        prediction = SavedModel(encoder, model.run).predict(table, how, seed=args.seed)
        figures = predicted.columns(prediction, encoder, args.level)
    predicted.refuse_not_finite(figures, table, encoder)
    columns = predicted.with_ids(figures, table, args.id)
    carried = [] if args.id is None else [args.id]
    for note in encoder.notes_for(table.without(carried)):
        faults.say(note)
    measured = _score(prediction, table, encoder)
    if out is not None or not args.json:
        _write(columns, out)
    if args.json:
        document = {"predictions": predicted.rows(columns), "metrics": measured, "out": args.out}
        print(text.as_json(document))
        return 0
    for key, value in measured.items():
        faults.say(f"{label(key)} {text.figure(value)}")
    return 0


def _score(prediction: Prediction, table: Table, encoder: Encoder) -> dict[str, float]:
    """The scores, if the new table holds the target."""
    if encoder.target not in table.columns or table.frame[encoder.target].isna().any():
        return {}
    try:
        y = encoder.original_targets(table)
    except DataError as problem:
        # The predictions do not need the target, so they are printed all the same.
        faults.say(f"No scores: {problem}")
        return {}
    with faults.of_the_training():
        return scores(prediction, y)


def _place(args: argparse.Namespace) -> Path | None:
    """The file to write; refuses the table that is read and the files of a trained model."""
    if args.out is None:
        return None
    out, source = Path(args.out), Path(os.path.expanduser(args.data))
    if out.is_dir():
        raise faults.CallError(f"'{out}' is a folder; --out takes a file.")
    if out.exists() and source.exists() and out.samefile(source):
        raise faults.CallError(f"--out is '{args.data}', the table to predict. Name another file.")
    if belongs_to_a_run(out):
        raise faults.CallError(f"'{out}' is a file of a trained model. Name another with --out.")
    return out


def _write(columns: predicted.Columns, out: Path | None) -> None:
    lines, escaped = predicted.as_csv(columns)
    if escaped:
        faults.say(f"{escaped} cells that a spreadsheet would run have an apostrophe before them.")
    if out is None:
        _print(lines)
        return
    write_file(out, lines)
    faults.say(f"{len(next(iter(columns.values())))} predictions: {out}")


def _print(lines: str) -> None:
    stdout = cast(Lasting, sys.stdout)
    if stdout.absent:
        raise faults.CallError("Standard output is closed. Name a file with --out.")
    stdout.write_data(lines)
