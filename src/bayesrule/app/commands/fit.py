"""`bayesrule fit`: one method on a table, from file to trained model."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bayesrule.app.commands import faults, numbers, options, text
from bayesrule.app.compare import applicable
from bayesrule.app.data import DataError, Encoder, Table, split_rows
from bayesrule.app.provenance import machine, versions
from bayesrule.app.recipe import Recipe
from bayesrule.app.report import METRICS
from bayesrule.app.saved import SavedModel, claim_folder, fingerprint, num_outputs
from bayesrule.methods import METHODS
from bayesrule.predicting.evaluate import scores
from bayesrule.training.checkpoint import write_atomically
from bayesrule.training.train import Run


def add(commands: Any) -> None:
    """The grammar of the command."""
    parser = options.add_command(
        commands,
        "fit",
        help="train one method on a table and keep it",
        description="Trains a network on a table. What was found out about the columns is said, "
        "some rows are held out for an honest score, and the trained model is kept in a folder for "
        "`bayesrule predict`. A run that was interrupted goes on when the command is given again; "
        "a folder that holds another run is refused and left as it is.",
        examples="""
            bayesrule fit                                     on a built-in set, to see how it goes
            bayesrule fit house.csv --target price --out run/
            bayesrule fit house.csv --target price --method laplace --hidden 64,64 --seed 1
            bayesrule fit house.csv --target price --missing impute --patience 20
            bayesrule fit iris --json                         the result for a program
        """,
    )
    options.add_data(parser)
    _add_run(parser)
    options.add_training(parser)
    options.add_seed(parser)
    options.add_json(parser)
    parser.set_defaults(
        run=run, interrupted="The same command goes on from the last checkpoint, if there was one."
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the run")
    group.add_argument(
        "--method",
        default="vogn",
        metavar="NAME",
        help=f"one of {', '.join(METHODS)} (default: vogn)",
    )
    group.add_argument(
        "--out", default="run", metavar="FOLDER", help="for the model (default: run)"
    )
    group.add_argument(
        "--test-fraction",
        type=numbers.fraction,
        default=0.1,
        metavar="F",
        help="rows held out for the score; 0 trains on all (default: 0.1)",
    )
    group.add_argument(
        "--patience",
        type=numbers.whole(),
        metavar="N",
        help="stop after N epochs without a better score on a tenth of the training rows",
    )
    group.add_argument(
        "--heteroscedastic",
        action="store_true",
        help="regression: let the noise depend on the inputs",
    )
    group.add_argument(
        "--start-over",
        action="store_true",
        help="train anew where the folder holds a run; the run that is there is removed",
    )


@dataclass(frozen=True)
class _Plan:
    """Rows to learn from, rows that say when to stop, rows for the score, and how to learn."""

    train: Table
    held: Table | None
    test: Table | None
    encoder: Encoder
    recipe: Recipe


def run(args: argparse.Namespace) -> int:
    """Trains, scores and keeps a model."""
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
            num_outputs(plan.encoder),
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
    """All that can be refused is refused here, before anything is printed or written."""
    whole = Encoder.fit(table, args.target, **options.encoder_options(args))
    recipe = _recipe(args, whole)
    known, test = _split(args, table, whole)
    # The kind of the target is settled by all rows: fewer of them may look like another kind.
    chosen = {**options.encoder_options(args), "task": whole.task.kind}
    encoder = replace(Encoder.fit(known, args.target, **chosen), task=whole.task)
    train, held = _held_out(args, known)
    with faults.of_the_call():
        recipe.learner(len(encoder.feature_names), num_outputs(encoder), len(train))
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
    # A level that only the held-out rows have is no reason to give no score.
    lenient = SavedModel(replace(model.encoder, unseen="ignore"), model.run)
    y = lenient.encoder.targets(test)
    if not lenient.encoder.task.classification:
        y = lenient.encoder.target_mean + lenient.encoder.target_std * y
    return scores(lenient.predict(test), y)


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
    features = len(plan.encoder.feature_names)
    print(f"{table.name}: {len(table)} rows, {features} features. {plan.encoder.task.reason}")
    for note in (*table.notes, *plan.encoder.notes):
        print(f"  {note}")
    worked_out = plan.recipe.for_data(len(plan.train))
    epochs = "1 epoch" if worked_out.epochs == 1 else f"{worked_out.epochs} epochs"
    print(
        f"Training {plan.recipe.method} on {len(plan.train)} rows: {epochs}, batches of "
        f"{worked_out.batch_size}.",
        flush=True,
    )
    if done:
        print(f"{folder} holds {done} of them already; training goes on from there.", flush=True)


def _conclude(document: dict[str, Any], folder: Path) -> None:
    if document["metrics"]:
        print(f"\nOn {document['rows']['test']} rows that were held out:")
        for key, value in document["metrics"].items():
            label = METRICS[key].label if key in METRICS else key
            print(f"  {label:16s} {text.figure(value)}")
    print(f"\n{document['seconds']:.1f} s. Model: {folder}")
    print(f"Next: bayesrule predict {folder} NEW.csv")
