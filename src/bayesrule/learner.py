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

# At these the bound of a belief is taken that is learned from its mean alone.
_BOUND = Draws(16)


class Learner:
    """Learns a belief over the weights of a module, a batch at a time.

    `init` makes the first state from the module's own parameters, `step` the next from a batch;
    both leave the module as it is. Under torch.distributed each rank gives its own part of the
    batch and derivatives are summed; weight draws then differ by rank unless `shared_draws` is set.

    - `num_data`: how many examples the whole data set has.
    - `prior`: what is believed before the data: `GaussianPrior(precision)`, or a posterior of
      earlier data (continual learning). `prior_precision=δ` is short for N(0, I/δ).
    - `temperature`: T in `E[loss] / T + KL`; below 1 the data count more. None is 1, or less where
      the family counts more weights than there are data (`Family.usual_temperature`).
    - `final_curvature`: taken over all data once training ends, at the mean (Laplace).
    - `empirical_prior`: the final belief has the prior precision of largest evidence.
    - `predictive`: how `predict` looks at the belief where the caller does not say.
    - `warm_start`: `fit` begins at the most probable weights, where nobody says how long it trains.

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
        before = one_of(prior, prior_precision)
        self.prior = fit_of_parts.checked_prior(self.family, before, self.network.params())
        self.predictive = predictive or AtMean()
        self._given_temperature = temperature
        self.temperature = positive(self.temperature_for(num_data), "temperature")
        self.empirical_prior, self.shared_draws = empirical_prior, shared_draws
        self.warm_start, self.randomness = warm_start, StepRandomness(shared_draws)
        self.final_curvature = final_curvature
        given = self.network, self.likelihood, self.family
        fit_of_parts.check_parts(*given, self.expectation, self.curvature, self.rule)
        if final_curvature is not None:
            instance(final_curvature, Curvature, "final_curvature", "GGN()")
            fit_of_parts.check_final(*given, final_curvature)
        fit_of_parts.check_predictive(self.predictive, self.family, self.likelihood)
        if empirical_prior:
            fit_of_parts.check_empirical(self.prior)
        # A structure that is too large for the module is refused here, not at the first step.
        self.family.init(self.network.params(), weight=self.weight, prior=self.prior)

    def temperature_for(self, num_data: float) -> float:
        """The temperature with so many data: the one that was given, or what is usual."""
        if self._given_temperature is not None:
            return self._given_temperature
        in_training = self.expectation.sees_spread or self.family.has_scales
        if not (in_training or getattr(self.predictive, "sees_spread", True)):
            return 1.0
        borne = num_data * (self.likelihood.spread_share if in_training else 1.0)
        return self.family.usual_temperature(borne, self.network.params())

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
        """A new learner of the same parts; what is not given stays as it is."""
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
        """The first state of a network with other first weights, or another number of data."""
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

        With `donate` the old state is given up and its memory used again; `info.kl` is then to be
        read before the next step. What is not finite is refused on a CPU, unless the caller looks
        at the loss (`checked=False`). `accumulate` takes the batch in so many pieces.
        """
        begun = self.begun(state, batch, accumulate)
        if donate and begun is not state:
            state.given_up()
        whole = self.problem(begun, batch, pieces=accumulate)
        return self.advance(begun, whole, donate=donate, checked=checked)

    @for_modules_only
    def begun(self, state: State, batch: Batch, pieces: int = 1) -> State:
        """A state before the first step, whose first curvature is that which its batch shows."""
        state.check()
        if state.step > 0 or not self.family.looks_first:
            return state
        [size] = first_look(self.problem(state, batch, pieces=pieces), state.posterior)
        return self.begun_at(state, size, self.weight)

    def begun_at(self, state: State, size: float | None, weight: float) -> State:
        """The first state with another first curvature of one datum; None leaves it as it is."""
        if size is None:
            return state
        family = self.family.looked(size)
        posterior = family.init(state.posterior.mean, weight=weight, prior=self.prior)
        memory = self.rule.init(family, posterior, weight)
        return dataclasses.replace(state, posterior=posterior, rule=memory)

    def problem(
        self, state: State, batch: Batch, *, streams: Streams | None = None, pieces: int = 1
    ) -> Problem:
        """A batch with the state that it is looked at from, and what each example stands for.

        Sums over the examples of all ranks and over the points of the expectation are then
        estimates for the whole data set over the temperature. Randomness follows from the state,
        unless `streams` are given to draw from; then the state's buffers are given up, too.
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
        wanted = Wanted(curvature, self.rule.structure_at(self.family, posterior, step))
        looked = self.expectation, posterior, wanted
        return sums_over_points(problem, *looked, self.rule.average, self.prior)

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
        known = problem.learned(local.statistics), distributed.mean_over_ranks(problem.buffers)
        new = State(posterior, memory, *known, state.step + 1, state.seed)
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
        """What a person wants to see of a step; the KL and the ELBO are computed when first read.

        `again` makes the step's problem anew, from its next state.
        """
        after = None if again is None else partial(self.loss_after, again)
        return Info.of(loss, state, self.divergence, after, self.temperature, is_current)

    def loss_after(self, again: Callable[[State], Problem], state: State) -> Tensor:
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
        generator = self.randomness.generator(state, DIVERGENCE)
        return state.posterior.kl(self.prior, generator) + self.likelihood.kl(state.likelihood)

    @torch.inference_mode(False)
    @torch.enable_grad()
    @for_modules_only
    def finish(self, state: State, batches: Iterable[Batch]) -> State:
        """What is left to do once training ends: for Laplace, the curvature over all the data."""
        state.check()
        if self.final_curvature is None:
            return state
        assert self.family.structure is not None
        belief, prior = state.posterior, self.prior
        here = Here(belief.at_mean(), self.family.structure, belief)
        problems = problems_of_all(self.network, self.likelihood, self.randomness, state, batches)
        curvature = curvature_of_all(self.final_curvature, problems, here, self.weight)
        if self.empirical_prior:
            prior = prior_of_largest_evidence(prior, curvature, belief.mean)
        posterior, _ = belief.with_precision(prior.added_to(curvature))
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
