"""The contract of every rule by which a posterior moves."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from bayesrule import schedules
from bayesrule.curvature import Curvature
from bayesrule.expectations import Expectation
from bayesrule.matrices import Structure
from bayesrule.posteriors import Family, Point, Posterior, Prior
from bayesrule.tensors import tree
from bayesrule.types import Derivatives, Params, Part

Memory = dict[str, Any]
"""What a rule keeps between steps: averages and momentum."""


class Now(NamedTuple):
    """The inputs of a step: posterior, derivatives of the loss, prior, memory and rates."""

    posterior: Any
    derivatives: Derivatives
    prior: Prior
    memory: Memory
    rates: Any
    step: int = 0


class Rule(Part, ABC):
    """How the posterior moves, given derivatives of the loss.

    The steps of a rule differ in a few numbers, its `rates`, a named tuple. `move` takes them as
    numbers, or as 0-d tensors, with which a single captured CUDA graph can be replayed for every
    step.
    """

    @abstractmethod
    def check(self, family: Family, expectation: Expectation, curvature: Curvature) -> None:
        """Refuses parts that do not fit, naming them and an alternative."""

    @abstractmethod
    def structure(self, family: Family) -> Structure:
        """The structure in which the rule needs its curvature."""

    def structure_at(self, family: Family, posterior: Posterior, step: int) -> Structure:
        """As `structure`, for the step from a given posterior."""
        return self.structure(family)

    def curvature_at(self, curvature: Curvature, step: int) -> Curvature:
        """The curvature to estimate at a step: the learner's, or none."""
        return curvature

    def average(self, point: Point) -> Params | None:
        """A function of a point; the rule gets its mean over all points and ranks."""
        return None

    def copied(self, posterior: Posterior, memory: Memory) -> tuple[Posterior, Memory]:
        """Copies of a posterior and a memory, which `move` may overwrite."""
        return tree.map_tensors(posterior, torch.clone), tree.map_tensors(memory, torch.clone)

    def init(self, family: Family, posterior: Posterior, weight: float) -> Memory:
        """The memory before the first step."""
        return {}

    def adopted(
        self, memory: Memory, turn: Callable[[Params], Params], posterior: Posterior, weight: float
    ) -> Memory:
        """The memory for a posterior that was adopted from another form of its family."""
        return memory

    def rates(self, step: int) -> Any:
        """The numbers of a step, a named tuple; steps count from 0."""
        return ()

    constant_rates: tuple[str, ...] = ()
    """The rates that are the same at every step, and so can stay numbers."""

    falls_by: ClassVar[str] = "learning_rate"
    """The option that falls to zero by the end of training."""

    def falling(self, start: int, steps: int) -> Rule:
        """The rule whose option `falls_by` falls to zero over `steps` steps from step `start` on.

        Only a `schedules.falling` without steps of its own falls; with any other value, the rule
        stays as it is.
        """
        rate = getattr(self, self.falls_by, None)
        if not isinstance(rate, schedules.falling) or rate.steps > 0:
            return self
        return self._with(self.falls_by, schedules.falling(rate.value, start, steps))

    def slower(self, factor: float) -> Rule | None:
        """The rule with `factor` times its learning rate; None if it has none."""
        rate = getattr(self, "learning_rate", None)
        return None if rate is None else self._with("learning_rate", schedules.scaled(rate, factor))

    def _with(self, option: str, value: float | schedules.Schedule) -> Rule:
        changed: Rule = copy.copy(self)
        # Rules are frozen, but nobody else has this copy yet.
        object.__setattr__(changed, option, value)
        return changed

    def kind(self, step: int) -> int:
        """Steps of the same kind do the same work, and differ only in rates and draws."""
        return 0

    @abstractmethod
    def move(self, now: Now) -> tuple[Posterior, Memory]:
        """The next posterior and memory.

        `now` belongs to the rule, which may overwrite all of its tensors. The step's index only
        decides what is estimated and what is kept from earlier steps; everything else is in the
        rates.
        """

    def step(
        self, posterior: Any, derivatives: Derivatives, prior: Prior, memory: Memory, step: int
    ) -> tuple[Posterior, Memory]:
        """`move` with the rates of a step."""
        return self.move(Now(posterior, derivatives, prior, memory, self.rates(step), step))

    def rate_tensors(self, step: int, device: torch.device) -> Any:
        """The rates of a step, with 0-d tensors for those that change."""
        fixed, rates = self.constant_rates, self.rates(step)
        values = {name: float(value) for name, value in rates._asdict().items()}
        changing = {k: torch.tensor(v, device=device) for k, v in values.items() if k not in fixed}
        return type(rates)(**values | changing)

    def refill(self, tensors: Any, step: int) -> None:
        """Fills the tensors with the rates of another step."""
        for tensor, value in zip(tensors, self.rates(step), strict=True):
            if isinstance(tensor, Tensor):
                tensor.fill_(float(value))

    def stack_obstacle(
        self, family: Family, expectation: Expectation, curvature: Curvature
    ) -> str | None:
        """Why the steps of many nets cannot be taken together, in words; None if they can."""
        return f"the rule {type(self).__name__}"

    def works_in_rows(self, family: Family) -> bool:
        """Whether all arithmetic is elementwise, so that a GPU works best on one long row."""
        return False

    def replay_obstacle(self, family: Family, expectation: Expectation) -> str | None:
        """Why a step cannot be replayed as a CUDA graph, in words; None if it can."""
        return f"the rule {type(self).__name__}"


def refuse_look(expectation: Expectation, curvature: Curvature) -> None:
    """Raises a ValueError if the expectation does not show what the curvature needs to see."""
    kind, shown = type(curvature).__name__, type(expectation).__name__
    if curvature.needs_draws and not expectation.random:
        raise ValueError(f"{kind}() needs weight draws, got {shown}(); use Draws(1).")
    if curvature.at_mean and expectation.random:
        raise ValueError(f"{kind}() is an expansion about the mean, got {shown}(); use AtMean().")
    if curvature.look is not expectation.look:
        raise ValueError(
            f"{kind}() looks at {curvature.look.value}, but {shown}() shows "
            f"{expectation.look.value}: LocalDraws() and Flipout() go with Pathwise(), Moments() "
            "with ExpectedLoss() or Innovations(), AtMean() and Draws() with all others."
        )
    if not curvature.whole_data:
        raise ValueError(
            f"{kind}() stands for its batch alone; use it with the rule Conditioning(), or "
            "ExpectedLoss() with the rule Elbo()."
        )


def refuse_negative(rule: Rule, *names: str) -> None:
    """Raises a ValueError for a rate that is neither a schedule nor a number of zero or more."""
    for name in names:
        value = getattr(rule, name)
        if not callable(value) and not (value >= 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be a number that is not negative, got {value}.")
