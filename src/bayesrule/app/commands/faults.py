"""Errors that a person can fix become one line on stderr; all others keep their traceback."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Container, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from bayesrule.app.data.errors import DataError
from bayesrule.training.checkpoint import CheckpointError
from bayesrule.training.train import TrainingError

DEBUG = "BAYESRULE_DEBUG"
# Messages of the library name Python arguments; here the same things are options.
_CHOICE = re.compile(r"(?<!['\w])(missing|unseen|task)='(\w+)'")
_NAME = re.compile(
    r"(?<!['\w])(learning_rate|prior_precision|batch_size|test_fraction|features=|resume=False)"
)


class CallError(ValueError):
    """Options that cannot be taken, alone or together."""


def of_the_call() -> AbstractContextManager[None]:
    """Around code that checks what the caller chose: its errors become `CallError`."""
    return _raised_as(CallError, (ValueError, TypeError))


def of_the_training() -> AbstractContextManager[None]:
    """Around training: numerical errors there become `TrainingError`, a failed run, not a bug."""
    kinds = (ValueError, FloatingPointError, torch.linalg.LinAlgError)
    return _raised_as(TrainingError, kinds, f" ({DEBUG}=1 shows where.)")


@contextmanager
def _raised_as(
    error: type[Exception], kinds: tuple[type[Exception], ...], more: str = ""
) -> Iterator[None]:
    """Raises errors of these kinds as another one; a `DataError` stays what it is."""
    try:
        yield
    except DataError:
        raise
    except kinds as problem:
        raise error(f"{problem}{more}") from problem


def exit_code(problem: Exception) -> int | None:
    """2 for an error in the call or the data, 1 for a failed run, None for a bug."""
    if isinstance(problem, CallError | DataError | CheckpointError | OSError | ImportError):
        return 2
    if isinstance(problem, TrainingError) or _out_of_memory(problem):
        return 1
    return None


def _out_of_memory(problem: Exception) -> bool:
    # On the processor torch raises a plain RuntimeError when memory runs out.
    on_processor = isinstance(problem, RuntimeError) and "allocate memory" in str(problem)
    return on_processor or isinstance(problem, MemoryError | torch.OutOfMemoryError)


def report(problem: Exception, code: int, options: Container[str] = ()) -> int:
    """Prints the problem as one line, with BAYESRULE_DEBUG=1 its traceback too; returns `code`."""
    if os.environ.get(DEBUG) == "1":
        traceback.print_exception(problem)
    if _out_of_memory(problem):
        say("There is not enough memory. A smaller --hidden or --batch-size takes less.")
    else:
        say(as_options(_text(problem), options))
    return code


def say(message: str) -> None:
    """Prints one line to stderr, after the program's name."""
    print(f"bayesrule: {' '.join(message.split())}", file=sys.stderr)


def _text(problem: Exception) -> str:
    if isinstance(problem, OSError) and problem.filename is not None:
        return f"'{problem.filename}': {problem.strerror}."
    return str(problem)


def as_options(message: str, options: Container[str] = ()) -> str:
    """A message of the library with its Python arguments written as command-line options.

    >>> as_options("Use missing='impute'.", ["missing"])
    'Use --missing impute.'
    >>> as_options("Use missing='impute'.", ["unseen"])
    "Use fit's --missing impute."
    """

    def flag(name: str) -> str:
        return ("" if name in options else "fit's ") + "--" + name.replace("_", "-")

    def flag_of(name: re.Match[str]) -> str:
        return flag({"resume=False": "start_over"}.get(name[1], name[1].rstrip("=")))

    return _NAME.sub(flag_of, _CHOICE.sub(lambda m: f"{flag(m[1])} {m[2]}", message))
