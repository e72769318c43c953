"""Independent games in several processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

from bayesrule.app.data.errors import nearest

Game = TypeVar("Game")
Plan = TypeVar("Plan")
Row = TypeVar("Row")


def in_processes(
    play: Callable[[Game, Plan], Row], games: Sequence[Game], plan: Plan, jobs: int
) -> Iterator[Row]:
    """The rows of the games as they end."""
    if jobs == 1:
        yield from (play(game, plan) for game in games)
        return
    # Torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context) as pool:
        for done in as_completed([pool.submit(play, game, plan) for game in games]):
            yield done.result()


def refuse_unknown(kind: str, names: Sequence[str], known: Collection[str]) -> None:
    """Refuses unknown names."""
    for name in names:
        if name not in known:
            raise ValueError(
                f"Unknown {kind} {name!r}.{nearest(name, known)} There are {', '.join(known)}."
            )
