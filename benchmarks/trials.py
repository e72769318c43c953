"""What benchmarks share: parallel trials, resuming from a file, checks of data and device."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import torch

from bayesrule.app.data.errors import DataError
from bayesrule.training.checkpoint import CheckpointError

Given = TypeVar("Given")
Found = TypeVar("Found")


def each(work: Callable[[Given], Found], given: Sequence[Given], jobs: int = 1) -> Iterator[Found]:
    """The results of some work as they come; with several `jobs`, from that many processes.

    >>> list(each(abs, [1, -2]))
    [1, 2]
    """
    if jobs == 1 or len(given) < 2:
        yield from map(work, given)
        return
    import joblib

    pool = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")
    yield from pool(joblib.delayed(work)(one) for one in given)


@lru_cache(maxsize=1)
def loaded(load: Callable[..., Found], *given: Any) -> Found:
    """The result of a loading call, cached per process; `loaded.cache_clear()` clears it."""
    return load(*given)


def read(file: Path, facts: dict[str, Any]) -> dict[str, Any] | None:
    """The document in a file; None if there is no file.

    `facts` are what all its trials share; a file with different ones is refused, so that results of
    two settings are never mixed.
    """
    if not file.exists():
        return None
    try:
        found = json.loads(file.read_text())
        task, results = found["task"], found["results"]
    except (ValueError, KeyError, TypeError) as problem:
        raise _refused(file, "holds no result of this benchmark") from problem
    if not isinstance(results, list):
        raise _refused(file, f"holds no list of results but {type(results).__name__}")
    if task != facts["task"]:
        raise _refused(file, f"holds results of {task}, not of {facts['task']}")
    for name, mine in json.loads(json.dumps(facts)).items():
        if name in found and found[name] != mine:
            raise _refused(
                file, f"has trials with {name}={found[name]}, these are to have {name}={mine}"
            )
    return {**found, "results": _numbers(results)}


def _numbers(value: Any) -> Any:
    """Replaces numbers that are not finite, which json cannot represent, by null."""
    if isinstance(value, dict):
        return {name: _numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    return math.nan if value is None else value


def _refused(file: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"'{file}' {why}, so it is left as it is. Choose another file with --out."
    )


def enough(num_data: int, batch_size: int) -> None:
    """Refuses data that do not fill a batch."""
    if num_data < batch_size:
        raise DataError(
            f"This task learns from batches of {batch_size}, but only {num_data} examples are left "
            "to learn from; take more of them (--num), or hold out fewer."
        )


def usable(device: str) -> None:
    """Refuses a device that this machine does not have."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as problem:
        reason = str(problem).partition("\n")[0]
        raise DataError(f"The device {device!r} cannot be used here: {reason}") from problem
