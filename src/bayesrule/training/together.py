"""Nets that are alike take their steps together, in one stack."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.execution.replayed import Replayed, replay_obstacle
from bayesrule.execution.stacked.obstacles import obstacle, ragged_obstacle
from bayesrule.execution.stacked.stack import Stacked
from bayesrule.execution.stacked.states import single
from bayesrule.predicting.predict import as_inputs
from bayesrule.tensors.inputs import mapped, named, take, zipped
from bayesrule.training.batches import TensorBatches
from bayesrule.training.net import Net, fault
from bayesrule.training.progress import Progress
from bayesrule.training.settling import Fall, Settling
from bayesrule.types import Batch, State


def groups_of(nets: Sequence[Net]) -> list[list[Net]]:
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


class Together:
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
