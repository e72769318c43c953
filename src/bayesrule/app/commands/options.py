"""Options that several commands share."""

from __future__ import annotations

import argparse
import json
import shlex
import tempfile
import textwrap
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
    commands: Any, name: str, *, help: str, description: str, examples: str = ""
) -> argparse.ArgumentParser:
    """A command whose help ends with examples."""
    epilog = "examples:\n" + textwrap.indent(textwrap.dedent(examples).strip(), "  ")
    return commands.add_parser(
        name,
        help=help,
        description=textwrap.fill(description, 79),
        epilog=epilog if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_data(parser: argparse.ArgumentParser) -> None:
    """The table and how it is read."""
    parser.add_argument("data", nargs="?", metavar="DATA", help=_DATA_HELP)
    group = parser.add_argument_group("the table")
    group.add_argument("--target", metavar="COLUMN", help="the column to predict")
    group.add_argument(
        "--task",
        choices=("regression", "classification"),
        help="what kind of target it is; found out and said where not given",
    )
    group.add_argument(
        "--features",
        type=numbers.names,
        metavar="A,B,C",
        help="only these columns as inputs; default: all but the target",
    )
    group.add_argument(
        "--missing",
        choices=("error", "impute"),
        default="error",
        help="missing values are refused by name (default), or filled in and flagged in a column",
    )


def add_training(parser: argparse.ArgumentParser) -> None:
    """The network and its training."""
    usual = Course()
    without_rate = [name for name in METHODS if "learning_rate" not in option_names(find(name))]
    group = parser.add_argument_group("the network and its training")
    group.add_argument(
        "--hidden",
        type=numbers.units,
        default="50",
        metavar="N,N",
        help="units of the hidden layers, none for a linear model (default: 50)",
    )
    group.add_argument(
        "--epochs",
        type=numbers.whole(),
        metavar="N",
        help="passes through the data; default: as many as make about --steps batches, at least "
        f"{usual.least} and at most {usual.most} ({_exceptions('most')})",
    )
    group.add_argument(
        "--steps",
        type=numbers.whole(),
        metavar="N",
        help="about how many batches are seen where --epochs is not given (default: "
        f"{usual.steps}, and {_exceptions('steps')})",
    )
    group.add_argument(
        "--batch-size",
        type=numbers.whole(),
        metavar="N",
        help=f"rows in a batch (default: {usual.batch}, and {_exceptions('batch')})",
    )
    group.add_argument(
        "--prior-precision",
        type=numbers.not_negative,
        metavar="P",
        help="the weights' prior is N(0, 1/P); default: the method's own",
    )
    group.add_argument(
        "--temperature",
        type=numbers.positive,
        metavar="T",
        help="below 1 the data count more (default: 1)",
    )
    group.add_argument(
        "--learning-rate",
        type=numbers.positive,
        metavar="A",
        help="falls to zero along a cosine; default: the method's own (not for "
        f"{', '.join(without_rate)})",
    )


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
    """What every command has."""
    parser.add_argument(
        "--json", action="store_true", help="print one json document instead of text for people"
    )


def table(args: argparse.Namespace) -> Table:
    """The table that a call names."""
    found = open_table(args.data)
    if args.target is None and found.target is None:
        raise DataError(
            f"Say which column of {found.name} to predict with --target; its columns are "
            f"{', '.join(found.columns)}."
        )
    return found


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
    """The call as it can be given again."""
    return shlex.join(["bayesrule", *args.words])


def writable(folder: Path) -> Path:
    """The folder, made where it is not there; a refusal comes before the work, not after it."""
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
    """A document as text; what is not a finite number becomes null."""
    return json.dumps(_finite(document), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
