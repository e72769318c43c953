"""Independent work in several processes, any of which may be killed."""

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
    """The number and the result of each item, in the order in which they are done.

    A killed process takes a whole pool of joblib with it. What is done by then is kept, what may
    have been under way is done again, each item in a process of its own, and the rest goes to a
    new pool. `killed(item)` is the result of an item whose own process is killed, too.
    """
    import joblib

    waiting = dict(enumerate(items))
    while waiting:
        # Items in one batch would be lost together.
        pool = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)
        calls = [joblib.delayed(_numbered)(work, *item) for item in waiting.items()]
        try:
            for number, result in pool(calls):
                del waiting[number]
                yield number, result
        except BrokenExecutor:
            # Items are begun in their order, so these are the ones that were under way.
            for number in list(waiting)[: joblib.effective_n_jobs(jobs)]:
                yield number, _alone(work, waiting.pop(number), killed)


def _numbered(work: Callable[[Item], Result], number: int, item: Item) -> tuple[int, Result]:
    return number, work(item)


def _alone(work: Callable[[Item], Result], item: Item, killed: Callable[[Item], Result]) -> Result:
    import joblib

    try:
        # With two jobs joblib uses another process, even for a single item.
        (result,) = joblib.Parallel(n_jobs=2, backend="loky")([joblib.delayed(work)(item)])
        return result
    except BrokenExecutor:
        return killed(item)
