"""`bayesrule fit`: one method on a table, from file to trained model."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bayesrule.app.commands import faults, numbers, options, text
from bayesrule.app.compare import applicable
from bayesrule.app.data import DataError, Encoder, Table, split_rows
from bayesrule.app.provenance import machine, versions
from bayesrule.app.recipe import Recipe
from bayesrule.app.report.columns import label
from bayesrule.app.saved import SavedModel, claim_folder, fingerprint
from bayesrule.methods import METHODS
from bayesrule.predicting.evaluate import scores
from bayesrule.training.checkpoint import write_atomically
from bayesrule.training.train import Run

_SUMMARY = "train one method on a table and save the model"
_DESCRIPTION = """
Trains a network on a table. Prints what kind of target and columns the table has, holds out some
rows for an honest score, and saves the trained model in a folder for `bayesrule predict`. An
interrupted run continues when the same command is given again; a folder that holds another run is
refused and left as it is.
"""
_EXAMPLES = """
bayesrule fit                                     on a built-in set, to see how it goes
bayesrule fit house.csv --target price --out run/
bayesrule fit house.csv --target price --method laplace --hidden 64,64 --seed 1
bayesrule fit house.csv --target price --missing impute --patience 20
bayesrule fit iris --json                         the result for a program
"""


def add(commands: Any) -> None:
    """Adds the command, its help and its options."""
    parser = options.add_command(commands, "fit", _SUMMARY, _DESCRIPTION, _EXAMPLES)
    options.add_table_and_training(parser)
    group = parser.add_argument_group("the run")
    add_option = partial(options.add_option, group)
    add_option("--method", "NAME", f"one of {', '.join(METHODS)}", default="vogn")
    add_option("--out", "FOLDER", "for the model", default="run")
    held = "rows held out for the score; 0 trains on all"
    add_option("--test-fraction", "F", held, read=numbers.fraction, default=0.1)
    stop = "stop after N epochs without a better score on a tenth of the training rows"
    add_option("--patience", "N", stop, read=numbers.whole())
    noise = "regression: let the noise depend on the inputs"
    group.add_argument("--heteroscedastic", action="store_true", help=noise)
    anew = "train from the beginning and remove the run that the folder holds"
    group.add_argument("--start-over", action="store_true", help=anew)
    interrupted = "The same command continues from the last checkpoint, if there was one."
    parser.set_defaults(run=run, interrupted=interrupted)


@dataclass(frozen=True)
class _Plan:
    """The rows for training, for early stopping (`held`) and for the score, and the recipe."""

    train: Table
    held: Table | None
    test: Table | None
    encoder: Encoder
    recipe: Recipe


def run(args: argparse.Namespace) -> int:
    """Trains, scores and saves a model."""
    begun = time.perf_counter()
    table = options.table(args)
    plan = _plan(args, table)
    folder = options.writable(Path(args.out))
    x, y = plan.encoder.transform(plan.train), plan.encoder.targets(plan.train)
    mark = fingerprint(x, y)
    done = claim_folder(folder, plan.recipe, plan.encoder, len(y), mark, start_over=args.start_over)
    if not args.json:
        _announce(table, plan, folder, done)
    with faults.of_the_training():
        trained = plan.recipe.fit(
            x,
            y,
            plan.encoder.num_outputs,
            validation=_validation(plan),
            out=folder,
            progress=False if args.json else None,
        )
        measured = _scores(SavedModel(plan.encoder, trained), plan.test)
    document = _document(args, table, plan, trained, measured)
    document["seconds"] = time.perf_counter() - begun
    write_atomically(folder / "run.json", options.as_json(document).encode())
    if args.json:
        print(options.as_json(document))
    else:
        _conclude(document, folder)
    return 0


def _plan(args: argparse.Namespace, table: Table) -> _Plan:
    """Checks everything that could be refused, before anything is printed or written."""
    whole = Encoder.fit(table, args.target, **options.encoder_options(args))
    recipe = _recipe(args, whole)
    rest, test = _split(args, table, whole)
    # All rows decide the kind of the target: fewer of them may look like another kind.
    chosen = {**options.encoder_options(args), "task": whole.task.kind}
    encoder = replace(Encoder.fit(rest, args.target, **chosen), task=whole.task)
    train, held = _held_out(args, rest)
    with faults.of_the_call():
        recipe.learner(len(encoder.feature_names), encoder.num_outputs, len(train))
    return _Plan(train, held, test, encoder, recipe)


def _split(args: argparse.Namespace, table: Table, whole: Encoder) -> tuple[Table, Table | None]:
    if args.test_fraction == 0.0:
        return table, None
    labels = whole.targets(table) if whole.task.classification else None
    fractions = (1.0 - args.test_fraction, args.test_fraction)
    try:
        train, test = split_rows(len(table), fractions, seed=args.seed, stratify=labels)
    except DataError as problem:
        raise _too_few(args, table, 0) from problem
    if len(train) < 2:
        raise _too_few(args, table, len(train))
    return table.rows(train), table.rows(test)


def _too_few(args: argparse.Namespace, table: Table, left: int) -> DataError:
    what = f"leaves {left} of them to learn from" if left else "leaves none on one side"
    return DataError(
        f"'{table.name}' has {len(table)} rows; --test-fraction {args.test_fraction:g} {what}. "
        "Use more rows, another fraction, or --test-fraction 0 to learn from all rows."
    )


def _held_out(args: argparse.Namespace, train: Table) -> tuple[Table, Table | None]:
    if args.patience is None:
        return train, None
    if len(train) < 10:
        raise DataError(f"--patience needs at least 10 training rows, there are {len(train)}.")
    kept, held = split_rows(len(train), (0.9, 0.1), seed=args.seed)
    return train.rows(kept), train.rows(held)


def _recipe(args: argparse.Namespace, encoder: Encoder) -> Recipe:
    classes = encoder.task.classification
    if classes and args.heteroscedastic:
        raise faults.CallError("--heteroscedastic is for regression; the target here is a class.")
    with faults.of_the_call():
        (method,) = applicable([args.method], encoder.task.kind)
    real = "heteroscedastic" if args.heteroscedastic else "gaussian"
    likelihood = "categorical" if classes else real
    return options.recipe(args, method=method, likelihood=likelihood, patience=args.patience)


def _validation(plan: _Plan) -> tuple[Any, Any] | None:
    if plan.held is None:
        return None
    return plan.encoder.transform(plan.held), plan.encoder.targets(plan.held)


def _scores(model: SavedModel, test: Table | None) -> dict[str, float]:
    if test is None:
        return {}
    # A category that occurs in the held-out rows only must not prevent a score.
    lenient = SavedModel(replace(model.encoder, unseen="ignore"), model.run)
    return scores(lenient.predict(test), lenient.encoder.original_targets(test))


def _document(
    args: argparse.Namespace, table: Table, plan: _Plan, trained: Run, measured: dict[str, float]
) -> dict[str, Any]:
    held, test = (0 if part is None else len(part) for part in (plan.held, plan.test))
    return {
        "dataset": table.name,
        "method": plan.recipe.method,
        "parts": trained.learner.parts(),
        "task": plan.encoder.task.kind,
        "summary": plan.encoder.task.reason,
        "rows": {"train": len(plan.train), "validation": held, "test": test},
        "notes": [*table.notes, *plan.encoder.notes],
        "metrics": measured,
        "epochs": len(trained.history),
        "best_epoch": trained.best_epoch,
        "seed": args.seed,
        "command": options.command(args),
        "versions": versions(),
        "machine": machine(),
        "out": args.out,
    }


def _announce(table: Table, plan: _Plan, folder: Path, done: int) -> None:
    encoder, notes = plan.encoder, (*table.notes, *plan.encoder.notes)
    size = len(table), len(encoder.feature_names)
    print(text.data_summary(table.name, *size, encoder.task.reason, notes))
    worked_out = plan.recipe.for_data(len(plan.train))
    epochs = "1 epoch" if worked_out.epochs == 1 else f"{worked_out.epochs} epochs"
    print(
        f"Training {plan.recipe.method} on {len(plan.train)} rows: {epochs}, batches of "
        f"{worked_out.batch_size}.",
        flush=True,
    )
    if done:
        print(f"{folder} holds {done} of them already; training continues there.", flush=True)


def _conclude(document: dict[str, Any], folder: Path) -> None:
    if document["metrics"]:
        print(f"\nOn {document['rows']['test']} rows that were held out:")
        for key, value in document["metrics"].items():
            print(f"  {label(key):16s} {text.figure(value)}")
    print(f"\n{document['seconds']:.1f} s. Model: {folder}")
    print(f"Next: bayesrule predict {folder} NEW.csv")
