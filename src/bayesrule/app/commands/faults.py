"""What a person can put right is told in one line; everything else keeps its traceback."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Container, Iterator
from contextlib import contextmanager

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


@contextmanager
def of_the_call() -> Iterator[None]:
    """Around code that only looks at what the caller chose: its refusals are the caller's."""
    try:
        yield
    except DataError:
        raise
    except (ValueError, TypeError) as problem:
        raise CallError(str(problem)) from problem


@contextmanager
def of_the_training() -> Iterator[None]:
    """Around training: numbers that go wrong there are a failed run, not a fault of the program."""
    try:
        yield
    except DataError:
        raise
    except (ValueError, FloatingPointError, torch.linalg.LinAlgError) as problem:
        raise TrainingError(f"{problem} ({DEBUG}=1 shows where.)") from problem


def exit_code(problem: Exception) -> int | None:
    """2 for the call and the data, 1 for a failed run, None for what is a bug."""
    if isinstance(problem, CallError | DataError | CheckpointError | OSError | ImportError):
        return 2
    if isinstance(problem, TrainingError) or _out_of_memory(problem):
        return 1
    return None


def _out_of_memory(problem: Exception) -> bool:
    # On the processor torch has no class of its own for this.
    known = isinstance(problem, MemoryError | torch.OutOfMemoryError)
    return known or (isinstance(problem, RuntimeError) and "allocate memory" in str(problem))


def tell(problem: Exception, code: int, options: Container[str] = ()) -> int:
    """One line on stderr, and with BAYESRULE_DEBUG=1 the traceback before it; returns the code."""
    if os.environ.get(DEBUG) == "1":
        traceback.print_exception(problem)
    if _out_of_memory(problem):
        say("There is not enough memory. A smaller --hidden or --batch-size takes less.")
    else:
        say(spoken(_text(problem), options))
    return code


def say(message: str) -> None:
    """One line on stderr, under the program's name."""
    print(f"bayesrule: {' '.join(message.split())}", file=sys.stderr)


def _text(problem: Exception) -> str:
    if isinstance(problem, OSError) and problem.filename is not None:
        return f"'{problem.filename}': {problem.strerror}."
    return str(problem)


def spoken(message: str, options: Container[str] = ()) -> str:
    """A message of the library in the words of a command that has these options.

    >>> spoken("Use missing='impute'.", ["missing"])
    'Use --missing impute.'
    >>> spoken("Use missing='impute'.", ["unseen"])
    "Use fit's --missing impute."
    """

    def flag(name: str) -> str:
        return ("" if name in options else "fit's ") + "--" + name.replace("_", "-")

    def named(found: re.Match[str]) -> str:
        return flag({"resume=False": "start_over"}.get(found[1], found[1].rstrip("=")))

    return _NAME.sub(named, _CHOICE.sub(lambda m: f"{flag(m[1])} {m[2]}", message))
