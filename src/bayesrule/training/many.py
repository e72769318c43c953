"""Many trainings at once: splits, ensembles, one net for each series."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from bayesrule.learner import Learner
from bayesrule.tensors.inputs import as_pair
from bayesrule.tensors.network import forked_randomness
from bayesrule.tensors.unfit import whole_number
from bayesrule.training.batches import (
    TensorBatches,
    as_batches,
    gathered,
    is_pair,
)
from bayesrule.training.checkpoint import Epoch
from bayesrule.training.loop import Loop, TrainingWarning
from bayesrule.training.meeting import present
from bayesrule.training.net import Net
from bayesrule.training.progress import Progress
from bayesrule.training.together import Together, groups_of
from bayesrule.training.train import Run
from bayesrule.training.warm_start import beginning, started_at
from bayesrule.types import State

Build = Callable[[Any, Any], Learner]


def fit_many(
    build: Build | Sequence[Learner],
    sets: Sequence[tuple[Any, Any]],
    *,
    epochs: int | None = None,
    batch_size: int = 32,
    seeds: int | Sequence[int] | None = None,
    progress: bool | None = None,
    validation: Sequence[tuple[Any, Any] | None] | None = None,
    states: Sequence[State] | None = None,
    warm_start: bool | int | None = None,
    callback: Callable[[Learner, State, Epoch], None] | None = None,
    quiet: bool = False,
) -> list[Run]:
    """Trains a net on each of several data sets, together in one process; one run for each.

    Each run is that of `fit(build(x, y), (x, y), seed=...)`, with the same random numbers except
    what a module draws itself (dropout) and weights drawn in eigenbases (see `Stacked`). Nets that
    are alike, with equally many batches in an epoch, take their steps together (`Stacked`), which
    for small nets takes a tenth of the time; others train one after another. Without `epochs`, nets
    that take their steps together end together, once all of them have settled. A net whose training
    diverges leaves the others and is trained alone from the beginning.

    - `build(x, y)` makes the learner of a set, under the set's own seed, which so determines the
      first weights of torch's layers; or give a list of learners, one for each set.
    - `sets`: pairs (x, y), which may differ in length.
    - `seeds`: one for each set, or the first of them.
    - `validation`: a pair (x, y), or None, for each set; its score is noted after each epoch.
    - `states`: where training begins, one for each set.
    - `warm_start`: as for `fit`.
    - `callback(learner, state, figures)` is called after each epoch of the first net.
    - `quiet`: nets that diverge and start again do so without a warning.

    >>> from torch import nn
    >>> from bayesrule import GaussianLikelihood, vogn
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> runs = fit_many(
    ...     lambda x, y: vogn(nn.Linear(1, 1), GaussianLikelihood(noise=0.1), num_data=len(y)),
    ...     [(x, 2 * x), (x[1:], 3 * x[1:])],
    ...     epochs=3,
    ... )
    >>> len(runs), runs[1].predict(x).mean.shape, len(runs[0].history)
    (2, torch.Size([20, 1]), 3)
    """
    if epochs is not None:
        whole_number("epochs", epochs)

    def asked() -> _Trainings:
        nets = _nets(build, sets, batch_size, seeds, validation)
        nets[0].callback = callback
        if states is not None:
            _begin_with(nets, states)
        warm = warm_start
        if states is not None:
            warm = False
        elif warm is None:
            warm = epochs is None and all(net.learner.warm_start for net in nets)
        return _Trainings(nets, epochs, warm, progress, quiet)

    trainings, meeting = asked(), present.get()
    if meeting is None or not meeting.train(trainings):
        trainings = trainings if meeting is None else asked()
        trainings.run()
    return [Run(net.learner, net.state, net.history) for net in trainings.nets]


@dataclass(frozen=True, eq=False)
class _Trainings:
    """Nets to be trained, and how; `warm_start` is resolved, True means until settled."""

    nets: Sequence[Net]
    epochs: int | None
    warm_start: bool | int
    progress: bool | None
    quiet: bool

    @property
    def terms(self) -> object:
        if self.epochs is None or self.warm_start is True:
            return self  # Nets that train until all of them have settled wait for each other.
        return self.epochs, self.warm_start, self.progress, self.quiet

    def joined(self, others: Sequence[Any]) -> _Trainings:
        return replace(self, nets=[*self.nets, *(net for one in others for net in one.nets)])

    def run(self) -> None:
        """Trains all nets, those that are alike together."""
        if self.warm_start:
            self._find_starts()
        total = None
        if self.epochs is not None:
            total = self.epochs * sum(len(net.batches) for net in self.nets)
        with (
            _hushed() if self.quiet else nullcontext(),
            Progress(total, 0, _counted(self.nets), self.progress) as bar,
        ):
            for group in groups_of(self.nets):
                alone = Together(group, bar, self.epochs).run() if len(group) > 1 else group
                for net in alone:
                    Loop(net, self.epochs, callback=net.callback).run(bar)

    def _find_starts(self) -> None:
        """Makes training begin at the most probable weights."""
        starts = [
            Net(beginning(net.learner), net.batches, net.seed, None, number=net.number)
            for net in self.nets
        ]
        length = None if self.warm_start is True else self.warm_start
        replace(self, nets=starts, epochs=length, warm_start=False).run()
        pairs = zip(self.nets, starts, strict=True)
        _begin_with(
            self.nets, [started_at(net.learner, start.state, net.seed) for net, start in pairs]
        )


@contextmanager
def _hushed() -> Iterator[None]:
    """Without warnings of nets that diverge."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        yield


def _counted(nets: Sequence[Net]) -> str:
    return "1 net" if len(nets) == 1 else f"{len(nets)} nets"


def _nets(
    build: Build | Sequence[Learner],
    sets: Sequence[tuple[Any, Any]],
    batch_size: int,
    seeds: int | Sequence[int] | None,
    validation: Sequence[tuple[Any, Any] | None] | None,
) -> list[Net]:
    pairs = [gathered(as_pair(data)) for data in sets]
    count = len(pairs)
    if not pairs:
        raise ValueError("There are no data sets to learn from; sets is a list of pairs (x, y).")
    first = seeds if isinstance(seeds, int) else 0
    numbers = list(seeds) if isinstance(seeds, Sequence) else range(first, first + count)
    held_out = [None] * count if validation is None else [gathered(as_pair(v)) for v in validation]
    learners = [build] * count if callable(build) else list(build)
    for name, values in (("seeds", numbers), ("validation", held_out), ("learners", learners)):
        if len(values) != count:
            raise ValueError(f"There are {count} sets, but {len(values)} {name}.")
    nets = []
    for k, (pair, seed, check) in enumerate(zip(pairs, numbers, held_out, strict=True)):
        batches = _batches(pair, batch_size, k)
        with forked_randomness(torch.get_default_device(), int(seed)):
            learner = build(*pair) if callable(build) else build[k]
        if not isinstance(learner, Learner):
            raise TypeError(f"Set {k}: build gives a Learner, got {type(learner).__name__}.")
        nets.append(Net(learner, batches, int(seed), check, number=k))
    return nets


def _begin_with(nets: Sequence[Net], states: Sequence[State]) -> None:
    """Makes training begin at given states."""
    if len(nets) != len(states):
        raise ValueError(f"There are {len(nets)} sets, but {len(states)} states.")
    for net, state in zip(nets, states, strict=True):
        net.first = state
        net.restart()


def _batches(data: Any, batch_size: int, number: int) -> TensorBatches:
    if not is_pair(data):
        raise TypeError(f"Set {number} is a pair (x, y), got {type(data).__name__}.")
    try:
        batches = as_batches(data, batch_size)
    except ValueError as problem:
        raise ValueError(f"Set {number}: {problem}") from problem
    assert isinstance(batches, TensorBatches)
    return batches
