"""Independent work in several processes that survives the death of any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def results(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    jobs: int | None,
    killed: Callable[[Item], Result],
) -> Iterator[tuple[int, Result]]:
    """Yields the number and the result of each item, in the order in which they finish.

    A killed process takes its whole joblib pool with it. Finished results are kept; items that
    may have been running are repeated, each in a process of its own; the others go to a new pool.
    An item whose own process is killed too has the result `killed(item)`.
    """
    import joblib

    waiting = dict(enumerate(items))
    while waiting:
        # One item per batch: items of one batch would be lost together.
        pool = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)
        calls = [joblib.delayed(_numbered)(work, *item) for item in waiting.items()]
        try:
            for number, result in pool(calls):
                del waiting[number]
                yield number, result
        except BrokenExecutor:
            # Items start in order, so these are the ones that were running.
            for number in list(waiting)[: joblib.effective_n_jobs(jobs)]:
                yield number, _alone(work, waiting.pop(number), killed)


def _numbered(work: Callable[[Item], Result], number: int, item: Item) -> tuple[int, Result]:
    return number, work(item)


def _alone(work: Callable[[Item], Result], item: Item, killed: Callable[[Item], Result]) -> Result:
    import joblib

    try:
        # With n_jobs=2 joblib starts another process even for a single item.
        (result,) = joblib.Parallel(n_jobs=2, backend="loky")([joblib.delayed(work)(item)])
        return result
    except BrokenExecutor:
        return killed(item)
