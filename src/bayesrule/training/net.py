"""One net in training: its learner, data and state, and the checks at the end of an epoch."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn

import torch

from bayesrule.expectations import AtMean, Look
from bayesrule.learner import Learner
from bayesrule.moments import Propagation
from bayesrule.predicting.evaluate import log_probs
from bayesrule.predicting.outputs import uncalibrated
from bayesrule.predicting.predict import How, as_inputs, as_tensor, predict
from bayesrule.tensors import distributed, tree
from bayesrule.tensors.inputs import num_examples
from bayesrule.tensors.network import copies
from bayesrule.training.batches import Batches, is_pair
from bayesrule.training.checkpoint import Epoch
from bayesrule.training.fingerprint import digest
from bayesrule.types import Batch, Params, State

_HELPS = "smaller learning_rate, standardised inputs or a larger prior_precision usually help"


class TrainingError(RuntimeError):
    """Training cannot go on; the message says why and what to try."""


class Trouble(NamedTuple):
    """What went wrong in an epoch, as a sentence, and what helps."""

    what: str
    remedy: str

    @property
    def in_a_sentence(self) -> str:
        """What went wrong, as the end of a sentence."""
        return self.what[0].lower() + self.what[1:]


@dataclass
class Net:
    """A learner in training: all that a resumed run needs is in `state` and `history`.

    `number` is that of its data set where there are several, and `name` puts it into errors.
    """

    learner: Learner
    batches: Batches
    seed: int
    validation: Any
    number: int | None = None
    history: list[Epoch] = field(default_factory=list)
    first: State | None = None
    # How many examples are held out, which the learner's num_data counts all the same.
    held: int = 0
    # Called after each epoch, where several nets train together.
    callback: Callable[[Learner, State, Epoch], None] | None = None
    state: State = field(init=False)

    def __post_init__(self) -> None:
        self.restart()
        self._check_size()
        if self.validation is None:
            return
        if not is_pair(self.validation):
            kind = type(self.validation).__name__
            raise TypeError(f"{self.name}validation is a pair (x, y), got {kind}.")
        x, y = self.validation
        size = num_examples(x)
        if size != len(y):
            raise ValueError(f"{self.name}validation has {size} inputs but {len(y)} targets.")

    def restart(self) -> None:
        """Begins with the learner's initial state, or with `first` where that is given."""
        self.state, self.history = self.learner.init(self.seed), []
        if self.first is not None:
            self._begin_with(self.first)

    def _begin_with(self, state: State) -> None:
        state = uncalibrated(state)
        names, wanted = ({name for name, _ in tree.leaves(s)} for s in (state, self.state))
        if odd := sorted(names ^ wanted):
            whose = "it has" if odd[0] in names else "it lacks"
            raise ValueError(f"state is that of another learner: {whose} {odd[0]!r}.")
        # A step overwrites the memory of the state that it is given.
        self.state = copied(state)

    def _check_size(self) -> None:
        sizes, num_data = self.batches.sizes(), self.learner.num_data
        if sizes and num_data - self.held not in sizes:
            raise ValueError(
                f"{self.name}The learner was built with num_data={num_data}, but there are "
                f"{sizes[0]} examples to learn from. Build it with num_data={sizes[0]}; a "
                "temperature lets data count more or less."
            )

    def first_weights(self) -> str:
        """A hash of the weights or the state with which training begins."""
        network = self.learner.network
        tensors = {"params": network.params(), "buffers": network.buffers()}
        return digest(tree.tensors(self.first or tensors).values())

    @property
    def name(self) -> str:
        return "" if self.number is None else f"Set {self.number}: "

    def placed(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Batches on the weights' device, floating inputs in the weights' type."""
        device = self.state.posterior.device
        for x, y in batches:
            yield as_inputs(x, self.state), as_tensor(y, device)

    def trouble(self, state: State, loss: float) -> Trouble | None:
        """What is wrong at the end of an epoch: non-finite numbers, or an exploded loss."""
        if trouble := fault(state, [loss]):
            return trouble
        if self.has_rate and self.exploded(loss):
            now = self.history[-1]["loss"]
            return Trouble(f"The loss rose from {now:.4g} to {loss:.4g}", f"A {_HELPS}")
        return None

    def exploded(self, loss: float) -> bool:
        """Whether a loss exceeds that of the first epoch by far more than was gained since then."""
        if not self.history:
            return False
        first = self.history[0]["loss"]
        # The history may be long, and this is called after each epoch.
        if not loss > first + 10 * max(1.0, abs(first)):
            return False
        return loss > first + 10 * (first - min(figures["loss"] for figures in self.history))

    @property
    def has_rate(self) -> bool:
        """Whether there is a learning rate that can be made smaller."""
        return self.learner.rule.slower(1.0) is not None

    def can_recover(self) -> bool:
        """Whether a smaller learning rate may help: the data and first weights were finite."""
        return self.has_rate and self._cause() is None

    def refuse(self, trouble: Trouble, step: int, times: int = 0) -> NoReturn:
        """Raises for an epoch that went wrong, after `times` reductions of the learning rate."""
        when = f"in epoch {len(self.history) + 1} (step {step})"
        tried = f" with a learning rate made smaller {times} times" if times else ""
        raise TrainingError(
            f"{self.name}{trouble.what} {when}{tried}, so training stops here. "
            f"{self._cause() or trouble.remedy}; what was saved before is untouched."
        )

    def _cause(self) -> str | None:
        """What was not finite before the first step: a number of the data, or a weight."""
        if place := self.batches.not_finite():
            return f"{place} (counted from 0): remove it or fill it in"
        if name := not_finite(self.learner.network.params()):
            return f"The module's parameter {name!r} was not finite when training began"
        return None

    def settled(self, state: State, epoch: int, most: int = 20) -> State:
        """The state with statistics of normalising layers that fit its weights."""
        batches = self.placed(self.batches.epoch(epoch, self.seed))
        return renew_averages(self.learner, state, batches, most)

    def score(self, state: State) -> float | None:
        """The mean log-likelihood of the validation data, per example."""
        if self.validation is None:
            return None
        x, y = self.validation
        how = predictive_on_the_way(self.learner)
        prediction = predict(self.learner, state, x, how, seed=self.seed)
        targets = self.learner.likelihood.weighed(as_tensor(y, prediction.mean.device))
        return float(log_probs(prediction, targets).mean())

    def note(self, step: int, loss: float, score: float | None, begun: float) -> None:
        """Adds an epoch to the history; it began at the `time.perf_counter` time `begun`."""
        figures: Epoch = {"epoch": len(self.history) + 1, "step": step, "loss": loss}
        if score is not None:
            figures["validation"] = score
        figures["seconds"] = time.perf_counter() - begun
        self.history.append(figures)

    def finish(self, state: State) -> None:
        """Keeps the final state."""
        settled = self.settled(state, 0, most=100)
        self.state = self.learner.finish(settled, self.placed(self.batches.all()))


def fault(state: State, losses: Sequence[float]) -> Trouble | None:
    """What is wrong with a state and its losses, and what helps; None where all is well."""
    for loss in losses:
        if not math.isfinite(loss):
            return Trouble(f"The loss is {loss}", f"A {_HELPS}")
    # The last step's loss is from before its weights, which may be the first to go wrong.
    if name := not_finite(state.posterior.mean):
        return Trouble("The weights are not finite", f"The first is {name!r}; a {_HELPS}")
    scales = state.posterior.fault()
    helps = "A smaller scale_multiplier or learning_rate, or a KL weight above zero, help"
    return None if scales is None else Trouble(scales, helps)


def not_finite(params: Params) -> str | None:
    """The name of the first parameter that is not finite."""
    if torch.stack([value.isfinite().all() for value in params.values()]).all():
        return None
    return next(name for name, value in params.items() if not value.isfinite().all())


def copied(state: State) -> State:
    """A copy of a state, whose own memory the next step overwrites."""
    return tree.map_tensors(state, torch.clone)


def predictive_on_the_way(learner: Learner) -> How | None:
    """How to predict before training ends, while a Laplace approximation has no curvature yet."""
    return AtMean() if learner.final_curvature is not None else None


@torch.no_grad()
def renew_averages(
    learner: Learner, state: State, batches: Iterable[Batch], most: int = 20
) -> State:
    """The state with statistics of normalising layers that fit its weights.

    Under moment propagation the running averages of training are biased in the same direction at
    every position, which spoils predictions; a plain average over at most `most` batches is not
    biased. Other learners, and modules without running averages, keep their state.
    """
    names = learner.network.averaged()
    if not names or learner.expectation.look is not Look.MOMENTS:
        return state
    buffers = copies(state.buffers)
    for name in names:
        buffers[name].zero_()
    moments = state.posterior.mean, state.posterior.variance()
    activations = learner.expectation.carried
    _, _, module_randomness = learner.randomness.streams(state)
    network = learner.network.averaging_equally()
    with module_randomness():
        for x, _ in itertools.islice(batches, most):
            propagation = Propagation(network, activations, record=False)
            propagation.forward(*moments, buffers, x, training=True)
    return replace(state, buffers=distributed.mean_over_ranks(buffers))
