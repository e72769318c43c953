"""Options that several commands share, and the values that they take (`type=` of argparse)."""

from __future__ import annotations

import argparse
import shlex
import tempfile
import textwrap
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from bayesrule.app.commands import faults
from bayesrule.app.data import EMBEDDED, Table, open_table
from bayesrule.app.open_choices import HIDDEN
from bayesrule.app.recipe import Recipe
from bayesrule.methods import METHODS, TEMPERED, Course, Need, find, option_names, record

T = TypeVar("T")
_DATA_HELP = (
    "a csv, tsv, parquet or npz file, or one of scikit-learn's data sets "
    f"({', '.join(EMBEDDED)}); default: {next(iter(EMBEDDED))}"
)


def value(read: Callable[[str], T], what: str, fits: Callable[[T], bool]) -> Callable[[str], T]:
    """An argparse `type` that reads a value and refuses it unless it `fits`.

    The error says `what` the option takes.

    >>> value(float, "a positive number", lambda number: number > 0)("0.5")
    0.5
    """

    def checked(text: str) -> T:
        with suppress(ValueError):
            if fits(result := read(text)):
                return result
        got = text if len(text) <= 60 else f"{text[:60]}..."
        raise argparse.ArgumentTypeError(f"takes {what}, got '{got}'")

    return checked


def whole(least: int = 1, most: int = 10**9) -> Callable[[str], int]:
    """Whole numbers from `least` to `most`."""
    what = f"a whole number of at least {least} and at most {most}"
    return value(int, what, lambda number: least <= number <= most)


# Training uses float32, whose numbers end near 1e-38 and 3e38.
_SMALLEST, _LARGEST = 1e-30, 1e30
_RANGE = f"from {_SMALLEST:g} to {_LARGEST:g}"
positive = value(float, f"a number above 0, {_RANGE}", lambda v: _SMALLEST <= v <= _LARGEST)
not_negative = value(
    float, f"a number of 0 or more: 0, or {_RANGE}", lambda v: v == 0 or _SMALLEST <= v <= _LARGEST
)
between = value(float, "a number strictly between 0 and 1", lambda v: 0.0 < v < 1.0)
fraction = value(float, "a number from 0 up to but not 1", lambda v: 0.0 <= v < 1.0)
seed = whole(0, 2**32 - 1)


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


names = value(_listed, "names with commas between them", bool)


def _sizes(text: str) -> tuple[int, ...]:
    return () if text.strip().lower() == "none" else tuple(int(part) for part in text.split(","))


units = value(
    _sizes,
    "whole numbers from 1 to 1000000 such as 50 or 64,64, or none for a linear model",
    lambda sizes: all(1 <= size <= 10**6 for size in sizes),
)
place = value(str, "a path", lambda text: bool(text) and "\0" not in text)


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
    """Adds an option that takes a value; its help ends with the default, if there is one."""
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
        help="whether the target is a number (regression) or a class (classification); default: "
        "decided from the target column, and the reason is printed",
    )
    features = "only these columns as inputs; default: all but the target"
    add_option(group, "--features", "A,B,C", features, read=names)
    codes = "columns that hold categories although they look like numbers, such as codes"
    add_option(group, "--categories", "A,B,C", codes, read=names)
    without = "columns to leave out, such as row numbers and names"
    add_option(group, "--drop", "A,B,C", without, read=names)
    group.add_argument(
        "--missing",
        choices=("error", "impute"),
        default="error",
        help="missing values: stop and name their column (error, the default), or fill them in "
        "and mark them in an extra column (impute)",
    )


def _add_training(group: Any) -> None:
    add, usual = partial(add_option, group), Course()
    usual_layers = " or ".join(",".join(map(str, layers)) for layers in HIDDEN)
    layers = (
        "units in each hidden layer, or none for a linear model; default: chosen by held-out rows "
        f"from {usual_layers}"
    )
    add("--hidden", "N,N", layers, read=units)
    epochs = (
        "passes over the training rows; default: as many as make about --steps batches, at least "
        f"{usual.least} and at most {usual.most}{_exceptions('most')}"
    )
    add("--epochs", "N", epochs, read=whole())
    steps = (
        "about how many batches to train on where --epochs is not given; default: "
        f"{_in_words(usual.steps)}, whichever predicts held-out rows best{_exceptions('steps')}"
    )
    add("--steps", "N", steps, read=whole())
    batch = f"rows in a batch; default: {usual.batch}{_exceptions('batch')}"
    add("--batch-size", "N", batch, read=whole())
    prior = "before the data, each weight is N(0, 1/P): a larger P means a smoother function; "
    prior += "default: depends on the method"
    add("--prior-precision", "P", prior, read=not_negative)
    cold = (
        "below 1 the data count more against the prior, and predictions are surer; default: "
        f"{_in_words(TEMPERED.temperatures)}, whichever predicts held-out rows best "
        f"({_untempered()})"
    )
    add("--temperature", "T", cold, read=positive)
    without = [name for name in METHODS if "learning_rate" not in option_names(find(name))]
    rate = (
        "size of the first steps, which fall to zero along a cosine; default: depends on the "
        "method (not for "
        f"{', '.join(without)})"
    )
    add("--learning-rate", "A", rate, read=positive)
    nets = (
        "nets that learn from other first weights and are averaged in predictions; default: "
        f"{usual.members}, and 1 where --epochs, --steps or --patience are given and for "
        f"{_single_nets()}"
    )
    add("--members", "N", nets, read=whole(most=1000))


def _exceptions(setting: str) -> str:
    """The methods whose `setting` differs from the usual one, in brackets, if there are any.

    >>> _exceptions("most"), _exceptions("batch")
    (' (30 for newton, 30 for ridge, 400 for tagi)', '')
    """
    values = {name: getattr(record(name).course, setting) for name in METHODS}
    usual = getattr(Course(), setting)
    unusual = {name: value for name, value in values.items() if value != usual}
    named = ", ".join(f"{_in_words(value)} for {name}" for name, value in unusual.items())
    return f" ({named})" if named else ""


def _untempered() -> str:
    """The methods whose temperature is not chosen on held-out rows."""
    names = [name for name in METHODS if not record(name).course.temperatures]
    return f"1 for {', '.join(names)}"


def _single_nets() -> str:
    """Which methods train one net where nobody asks for more."""
    names = [name for name in METHODS if record(name).course.members == 1]
    return ", ".join(names)


def _in_words(value: Any) -> str:
    """A number, or several to choose from.

    >>> _in_words((1000, 2500, 10_000))
    '1000, 2500 or 10000'
    """
    *others, last = map(str, value if isinstance(value, tuple) else (value,))
    return f"{', '.join(others)} or {last}" if others else last


_SEED_HELP = "the same seed repeats all random choices (default: 0)"


def add_seed(parser: argparse.ArgumentParser, help: str = _SEED_HELP) -> None:
    """The number that determines all randomness."""
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help=help)


def add_folder(parser: argparse.ArgumentParser) -> None:
    """The folder of a trained model."""
    help = "a trained model: the folder made by `bayesrule fit --out FOLDER`"
    parser.add_argument("folder", metavar="FOLDER", help=help)


def add_level(parser: argparse.ArgumentParser) -> None:
    """The level of prediction intervals."""
    level = "the share of true values that the interval should hold"
    add_option(parser, "--level", "L", level, read=between, default=0.9)


def add_unseen(parser: argparse.ArgumentParser) -> None:
    """What to do about a category that training did not have."""
    unseen = (
        "a category that training did not have: refuse it (error, the default), or predict as if "
        "the row had none of the known ones (ignore)"
    )
    parser.add_argument("--unseen", choices=("error", "ignore"), default="error", help=unseen)


def add_json(parser: argparse.ArgumentParser) -> None:
    """The switch for programs that read the output."""
    parser.add_argument(
        "--json", action="store_true", help="print one json document instead of text for people"
    )


def table(source: str | None) -> Table:
    """The table to work on; running out of memory here means that the table is too large."""
    try:
        return open_table(source)
    except MemoryError as problem:
        raise faults.TableTooLarge(
            f"There is not enough memory to read '{source}'. Fewer rows or columns need less."
        ) from problem


def encoder_options(args: argparse.Namespace, table: Table) -> dict[str, Any]:
    """The arguments of `Encoder.fit` that the call gives."""
    return {
        "task": args.task,
        "features": _features(args, table),
        "missing": args.missing,
        "categories": args.categories or (),
    }


def _features(args: argparse.Namespace, table: Table) -> list[str] | None:
    """The columns to learn from: those of --features, or all, without those of --drop."""
    if args.drop is None:
        return args.features
    target = args.target or table.target
    for name in args.drop:
        table.column(name)  # refuses a name that is not there
        if name == target:
            raise faults.CallError(f"--drop names '{name}', which is the target.")
    chosen = args.features or [name for name in table.columns if name != target]
    return [name for name in chosen if name not in args.drop]


def recipe(args: argparse.Namespace, **more: Any) -> Recipe:
    """The training that a call asks for."""
    names = ("hidden", "epochs", "steps", "batch_size", "members", "seed")
    settings = {k: getattr(args, k) for k in names if getattr(args, k) is not None}
    with faults.of_the_call():
        return Recipe(**settings, options=method_options(args), **more)


def method_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options of the method that the call sets, with their values."""
    names = ("prior_precision", "temperature", "learning_rate")
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def refuse_without_effect(args: argparse.Namespace, method: str) -> None:
    """Refuses options that the call sets but the method would ignore."""
    ignored = [name for name in method_options(args) if name in record(method).without_effect]
    if Need.LINEAR_MODEL in record(method).needs:
        ignored += [name for name in ("hidden", "members") if getattr(args, name)]
    if ignored:
        flags = " and ".join("--" + name.replace("_", "-") for name in ignored)
        raise faults.CallError(
            f"{flags} would have no effect: {method} has no use for it. Leave it out, or choose "
            "another --method."
        )


def command(args: argparse.Namespace) -> str:
    """The command line that repeats this call."""
    return shlex.join(["bayesrule", *args.words])


def writable(folder: Path) -> Path:
    """The folder, created if needed; refuses one that cannot be written to before the work."""
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
