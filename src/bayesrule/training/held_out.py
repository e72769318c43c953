"""Rows that are held out, and trainings without them, which are judged by them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesrule.learner import Learner
from bayesrule.tensors.network import Inputs, take
from bayesrule.training.calibrating import Held
from bayesrule.training.many import fit_many
from bayesrule.training.net import TrainingError
from bayesrule.training.train import Run
from bayesrule.training.warm_start import started_at
from bayesrule.types import State

# How many parts of the rows are held out, one after another, up to how many rows.
_PARTS = ((5, 200), (3, 600), (2, 1500), (1, math.inf))


class Candidate(NamedTuple):
    """A training to try; `build(num_data)` makes its learner.

    It begins at the weights of `starts`, one run for each part of the data, where given.
    """

    build: Callable[[int], Learner]
    seed: int = 0
    starts: Sequence[Run] = ()


class Part(NamedTuple):
    """One split of the data: the rows to train on, and the held-out rows."""

    train: Tensor
    held: Tensor


def held_out_parts(num_data: int, seed: int = 0) -> list[Part]:
    """Splits that hold out a fifth of the rows, at most 2,000; few rows are split more often.

    >>> [(len(part.train), len(part.held)) for part in held_out_parts(100)]
    [(80, 20), (80, 20), (80, 20), (80, 20), (80, 20)]
    >>> [(len(part.train), len(part.held)) for part in held_out_parts(20_000)]
    [(18000, 2000)]
    """
    if num_data < 5:
        raise ValueError(f"Choosing by held-out rows takes at least 5 rows, there are {num_data}.")
    order = torch.randperm(num_data, generator=torch.Generator().manual_seed(seed))
    size = min(num_data // 5, 2000)
    number = next(parts for parts, most in _PARTS if num_data <= most)
    parts = []
    for start in range(0, number * size, size):
        train = torch.cat([order[:start], order[start + size :]])
        parts.append(Part(train, order[start : start + size]))
    return parts


@dataclass(frozen=True)
class HeldOut:
    """Data and their splits, each of which holds out other rows.

    Candidates train without the held-out rows, all candidates and parts together where possible
    (`fit_many`), in batches of `batch_size`.
    """

    data: tuple[Inputs, Tensor]
    parts: Sequence[Part]
    batch_size: int = 32
    progress: bool | None = False

    def runs(self, candidates: Sequence[Candidate], epochs: int | None) -> list[list[Run] | None]:
        """The trainings of each candidate, one for each part; None where one of them fails."""
        (x, y), size = self.data, len(self.parts)
        tasks = [
            _Task.of(candidate, k, x, y, part.train)
            for candidate in candidates
            for k, part in enumerate(self.parts)
        ]
        common: dict[str, Any] = {
            "epochs": epochs,
            "batch_size": self.batch_size,
            "progress": self.progress,
            # Divergence of a candidate does not concern the caller, who trains another one.
            "quiet": True,
        }
        trained: Sequence[Run | None]
        try:
            trained = _together(tasks, common)
        except (TrainingError, torch.linalg.LinAlgError):
            trained = [_alone(task, common) for task in tasks]
        groups = [trained[k : k + size] for k in range(0, len(trained), size)]
        successes = [[run for run in runs if run is not None] for runs in groups]
        return [runs if len(runs) == size else None for runs in successes]

    def held(self, members: Sequence[Sequence[Run]]) -> list[Held]:
        """An ensemble's outputs for the held-out rows of each part, from its members' runs."""
        x, y = self.data
        return [
            Held.of(
                runs[0].learner,
                [run.state for run in runs],
                take(x, part.held),
                y[part.held],
            )
            for part, runs in zip(self.parts, zip(*members, strict=True), strict=True)
        ]


class _Task(NamedTuple):
    """One training: a learner, its rows, its seed, and where it begins."""

    learner: Learner
    rows: tuple[Inputs, Tensor]
    seed: int
    start: State | None

    @classmethod
    def of(cls, candidate: Candidate, part: int, x: Inputs, y: Tensor, rows: Tensor) -> _Task:
        """A candidate on the rows of a part."""
        build, seed, starts = candidate
        learner = build(len(rows))
        start = started_at(learner, starts[part].state, seed) if starts else None
        return cls(learner, (take(x, rows), y[rows]), seed, start)


def _together(tasks: Sequence[_Task], common: Mapping[str, Any]) -> list[Run]:
    learners, rows, seeds, starts = zip(*tasks, strict=True)
    # `None in starts` would compare tensors.
    states = None if any(start is None for start in starts) else [*starts]
    return fit_many(learners, rows, seeds=seeds, states=states, **common)


def _alone(task: _Task, common: Mapping[str, Any]) -> Run | None:
    try:
        return _together([task], common)[0]
    except (TrainingError, torch.linalg.LinAlgError):
        return None
