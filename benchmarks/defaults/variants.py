"""Methods at their defaults, and some with one changed option, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from bayesrule.learner import Learner
from bayesrule.likelihoods import Likelihood
from bayesrule.matrices import Dense, Kronecker
from bayesrule.methods import METHODS, Need, find, record, smooth


@dataclass(frozen=True)
class Variant:
    """A method with options."""

    method: str
    options: Callable[[], dict[str, Any]] = dict

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the method asks for."""
        return record(self.method).needs

    def learner(self, model: nn.Module, likelihood: Likelihood, num_data: int) -> Learner:
        """The learner of a net, its activations smooth where the method differentiates twice."""
        model = smooth(model) if Need.SMOOTH_ACTIVATIONS in self.needs else model
        return find(self.method)(model, likelihood, num_data=num_data, **self.options())


VARIANTS = {
    **{name: Variant(name) for name in METHODS},
    "laplace-kronecker": Variant("laplace", lambda: {"structure": Kronecker()}),
    "laplace-full": Variant("laplace", lambda: {"structure": Dense()}),
}
"""Every method by its name, and Laplace approximations of all layers."""
