"""`bayesrule fit`: one method on a table, from file to trained model."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bayesrule.checkpoint import write_atomically
from bayesrule.commands import options, text
from bayesrule.data import DataError, Encoder, Table, split_rows
from bayesrule.evaluate import scores
from bayesrule.methods import METHODS
from bayesrule.provenance import machine, versions
from bayesrule.recipe import Recipe
from bayesrule.report import METRICS
from bayesrule.saved import SavedModel, num_outputs, write_model


def add(commands: Any) -> None:
    """The grammar of the command."""
    parser = commands.add_parser(
        "fit",
        help="train one method on a table and keep it",
        description="Trains a network on a table. What was found out about the columns is said, "
        "some rows are held out for an honest score, and the trained model is kept in a folder for "
        "`bayesrule predict`. A run that was interrupted goes on when the command is given again.",
    )
    options.add_data(parser)
    parser.add_argument(
        "--method",
        default="vogn",
        metavar="NAME",
        help=f"one of {', '.join(METHODS)} (default: vogn)",
    )
    parser.add_argument(
        "--out", default="run", metavar="FOLDER", help="for the model (default: run)"
    )
    parser.add_argument(
        "--test-fraction",
        type=float,
        default=0.1,
        metavar="F",
        help="rows held out for the score; 0 trains on all (default: 0.1)",
    )
    parser.add_argument(
        "--patience",
        type=int,
        metavar="N",
        help="stop after N epochs without a better score on a tenth of the training rows",
    )
    parser.add_argument(
        "--heteroscedastic",
        action="store_true",
        help="regression: let the noise depend on the inputs",
    )
    parser.add_argument(
        "--start-over", action="store_true", help="train anew where the folder holds a run"
    )
    options.add_training(parser)
    options.add_common(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Trains, scores and keeps a model."""
    begun = time.perf_counter()
    table = options.table(args)
    train, test = _split(args, table)
    encoder = Encoder.fit(train, args.target, **options.encoder_options(args))
    recipe = _recipe(args, encoder)
    if not args.json:
        _announce(args, table, train, encoder, recipe)
    rows, held = _validation(args, train)
    folder = Path(args.out)
    write_model(folder, recipe, encoder, len(rows))
    trained = recipe.fit(
        encoder.transform(rows),
        encoder.targets(rows),
        num_outputs(encoder),
        validation=None if held is None else (encoder.transform(held), encoder.targets(held)),
        out=folder,
        progress=False if args.json else None,
        resume=not args.start_over,
    )
    model = SavedModel(encoder, trained)
    document = {
        "dataset": table.name,
        "method": recipe.method,
        "parts": trained.learner.parts(),
        "task": encoder.task.kind,
        "summary": encoder.task.reason,
        "rows": {"train": len(train), "test": 0 if test is None else len(test)},
        "notes": [*table.notes, *encoder.notes],
        "metrics": {} if test is None else _scores(model, test),
        "epochs": len(trained.history),
        "best_epoch": trained.best_epoch,
        "seconds": time.perf_counter() - begun,
        "seed": args.seed,
        "versions": versions(),
        "machine": machine(),
        "out": str(folder),
    }
    write_atomically(folder / "run.json", json.dumps(document, indent=2).encode())
    if args.json:
        options.show_json(document)
    else:
        _conclude(document, folder)
    return 0


def _split(args: argparse.Namespace, table: Table) -> tuple[Table, Table | None]:
    if not 0.0 <= args.test_fraction < 1.0:
        raise ValueError(f"--test-fraction lies in [0, 1), got {args.test_fraction}.")
    if args.test_fraction == 0.0:
        return table, None
    whole = Encoder.fit(table, args.target, **options.encoder_options(args))
    labels = whole.targets(table) if whole.task.classification else None
    fractions = (1.0 - args.test_fraction, args.test_fraction)
    train, test = split_rows(len(table), fractions, seed=args.seed, stratify=labels)
    return table.rows(train), table.rows(test) if len(test) else None


def _validation(args: argparse.Namespace, train: Table) -> tuple[Table, Table | None]:
    if args.patience is None:
        return train, None
    if len(train) < 10:
        raise DataError(f"--patience needs at least 10 training rows, there are {len(train)}.")
    kept, held = split_rows(len(train), (0.9, 0.1), seed=args.seed)
    return train.rows(kept), train.rows(held)


def _recipe(args: argparse.Namespace, encoder: Encoder) -> Recipe:
    classes = encoder.task.classification
    if classes and args.heteroscedastic:
        raise ValueError("--heteroscedastic is for regression; the target here is a class.")
    real = "heteroscedastic" if args.heteroscedastic else "gaussian"
    likelihood = "categorical" if classes else real
    return options.recipe(args, method=args.method, likelihood=likelihood, patience=args.patience)


def _scores(model: SavedModel, test: Table) -> dict[str, float]:
    # A level that only the held-out rows have is no reason to give no score.
    lenient = SavedModel(replace(model.encoder, unseen="ignore"), model.run)
    y = lenient.encoder.targets(test)
    if not lenient.encoder.task.classification:
        y = lenient.encoder.target_mean + lenient.encoder.target_std * y
    return scores(lenient.predict(test), y)


def _announce(
    args: argparse.Namespace, table: Table, train: Table, encoder: Encoder, recipe: Recipe
) -> None:
    features = len(encoder.feature_names)
    print(f"{table.name}: {len(table)} rows, {features} features. {encoder.task.reason}")
    for note in (*table.notes, *encoder.notes):
        print(f"  {note}")
    plan = recipe.for_data(len(train))
    print(
        f"Training {recipe.method} on {len(train)} rows: {plan.epochs} epochs, batches of "
        f"{plan.batch_size}.",
        flush=True,
    )
    if not sys.stderr.isatty():
        print("(The progress bar is shown on a terminal.)", flush=True)


def _conclude(document: dict[str, Any], folder: Path) -> None:
    if document["metrics"]:
        print(f"\nOn {document['rows']['test']} rows that were held out:")
        for key, value in document["metrics"].items():
            label = METRICS[key].label if key in METRICS else key
            print(f"  {label:16s} {text.figure(value)}")
    print(f"\n{document['seconds']:.1f} s. Model: {folder}")
    print(f"Next: bayesrule predict {folder} NEW.csv")
