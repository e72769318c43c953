"""Options that several commands share."""

from __future__ import annotations

import argparse
import json
from typing import Any

from bayesrule.data import EMBEDDED, UCI, DataError, Table, open_table
from bayesrule.recipe import Recipe

_DATA_HELP = (
    "a csv, tsv, parquet or npz file, or the name of a built-in set "
    f"({', '.join([*EMBEDDED, *UCI])}); default: {next(iter(EMBEDDED))}"
)


def add_data(parser: argparse.ArgumentParser) -> None:
    """The table and how it is read."""
    parser.add_argument("data", nargs="?", metavar="DATA", help=_DATA_HELP)
    parser.add_argument("--target", metavar="COLUMN", help="the column to predict")
    parser.add_argument(
        "--task",
        choices=("regression", "classification"),
        help="what kind of target it is; found out and said where not given",
    )
    parser.add_argument(
        "--features",
        metavar="A,B,C",
        help="only these columns as inputs; default: all but the target",
    )
    parser.add_argument(
        "--missing",
        choices=("error", "impute"),
        default="error",
        help="missing values are refused by name (default), or filled in and flagged in a column",
    )


def add_training(parser: argparse.ArgumentParser) -> None:
    """The network and its training."""
    parser.add_argument(
        "--hidden", default="50", metavar="N,N", help="units of the hidden layers (default: 50)"
    )
    parser.add_argument(
        "--epochs",
        type=int,
        metavar="N",
        help="passes through the data; default: about --steps batches",
    )
    parser.add_argument(
        "--steps", type=int, default=2000, metavar="N", help="batches in all (default: 2000)"
    )
    parser.add_argument(
        "--batch-size", type=int, metavar="N", help="examples in a batch (default: 32)"
    )
    parser.add_argument(
        "--prior-precision",
        type=float,
        metavar="P",
        help="the weights' prior is N(0, 1/P); default: the method's own",
    )
    parser.add_argument(
        "--temperature", type=float, metavar="T", help="below 1 the data count more (default: 1)"
    )
    parser.add_argument(
        "--learning-rate", type=float, metavar="A", help="default: the method's own"
    )


def add_common(parser: argparse.ArgumentParser) -> None:
    """What every command has."""
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of all randomness (default: 0)"
    )
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
    features = [name.strip() for name in args.features.split(",")] if args.features else None
    return {"task": args.task, "features": features, "missing": args.missing}


def recipe(args: argparse.Namespace, **more: Any) -> Recipe:
    """The training that a call asks for."""
    names = ("prior_precision", "temperature", "learning_rate")
    options = {k: getattr(args, k) for k in names if getattr(args, k) is not None}
    return Recipe(
        hidden=_units(args.hidden),
        epochs=args.epochs,
        steps=args.steps,
        batch_size=args.batch_size,
        seed=args.seed,
        options=options,
        **more,
    )


def _units(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as problem:
        raise ValueError(
            f"--hidden takes whole numbers such as 50 or 64,64, got {text!r}."
        ) from problem


def show_json(document: Any) -> None:
    """Prints a document; what is not a finite number becomes null."""
    print(json.dumps(_finite(document), indent=2))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
