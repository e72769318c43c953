"""`bayesrule fit`: one method on a table, from file to trained model."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bayesrule.app.commands import faults, options, text
from bayesrule.app.data import DataError, Encoder, Table, split_rows, train_and_test
from bayesrule.app.lineup import applicable
from bayesrule.app.provenance import machine, versions
from bayesrule.app.recipe import Recipe
from bayesrule.app.report.columns import label
from bayesrule.app.saved import (
    SavedModel,
    chosen_before,
    claim_folder,
    epochs_done,
    fingerprint,
    refuse_another_method,
    run_files,
)
from bayesrule.methods import METHODS
from bayesrule.predicting.evaluate import scores
from bayesrule.training.lock import occupied
from bayesrule.training.logs import Logs
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
bayesrule fit house.csv --target price --drop id,address
bayesrule fit iris --json                         the result for a program
"""


def add(commands: Any) -> None:
    """Adds the command, its help and its options."""
    parser = options.add_command(commands, "fit", _SUMMARY, _DESCRIPTION, _EXAMPLES)
    options.add_table_and_training(parser)
    group = parser.add_argument_group("the run")
    add_option = partial(options.add_option, group)
    add_option("--method", "NAME", f"one of {', '.join(METHODS)}", default="vogn")
    add_option("--out", "FOLDER", "for the model", read=options.place, default="run")
    held = "rows held out for the score; 0 trains on all"
    add_option("--test-fraction", "F", held, read=options.fraction, default=0.1)
    stop = "stop after N epochs without a better score on a tenth of the training rows"
    add_option("--patience", "N", stop, read=options.whole())
    noise = "regression: let the noise depend on the inputs"
    group.add_argument("--heteroscedastic", action="store_true", help=noise)
    log = "figures of each epoch: a csv file, or a folder for TensorBoard"
    add_option("--log", "FILE", log, read=options.place)
    anew = "train from the beginning and remove the run that the folder holds"
    group.add_argument("--start-over", action="store_true", help=anew)
    parser.set_defaults(run=run, interrupted="Nothing was changed.")


@dataclass(frozen=True)
class _Plan:
    """The rows for training, for early stopping (`held`) and for the score, and the recipe.

    `asked` is the recipe before held-out rows chose what it left open.
    """

    train: Table
    held: Table | None
    test: Table | None
    encoder: Encoder
    recipe: Recipe
    asked: Recipe

    @property
    def chosen(self) -> dict[str, Any]:
        """What held-out rows chose, by name."""
        recipe, asked = self.recipe, self.asked
        choices = {k: value for k, value in recipe.options.items() if k not in asked.options}
        if asked.length_is_open(len(self.train)):
            if asked.hidden is None and recipe.hidden:
                choices["hidden"] = ",".join(map(str, recipe.hidden))
            choices["epochs"] = recipe.epochs
        return choices


def run(args: argparse.Namespace) -> int:
    """Trains, scores and saves a model."""
    begun = time.perf_counter()
    table = options.table(args.data)
    plan = _plan(args, table)
    with faults.of_the_call():
        logs = list(Logs.of(args.log).logs)
    folder = options.writable(Path(args.out))
    x, y = plan.encoder.tensors(plan.train)
    mark = fingerprint(x, y)
    outputs, show = plan.encoder.num_outputs, False if args.json else None
    data, asked = (plan.encoder, len(y), mark), plan.recipe
    with occupied(folder):
        chosen = None
        if not args.start_over:
            refuse_another_method(folder, asked)
            chosen = chosen_before(folder, asked, *data)
        if chosen is None:
            with faults.of_the_training():
                chosen = asked.chosen(x, y, outputs, progress=show)
        plan = replace(plan, recipe=chosen)
        done = claim_folder(folder, chosen, *data, asked=asked, start_over=args.start_over)
        if not args.json:
            _announce(table, plan, folder, done)
        held = None if plan.held is None else plan.encoder.tensors(plan.held)
        more = {"validation": held, "out": folder, "progress": show, "log": logs}
        args.interrupted = partial(_what_is_kept, folder, plan.recipe.epochs)
        with faults.of_the_training(), faults.telling_warnings():
            trained = plan.recipe.fit(x, y, outputs, **more)
            measured = {} if plan.test is None else _scores(plan.encoder, trained, plan.test)
        document = _document(args, table, plan, trained, measured)
        document["seconds"] = time.perf_counter() - begun
        run_files(folder).write("run.json", text.as_json(document).encode())
    if args.json:
        print(text.as_json(document))
    else:
        _conclude(document, folder)
    return 0


def _what_is_kept(folder: Path, epochs: int | None) -> str:
    """Says how many epochs are on the disk when training is interrupted."""
    if done := epochs_done(folder):
        return f"{folder} holds {done} of {epochs} epochs; the same command continues from there."
    return "No checkpoint was written yet; the same command begins anew."


def _plan(args: argparse.Namespace, table: Table) -> _Plan:
    """Checks the call and the data, before anything is printed or written."""
    encoding = options.encoder_options(args, table)
    whole = Encoder.fit(table, args.target, **encoding)
    recipe = _recipe(args, whole)
    kept, test = table, None
    if args.test_fraction > 0.0:
        rows = train_and_test(table, whole, args.test_fraction, args.seed)
        kept, test = (table.rows(part) for part in rows)
    # All rows decide the kind of the target, since fewer may look like another kind.
    with_task = {**encoding, "task": whole.task.kind}
    encoder = replace(Encoder.fit(kept, args.target, **with_task), task=whole.task)
    if test is not None:
        _lenient(encoder).tensors(test)  # refuses what could not be scored in the end
    train, held = _held_out(args, kept)
    with faults.of_the_call():
        recipe.learner(len(encoder.feature_names), encoder.num_outputs, len(train))
    return _Plan(train, held, test, encoder, recipe, asked=recipe)


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
    options.refuse_without_effect(args, method)
    real = "heteroscedastic" if args.heteroscedastic else "gaussian"
    likelihood = "categorical" if classes else real
    return options.recipe(args, method=method, likelihood=likelihood, patience=args.patience)


def _scores(encoder: Encoder, trained: Run, test: Table) -> dict[str, float]:
    lenient = _lenient(encoder)
    return scores(SavedModel(lenient, trained).predict(test), lenient.original_targets(test))


def _lenient(encoder: Encoder) -> Encoder:
    """The encoder for held-out rows, where a category that only they have must not be refused."""
    return replace(encoder, unseen="ignore")


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
        "chosen": plan.chosen,
        "members": len(trained.states),
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
    if plan.chosen:
        print(f"Chosen by held-out rows: {', '.join(_described(plan.chosen))}.")
    nets = "" if plan.recipe.members == 1 else f"{plan.recipe.members} nets, "
    epochs = "1 epoch" if plan.recipe.epochs == 1 else f"{plan.recipe.epochs} epochs"
    print(
        f"Training {plan.recipe.method} on {len(plan.train)} rows: {nets}{epochs}, batches of "
        f"{plan.recipe.batch_size}.",
        flush=True,
    )
    if done:
        print(f"{folder} holds {done} of them already; training continues there.", flush=True)


def _described(chosen: dict[str, Any]) -> Iterator[str]:
    for name, value in chosen.items():
        if name == "epochs":
            yield f"{value} epochs"
        else:
            yield f"{name} {value if isinstance(value, str) else format(value, 'g')}"


def _conclude(document: dict[str, Any], folder: Path) -> None:
    if document["metrics"]:
        print(f"\nOn {document['rows']['test']} rows that were held out:")
        for key, value in document["metrics"].items():
            print(f"  {label(key):16s} {text.figure(value)}")
    print(f"\n{document['seconds']:.1f} s. Model: {folder}")
    print(f"Next: bayesrule predict {folder} NEW.csv")
