"""Many nets of one architecture learned at once, each with its own weights and its own data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bayesrule.curvature.innovations import Innovation, innovation
from bayesrule.execution.stacked.obstacles import obstacle, ragged_obstacle
from bayesrule.execution.stacked.states import initialised, single, together
from bayesrule.execution.stacked.steps import GradientSteps, shared_noise
from bayesrule.learner import Learner
from bayesrule.matrices import DiagonalMatrix
from bayesrule.moments import GaussianTensor
from bayesrule.posteriors import Gaussian
from bayesrule.predicting.predict import predict
from bayesrule.predicting.prediction import Prediction
from bayesrule.rules import Conditioning
from bayesrule.tensors import tree, vectors
from bayesrule.tensors.network import Inputs
from bayesrule.tensors.vectors import apart
from bayesrule.types import Derivatives, Info, Params, State


class Stacked:
    """`num` nets of one learner, as if each had its own `learner.step`, at little over one's price.

    A stacked state is a State whose tensors, and seeds, have the nets along their first axis. Each
    net has its own data and its own random numbers: those that it would have alone, except for what
    the module itself draws (dropout), which has the same distribution. So have weights that are
    drawn in eigenbases (`noisy_ekfac`, and `noisy_kfac` with `inverse_every` above 1): which bases
    these are is for rounding to say where factors have equal eigenvalues. Rows whose targets are
    all NaN fill up a batch and say nothing; on a GPU, where looking for them would make it wait,
    give `sizes` to `step` instead. `num_data` may differ from net to net.

    Nets of linear layers and activations are run by batched products, all weight draws of a step at
    once; others by `torch.vmap`. For what cannot be stepped together, `stackable.obstacle(learner)`
    says why.

    >>> from torch import nn
    >>> from bayesrule import GaussianLikelihood, vogn
    >>> learner = vogn(nn.Linear(3, 1), GaussianLikelihood(noise=0.1), num_data=100)
    >>> stack = Stacked(learner, 20)
    >>> state = stack.init(range(20))
    >>> state, info = stack.step(state, (torch.zeros(20, 10, 3), torch.zeros(20, 10, 1)))
    >>> info.loss.shape, len(stack.predict(state, torch.zeros(20, 4, 3)))
    (torch.Size([20]), 20)
    """

    def __init__(
        self, learner: Learner, num: int, *, num_data: Sequence[float] | None = None
    ) -> None:
        if not isinstance(learner, Learner):
            raise TypeError(f"A stack is made of a Learner, got {type(learner).__name__}.")
        problem = obstacle(learner)
        if problem is not None:
            raise TypeError(
                f"Nets are stepped together where no net looks at another; here there is {problem}."
                " fit_many trains such nets one by one; joblib does on many cores "
                "(docs/clusters.md)."
            )
        if num < 1:
            raise ValueError(f"A stack has at least one net, got {num}.")
        self.learner, self.num = learner, int(num)
        self.num_data = self._sizes_of_data(num_data)
        closed_form = type(learner.rule) is Conditioning
        self._steps = None if closed_form else GradientSteps(learner, self.num_data)

    def _sizes_of_data(self, given: Sequence[float] | None) -> list[float]:
        each = [self.learner.num_data] * self.num if given is None else list(given)
        if len(each) != self.num or not min(each) > 0:
            raise ValueError(f"{self.num} nets have as many positive num_data, got {each}.")
        problem = ragged_obstacle(self.learner)
        if len(set(each)) > 1 and problem is not None:
            raise ValueError(f"All nets need the same num_data, since {problem}; got {each}.")
        if type(self.learner.rule) is Conditioning and each[0] != self.learner.num_data:
            raise ValueError(f"The learner has num_data={self.learner.num_data}, got {each[0]}.")
        return each

    def init(self, seeds: int | Sequence[int] = 0) -> State:
        """The first state; each net is initialised anew by its module's own way under its seed.

        One seed stands for itself and the numbers after it.
        """
        numbers = list(range(seeds, seeds + self.num) if isinstance(seeds, int) else seeds)
        if len(numbers) != self.num:
            raise ValueError(f"There are {self.num} nets but {len(numbers)} seeds.")
        pairs = zip(numbers, self.num_data, strict=True)
        return self.stack([self._first(seed, size) for seed, size in pairs])

    def _first(self, seed: int, num_data: float) -> State:
        learner, network = self.learner, initialised(self.learner.model, seed)
        params, weight = network.params(), num_data / self.learner.temperature
        prior = learner.prior_precision
        return State(
            posterior=learner.family.init(params, weight=weight, prior_precision=prior),
            rule=learner.rule.init(learner.family, params, weight),
            noise=learner.likelihood.init(next(iter(params.values()))),
            buffers=network.buffers(),
            step=0,
            seed=int(seed),
        )

    def stack(self, states: Sequence[State]) -> State:
        """One state from those of single nets that have taken the same number of steps."""
        if len(states) != self.num or len({state.step for state in states}) != 1:
            steps = sorted({state.step for state in states})
            raise ValueError(
                f"A stack of {self.num} takes as many states of one step, got {len(states)} of the "
                f"steps {steps}."
            )
        return together(states)

    def unstack(self, state: State) -> list[State]:
        """Ordinary states, one for each net, for `br.predict` and `learner.step`."""
        return [single(state, i) for i in range(self.num)]

    def predict(self, state: State, x: Any, **options: Any) -> list[Prediction]:
        """What each net says of its own inputs x (num, n, *); `options` are those of `br.predict`.

        Inputs that all nets share are given as `x.expand(num, *x.shape)`.
        """
        if len(x) != self.num:
            raise ValueError(f"{self.num} nets take inputs ({self.num}, n, ...), got {len(x)}.")
        pairs = zip(self.unstack(state), x, strict=True)
        return [predict(self.learner, *pair, **options) for pair in pairs]

    def step(
        self,
        state: State,
        batch: tuple[Inputs, Tensor],
        *,
        sizes: Sequence[int] | None = None,
        donate: bool = False,
    ) -> tuple[State, Info]:
        """The next state from x (num, n, *) and y (num, n, *); `info.loss` holds one of each net.

        `sizes` says how many of its n examples are each net's own; what comes after them only fills
        up, whatever it is. With `donate` the caller gives the old state up and its memory is used
        again.
        """
        x, y = batch
        size = self.size(x, y)
        if self._steps is None:
            if sizes is not None and set(sizes) != {size}:
                raise ValueError("Batches of tagi are filled up with NaN targets, not by sizes.")
            return self._conditioned(state, x, y, size, donate)
        own = self._steps.own(y, sizes)
        new, loss = self._steps.step(state, x, y, own, donate)
        return new, Info(loss, self.learner.temperature, self._divergence(new))

    def _divergence(self, state: State) -> Callable[[], Tensor]:
        """The KL of each net from the prior, for somebody who may ask for it later."""
        witness = next(iter(state.posterior.mean.values()))
        version = witness._version

        def kl() -> Tensor:
            if witness._version != version:
                raise RuntimeError(
                    "This state was given up to a later step (donate=True); read info.kl and "
                    "info.elbo before it."
                )
            return self.kl(state)

        return kl

    # Steps in closed form.

    @torch.no_grad()
    def _conditioned(
        self, state: State, x: Inputs, y: Tensor, size: int, donate: bool
    ) -> tuple[State, Info]:
        assert isinstance(state.posterior, Gaussian)
        given = state.posterior.mean, state.posterior.precision.inverse_diagonal()
        buffers = {name: value.clone() for name, value in state.buffers.items()}
        found, buffers = torch.vmap(self.local)(*given, state.noise, buffers, x, y)
        if y.device.type == "cpu" and not found.sound.all():
            self._explain(state, (x, y), found.sound)
        return self._absorb(state, found, buffers, size, donate)

    def local(
        self, mean: Params, variance: Params, noise: Params, buffers: Params, x: Inputs, y: Tensor
    ) -> tuple[Innovation, Params]:
        """What a batch says of one net of `tagi`, and its buffers afterwards."""
        learner: Any = self.learner
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
        return new, Info(loss, learner.temperature, self._divergence(new))

    def learned(self, noise: Params, statistics: Params, scale: float) -> Params:
        """What the likelihoods have learned."""
        update = partial(self.learner.likelihood.update, weight=self.learner.weight)
        if statistics:
            return torch.vmap(update)(noise, vectors.scale(statistics, scale))
        return shared_noise(self.learner, noise)

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
            self.learner.step(single(state, which), (own, y[which]))  # type: ignore[arg-type]
        except (ValueError, FloatingPointError) as problem:
            raise type(problem)(f"Net {which}: {problem}") from problem
