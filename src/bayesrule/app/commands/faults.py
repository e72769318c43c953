"""Errors that the user can fix become one line on stderr; all others keep their traceback."""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
import warnings
from collections.abc import Container, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from bayesrule.app.commands import text
from bayesrule.app.data.errors import DataError
from bayesrule.training.checkpoint import CheckpointError
from bayesrule.training.train import TrainingError, TrainingWarning

DEBUG = "BAYESRULE_DEBUG"
_NEEDS_LESS = {
    True: "A smaller --hidden or --batch-size needs less.",
    False: "Fewer --draws, or fewer rows at a time, need less.",
}
# Messages of the library name Python arguments; on the command line these are options.
_ARGUMENT = re.compile(
    r"(?<!['\w])(?:(learning_rate|prior_precision|batch_size|test_fraction)|(resume)=False"
    r"|(categories|features|missing|target|task|unseen)=(?:'(\w+)')?)"
)


class CallError(ValueError):
    """Options that cannot be taken, alone or together."""


def of_the_call() -> AbstractContextManager[None]:
    """Around code that checks what the caller chose: its errors become `CallError`."""
    return _raised_as(CallError, (ValueError, TypeError))


class TableTooLarge(MemoryError):
    """A table that does not fit into memory."""


def of_the_training() -> AbstractContextManager[None]:
    """Around training: numerical errors there become `TrainingError`, a failed run, not a bug."""
    kinds = (ValueError, ArithmeticError, torch.linalg.LinAlgError)
    return _raised_as(TrainingError, kinds, f" ({DEBUG}=1 shows where.)")


@contextmanager
def telling_warnings() -> Iterator[None]:
    """Around training: prints its warnings, one line each, once it has ended without an error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TrainingWarning)
        yield
    for warning in caught:
        print(f"bayesrule: {warning.message}", file=sys.stderr)


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
    if isinstance(problem, TrainingError) or _out_of_memory(problem) or _overflowed(problem):
        return 1
    return None


def _out_of_memory(problem: Exception) -> bool:
    # On the processor torch raises a plain RuntimeError when memory runs out.
    on_processor = isinstance(problem, RuntimeError) and "allocate memory" in str(problem)
    return on_processor or isinstance(problem, MemoryError | torch.OutOfMemoryError)


def _overflowed(problem: Exception) -> bool:
    # torch raises this where a Python number does not fit into a tensor.
    return isinstance(problem, RuntimeError) and "without overflow" in str(problem)


def report(problem: Exception, args: argparse.Namespace) -> int:
    """Says what went wrong in one line and returns the exit code; a bug is raised again."""
    code = exit_code(problem)
    if code is None:
        problem.add_note("This is a bug in bayesrule; please report these lines.")
        _as_document(f"{type(problem).__name__}: {problem}", 1, args)
        raise problem
    if os.environ.get(DEBUG) == "1":
        traceback.print_exception(problem)
    return end(_sentence(problem, vars(args)), code, args)


def _sentence(problem: Exception, options: Container[str]) -> str:
    if _out_of_memory(problem) and not isinstance(problem, TableTooLarge):
        return f"There is not enough memory. {_NEEDS_LESS['hidden' in options]}"
    if _overflowed(problem):
        return "Numbers became too large. A smaller --learning-rate or --temperature helps."
    if isinstance(problem, OSError) and problem.filename is not None:
        return f"'{problem.filename}': {problem.strerror}."
    return as_options(str(problem), options)


def end(message: str, code: int, args: argparse.Namespace) -> int:
    """Prints one line, with --json a document on standard output too, and returns the code."""
    say(message)
    _as_document(message, code, args)
    return code


def _as_document(message: str, code: int, args: argparse.Namespace) -> None:
    """With --json: prints the error and the results that came before it (`args.found`)."""
    if getattr(args, "json", False):
        one_line = " ".join(message.split())
        results = getattr(args, "found", {})
        print(text.as_json({**results, "error": one_line, "exit_code": code}))


def say(message: str) -> None:
    """Prints one line to stderr, after the program's name."""
    print(f"bayesrule: {' '.join(message.split())}", file=sys.stderr)


def as_options(message: str, options: Container[str] = ()) -> str:
    """A message of the library with its Python arguments written as command-line options.

    >>> as_options("Use missing='impute'.", ["missing"])
    'Use --missing impute.'
    >>> as_options("Use missing='impute'.", ["unseen"])
    "Use fit's --missing impute."
    """

    def option(argument: re.Match[str]) -> str:
        name = argument[1] or argument[3] or "start_over"
        # The library names `features` as the way to leave a column out; here that is --drop.
        name = "drop" if name == "features" else name
        flag = " ".join(filter(None, ["--" + name.replace("_", "-"), argument[4]]))
        return flag if name in options else f"fit's {flag}"

    return _ARGUMENT.sub(option, message)
