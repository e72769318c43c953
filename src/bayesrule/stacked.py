"""Many nets of one architecture learned at once, each with its own weights and its own data."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule import tree, vectors
from bayesrule.curvature.innovations import Innovation, innovation
from bayesrule.learner import Learner
from bayesrule.matrices import DiagonalMatrix
from bayesrule.moments import GaussianTensor
from bayesrule.network import Inputs, Network, forked_randomness
from bayesrule.posteriors import Gaussian
from bayesrule.predict import predict
from bayesrule.prediction import Prediction
from bayesrule.rules import Conditioning
from bayesrule.types import Derivatives, Info, Params, State
from bayesrule.vectors import apart


class Stacked:
    """`num` nets of one learner, as if each had its own `learner.step`, at little over one's price.

    A stacked state is a State whose tensors have the nets along their first axis. Data that differ
    in number are filled up with NaN targets, which say nothing. The learner must have no
    randomness: `tagi` has none.

    >>> from bayesrule import GaussianLikelihood, tagi
    >>> learner = tagi(nn.Linear(3, 1), GaussianLikelihood(noise=0.1), num_data=100)
    >>> stack = Stacked(learner, 20)
    >>> state = stack.init(range(20))
    >>> state, info = stack.step(state, (torch.zeros(20, 10, 3), torch.zeros(20, 10, 1)))
    >>> info.loss.shape, len(stack.predict(state, torch.zeros(20, 4, 3)))
    (torch.Size([20]), 20)
    """

    def __init__(self, learner: Learner, num: int) -> None:
        if not isinstance(learner, Learner) or not isinstance(learner.rule, Conditioning):
            rule = type(getattr(learner, "rule", learner)).__name__
            raise TypeError(
                "Nets are stacked where a step is closed-form arithmetic without randomness, as "
                f"that of tagi is; got a learner with the rule {rule}. Run others one by one, or "
                "with joblib (docs/clusters.md)."
            )
        if num < 1:
            raise ValueError(f"A stack has at least one net, got {num}.")
        self.learner, self.num = learner, int(num)

    def init(self, seeds: int | Sequence[int] = 0) -> State:
        """The first state; each net is initialised anew by its module's own way under its seed.

        One seed stands for itself and the numbers after it.
        """
        numbers = list(range(seeds, seeds + self.num) if isinstance(seeds, int) else seeds)
        if len(numbers) != self.num:
            raise ValueError(f"There are {self.num} nets but {len(numbers)} seeds.")
        first = self.learner.init(numbers[0])
        states = []
        for seed in numbers:
            network = _initialised(self.learner.model, seed)
            posterior = self.learner.family.init(
                network.params(),
                weight=self.learner.weight,
                prior_precision=self.learner.prior_precision,
            )
            states.append(replace(first, posterior=posterior, buffers=network.buffers()))
        return self.stack(states)

    def stack(self, states: Sequence[State]) -> State:
        """One state from those of single nets that have taken the same number of steps."""
        if len(states) != self.num or len({state.step for state in states}) != 1:
            steps = sorted({state.step for state in states})
            raise ValueError(
                f"A stack of {self.num} takes as many states of one step, got {len(states)} of the "
                f"steps {steps}."
            )
        known = [dict(tree.leaves(state)) for state in states]

        def stacked(name: str, old: Any) -> Any:
            if not isinstance(old, Tensor):
                return old
            return torch.stack([one[name] for one in known])  # type: ignore[misc]

        return tree.rebuild(states[0], stacked)

    def unstack(self, state: State) -> list[State]:
        """Ordinary states, one for each net, for `br.predict` and `learner.step`."""
        return [_one(state, i) for i in range(self.num)]

    def predict(self, state: State, x: Any, **options: Any) -> list[Prediction]:
        """What each net says of its own inputs x (num, n, *); `options` are those of `br.predict`.

        Inputs that all nets share are given as `x.expand(num, *x.shape)`.
        """
        if len(x) != self.num:
            raise ValueError(f"{self.num} nets take inputs ({self.num}, n, ...), got {len(x)}.")
        pairs = zip(self.unstack(state), x, strict=True)
        return [predict(self.learner, *pair, **options) for pair in pairs]

    @torch.no_grad()
    def step(
        self, state: State, batch: tuple[Inputs, Tensor], *, donate: bool = False
    ) -> tuple[State, Info]:
        """The next state from x (num, n, *) and y (num, n, *); `info.loss` holds one of each net.

        With `donate` the caller gives the old state up and its memory is used again.
        """
        x, y = batch
        size = self.size(x, y)
        assert isinstance(state.posterior, Gaussian)
        given = state.posterior.mean, state.posterior.precision.inverse_diagonal()
        buffers = {name: value.clone() for name, value in state.buffers.items()}
        found, buffers = torch.vmap(self.local)(*given, state.noise, buffers, x, y)
        if y.device.type == "cpu" and not found.sound.all():
            self._explain(state, batch, found.sound)
        return self._absorb(state, found, buffers, size, donate)

    def local(
        self, mean: Params, variance: Params, noise: Params, buffers: Params, x: Inputs, y: Tensor
    ) -> tuple[Innovation, Params]:
        """What a batch says of one net, and its buffers afterwards."""
        learner = self.learner
        found = innovation(
            learner.network,
            learner.likelihood,
            learner.expectation.activations,
            mean,
            variance,
            noise,
            buffers,
            x,
            y,
            temperature=learner.temperature,
        )
        return found, buffers

    def _absorb(
        self, state: State, found: Innovation, buffers: Params, size: int, donate: bool
    ) -> tuple[State, Info]:
        """`Learner.absorb`, where all is elementwise but what the likelihood learns."""
        learner = self.learner
        curvature = DiagonalMatrix(apart(found.eta))
        loss = found.loss * (learner.num_data / size)
        derivatives = Derivatives(loss, apart(found.delta), curvature, learner.weight, size)
        belief = state.posterior if donate else tree.map_tensors(state.posterior, torch.clone)
        posterior, _ = learner.rule.step(
            belief, derivatives, learner.prior_precision, {}, state.step
        )
        noise = self.learned(state.noise, found.statistics, learner.weight / size)
        new = State(posterior, {}, noise, buffers, state.step + 1, state.seed)
        return new, Info(loss, learner.temperature, lambda: self.kl(new))

    def learned(self, noise: Params, statistics: Params, scale: float) -> Params:
        """What the likelihoods have learned."""
        update = partial(self.learner.likelihood.update, weight=self.learner.weight)
        if statistics:
            return torch.vmap(update)(noise, vectors.scale(statistics, scale))
        # What does not learn from data, such as a schedule, is the same for all nets.
        moved = update({name: value[0] for name, value in noise.items()}, {})
        return {name: value.expand(self.num).clone() for name, value in moved.items()}

    def kl(self, state: State) -> Tensor:
        """`KL(q ‖ prior)` of each net, (num,)."""
        beliefs = [one.posterior for one in self.unstack(state)]
        return torch.stack([belief.kl(self.learner.prior_precision) for belief in beliefs])

    def size(self, x: Inputs, y: Tensor) -> int:
        """How many examples each net gets; nets first, examples second."""
        for part in (*(x if isinstance(x, tuple) else (x,)), y):
            if isinstance(part, GaussianTensor):
                raise TypeError("Stacked nets take plain inputs; uncertain ones go one by one.")
            if part.ndim < 2 or part.shape[0] != self.num or part.shape[1] != y.shape[1]:
                raise ValueError(
                    f"{self.num} nets take inputs and targets ({self.num}, n, ...), each net its "
                    f"own, got {tuple(part.shape)} beside targets {tuple(y.shape)}."
                )
        if y.shape[1] == 0:
            raise ValueError("The batch is empty.")
        return y.shape[1]

    def _explain(self, state: State, batch: tuple[Inputs, Tensor], sound: Tensor) -> None:
        """A single net's own step says what is wrong with its numbers."""
        which = int((~sound).nonzero()[0])
        x, y = batch
        own = tuple(part[which] for part in x) if isinstance(x, tuple) else x[which]
        try:
            self.learner.step(_one(state, which), (own, y[which]))  # type: ignore[arg-type]
        except (ValueError, FloatingPointError) as problem:
            raise type(problem)(f"Net {which}: {problem}") from problem


def _one(state: State, which: int) -> State:
    return tree.map_tensors(state, lambda value: value[which].clone())


def _initialised(model: nn.Module, seed: int) -> Network:
    """A copy of a module, initialised as its layers do it."""
    fresh = copy.deepcopy(model)
    device = next(fresh.parameters()).device
    with forked_randomness(device, seed), torch.no_grad():
        for name, module in fresh.named_modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
            elif any(True for _ in module.parameters(recurse=False)):
                raise TypeError(
                    f"Layer {name!r} ({type(module).__name__}) has weights but no "
                    "reset_parameters, so it cannot be started anew. Make the nets yourself and "
                    "stack their states: stack.stack([learner.init() for learner in learners])."
                )
    return Network(fresh)
