"""The data that travels between the parts: parameters, batches, derivatives, state and info."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from bayesrule.matrices import Matrix
    from bayesrule.posteriors import Posterior

Params = dict[str, Tensor]
"""Tensors by name, as `model.named_parameters()` names them."""

Number = float | Tensor
"""A float; a 0-d tensor where steps are replayed; or (num,), one for each net of a stack."""

Batch = tuple[Any, Tensor]
"""Inputs (a tensor, or tensors in tuples and dicts) and targets; the first axis is the examples."""


class Part:
    """One of the choices that make up a learner: a structure, a family, a curvature and so on."""

    def words(self) -> str:
        """The choice, in a word or two."""
        return type(self).__name__


class Rows(Protocol):
    """Vectors in parameter space: one for each example n and each backpropagated vector v."""

    @property
    def names(self) -> Iterable[str]:
        """The parameters that the vectors are over."""

    def only(self, names: tuple[str, ...]) -> Rows:
        """The rows restricted to the named parameters."""

    def squares(self) -> Params:
        """`Σ_vn r_vn²`, elementwise."""

    def per_example(self) -> Params:
        """The rows themselves, `{name: (V, n, *shape)}`."""

    def gram(self, weights: Params) -> Tensor:
        """`Σ_p w_p r_vnp r_v'np` of each example, (n, V, V)."""

    # Only structures with one block for each layer need the rest.

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the parameters by name."""
        return {name: tuple(rows.shape[2:]) for name, rows in self.per_example().items()}

    def layer(self, weight: str, bias: str | None) -> Any:
        """The rows of a layer that is called exactly once; None for any other."""
        return None

    def broken_chain(self, weights: tuple[str, ...]) -> str | None:
        """Why these layers do not form a chain in this order; None if they do."""
        return "these rows do not know the layers they come from"


@dataclass(frozen=True)
class Local:
    """Sums over one batch, at one point or over all points of an expectation.

    `loss` is the plain negative log-likelihood. Gradient, curvature and the likelihood's statistics
    are multiplied by the problem's `scale` and are taken in the posterior's own coordinates.
    `average` is this point's share of the quantity that the rule averages over all points and
    ranks.
    """

    loss: Tensor
    gradient: Params
    curvature: Matrix | None
    statistics: Params
    average: Params | None = None

    def times(self, factor: Number) -> Local:
        """The sums with `factor` times the scale, which leaves the loss as it is."""

        def scaled(sums: Params) -> Params:
            return {name: value * factor for name, value in sums.items()}

        curvature = None if self.curvature is None else self.curvature.times(factor)
        sums = scaled(self.gradient), curvature, scaled(self.statistics)
        return Local(self.loss, *sums, self.average)

    def plus(self, other: Local) -> Local:
        """The two sums added up."""

        def added(a: Params, b: Params) -> Params:
            return {name: value + b[name] for name, value in a.items()}

        curvature, average = self.curvature, self.average
        if curvature is not None and other.curvature is not None:
            curvature = curvature.plus(other.curvature)
        if average is not None and other.average is not None:
            average = added(average, other.average)
        gradient = added(self.gradient, other.gradient)
        statistics = added(self.statistics, other.statistics)
        return Local(self.loss + other.loss, gradient, curvature, statistics, average)


@dataclass(frozen=True)
class Derivatives:
    """Estimates over the whole data set of the loss, its gradient and its curvature.

    - `loss`: the negative log-likelihood, summed over the data.
    - `gradient`, `curvature`: those of `loss / temperature`, in the posterior's own coordinates.
    - `weight`: `num_data / temperature`.
    - `count`: the number of examples that the estimates were computed from.
    - `average`: what the rule averages over the points, such as the weights themselves.
    - `least_loss`: a bound in nats; smaller losses per datum count as this (`Natural.kl_clip`).

    In a stack, `weight`, `count` and `temperature` may hold one number for each net.
    """

    loss: Tensor
    gradient: Params
    curvature: Matrix | None
    weight: float
    count: int = 1
    average: Params | None = None
    temperature: float = 1.0
    least_loss: float = 1.0

    @property
    def num_data(self) -> float:
        """The size of the data set."""
        return self.weight * self.temperature


@dataclass(frozen=True)
class State:
    """All that the next step needs; `learner.init` makes the first, `learner.step` the next."""

    posterior: Posterior
    rule: dict[str, Any]
    likelihood: Params
    buffers: Params
    step: int
    seed: int

    def given_up(self) -> tuple[Posterior, dict[str, Any]]:
        """The posterior and the rule's memory, for reuse by a step; marks the state as used up."""
        vars(self)["is_given_up"] = True
        return self.posterior, self.rule

    def check(self) -> None:
        """Refuses a state whose memory was given up."""
        if "is_given_up" in vars(self):
            raise RuntimeError(
                f"The state of step {self.step} was given up to a later step (donate=True), which "
                "has used its memory again. Go on from the state that step returned, or take the "
                "step with donate=False."
            )

    def __repr__(self) -> str:
        rule, likelihood = (", ".join(kept) or "nothing" for kept in (self.rule, self.likelihood))
        return (
            f"State(step={self.step}, seed={self.seed}, posterior={self.posterior!r}, the rule "
            f"keeps: {rule}; the likelihood keeps: {likelihood})"
        )


@dataclass(frozen=True)
class Info:
    """What a person wants to see of a step; the next step needs none of it.

    `loss` is the negative log-likelihood summed over the data set, estimated from the batch with
    the posterior before the step. `kl` and `elbo` belong to the posterior after the step, the one
    in the new state; they are computed when they are first read.
    """

    loss: Tensor
    temperature: Number = 1.0
    divergence: Callable[[], Tensor] = field(repr=False, default=lambda: Tensor([0.0])[0])
    loss_after: Callable[[], Tensor] | None = field(repr=False, default=None)

    @classmethod
    def of(
        cls,
        loss: Tensor,
        state: State,
        divergence: Callable[[State], Tensor],
        loss_after: Callable[[State], Tensor] | None,
        temperature: Number,
        is_current: Callable[[], bool] | None,
    ) -> Info:
        """The info of a step to `state`, which computes nothing more once `state` has changed.

        `is_current` tells whether `state` is still that of this step; by default its tensors tell.
        """
        tensor = state.posterior.any_tensor
        version = tensor._version

        def on_current_state(function: Callable[[State], Tensor]) -> Tensor:
            if not (tensor._version == version if is_current is None else is_current()):
                raise RuntimeError(
                    "A later step has changed this state (donate=True); read info.kl and "
                    "info.elbo before it."
                )
            return function(state)

        after = None if loss_after is None else partial(on_current_state, loss_after)
        return cls(loss, temperature, partial(on_current_state, divergence), after)

    @cached_property
    def kl(self) -> Tensor:
        """`KL(q ‖ prior)` in nats, of all weights and of the likelihood's own parameters."""
        return self.divergence()

    @cached_property
    def elbo(self) -> Tensor:
        """The evidence lower bound `−E_q[loss] − temperature·kl`; larger is better.

        The loss is that of the posterior after the step on the step's own batch, which takes about
        as long to compute as the step itself. On a batch of all data this is the bound itself. On a
        smaller batch it is too optimistic, since the posterior has just learned from that batch;
        `predicting.elbo` takes any data.
        """
        loss = self.loss if self.loss_after is None else self.loss_after()
        return -loss - self.temperature * self.kl
