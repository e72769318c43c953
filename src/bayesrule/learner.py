"""A learner: one choice of family, expectation, curvature and rule on one module."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor, nn

from bayesrule.curvature import Curvature, Here, Problem, Streams, Wanted
from bayesrule.curvature.first_look import first_look
from bayesrule.expectations import AtMean, Draws, Expectation
from bayesrule.likelihoods import Likelihood
from bayesrule.matrices import Matrix
from bayesrule.posteriors import Family, GaussianPrior, Posterior, Prior, Pull, evidence
from bayesrule.rules import Now, Rule
from bayesrule.rules.fit_of_parts import check_final, check_parts, check_predictive
from bayesrule.tensors import distributed, seeds, vectors
from bayesrule.tensors.autocast import for_modules_only
from bayesrule.tensors.network import Network, check_batch, copies, forked_randomness
from bayesrule.tensors.unfit import check_finite, check_loss, with_gradients
from bayesrule.types import Batch, Derivatives, Info, Local, Number, Params, State

# Streams of randomness within one step, and how many there are for each rank.
TARGETS, MODULE, DRAWS, _STREAMS = 0, 1, 2, 3
# The divergence is asked for after a step, away from the streams of all ranks.
_DIVERGENCE = 4000
# At these the bound of a belief is taken that is learned from its mean alone.
_BOUND = Draws(16)


class Learner:
    """Learns a belief over the weights of a module, a batch at a time.

    `init` makes the first state from the module's own parameters, `step` the next one from a batch.
    Both leave the module as it is. Under torch.distributed each rank gives its own part of the
    batch and the derivatives are summed over the ranks; weight draws then differ by rank, which
    averages over more of them, unless `shared_draws` is set.

    - `num_data`: how many examples the whole data set has.
    - `prior`: what is believed before the data: `GaussianPrior(precision)`, or a posterior of
      earlier data (continual learning). `prior_precision=δ` is short for N(0, I/δ).
    - `temperature`: T in `E[loss] / T + KL`; below 1 the data count more. None is 1, or less where
      the family counts more weights than there are data (`Family.usual_temperature`).
    - `final_curvature`: taken over all data once training ends, at the mean (Laplace).
    - `empirical_prior`: the final belief has the prior precision of largest evidence.
    - `predictive`: how `predict` looks at the belief where the caller does not say.

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
        prior: Prior | Posterior | None = None,
        prior_precision: float | None = None,
        temperature: float | None = None,
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
        self.prior = self._prior(prior, prior_precision)
        self.predictive = predictive or AtMean()
        self._given_temperature = temperature
        self.temperature = _positive(self.temperature_for(num_data), "temperature")
        self.empirical_prior, self.shared_draws = empirical_prior, shared_draws
        self.final_curvature: Curvature | None = None
        given = self.network, self.likelihood, self.family
        check_parts(*given, self.expectation, self.curvature, self.rule)
        if final_curvature is not None:
            self.final_curvature = _instance(final_curvature, Curvature, "final_curvature", "GGN()")
            check_final(*given, final_curvature)
        check_predictive(self.predictive, self.family, self.likelihood)
        if empirical_prior and not isinstance(self.prior.diagonal({}), float):
            raise ValueError(
                "empirical_prior=True looks for the precision of N(0, I/δ), but the prior is a "
                "posterior of earlier data; leave one of them out."
            )
        # A structure that is too large for the module is refused here, not at the first step.
        self._first_belief(self.network.params(), self.weight)

    def _prior(self, prior: Prior | Posterior | None, precision: float | None) -> Prior:
        if prior is not None and precision is not None:
            raise ValueError(
                "Give a prior or a prior_precision, not both: prior_precision=δ is short for "
                "prior=GaussianPrior(δ)."
            )
        given = precision if prior is None else prior
        return self.family.prior(given, self.network.params())

    def temperature_for(self, num_data: float) -> float:
        """The temperature with so many data: the one that was given, or what is usual."""
        if self._given_temperature is not None:
            return self._given_temperature
        looks = (self.expectation, self.predictive)
        if not any(getattr(look, "sees_spread", True) for look in looks):
            return 1.0
        return self.family.usual_temperature(num_data, self.network.params())

    @property
    def prior_precision(self) -> Any:
        """What tells the prior from another: its precision, for a Gaussian about zero."""
        return self.prior.describe()

    @property
    def model(self) -> nn.Module:
        """The module, as it was given."""
        return self.network.model

    @property
    def weight(self) -> float:
        """`num_data / temperature`, what one mean gradient stands for."""
        return self.num_data / self.temperature

    def __repr__(self) -> str:
        parts = ",\n  ".join(f"{name}={part}" for name, part in self.parts().items())
        return f"Learner of {type(self.model).__name__} (\n  {parts})"

    def _first_belief(self, params: Params, weight: float) -> Posterior:
        return self.family.init(params, weight=weight, prior=self.prior)

    def with_rule(self, rule: Rule) -> Learner:
        """The same learner with another rule, such as one with another learning rate."""
        changed = copy.copy(self)
        changed.rule = _instance(rule, Rule, "rule", "Natural()")
        return changed

    def replaced(
        self,
        *,
        num_data: int | None = None,
        temperature: float | None = None,
        prior_precision: float | None = None,
    ) -> Learner:
        """A new learner of the same parts; what is not given stays as it is."""
        return Learner(
            self.model,
            self.likelihood,
            num_data=int(num_data or self.num_data),
            posterior=self.family,
            expectation=self.expectation,
            curvature=self.curvature,
            rule=self.rule,
            prior=self.prior if prior_precision is None else None,
            prior_precision=prior_precision,
            temperature=self._given_temperature if temperature is None else temperature,
            final_curvature=self.final_curvature,
            empirical_prior=self.empirical_prior,
            predictive=self.predictive,
            shared_draws=self.shared_draws,
        )

    def init(self, seed: int = 0) -> State:
        """The state before the first step; all randomness of the run follows from `seed`."""
        return self.first_state(self.network, self.weight, seed)

    @torch.inference_mode(False)
    def first_state(self, network: Network, weight: float, seed: int) -> State:
        """The first state of a network with other first weights, or another number of data."""
        params = network.params()
        posterior = self._first_belief(params, weight)
        memory = self.rule.init(self.family, posterior, weight)
        likelihood = self.likelihood.init(next(iter(params.values())))
        return State(posterior, memory, likelihood, network.buffers(), step=0, seed=int(seed))

    @with_gradients
    def step(
        self, state: State, batch: Batch, *, donate: bool = False, checked: bool = True
    ) -> tuple[State, Info]:
        """The next state, and what a person wants to see of the step.

        With `donate` the caller gives the old state up and its memory is used again, which saves
        time; `info.kl` is then to be read before the next step. Inputs, targets and weights that
        are not finite are refused on a CPU, unless the caller looks at the loss (`checked=False`).
        """
        begun = self.begun(state, batch)
        if donate and begun is not state:
            state.given_up()
        return self.advance(begun, self.problem(begun, batch), donate=donate, checked=checked)

    @for_modules_only
    def begun(self, state: State, batch: Batch, weight: float | None = None) -> State:
        """A state before the first step, whose belief now knows the size of the loss's curvature.

        Where the family has no first curvature of its own, the first batch says what it is.
        """
        state.check()
        if state.step > 0 or not self.family.looks_first:
            return state
        problem = self.problem(state, batch)
        with problem.module_randomness():
            size = first_look(problem, state.posterior)
        if size is None:
            return state
        family, weight = self.family.looked(size), weight or self.weight
        posterior = family.init(state.posterior.mean, weight=weight, prior=self.prior)
        memory = self.rule.init(family, posterior, weight)
        return dataclasses.replace(state, posterior=posterior, rule=memory)

    def problem(self, state: State, batch: Batch, *, streams: Streams | None = None) -> Problem:
        """A batch with the state that it is looked at from, and what each example stands for.

        Sums over the examples of all ranks and over the points of the expectation are then
        estimates for the whole data set over the temperature. Randomness follows from the state,
        unless `streams` are given to draw from; then the state's buffers are given up, too.
        """
        x, y = batch
        size, device = check_batch(x, y), state.posterior.device
        targets, draws, module = streams or self._streams(state)
        return Problem(
            self.network,
            self.likelihood,
            state.likelihood,
            dict(state.buffers) if streams else copies(state.buffers),
            x,
            y,
            targets,
            draws,
            weight=self.weight,
            count=distributed.count_over_ranks(size, device),
            num_points=self.expectation.num,
            temperature=self.temperature,
            module_randomness=module,
        )

    def _streams(self, state: State) -> Streams:
        """Where targets and weights are drawn from, and the context in which the module draws."""
        device = state.posterior.device
        targets, draws = (self._generator(state, kind, device) for kind in (TARGETS, DRAWS))
        key = seeds.key(state.seed, state.step, self.stream(MODULE))
        return targets, draws, partial(forked_randomness, device, key)

    @for_modules_only
    def advance(
        self, state: State, problem: Problem, *, donate: bool = False, checked: bool = False
    ) -> tuple[State, Info]:
        """One step, from the sums over a batch to the next state; every way to run it ends here."""
        # Looking at numbers would make a GPU wait.
        checked = checked and state.posterior.device.type == "cpu"
        if checked:
            check_finite("The inputs", problem.x)
        with problem.module_randomness():
            local = self.local(problem, state.posterior, state.step)
        local = distributed.sum_over_ranks(local)
        if checked:
            check_loss(local.loss, problem.y, lambda: state.posterior.mean)
        return self.absorb(state, local, problem, donate=donate)

    def local(self, problem: Problem, posterior: Posterior, step: int = 0) -> Local:
        """Sums over the batch and over the points of the expectation."""
        curvature = self.rule.curvature_at(self.curvature, step)
        structure = self.rule.structure_at(self.family, posterior, step)
        parts = self.expectation.num * distributed.world_size()
        points = problem.points(self.expectation, posterior, Wanted(curvature, structure))
        total: Local | None = None
        for seen, point in points:
            share = point.num_draws / parts
            local = curvature.local(seen, Here(point, structure, posterior))
            average = self.rule.average(point)
            if average is not None:
                average = average if share == 1.0 else vectors.scale(average, share)
                local = dataclasses.replace(local, average=average)
            local = point.pulled(local, Pull(share, seen.scale, self.prior))
            total = local if total is None else total.plus(local)
        assert total is not None
        return total

    def absorb(
        self, state: State, local: Local, problem: Problem, *, donate: bool = False
    ) -> tuple[State, Info]:
        """The next state from sums over a batch (of all ranks), however they were found."""
        derivatives = self.derivatives(local, problem, state.step)
        # A rule owns what it is given.
        given = state.given_up() if donate else (state.posterior, state.rule)
        belief, memory = given if donate else self.rule.copied(*given)
        rates = self.rule.rates(state.step) if problem.rates is None else problem.rates
        now = Now(belief, derivatives, self.prior, memory, rates, state.step)
        posterior, memory = self.rule.move(now)
        learned = problem.learned(local.statistics)
        buffers = distributed.mean_over_ranks(problem.buffers)
        new = State(posterior, memory, learned, buffers, state.step + 1, state.seed)
        return new, self.info(
            derivatives.loss, new, lambda at: problem.again(at, self._streams(at))
        )

    def derivatives(self, local: Local, problem: Problem, step: int = 0) -> Derivatives:
        """Estimates over the whole data set from sums over a batch."""
        loss = local.loss * (problem.scale * problem.temperature)
        sums = local.gradient, local.curvature, problem.weight, problem.count, local.average
        whole = Derivatives(loss, *sums, problem.temperature)
        curvature = self.rule.curvature_at(self.curvature, step)
        return curvature.complete(whole, self.rule.structure(self.family))

    def info(
        self,
        loss: Tensor,
        state: State,
        again: Callable[[State], Problem] | None = None,
        *,
        is_current: Callable[[], bool] | None = None,
        divergence: Callable[[State], Tensor] | None = None,
        temperature: Number | None = None,
    ) -> Info:
        """What a person wants to see of a step; the KL and the ELBO are computed when first read.

        `again` makes the step's problem anew, from its next state; `is_current` says whether that
        state is still that of this step; `divergence` and `temperature` are those of a stack of
        nets.
        """
        tensor = state.posterior.any_tensor
        version = tensor._version

        def now(function: Callable[[State], Tensor]) -> Tensor:
            if not (tensor._version == version if is_current is None else is_current()):
                raise RuntimeError(
                    "A later step has changed this state (donate=True); read info.kl and "
                    "info.elbo before it."
                )
            return function(state)

        after = None if again is None else partial(now, partial(self._loss_after, again))
        given = self.temperature if temperature is None else temperature
        return Info(loss, given, partial(now, divergence or self.divergence), after)

    def _loss_after(self, again: Callable[[State], Problem], state: State) -> Tensor:
        """`E_q[loss]` as steps estimate it; weights are drawn where these see the mean alone."""
        problem = again(state)
        with problem.module_randomness():
            if self.family.spreads and not self.expectation.sees_spread:
                problem = dataclasses.replace(problem, num_points=_BOUND.num)
                loss = problem.nll_at(_BOUND, state.posterior)
            else:
                loss = self.local(problem, state.posterior, state.step).loss
        # Nothing is summed over ranks, of which perhaps only one reads this.
        return loss * (problem.scale * problem.temperature * distributed.world_size())

    def divergence(self, state: State) -> Tensor:
        """`KL(q ‖ prior)` of a state's belief, and of what the likelihood believes."""
        generator = self._generator(state, _DIVERGENCE, state.posterior.device)
        return state.posterior.kl(self.prior, generator) + self.likelihood.kl(state.likelihood)

    @torch.inference_mode(False)
    @torch.enable_grad()
    @for_modules_only
    def finish(self, state: State, batches: Iterable[Batch]) -> State:
        """What is left to do once training ends: for Laplace, the curvature over all the data."""
        state.check()
        if self.final_curvature is None:
            return state
        total, seen = None, 0
        for x, y in batches:
            curvature = self._curvature_at_mean(state, (x, y), seen)
            total = curvature if total is None else total.plus(curvature)
            seen += check_batch(x, y)
        if total is None:
            raise ValueError("There are no batches to take the curvature of.")
        whole: Matrix = distributed.sum_over_ranks(total)
        count = distributed.count_over_ranks(seen, state.posterior.device)
        curvature, prior = whole.times(self.weight / count), self.prior
        if self.empirical_prior:
            start = prior.diagonal({})
            assert isinstance(start, float)
            mean = state.posterior.mean
            prior = GaussianPrior(evidence.prior_precision(curvature, mean, start=start))
        posterior, _ = state.posterior.with_precision(prior.added_to(curvature))
        return dataclasses.replace(state, posterior=posterior)

    def _curvature_at_mean(self, state: State, batch: Batch, seen: int) -> Matrix:
        assert self.final_curvature is not None
        assert self.family.structure is not None
        # Ranks may have different numbers of batches here, so nothing is counted over them.
        at = dataclasses.replace(state, step=state.step + seen)
        targets = self._generator(at, TARGETS, state.posterior.device)
        parts = self.network, self.likelihood, state.likelihood, state.buffers
        problem = Problem(*parts, *batch, targets, training=False)
        here = Here(state.posterior.at_mean(), self.family.structure, state.posterior)
        local = self.final_curvature.local(problem, here)
        assert local.curvature is not None
        return local.curvature

    def parts(self) -> dict[str, str]:
        """The four choices, in words."""
        chosen = {
            "posterior": self.family,
            "expectation": self.expectation,
            "curvature": self.final_curvature or self.curvature,
            "rule": self.rule,
        }
        return {name: part.words() for name, part in chosen.items()}

    def _generator(self, state: State, kind: int, device: torch.device) -> Generator:
        return seeds.generator(device, state.seed, state.step, self.stream(kind))

    def stream(self, kind: int) -> int:
        """The number of a stream of randomness on this rank."""
        shared = kind == DRAWS and self.shared_draws
        return kind + _STREAMS * (0 if shared else distributed.rank())


def _instance(part: object, kind: type, name: str, example: str):  # type: ignore[no-untyped-def]
    if isinstance(part, type) and issubclass(part, kind):
        raise TypeError(f"{name} takes an object, got the class: write {part.__name__}().")
    if not isinstance(part, kind):
        raise TypeError(f"{name} takes a {kind.__name__} such as {example}, got {part!r}.")
    return part


def _positive(value: float, name: str) -> float:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be positive, got {value}.")
    return value
