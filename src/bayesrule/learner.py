"""A learner: one choice of family, expectation, curvature and rule on one module."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.curvature import Curvature, Here, Problem, Wanted
from bayesrule.curvature.all_data import curvature_of_all, problems_of_all
from bayesrule.curvature.first_look import first_look
from bayesrule.curvature.sums import sums_over_points
from bayesrule.expectations import AtMean, Draws, Expectation
from bayesrule.likelihoods import Likelihood
from bayesrule.posteriors import Family, Posterior, Prior
from bayesrule.posteriors.evidence import prior_of_largest_evidence
from bayesrule.posteriors.prior import one_of
from bayesrule.rules import Now, Rule, fit_of_parts
from bayesrule.rules.fit_of_parts import instance, positive
from bayesrule.tensors import distributed
from bayesrule.tensors.autocast import for_modules_only, full_precision
from bayesrule.tensors.inputs import pair
from bayesrule.tensors.network import Network, check_batch, copies
from bayesrule.tensors.step_randomness import DIVERGENCE, StepRandomness, Streams
from bayesrule.tensors.unfit import check_finite, check_loss, with_gradients
from bayesrule.types import Batch, Derivatives, Info, Local, State

# The draws at which the ELBO is taken of a posterior that is learned at its mean alone.
_ELBO_DRAWS = Draws(16)


class Learner:
    """Learns a posterior over the weights of a module, one batch at a time.

    `init` makes the first state from the module's own parameters, `step` the next one from a batch;
    both leave the module as it is. Under torch.distributed each rank passes its part of the batch
    and derivatives are summed; weight draws differ between ranks unless `shared_draws` is set.

    - `num_data`: the number of examples in the whole data set.
    - `prior`: `GaussianPrior(precision)`, or the posterior of earlier data (continual learning).
      `prior_precision=δ` is short for N(0, I/δ).
    - `temperature`: T in `E[loss] / T + KL`; below 1 the data count more. None is 1, or less where
      the family counts more weights than there are data (`Family.usual_temperature`).
    - `final_curvature`: an estimate over all data, taken at the mean once training ends (Laplace).
    - `empirical_prior`: the final posterior has the prior precision of largest evidence.
    - `predictive`: the expectation that `predict` uses unless its caller names another.
    - `warm_start`: `fit` begins at the most probable weights if no length of training is given.

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
        warm_start: bool = False,
    ) -> None:
        self.network = Network(model)
        self.likelihood = instance(likelihood, Likelihood, "likelihood", "CategoricalLikelihood()")
        family = instance(posterior, Family, "posterior", "GaussianFamily(Diagonal())")
        self.family = family.for_model(model)
        self.expectation = instance(expectation, Expectation, "expectation", "Draws(1)")
        self.curvature = instance(curvature, Curvature, "curvature", "PerExample()")
        self.rule = instance(rule, Rule, "rule", "Natural()")
        self.num_data = positive(num_data, "num_data, the size of the data set,")
        first, given_prior = self.network.params(), one_of(prior, prior_precision)
        self.prior = fit_of_parts.checked_prior(self.family, given_prior, first)
        self.predictive = predictive or AtMean()
        self._given_temperature = temperature
        self.temperature = positive(self.temperature_for(num_data), "temperature")
        self.empirical_prior, self.shared_draws = empirical_prior, shared_draws
        self.warm_start, self.randomness = warm_start, StepRandomness(shared_draws)
        self.final_curvature = final_curvature
        parts = self.network, self.likelihood, self.family
        fit_of_parts.check_parts(*parts, self.expectation, self.curvature, self.rule)
        if final_curvature is not None:
            instance(final_curvature, Curvature, "final_curvature", "GGN()")
            fit_of_parts.check_final(*parts, final_curvature)
        fit_of_parts.check_predictive(self.predictive, self.family, self.likelihood)
        if empirical_prior:
            fit_of_parts.check_empirical(self.prior)
        # Refuse a structure that is too large for the module here, not at the first step.
        self.family.init(first, weight=self.weight, prior=self.prior)

    def temperature_for(self, num_data: float) -> float:
        """The temperature for a data set of this size: the one that was given, or the usual one."""
        if self._given_temperature is not None:
            return self._given_temperature
        in_training = self.expectation.sees_spread or self.family.has_scales
        if not (in_training or getattr(self.predictive, "sees_spread", True)):
            return 1.0
        effective_data = num_data * (self.likelihood.spread_share if in_training else 1.0)
        return self.family.usual_temperature(effective_data, self.network.params())

    @property
    def prior_precision(self) -> Any:
        """The prior in numbers that identify it: for a Gaussian about zero, its precision."""
        return self.prior.describe()

    @property
    def model(self) -> nn.Module:
        """The module that was given."""
        return self.network.model

    @property
    def weight(self) -> float:
        """`num_data / temperature`: the factor of a mean gradient over examples."""
        return self.num_data / self.temperature

    def __repr__(self) -> str:
        parts = ",\n  ".join(f"{name}={part}" for name, part in self.parts().items())
        return f"Learner of {type(self.model).__name__} (\n  {parts})"

    def with_rule(self, rule: Rule) -> Learner:
        """The same learner with another rule, such as one with another learning rate."""
        changed = copy.copy(self)
        changed.rule = instance(rule, Rule, "rule", "Natural()")
        return changed

    def replaced(
        self,
        *,
        num_data: int | None = None,
        temperature: float | None = None,
        prior_precision: float | None = None,
    ) -> Learner:
        """A new learner of the same parts; arguments that are not given stay as they are."""
        same = ["expectation", "curvature", "rule", "final_curvature", "empirical_prior"]
        same += ["predictive", "shared_draws", "warm_start"]
        return Learner(
            self.model,
            self.likelihood,
            num_data=int(num_data or self.num_data),
            posterior=self.family,
            prior=self.prior if prior_precision is None else None,
            prior_precision=prior_precision,
            temperature=self._given_temperature if temperature is None else temperature,
            **{name: getattr(self, name) for name in same},
        )

    def init(self, seed: int = 0) -> State:
        """The state before the first step; all randomness of the run follows from `seed`."""
        return self.first_state(self.network, self.weight, seed)

    @torch.inference_mode(False)
    def first_state(self, network: Network, weight: float, seed: int) -> State:
        """The first state from another network's weights, or for another number of data."""
        like, buffers = next(iter(network.params().values())), network.buffers()
        with full_precision(like.device.type):
            posterior = self.family.init(network.params(), weight=weight, prior=self.prior)
            memory = self.rule.init(self.family, posterior, weight)
        return State(posterior, memory, self.likelihood.init(like), buffers, step=0, seed=int(seed))

    @with_gradients
    def step(
        self,
        state: State,
        batch: Batch,
        *,
        donate: bool = False,
        checked: bool = True,
        accumulate: int = 1,
    ) -> tuple[State, Info]:
        """The next state, and what a person wants to see of the step.

        `donate` gives up the old state and reuses its memory: read `info.kl` before the next step.
        On a CPU, infinite and NaN numbers are refused unless the caller checks the loss
        (`checked=False`). `accumulate` splits the batch into this many pieces.
        """
        begun = self.begun(state, batch, accumulate)
        if donate and begun is not state:
            state.given_up()
        whole = self.problem(begun, batch, pieces=accumulate)
        return self.advance(begun, whole, donate=donate, checked=checked)

    @for_modules_only
    def begun(self, state: State, batch: Batch, pieces: int = 1) -> State:
        """The state to step from; before the first step, the batch gives its initial curvature."""
        state.check()
        if state.step > 0 or not self.family.looks_first:
            return state
        [size] = first_look(self.problem(state, batch, pieces=pieces), state.posterior)
        return self.begun_at(state, size, self.weight)

    def begun_at(self, state: State, size: float | None, weight: float) -> State:
        """The first state with another initial curvature per datum; None leaves it as it is."""
        if size is None:
            return state
        family = self.family.looked(size)
        posterior = family.init(state.posterior.mean, weight=weight, prior=self.prior)
        memory = self.rule.init(family, posterior, weight)
        return dataclasses.replace(state, posterior=posterior, rule=memory)

    def problem(
        self, state: State, batch: Batch, *, streams: Streams | None = None, pieces: int = 1
    ) -> Problem:
        """The batch together with all of the state that derivatives of its loss need.

        Sums over the examples of all ranks and over the points of the expectation then estimate
        those of the whole data set over the temperature. Randomness follows from the state; if
        `streams` are given, it is drawn from them, and the state's buffers are used up.
        """
        parts = self.network, self.likelihood, self.family, self.curvature, self.rule
        fit_of_parts.check_pieces(pieces, *parts)
        x, y = batch if type(batch) is tuple else pair(batch)
        size, device = check_batch(x, y), state.posterior.device
        targets, draws, module = streams or self.randomness.streams(state)
        return Problem(
            self.network,
            self.likelihood,
            state.likelihood,
            dict(state.buffers) if streams else copies(state.buffers),
            x,
            self.likelihood.weighed(y),
            targets,
            draws,
            weight=self.weight,
            count=distributed.count_over_ranks(size, device),
            num_points=self.expectation.num,
            temperature=self.temperature,
            module_randomness=module,
            pieces=pieces,
        )

    @for_modules_only
    def advance(
        self, state: State, problem: Problem, *, donate: bool = False, checked: bool = False
    ) -> tuple[State, Info]:
        """One step from a batch to the next state; every way to run a step ends here."""
        # Reading numbers would make a GPU wait.
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
        wanted = Wanted(curvature, self.rule.structure_at(self.family, posterior, step))
        average, prior = self.rule.average, self.prior
        return sums_over_points(problem, self.expectation, posterior, wanted, average, prior)

    def absorb(
        self, state: State, local: Local, problem: Problem, *, donate: bool = False
    ) -> tuple[State, Info]:
        """The next state from sums over a batch (of all ranks), however they were computed."""
        derivatives = self.derivatives(local, problem, state.step)
        rates = self.rule.rates(state.step) if problem.rates is None else problem.rates
        copied = self.rule.copied  # A rule may overwrite the tensors that it is given.
        posterior, memory = state.given_up() if donate else copied(state.posterior, state.rule)
        now = Now(posterior, derivatives, self.prior, memory, rates, state.step)
        posterior, memory = self.rule.move(now)
        likelihood = problem.learned(local.statistics)
        buffers = distributed.mean_over_ranks(problem.buffers)
        new = State(posterior, memory, likelihood, buffers, state.step + 1, state.seed)
        streams = self.randomness.streams
        return new, self.info(derivatives.loss, new, lambda at: problem.again(at, streams(at)))

    def derivatives(self, local: Local, problem: Problem, step: int = 0) -> Derivatives:
        """Estimates over the whole data set from sums over a batch."""
        curvature = self.rule.curvature_at(self.curvature, step)
        return curvature.complete(problem.derivatives(local), self.rule.structure(self.family))

    def info(
        self,
        loss: Tensor,
        state: State,
        again: Callable[[State], Problem] | None = None,
        is_current: Callable[[], bool] | None = None,
    ) -> Info:
        """The info of a step; `again` makes the step's problem anew from the next state."""
        after = None if again is None else partial(self.loss_after, again)
        return Info.of(loss, state, self.divergence, after, self.temperature, is_current)

    def loss_after(self, again: Callable[[State], Problem], state: State) -> Tensor:
        """`E_q[loss]` as a step estimates it, but at draws if steps look at the mean alone."""
        problem = again(state)
        with problem.module_randomness():
            if self.family.spreads and not self.expectation.sees_spread:
                problem = dataclasses.replace(problem, num_points=_ELBO_DRAWS.num)
                loss = problem.nll_at(_ELBO_DRAWS, state.posterior)
            else:
                loss = self.local(problem, state.posterior, state.step).loss
        # Not summed over ranks: perhaps only one of them reads this.
        return loss * (problem.scale * problem.temperature * distributed.world_size())

    def divergence(self, state: State) -> Tensor:
        """`KL(q ‖ prior)` of a state's posterior and of the likelihood's own parameters."""
        generator = self.randomness.generator(state, DIVERGENCE)
        return state.posterior.kl(self.prior, generator) + self.likelihood.kl(state.likelihood)

    @torch.inference_mode(False)
    @torch.enable_grad()
    @for_modules_only
    def finish(self, state: State, batches: Iterable[Batch]) -> State:
        """Ends training; for Laplace, this takes the curvature over all the data."""
        state.check()
        if self.final_curvature is None:
            return state
        assert self.family.structure is not None
        posterior, prior = state.posterior, self.prior
        here = Here(posterior.at_mean(), self.family.structure, posterior)
        problems = problems_of_all(self.network, self.likelihood, self.randomness, state, batches)
        curvature = curvature_of_all(self.final_curvature, problems, here, self.weight)
        if self.empirical_prior:
            prior = prior_of_largest_evidence(prior, curvature, posterior.mean)
        posterior, _ = posterior.with_precision(prior.added_to(curvature))
        return dataclasses.replace(state, posterior=posterior)

    def parts(self) -> dict[str, str]:
        """The four choices, in words."""
        chosen = {
            "posterior": self.family,
            "expectation": self.expectation,
            "curvature": self.final_curvature or self.curvature,
            "rule": self.rule,
        }
        return {name: part.words() for name, part in chosen.items()}
