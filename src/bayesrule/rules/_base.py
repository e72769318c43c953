"""The contract of every rule by which a belief moves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from bayesrule.curvature import Curvature
from bayesrule.expectations import Expectation
from bayesrule.matrices import Matrix, Structure
from bayesrule.posteriors import Family, Posterior
from bayesrule.tensors import tree
from bayesrule.types import Derivatives, Params

Memory = dict[str, Any]
"""What a rule keeps between steps: averages and momentum."""


class Rule(ABC):
    """How the belief moves, given derivatives of the loss.

    - `needs_weights`: derivatives are to hold the weights at which the loss was looked at.
    """

    needs_weights: bool = False

    @abstractmethod
    def check(self, family: Family, expectation: Expectation, curvature: Curvature) -> None:
        """Refuses parts that do not fit, by name and with the way out."""

    @abstractmethod
    def structure(self, family: Family) -> Structure:
        """The structure in which this rule wants its curvature."""

    def structure_at(self, family: Family, precision: Matrix | None, step: int) -> Structure:
        """As `structure`, for a step from a belief with this precision."""
        return self.structure(family)

    def curvature_at(self, given: Curvature, step: int) -> Curvature:
        """What is to be estimated at a step, of what the learner has."""
        return given

    def copied(self, posterior: Posterior, memory: Memory) -> tuple[Posterior, Memory]:
        """A belief and a memory of which `step` may use up the tensors."""
        return tree.map_tensors(posterior, torch.clone), tree.map_tensors(memory, torch.clone)

    @abstractmethod
    def init(self, family: Family, params: Params, weight: float) -> Memory:
        """The memory before the first step."""

    @abstractmethod
    def step(
        self,
        posterior: Any,
        derivatives: Derivatives,
        prior_precision: float,
        memory: Memory,
        step: int,
    ) -> tuple[Posterior, Memory]:
        """The next belief and memory; `step` counts from 0.

        All that is given belongs to the rule, which may use its memory again.
        """


class RatedRule(Rule):
    """A rule whose steps differ by a few numbers, so that one of them can be replayed for all.

    `rates` gives these numbers for a step, a named tuple; `move` takes them, or 0-d tensors in
    their place, which a GPU is not asked for. `steady` names those that no step changes.
    """

    @property
    def steady(self) -> tuple[str, ...]:
        """The rates that are the same at all steps and may be numbers in each of them."""
        return ()

    @abstractmethod
    def rates(self, step: int) -> Any:
        """The numbers of a step."""

    def placed(self, step: int, device: torch.device) -> Any:
        """The rates of a step with 0-d tensors in the places of those that change."""
        rates = self.rates(step)
        named = zip(rates._fields, rates, strict=True)
        places = (
            float(value) if name in self.steady else torch.tensor(float(value), device=device)
            for name, value in named
        )
        return type(rates)(*places)

    def refill(self, placed: Any, step: int) -> None:
        """Puts the rates of another step into their places."""
        for place, value in zip(placed, self.rates(step), strict=True):
            if isinstance(place, Tensor):
                place.fill_(float(value))

    @abstractmethod
    def move(
        self,
        posterior: Any,
        derivatives: Derivatives,
        prior_precision: float,
        memory: Memory,
        rates: Any,
        step: int = 0,
    ) -> tuple[Posterior, Memory]:
        """The step itself; its number may say what is looked at and what is kept from before."""

    def step(
        self,
        posterior: Any,
        derivatives: Derivatives,
        prior_precision: float,
        memory: Memory,
        step: int,
    ) -> tuple[Posterior, Memory]:
        rates = self.rates(step)
        return self.move(posterior, derivatives, prior_precision, memory, rates, step)
