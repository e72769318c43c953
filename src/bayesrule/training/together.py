"""Trainings whose steps are taken together."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.execution.replayed import Replayed, replay_obstacle
from bayesrule.execution.stacked.obstacles import obstacle, ragged_obstacle
from bayesrule.execution.stacked.stack import Stacked
from bayesrule.learner import Learner
from bayesrule.predicting.predict import as_inputs
from bayesrule.tensors.network import Inputs, take
from bayesrule.training.averages import renew_averages
from bayesrule.training.batches import TensorBatches
from bayesrule.training.progress import Progress
from bayesrule.training.train import Epoch, Run, TrainingError, validation_score
from bayesrule.types import Batch, State


@dataclass
class Net:
    """One of the trainings: what it is given, and what becomes of it."""

    number: int
    learner: Learner
    batches: TensorBatches
    seed: int
    validation: tuple[Any, Any] | None
    history: list[Epoch] = field(default_factory=list)
    state: State | None = None

    @property
    def run(self) -> Run:
        """The finished training."""
        assert self.state is not None
        return Run(self.learner, self.state, self.history)

    @cached_property
    def together(self) -> bool:
        """Whether its steps can be taken together with those of others."""
        return obstacle(self.learner) is None

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """What nets that train together have in common."""
        learner, data = self.learner, self.batches
        parts = learner.family, learner.expectation, learner.curvature, learner.rule
        inputs = data.x if isinstance(data.x, tuple) else (data.x,)
        ragged = ragged_obstacle(learner) is None
        return (
            # Parts print as the calls that build them; what does not is equal to itself alone.
            *(repr(part) for part in (*parts, learner.likelihood)),
            (learner.prior_precision, learner.temperature),
            _description(learner.model),
            tuple((part.shape[1:], part.dtype) for part in (*inputs, data.y)),
            len(data),
            None if ragged else (len(data.y), learner.num_data),
        )

    def score(self, state: State) -> float | None:
        """The mean log-likelihood of the validation data, per example."""
        return validation_score(self.learner, state, self.validation, self.seed)

    def settled(self, state: State, epoch: int, most: int = 20) -> State:
        """The state with the statistics of normalising layers as they are at its weights."""
        return renew_averages(
            self.learner, state, _placed(self.batches.epoch(epoch, self.seed), state), most
        )

    def finish(self, state: State) -> None:
        """Keeps the state that training ends with."""
        settled = self.settled(state, 0, most=100)
        self.state = self.learner.finish(settled, _placed(self.batches.all(), state))


def _description(model: nn.Module) -> tuple[Any, ...]:
    """What two modules of one architecture have in common."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    facts = [(k, v.shape, v.dtype, str(v.device), v.requires_grad) for k, v in tensors]
    return str(model), tuple(facts), tuple(module.training for module in model.modules())


def _placed(batches: Iterable[Batch], state: State) -> Iterator[Batch]:
    """Batches on the weights' device, floating inputs in the weights' type."""
    device = next(iter(state.posterior.mean.values())).device
    for x, y in batches:
        yield as_inputs(x, state), y.to(device)  # type: ignore[misc]


class Together:
    """Nets that take their steps together: all have as many batches in an epoch."""

    def __init__(self, nets: list[Net], bar: Progress) -> None:
        self.nets, self.bar = nets, bar
        num_data = [net.learner.num_data for net in nets]
        self.stack = Stacked(nets[0].learner, len(nets), num_data=num_data)
        self.state = self.stack.stack([net.learner.init(net.seed) for net in nets])
        replayed = self.state.posterior.device.type == "cuda" and _replays(self.stack.learner)
        self.step = Replayed(self.stack).step if replayed else self.stack.step
        like = next(iter(self.state.posterior.mean.values()))
        self.x = as_inputs(_joined([net.batches.x for net in nets]), self.state)
        self.y = torch.cat([net.batches.y for net in nets]).to(like.device)
        self.lengths = [len(net.batches.y) for net in nets]

    def run(self, epochs: int) -> None:
        """All epochs."""
        for epoch in range(epochs):
            self._epoch(epoch)
        for net, state in zip(self.nets, self.stack.unstack(self.state), strict=True):
            net.finish(state)

    def _epoch(self, epoch: int) -> None:
        begun, total, count = time.perf_counter(), torch.zeros(()), len(self.nets[0].batches)
        for batch, sizes in self._batches(epoch):
            self.state, info = self.step(self.state, batch, sizes=sizes, donate=True)
            total = total.to(info.loss) + info.loss
            self.bar.advance(len(self.nets))
        pairs = zip(total.tolist(), self.stack.num_data, strict=True)
        losses = [loss / count / num_data for loss, num_data in pairs]
        self._check(losses, epoch)
        scores = self._scores(epoch)
        for net, loss, score in zip(self.nets, losses, scores, strict=True):
            figures: Epoch = {"epoch": epoch + 1, "step": self.state.step, "loss": loss}
            if score is not None:
                figures["validation"] = score
            figures["seconds"] = time.perf_counter() - begun
            net.history.append(figures)
        self.bar.note(loss=sum(losses) / len(losses))

    def _batches(self, epoch: int) -> Iterator[tuple[Batch, list[int]]]:
        """The batches of all nets, each in its own order, and how many examples are its own."""
        orders, start = [], 0
        for net, length in zip(self.nets, self.lengths, strict=True):
            orders.append(_order(length, epoch, net.seed) + start)
            start += length
        order = nn.utils.rnn.pad_sequence(orders, batch_first=True).to(self.y.device)
        size = self.nets[0].batches.batch_size
        for i, rows in enumerate(order.split(size, dim=1)):
            flat = rows.reshape(-1)
            x, y = _shaped(take(self.x, flat), rows), _shaped(self.y[flat], rows)
            yield (x, y), [min(size, length - i * size) for length in self.lengths]

    def _check(self, losses: list[float], epoch: int) -> None:
        """Stops where the numbers of a net have gone wrong, and says of which set."""
        means = self.state.posterior.mean.values()
        finite = torch.stack([v.flatten(1).isfinite().all(1) for v in means]).all(0).tolist()
        for net, loss, fine in zip(self.nets, losses, finite, strict=True):
            if not fine or not math.isfinite(loss):
                what = "weights are not finite" if math.isfinite(loss) else f"loss is {loss}"
                raise TrainingError(
                    f"Set {net.number}: the {what} in epoch {epoch + 1}, so training stops here. A "
                    "smaller learning_rate, standardised inputs or a larger prior_precision "
                    "usually help."
                )
        if self.state.posterior.fault() is not None:
            self._explain_scales(epoch)

    def _explain_scales(self, epoch: int) -> None:
        for net, state in zip(self.nets, self.stack.unstack(self.state), strict=True):
            fault = state.posterior.fault()
            if fault is not None:
                raise TrainingError(
                    f"Set {net.number}: {fault} in epoch {epoch + 1}, so training stops here. A "
                    "smaller scale_multiplier or learning_rate, or a KL weight above zero, help."
                )

    def _scores(self, epoch: int) -> list[float | None]:
        if all(net.validation is None for net in self.nets):
            return [None] * len(self.nets)
        states = self.stack.unstack(self.state)
        pairs = zip(self.nets, states, strict=True)
        return [net.score(net.settled(state, epoch)) for net, state in pairs]


def _replays(learner: Learner) -> bool:
    return replay_obstacle(learner) is None


def _order(length: int, epoch: int, seed: int) -> Tensor:
    """The order in which a set of so many examples is seen in an epoch."""
    numbers = torch.arange(length)
    return next(TensorBatches(numbers, numbers, length).epoch(epoch, seed))[1]


def _joined(parts: list[Inputs]) -> Inputs:
    """The inputs of all sets, one after another."""
    if isinstance(parts[0], tuple):
        return tuple(torch.cat(each) for each in zip(*parts, strict=True))
    return torch.cat(parts)  # type: ignore[arg-type]


def _shaped(part: Any, rows: Tensor) -> Any:
    """Examples (num · n, *) as (num, n, *)."""
    if isinstance(part, tuple):
        return tuple(_shaped(one, rows) for one in part)
    return part.unflatten(0, rows.shape)
