"""The data that travels between the parts: parameters, batches, derivatives, state and info."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from bayesrule.matrices import Matrix
    from bayesrule.posteriors import Posterior

Params = dict[str, Tensor]
"""Tensors by name, as `model.named_parameters()` names them."""

Batch = tuple[Tensor, Tensor]
"""Inputs and targets, examples along the first axis."""


class Rows(Protocol):
    """Vectors in parameter space: one for each backpropagated vector v and each example n."""

    @property
    def names(self) -> Iterable[str]:
        """The parameters that the vectors are over."""

    def only(self, names: tuple[str, ...]) -> Rows:
        """The rows of the named parameters alone."""

    def squares(self) -> Params:
        """`Σ_vn r_vn²`, elementwise."""

    def per_example(self) -> Params:
        """The rows themselves, `{name: (V, n, *shape)}`."""

    def gram(self, weights: Params) -> Tensor:
        """`Σ_p w_p r_vnp r_v'np` of each example, (n, V, V)."""


@dataclass(frozen=True)
class Local:
    """Sums over one batch, at one point or over all points of an expectation.

    `loss` is the negative log-likelihood as it is; gradient, curvature and the likelihood's
    statistics are those of `scale` times it, in the belief's own coordinates. `average` is this
    point's share of what a rule wants averaged over all points and ranks.
    """

    loss: Tensor
    gradient: Params
    curvature: Matrix | None
    statistics: Params
    average: Params | None = None

    def plus(self, other: Local) -> Local:
        """The sums of both."""
        curvature, average = self.curvature, self.average
        if curvature is not None and other.curvature is not None:
            curvature = curvature.plus(other.curvature)
        if average is not None and other.average is not None:
            average = {name: value + other.average[name] for name, value in average.items()}
        return Local(
            self.loss + other.loss,
            {name: value + other.gradient[name] for name, value in self.gradient.items()},
            curvature,
            {name: value + other.statistics[name] for name, value in self.statistics.items()},
            average,
        )


@dataclass(frozen=True)
class Derivatives:
    """Estimates over the whole data set of the loss, its gradient and its curvature.

    `loss` is the negative log-likelihood summed over the data; `gradient` and `curvature` are those
    of `loss / temperature`, in the belief's own coordinates; `weight = num_data / temperature` is
    the number of data they stand for, `count` the number of examples that they were computed from.
    `average` is what the rule wanted averaged over the points, such as the weights themselves.
    """

    loss: Tensor
    gradient: Params
    curvature: Matrix | None
    weight: float
    count: int = 1
    average: Params | None = None


@dataclass(frozen=True)
class State:
    """All that the next step needs; `learner.init(seed)` makes one, `learner.step` the next."""

    posterior: Posterior
    rule: dict[str, Any]
    likelihood: Params
    buffers: Params
    step: int
    seed: int

    def __repr__(self) -> str:
        rule, likelihood = (", ".join(kept) or "nothing" for kept in (self.rule, self.likelihood))
        return (
            f"State(step={self.step}, seed={self.seed}, posterior={self.posterior!r}, the rule "
            f"keeps: {rule}; the likelihood keeps: {likelihood})"
        )


@dataclass(frozen=True)
class Info:
    """What a person wants to see of a step; nothing here is needed for the next one.

    `loss` is the negative log-likelihood summed over the data set, as estimated from the batch;
    `kl` is the divergence from the prior in nats; `elbo = −loss − temperature·kl`, larger is
    better.
    """

    loss: Tensor
    temperature: float = 1.0
    divergence: Callable[[], Tensor] = field(repr=False, default=lambda: Tensor([0.0])[0])

    @cached_property
    def kl(self) -> Tensor:
        """KL(q ‖ prior) in nats, summed over all weights; computed when first asked for."""
        return self.divergence()

    @cached_property
    def elbo(self) -> Tensor:
        """The evidence lower bound, larger is better."""
        return -self.loss - self.temperature * self.kl
