"""Many trainings at once: splits, ensembles, one net for each series."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.execution.replayed import Replayed, replay_obstacle
from bayesrule.execution.stacked.obstacles import obstacle, ragged_obstacle
from bayesrule.execution.stacked.stack import Stacked
from bayesrule.execution.stacked.states import single
from bayesrule.learner import Learner
from bayesrule.predicting.predict import as_inputs
from bayesrule.tensors.inputs import as_pair, mapped, named, take, zipped
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
from bayesrule.training.net import Net, fault
from bayesrule.training.progress import Progress
from bayesrule.training.settling import Fall, Settling
from bayesrule.training.train import Run
from bayesrule.training.warm_start import beginning, started_at
from bayesrule.types import Batch, State

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
            for group in _groups(self.nets):
                alone = _Together(group, bar, self.epochs).run() if len(group) > 1 else group
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


def _groups(nets: Sequence[Net]) -> list[list[Net]]:
    """Nets that can train together; those that cannot are groups of their own."""
    groups: dict[object, list[Net]] = {}
    for net in nets:
        alone = obstacle(net.learner) is not None
        groups.setdefault(id(net) if alone else _alike(net), []).append(net)
    return list(groups.values())


def _alike(net: Net) -> tuple[Any, ...]:
    """What nets that train together have in common."""
    learner, data = net.learner, _data(net)
    parts = learner.family, learner.expectation, learner.curvature, learner.rule
    inputs = [*named(data.x), ("targets", data.y)]
    ragged = ragged_obstacle(learner) is None
    model = learner.model
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return (
        # Parts print as the calls that build them; one that does not equals only itself.
        *(repr(part) for part in (*parts, learner.likelihood)),
        learner.prior_precision,
        (str(model), tuple(module.training for module in model.modules())),
        tuple((k, v.shape, v.dtype, str(v.device), v.requires_grad) for k, v in tensors),
        tuple((name, part.shape[1:], part.dtype) for name, part in inputs),
        (len(data), data.batch_size),
        None if ragged else (len(data.y), learner.num_data, learner.temperature),
    )


class _Together:
    """Nets that take their steps together; all have equally many batches in an epoch."""

    def __init__(self, nets: list[Net], bar: Progress, epochs: int | None) -> None:
        self.bar, self.epochs, self.learner = bar, epochs, nets[0].learner
        self.fall = None if epochs is None else Fall(0, epochs)
        self.settling = {id(net): Settling(len(net.batches)) for net in nets}
        self.gone: list[Net] = []
        self._gather(nets, [net.state for net in nets])

    def _gather(self, nets: list[Net], states: list[State]) -> None:
        """Stacks nets, their states and their data."""
        self.nets = nets
        sets = [_data(net) for net in nets]
        self.lengths, self.batch_size = [len(data.y) for data in sets], sets[0].batch_size
        self._bind()
        self.state = self.stack.stack(states)
        self.x = as_inputs(zipped([data.x for data in sets], torch.cat), self.state)
        self.y = torch.cat([data.y for data in sets]).to(self.state.posterior.device)

    def _bind(self) -> None:
        """Makes the step with the present learning rate."""
        learner = self.learner
        if self.fall is not None:
            rule = self.fall.bound(learner.rule, 0, len(self.nets[0].batches))
            learner = learner.with_rule(rule)
        num_data = [net.learner.num_data for net in self.nets]
        temperatures = [net.learner.temperature for net in self.nets]
        self.stack = Stacked(learner, len(self.nets), num_data=num_data, temperatures=temperatures)
        on_gpu = next(learner.model.parameters()).is_cuda
        replayed = on_gpu and replay_obstacle(learner) is None
        self.step = Replayed(self.stack).step if replayed else self.stack.step

    def run(self) -> list[Net]:
        """Trains for all epochs, or until all have settled; returns the nets to train alone."""
        epoch = 0
        while self.nets and (self.fall is None or epoch < self.fall.end):
            self._epoch(epoch)
            epoch += 1
            if self.fall is None and all(self._settled(net) for net in self.nets):
                self.fall = Fall.after(epoch, self.learner.rule)
                self._bind()
        if self.nets:
            for net, state in zip(self.nets, self.stack.unstack(self.state), strict=True):
                net.finish(state)
        return self.gone

    def _settled(self, net: Net) -> bool:
        return self.settling[id(net)].epoch(net.history) is not None

    def _epoch(self, epoch: int) -> None:
        begun, total, count = time.perf_counter(), torch.zeros(()), len(self.nets[0].batches)
        for batch, sizes in self._batches(epoch):
            self.state, info = self.step(self.state, batch, sizes=sizes, donate=True)
            total = total.to(info.loss) + info.loss
            self.bar.advance(len(self.nets))
        pairs = zip(total.tolist(), self.stack.num_data, strict=True)
        losses = [loss / count / num_data for loss, num_data in pairs]
        self._let_go(losses)
        states: list[State] | None = None
        if any(net.validation is not None for net in self.nets):
            states = self.stack.unstack(self.state)
        for k, net in enumerate(self.nets):
            score = None if states is None else net.score(net.settled(states[k], epoch))
            net.note(self.state.step, losses[k], score, begun)
            if net.callback is not None:
                net.callback(net.learner, single(self.state, k), net.history[-1])
        self.bar.note(loss=sum(losses) / len(losses) if losses else None)

    def _let_go(self, losses: list[float]) -> None:
        """Removes diverged nets and their losses; raises where smaller steps cannot help."""
        exploded = any(net.exploded(loss) for net, loss in zip(self.nets, losses, strict=True))
        if not exploded and fault(self.state, losses) is None:
            return
        kept: list[tuple[Net, State, float]] = []
        for net, state, loss in zip(self.nets, self.stack.unstack(self.state), losses, strict=True):
            trouble = net.trouble(state, loss)
            if trouble is None:
                kept.append((net, state, loss))
                continue
            if not net.can_recover():
                net.refuse(trouble, state.step)
            self.bar.advance(-state.step)
            net.restart()
            self.gone.append(net)
        losses[:] = [loss for _, _, loss in kept]
        if not kept:
            self.nets = []
        elif len(kept) < len(self.nets):
            self._gather([net for net, _, _ in kept], [state for _, state, _ in kept])

    def _batches(self, epoch: int) -> Iterator[tuple[Batch, list[int]]]:
        """The batches of all nets, each in its own order, and the examples of each net in them."""
        orders, start = [], 0
        for net, length in zip(self.nets, self.lengths, strict=True):
            orders.append(_data(net).order(epoch, net.seed) + start)
            start += length
        order = nn.utils.rnn.pad_sequence(orders, batch_first=True).to(self.y.device)
        size = self.batch_size
        for i, rows in enumerate(order.split(size, dim=1)):
            flat = rows.reshape(-1)
            x, y = _shaped(take(self.x, flat), rows), _shaped(self.y[flat], rows)
            yield (x, y), [min(size, length - i * size) for length in self.lengths]


def _data(net: Net) -> TensorBatches:
    assert isinstance(net.batches, TensorBatches)
    return net.batches


def _shaped(x: Any, rows: Tensor) -> Any:
    """Examples (num · n, *) as (num, n, *)."""
    return mapped(x, lambda part: part.unflatten(0, rows.shape))
