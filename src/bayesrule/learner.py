"""A learner: one choice of family, expectation, curvature and rule on one module."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Generator, Tensor, nn

from bayesrule.curvature import Curvature, Local, Problem
from bayesrule.curvature.rows import refuse_recurrent
from bayesrule.expectations import AtMean, Expectation, Moments, Point
from bayesrule.likelihoods import Likelihood
from bayesrule.matrices import Matrix, Structure, Subset
from bayesrule.moments import Propagation
from bayesrule.posteriors import Family, Gaussian, GaussianFamily, Posterior, Rotated, evidence
from bayesrule.rules import Rule
from bayesrule.tensors import distributed, seeds, vectors
from bayesrule.tensors.network import Inputs, Network, forked_randomness, num_examples
from bayesrule.types import Batch, Derivatives, Info, Params, State

# Streams of randomness within one step.
_TARGETS, _MODULE, _DRAWS = 0, 1, 2


class Learner:
    """Learns a belief over the weights of a module, a batch at a time.

    `init` makes the first state from the module's own parameters, `step` the next one from a batch.
    Both leave the module as it is. Under torch.distributed each rank gives its own part of the
    batch and the derivatives are summed over the ranks; weight draws then differ by rank, which
    averages over more of them, unless `shared_draws` is set.

    - `num_data`: how many examples the whole data set has.
    - `prior_precision`: of the prior N(0, I / prior_precision) over all weights.
    - `temperature`: T in `E[loss] / T + KL`; below 1 the data count more.
    - `final_curvature`: taken over all data once training ends, at the mean (Laplace).
    - `empirical_prior`: the final belief has the prior precision of largest evidence.
    - `predictive`: how `predict` looks at the belief when it is not told.

    >>> from bayesrule import CategoricalLikelihood, vogn
    >>> learner = vogn(nn.Linear(4, 3), CategoricalLikelihood(), num_data=100)
    >>> state = learner.init(seed=0)
    >>> batch = torch.zeros(8, 4), torch.zeros(8, dtype=torch.long)
    >>> state, info = learner.step(state, batch)
    >>> sorted(state.posterior.variance())
    ['bias', 'weight']
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        *,
        num_data: int,
        posterior: Family,
        expectation: Expectation,
        curvature: Curvature,
        rule: Rule,
        prior_precision: float = 1.0,
        temperature: float = 1.0,
        final_curvature: Curvature | None = None,
        empirical_prior: bool = False,
        predictive: object | None = None,
        shared_draws: bool = False,
    ) -> None:
        self.network = Network(model)
        self.likelihood = _instance(likelihood, Likelihood, "likelihood", "CategoricalLikelihood()")
        family = _instance(posterior, Family, "posterior", "GaussianFamily(Diagonal())")
        self.family = family.for_model(model)
        self.expectation = _instance(expectation, Expectation, "expectation", "Draws(1)")
        self.curvature = _instance(curvature, Curvature, "curvature", "PerExample()")
        self.rule = _instance(rule, Rule, "rule", "Natural()")
        self.num_data = _positive(num_data, "num_data, the size of the data set,")
        self.temperature = _positive(temperature, "temperature")
        self.prior_precision = _not_negative(prior_precision, "prior_precision")
        self.final_curvature = _final(final_curvature)
        self.predictive = predictive or AtMean()
        self.empirical_prior = empirical_prior
        self.shared_draws = shared_draws
        self.rule.check(self.family, self.expectation, self.curvature)
        for part in (self.curvature, self.final_curvature):
            if part is not None and part.needs_rows:
                refuse_recurrent(self.network, part)
        # A structure that is too large for the module is refused here, not at the first step.
        self.family.init(
            self.network.params(), weight=self.weight, prior_precision=self.prior_precision
        )

    @property
    def model(self) -> nn.Module:
        """The module, as it was given."""
        return self.network.model

    @property
    def weight(self) -> float:
        """`num_data / temperature`, what one mean gradient stands for."""
        return self.num_data / self.temperature

    def init(self, seed: int = 0) -> State:
        """The state before the first step; all randomness of the run follows from `seed`."""
        params = self.network.params()
        posterior = self.family.init(
            params, weight=self.weight, prior_precision=self.prior_precision
        )
        return State(
            posterior=posterior,
            rule=self.rule.init(self.family, params, self.weight),
            noise=self.likelihood.init(next(iter(params.values()))),
            buffers=self.network.buffers(),
            step=0,
            seed=int(seed),
        )

    def step(self, state: State, batch: Batch, *, donate: bool = False) -> tuple[State, Info]:
        """The next state, and what a person wants to see of the step.

        With `donate` the caller gives the old state up and its memory is used again, which saves
        time; `info.kl` is then to be read before the next step.
        """
        x, y = batch
        size, device = check_batch(x, y), state.posterior.device
        buffers = {name: value.clone() for name, value in state.buffers.items()}
        problem = self._problem(state, buffers, x, y, size, device)
        with forked_randomness(device, seeds.key(state.seed, state.step, self._stream(_MODULE))):
            draws = seeds.generator(device, state.seed, state.step, self._stream(_DRAWS))
            local = self.local(problem, state.posterior, draws, state.step)
            local = distributed.sum_over_ranks(local)
        return self.absorb(state, local, problem.scale, buffers, donate=donate)

    def absorb(
        self, state: State, local: Local, scale: float, buffers: Params, *, donate: bool = False
    ) -> tuple[State, Info]:
        """The next state from sums over a batch (of all ranks), however they were found.

        `scale` is what one example of it stands for, see `Problem`.
        """
        derivatives = self.derivatives(local, scale, state.step)
        # A rule owns what it is given.
        given = state.posterior, state.rule
        belief, memory = given if donate else self.rule.copied(*given)
        posterior, memory = self.rule.step(
            belief, derivatives, self.prior_precision, memory, state.step
        )
        noise = self.likelihood.update(state.noise, local.statistics, self.weight)
        buffers = distributed.mean_over_ranks(buffers)
        new = State(posterior, memory, noise, buffers, state.step + 1, state.seed)
        return new, Info(derivatives.loss, self.temperature, self.divergence(posterior))

    def derivatives(self, local: Local, scale: float, step: int = 0) -> Derivatives:
        """Estimates over the whole data set from sums over a batch."""
        loss = local.loss * (scale * self.temperature)
        count = round(self.weight / (scale * self.expectation.num))
        found = Derivatives(
            loss, local.gradient, local.curvature, self.weight, count, local.weights
        )
        curvature = self.rule.curvature_at(self.curvature, step)
        return curvature.complete(found, self.rule.structure(self.family))

    def divergence(self, posterior: Posterior) -> Callable[[], Tensor]:
        """The KL from the prior, for somebody who may ask for it later."""
        witness = posterior.witness
        version = witness._version

        def kl() -> Tensor:
            if witness._version != version:
                raise RuntimeError(
                    "This state was given up to a later step (donate=True); read info.kl and "
                    "info.elbo before it."
                )
            return posterior.kl(self.prior_precision)

        return kl

    def finish(self, state: State, batches: Iterable[Batch]) -> State:
        """What is left to do once training ends: for Laplace, the curvature over all the data."""
        if self.final_curvature is None:
            return state
        assert isinstance(self.family, GaussianFamily)
        total, seen = None, 0
        for x, y in batches:
            curvature = self._curvature_at_mean(state, x, y, self.family.structure, seen)
            total = curvature if total is None else total.plus(curvature)
            seen += check_batch(x, y)
        if total is None:
            raise ValueError("There are no batches to take the curvature of.")
        device = state.posterior.device
        whole: Matrix = distributed.sum_over_ranks(total)
        count = distributed.count_over_ranks(seen, device)
        mean, curvature = state.posterior.mean, whole.times(self.weight / count)
        prior = self.prior_precision
        if self.empirical_prior:
            prior = evidence.prior_precision(curvature, mean, start=prior)
        return dataclasses.replace(state, posterior=Gaussian(mean, curvature.damped(prior)))

    @torch.no_grad()
    def settle(self, state: State, batches: Iterable[Batch], most: int = 20) -> State:
        """The statistics of normalising layers, taken anew for the belief as it now is.

        Under moment propagation the running averages of training lag behind by a little that is the
        same at all positions, which ruins predictions; a plain average over at most `most` batches
        does not. Other learners, and modules without such averages, keep their state.
        """
        names = self.network.averaged()
        if not names or not isinstance(self.expectation, Moments):
            return state
        buffers = {k: v.clone() for k, v in state.buffers.items()}
        for name in names:
            buffers[name].zero_()
        belief = state.posterior.mean, state.posterior.variance()
        device = state.posterior.device
        with (
            forked_randomness(device, seeds.key(state.seed, state.step, self._stream(_MODULE))),
            self.network.equal_averages(),
        ):
            for x, _ in itertools.islice(batches, most):
                way = Propagation(self.network, self.expectation.activations, record=False)
                way.forward(*belief, buffers, x, training=True)
        return dataclasses.replace(state, buffers=distributed.mean_over_ranks(buffers))

    def parts(self) -> dict[str, str]:
        """The four choices, in words."""
        family = self.family
        belief = family.structure if isinstance(family, GaussianFamily) else family
        chosen = {
            "posterior": belief,
            "expectation": self.expectation,
            "curvature": self.final_curvature or self.curvature,
            "rule": self.rule,
        }
        words = {name: type(part).__name__ for name, part in chosen.items()}
        if isinstance(belief, Subset):
            words["posterior"] = f"{type(belief.inner).__name__} (some weights)"
        return words

    def _stream(self, kind: int) -> int:
        shared = kind == _DRAWS and self.shared_draws
        return kind + 3 * (0 if shared else distributed.rank())

    def _problem(
        self, state: State, buffers: Params, x: Inputs, y: Tensor, size: int, device: torch.device
    ) -> Problem:
        """The batch and, in this one place, what each of its examples stands for.

        Sums over the examples of all ranks and over the points of the expectation are then
        estimates for the whole data set over the temperature.
        """
        generator = seeds.generator(device, state.seed, state.step, self._stream(_TARGETS))
        count = distributed.count_over_ranks(size, device)
        scale = self.weight / (count * self.expectation.num)
        problem = Problem(self.network, self.likelihood, state.noise, buffers, x, y, generator)
        return dataclasses.replace(problem, scale=scale, temperature=self.temperature)

    def local(
        self, problem: Problem, posterior: Posterior, generator: Generator, step: int = 0
    ) -> Local:
        """Sums over the batch and over the points of the expectation."""
        curvature = self.rule.curvature_at(self.curvature, step)
        precision: Any = getattr(posterior, "precision", None)
        structure = self.rule.structure_at(self.family, precision, step)
        total: Local | None = None
        rotation = posterior.rotation if isinstance(posterior, Rotated) else None
        belief = posterior.inner if isinstance(posterior, Rotated) else posterior
        for point in self.expectation.points(belief, generator, offsets=curvature.needs_draws):
            if rotation is not None:
                point = dataclasses.replace(point, rotation=rotation)
            local = curvature.local(problem, point, structure, precision)
            if self.rule.needs_weights:
                parts = self.expectation.num * distributed.world_size()
                weights = point.params if parts == 1 else vectors.scale(point.params, 1.0 / parts)
                local = dataclasses.replace(local, weights=weights)
            total = local if total is None else total.plus(local)
        assert total is not None
        return total

    def _curvature_at_mean(
        self, state: State, x: Inputs, y: Tensor, structure: Structure, seen: int
    ) -> Matrix:
        assert self.final_curvature is not None
        assert isinstance(state.posterior, Gaussian)
        device = state.posterior.device
        generator = seeds.generator(device, state.seed, state.step + seen, self._stream(_TARGETS))
        problem = Problem(
            self.network,
            self.likelihood,
            state.noise,
            state.buffers,
            x,
            y,
            generator,
            training=False,
        )
        point = Point(state.posterior.mean, None)
        local = self.final_curvature.local(problem, point, structure, state.posterior.precision)
        assert local.curvature is not None
        return local.curvature


def check_batch(x: Inputs, y: Tensor) -> int:
    """How many examples a batch has; an empty or uneven one is refused."""
    size = num_examples(x)
    if size == 0:
        raise ValueError("The batch is empty.")
    if len(y) != size:
        raise ValueError(f"The batch has {size} inputs but {len(y)} targets.")
    return size


def _instance(part: object, kind: type, name: str, example: str):  # type: ignore[no-untyped-def]
    if isinstance(part, type) and issubclass(part, kind):
        raise TypeError(f"{name} takes an object, got the class: write {part.__name__}().")
    if not isinstance(part, kind):
        raise TypeError(f"{name} takes a {kind.__name__} such as {example}, got {part!r}.")
    return part


def _final(curvature: Curvature | None) -> Curvature | None:
    if curvature is None:
        return None
    part: Curvature = _instance(curvature, Curvature, "final_curvature", "GGN()")
    if part.needs_draws or not part.gives_curvature or not part.additive:
        raise ValueError(
            "The final curvature is summed over the data at the mean: use GGN(), Fisher(), "
            f"PerExample() or Hessian(), got {type(part).__name__}()."
        )
    return part


def _positive(value: float, name: str) -> float:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be positive, got {value}.")
    return value


def _not_negative(value: float, name: str) -> float:
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"{name} must not be negative, got {value}.")
    return value
