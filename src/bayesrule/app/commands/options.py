"""Options that several commands share."""

from __future__ import annotations

import argparse
import json
import shlex
import tempfile
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bayesrule.app.commands import faults, numbers
from bayesrule.app.data import EMBEDDED, UCI, DataError, Table, open_table
from bayesrule.app.recipe import Recipe
from bayesrule.methods import METHODS, Course, find, option_names, record

_DATA_HELP = (
    "a csv, tsv, parquet or npz file, or the name of a built-in set "
    f"({', '.join([*EMBEDDED, *UCI])}); default: {next(iter(EMBEDDED))}"
)


def add_command(
    commands: Any, name: str, help: str, description: str, examples: str = ""
) -> argparse.ArgumentParser:
    """A command whose help ends with examples."""
    epilog = "examples:\n" + textwrap.indent(textwrap.dedent(examples).strip(), "  ")
    return commands.add_parser(
        name,
        help=help,
        description=textwrap.fill(" ".join(description.split()), 79),
        epilog=epilog if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_option(
    group: Any,
    flag: str,
    placeholder: str,
    meaning: str,
    *,
    read: Callable[[str], Any] = str,
    default: Any = None,
) -> None:
    """An option that takes a value; its help ends with the default where there is one."""
    ending = "" if default is None else f" (default: {default})"
    group.add_argument(flag, type=read, default=default, metavar=placeholder, help=meaning + ending)


def add_table_and_training(parser: argparse.ArgumentParser) -> None:
    """The options of a command that trains on a table."""
    parser.add_argument("data", nargs="?", metavar="DATA", help=_DATA_HELP)
    _add_table(parser.add_argument_group("the table"))
    _add_training(parser.add_argument_group("the network and its training"))
    add_seed(parser)
    add_json(parser)


def _add_table(group: Any) -> None:
    add_option(group, "--target", "COLUMN", "the column to predict")
    group.add_argument(
        "--task",
        choices=("regression", "classification"),
        help="what to predict, a number or a class; default: decided from the target column, "
        "with the reason printed",
    )
    features = "only these columns as inputs; default: all but the target"
    add_option(group, "--features", "A,B,C", features, read=numbers.names)
    group.add_argument(
        "--missing",
        choices=("error", "impute"),
        default="error",
        help="missing values: stop and name their column (error, the default), or fill them in "
        "and mark them in an extra column (impute)",
    )


def _add_training(group: Any) -> None:
    add, usual = partial(add_option, group), Course()
    layers = "units of the hidden layers, none for a linear model"
    add("--hidden", "N,N", layers, read=numbers.units, default="50")
    epochs = (
        "passes through the data; default: as many as make about --steps batches, at least "
        f"{usual.least} and at most {usual.most} ({_exceptions('most')})"
    )
    add("--epochs", "N", epochs, read=numbers.whole())
    steps = (
        "about how many batches to train on where --epochs is not given (default: "
        f"{usual.steps}, and {_exceptions('steps')})"
    )
    add("--steps", "N", steps, read=numbers.whole())
    batch = f"rows in a batch (default: {usual.batch}, and {_exceptions('batch')})"
    add("--batch-size", "N", batch, read=numbers.whole())
    prior = "the weights' prior is N(0, 1/P); default: depends on the method"
    add("--prior-precision", "P", prior, read=numbers.not_negative)
    cold = "below 1 the data count more (default: 1)"
    add("--temperature", "T", cold, read=numbers.positive)
    without = [name for name in METHODS if "learning_rate" not in option_names(find(name))]
    rate = (
        "falls to zero along a cosine; default: depends on the method (not for "
        f"{', '.join(without)})"
    )
    add("--learning-rate", "A", rate, read=numbers.positive)


def _exceptions(setting: str) -> str:
    """What methods have that train in another way than most.

    >>> _exceptions("most")
    '30 for newton, 30 for ridge, 100 for tagi'
    """
    values = {name: getattr(record(name).course, setting) for name in METHODS}
    usual = getattr(Course(), setting)
    return ", ".join(f"{value} for {name}" for name, value in values.items() if value != usual)


def add_seed(parser: argparse.ArgumentParser, of: str = "of all randomness (default: 0)") -> None:
    """The one number that all randomness follows from."""
    parser.add_argument("--seed", type=numbers.seed, default=0, metavar="N", help=of)


def add_json(parser: argparse.ArgumentParser) -> None:
    """The switch for programs that read the output."""
    parser.add_argument(
        "--json", action="store_true", help="print one json document instead of text for people"
    )


def table(args: argparse.Namespace) -> Table:
    """The table that a call names."""
    opened = open_table(args.data)
    if args.target is None and opened.target is None:
        raise DataError(
            f"Say which column of {opened.name} to predict with --target; its columns are "
            f"{', '.join(opened.columns)}."
        )
    return opened


def encoder_options(args: argparse.Namespace) -> dict[str, Any]:
    """How the table is to be encoded."""
    return {"task": args.task, "features": args.features, "missing": args.missing}


def recipe(args: argparse.Namespace, **more: Any) -> Recipe:
    """The training that a call asks for."""
    names = ("prior_precision", "temperature", "learning_rate")
    chosen = {k: getattr(args, k) for k in names if getattr(args, k) is not None}
    with faults.of_the_call():
        return Recipe(
            hidden=args.hidden,
            epochs=args.epochs,
            steps=args.steps,
            batch_size=args.batch_size,
            seed=args.seed,
            options=chosen,
            **more,
        )


def command(args: argparse.Namespace) -> str:
    """The command line of this call, to run it again."""
    return shlex.join(["bayesrule", *args.words])


def writable(folder: Path) -> Path:
    """The folder, created if needed; one that cannot be written to is refused before the work."""
    if folder.exists() and not folder.is_dir():
        raise faults.CallError(f"'{folder}' is a file; --out takes a folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as problem:
        raise faults.CallError(
            f"Cannot write into the folder '{folder}': {problem.strerror}. Choose another with "
            "--out."
        ) from problem


def as_json(document: Any) -> str:
    """A document as json text; numbers that are not finite become null."""
    return json.dumps(_finite(document), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
