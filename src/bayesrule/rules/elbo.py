"""Gradients of the evidence lower bound, followed by any of torch's optimisers."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, optim
from torch.nn.utils import clip_grad_norm_
from torch.optim import Adam, Optimizer

from bayesrule.curvature import Curvature
from bayesrule.expectations import Expectation
from bayesrule.matrices import Diagonal, Structure
from bayesrule.posteriors import ElboTerms, Family, Posterior
from bayesrule.rules._base import Memory, Now, Rule, refuse_look, refuse_negative
from bayesrule.schedules import Schedule, as_schedule
from bayesrule.tensors import tree, vectors
from bayesrule.tensors.abilities import derived
from bayesrule.types import Number, Params

# Optimisers that update every number independently.
_ELEMENTWISE = {
    optim.ASGD, optim.Adadelta, optim.Adagrad, optim.Adam, optim.AdamW, optim.Adamax, optim.NAdam,
    optim.RAdam, optim.RMSprop, optim.Rprop, optim.SGD,
}  # fmt: skip


class ElboRates(NamedTuple):
    """What may change from step to step: numbers, or 0-d tensors where steps are replayed."""

    learning_rate: Number
    kl_weight: Number


@dataclass(frozen=True)
class Elbo(Rule):
    """Descends `E_q[loss] / N + (T/N) w KL(q ‖ prior)` in the mean and the scales of q.

    By Bonnet's and Price's theorems, the gradient and the diagonal of the curvature are all that is
    needed of the data, `∂/∂m E[ℓ] = E[∇ℓ]` and `∂/∂σ E[ℓ] = σ E[∇²ℓ]`. The KL is in closed form:
    `∂/∂m = δm`, `∂/∂σ = δσ − 1/σ`.

    - `learning_rate`: that of the means; the scales have `scale_multiplier` times it. Adam moves a
      parameter by at most the learning rate in a step, and logarithms have a longer way to go.
    - `optimiser`: one of torch.optim's classes, or a function that makes one from parameter groups.
    - `kl_weight`: w, such as `schedules.linear(0.0, 1.0, steps)` (KL annealing).
    - `clip`: the largest norm of the whole gradient.
    - `keep_gradients`: the last gradients stay in `state.rule["gradients"]`, for `SignalToNoise`.

    A `GaussianFamily()` keeps its covariance; with `NoCurvature()` at the mean, its mean goes to
    the most probable weights (MAP).
    """

    learning_rate: float | Schedule = 1e-3
    scale_multiplier: float = 1.0
    optimiser: Callable[..., Optimizer] = Adam
    kl_weight: float | Schedule = 1.0
    clip: float = math.inf
    keep_gradients: bool = False

    def __post_init__(self) -> None:
        refuse_negative(self, "learning_rate", "scale_multiplier", "kl_weight")
        if not self.clip > 0:
            raise ValueError(f"clip must be positive, got {self.clip}.")

    def check(self, family: Family, expectation: Expectation, curvature: Curvature) -> None:
        kind = type(curvature).__name__
        point = family.has_mean and not curvature.gives_curvature and not family.has_scales
        if not point and not family.has_scales:
            raise TypeError(
                "The ELBO's gradient moves the scales of MeanFieldFamily() and KTiedFamily(), and "
                "the mean alone of a GaussianFamily() with curvature=NoCurvature(), got "
                f"{family!r} and {kind}()."
            )
        refuse_look(expectation, curvature)
        if not point and not curvature.gives_curvature:
            raise ValueError(
                f"{kind}() says nothing of the scales; use Price() with draws, SecondOrder(), "
                "Fisher() or GGN() at the mean."
            )
        if point and self.scale_multiplier != 1.0:
            raise ValueError(
                f"{family!r} has no scales that gradients move: leave scale_multiplier out."
            )

    def structure(self, family: Family) -> Structure:
        return Diagonal()

    def init(self, family: Family, posterior: Posterior, weight: float) -> Memory:
        # `.grad` is set on the tensors themselves, so they must be copies.
        groups = tree.map_tensors(posterior.free(), torch.clone)
        for tensors in groups.values():
            for tensor in tensors.values():
                tensor.grad = torch.zeros_like(tensor)
        # A step with zero gradients creates the optimiser's state, whose counters then start anew.
        optimiser = self._optimiser(groups, 1e-3)
        optimiser.step()
        memory: Memory = {"optimiser": _collected(optimiser, groups)}
        for kept in (state for group in memory["optimiser"].values() for state in group.values()):
            for key, start in (("step", 0), ("mu_product", 1)):
                if key in kept:
                    kept[key] = kept[key] * 0 + start
        if self.keep_gradients:
            memory["gradients"] = {k: vectors.zeros_like(v) for k, v in groups.items() if v}
        return memory

    @derived
    def constant_rates(self) -> tuple[str, ...]:
        return () if callable(self.kl_weight) else ("kl_weight",)

    def rates(self, step: int) -> ElboRates:
        return ElboRates(as_schedule(self.learning_rate)(step), as_schedule(self.kl_weight)(step))

    def move(self, now: Now) -> tuple[Posterior, Memory]:
        posterior, derivatives, rates = now.posterior, now.derivatives, now.rates
        groups, share = posterior.free(), 1.0 / derivatives.weight
        gradients = posterior.free_gradients(
            ElboTerms(
                derivatives.gradient, derivatives.curvature, now.prior, rates.kl_weight, share
            )
        )
        for group, tensors in groups.items():
            for name, tensor in tensors.items():
                # Fused optimisers require gradients with the memory layout of the weights.
                tensor.grad = vectors.placed_as(gradients[group][name], tensor)
                gradients[group][name] = tensor.grad
        if math.isfinite(self.clip):
            clip_grad_norm_([t for tensors in groups.values() for t in tensors.values()], self.clip)
        optimiser = self._optimiser(groups, rates.learning_rate)
        for group, states in now.memory["optimiser"].items():
            for name, state in states.items():
                optimiser.state[groups[group][name]] = state
        optimiser.step()
        moved: Memory = {"optimiser": _collected(optimiser, groups)}
        if self.keep_gradients:
            moved["gradients"] = {k: v for k, v in gradients.items() if v}
        return posterior.anew(), moved

    def _optimiser(self, groups: dict[str, Params], rate: Number) -> Optimizer:
        by_kind = {kind: list(tensors.values()) for kind, tensors in groups.items() if tensors}
        options: dict[str, Any] = {}
        if self._kind is Adam:
            # One kernel for all weights; replayed steps on a GPU keep their count on the device.
            options = {"fused": True, "capturable": isinstance(rate, Tensor)}
        make = _filled if self._kind in _ELEMENTWISE else _made
        optimiser = make(self.optimiser, list(by_kind.values()), **options)
        # Rates are set afterwards: a constructor would read them, for which a GPU has to wait.
        for kind, group in zip(by_kind, optimiser.param_groups, strict=True):
            group["lr"] = rate * self.scale_multiplier if kind == "scales" else rate
        return optimiser

    def stack_obstacle(
        self, family: Family, expectation: Expectation, curvature: Curvature
    ) -> str | None:
        if math.isfinite(self.clip):
            return "clip, which looks at the norm of a whole gradient"
        structure = family.structure
        drawn = structure is not None and expectation.random
        if drawn and not (family.independent or structure.stacks):  # type: ignore[union-attr]
            return f"draws by the structure {type(structure).__name__}"
        if self._kind in _ELEMENTWISE:
            return None
        return f"the optimiser {self._name}, which may look at several numbers at once"

    def replay_obstacle(self, family: Family, expectation: Expectation) -> str | None:
        if self._kind is not Adam:
            return f"the optimiser {self._name}, whose steps may look at numbers"
        # A covariance that is neither moved nor used does not matter.
        return family.replay_obstacle if expectation.random else None

    @property
    def _kind(self) -> Any:
        """The optimiser's class, or the function that makes it."""
        return getattr(self.optimiser, "func", self.optimiser)

    @property
    def _name(self) -> str:
        return getattr(self._kind, "__name__", repr(self._kind))


def _made(
    kind: Callable[..., Optimizer], groups: Sequence[list[Tensor]], **options: Any
) -> Optimizer:
    return kind([{"params": tensors} for tensors in groups], lr=1.0, **options)


@functools.lru_cache(maxsize=64)
def _blank(kind: Callable[..., Optimizer], groups: int, **options: Any) -> Optimizer:
    return _made(kind, [[torch.zeros(1)] for _ in range(groups)], **options)


def _filled(
    kind: Callable[..., Optimizer], groups: Sequence[list[Tensor]], **options: Any
) -> Optimizer:
    """As `_made`, but without the checks of a constructor, which take longer than a small step.

    For optimisers that keep nothing but their groups' settings and a state for each tensor.
    """
    blank = _blank(kind, len(groups), **options)
    optimiser: Optimizer = object.__new__(type(blank))
    settings = zip(blank.param_groups, groups, strict=True)
    filled = [{**group, "params": tensors} for group, tensors in settings]
    vars(optimiser).update(vars(blank) | {"state": defaultdict(dict), "param_groups": filled})
    return optimiser


def _collected(optimiser: Optimizer, groups: dict[str, Params]) -> dict[str, dict[str, Any]]:
    """The optimiser's state by name; clears the gradients of the tensors."""
    collected: dict[str, dict[str, Any]] = {}
    for group, tensors in groups.items():
        states = {name: dict(optimiser.state[tensor]) for name, tensor in tensors.items()}
        collected[group] = {name: state for name, state in states.items() if state}
        for tensor in tensors.values():
            tensor.grad = None
    return {group: states for group, states in collected.items() if states}
