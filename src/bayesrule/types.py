"""The data that travels between the parts: parameters, batches, derivatives, state and info."""

from __future__ import annotations

from collections.abc import Callable
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

    def squares(self) -> Params:
        """`Σ_vn r_vn²`, elementwise."""

    def per_example(self) -> Params:
        """The rows themselves, `{name: (V, n, *shape)}`."""

    def gram(self, weights: Params) -> Tensor:
        """`Σ_p w_p r_vnp r_v'np` of each example, (n, V, V)."""


@dataclass(frozen=True)
class Derivatives:
    """Estimates over the whole data set of the loss, its gradient and its curvature.

    `loss` is the negative log-likelihood summed over the data; `gradient` and `curvature` are those
    of `loss / temperature`; `weight = num_data / temperature` is the number of data they stand for,
    `count` the number of examples that they were computed from. `weights` is the mean of the
    weights at which the loss was looked at, for rules that ask for it.
    """

    loss: Tensor
    gradient: Params
    curvature: Matrix | None
    weight: float
    count: int = 1
    weights: Params | None = None


@dataclass(frozen=True)
class State:
    """All that the next step needs; `learner.init(seed)` makes one, `learner.step` the next."""

    posterior: Posterior
    rule: dict[str, Any]
    noise: Params
    buffers: Params
    step: int
    seed: int


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
