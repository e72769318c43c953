"""Gaussian inference of inputs and hidden units through a network whose weights stay fixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from bayesrule.expectations import Look, Moments
from bayesrule.learner import Learner
from bayesrule.likelihoods._base import Marginal, per_example
from bayesrule.moments import GaussianTensor, Propagation, uncertain
from bayesrule.predicting.predict import as_inputs, independent_variances
from bayesrule.tensors.network import Inputs
from bayesrule.types import Params, State

Bounds: TypeAlias = tuple[Any, Any]
"""The least and the largest value of an input: two numbers, or tensors that fit one example."""


@dataclass(frozen=True, eq=False)
class Inferred:
    """A Gaussian before and after something was observed, all of one shape (n, *)."""

    prior_mean: Tensor
    prior_variance: Tensor
    mean: Tensor
    variance: Tensor

    @property
    def std(self) -> Tensor:
        """The square root of the variance."""
        return self.variance.sqrt()


class FixedNetwork:
    """A trained network with fixed weights: Gaussian outputs, and innovations (δ, η) back from y.

    After `back`, `posterior_moments` gives what targets say of any quantity of the forward pass.
    """

    def __init__(self, learner: Learner, state: State, how: Moments | None = None) -> None:
        self.learner, self.state = learner, state
        usual = learner.predictive
        chosen = usual if getattr(usual, "look", None) is Look.MOMENTS else Moments()
        self.how: Moments = how or cast(Moments, chosen)
        self._variance = independent_variances(state)

    @torch.no_grad()
    def forward(self, x: Inputs) -> tuple[Propagation, GaussianTensor]:
        """The recorded pass and the outputs at x."""
        propagation = Propagation(self.learner.network, self.how.activations)
        variance, tape = self._variance, propagation.tape
        # Gaussian, but not recorded: `back` then leaves the weights out, which halves its cost.
        weights: Params = {
            name: GaussianTensor(mean, variance[name], tape) if name in variance else mean
            for name, mean in self.state.posterior.mean.items()
        }
        buffers = dict(self.state.buffers)
        return propagation, propagation.forward(weights, {}, buffers, x, training=False)

    def marginal(self, outputs: GaussianTensor) -> Marginal:
        """p(y) with the Gaussian outputs integrated out."""
        likelihood = self.learner.likelihood
        return likelihood.marginal(outputs.centre, outputs.variance, self.state.likelihood)

    @torch.no_grad()
    def back(
        self,
        outputs: GaussianTensor,
        y: Tensor,
        variance: Tensor | None = None,
        *,
        times: int = 1,
    ) -> Tensor:
        """Carries the innovations by targets y back from the outputs of a pass; `log p(y)`, (n,).

        `variance` is that part of the outputs' variance which y informs, by default all of it. With
        `times` y counts as observed so many times, which reduces the noise: first once, then twice
        at once, four times and so on. For k equal observations at once
        `δ_k = k δ / (1 − (k − 1) s η)` and `η_k = k η / (1 − (k − 1) s η)`, exact where
        observations are Gaussian.
        """
        s = outputs.variance if variance is None else variance
        delta, eta = torch.zeros_like(s), torch.zeros_like(s)
        observed, log_probs = 0, []
        while observed < times:
            k = min(observed + 1, times - observed)
            # The share s⁺ / s of the variance that is left after the observations so far.
            share = 1.0 + s * eta
            conditioned = self.learner.likelihood.condition(
                outputs.centre + s * delta, s * share, y, self.state.likelihood
            )
            scale = k / (1.0 - (k - 1) * s * share * conditioned.eta)
            delta = delta + share * scale * conditioned.delta
            eta = eta + share.square() * scale * conditioned.eta
            log_probs.append(conditioned.log_prob)
            observed += k
        outputs.tape.back(outputs, delta, eta)
        return log_probs[0]


def posterior_moments(x: GaussianTensor, *, reach: float = 10.0) -> tuple[Tensor, Tensor]:
    """Mean `m + s δ` and variance `s + s² η` of a quantity, after `back`.

    Outputs are taken as independent, so together they may move a quantity too far: the step of an
    example is shortened where it is longer than `reach` standard deviations of some element, and
    a millionth of the variance stays.
    """
    return _moved(x, reach, None)


def input_posterior_moments(x: GaussianTensor, outputs: GaussianTensor) -> tuple[Tensor, Tensor]:
    """`posterior_moments` of inputs, which move the outputs no further than these are to move.

    Outputs of variance S are to move by `S δ`. But `J s Jᵀ`, the part of their variance that the
    inputs cause, may come out larger than S, where S is a sum over hidden units that were taken as
    independent although one input drives them all. The step of an example is therefore scaled by
    `δᵀ S δ / δᵀ J s Jᵀ δ` if that is below one.
    """
    if x.node is None or x.node.delta is None:
        return x.centre, x.variance
    assert outputs.node is not None
    assert outputs.node.delta is not None
    wanted = per_example(outputs.variance * outputs.node.delta.square())
    implied = per_example(x.variance * x.node.delta.square())
    tiny = torch.finfo(implied.dtype).tiny
    return _moved(x, 10.0, (wanted / implied.clamp_min(tiny)).clamp_max(1.0))


def _moved(x: GaussianTensor, reach: float, most: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and variance after a step of each example that is scaled by `most` (n,) at most."""
    mean, variance = x.centre, x.variance
    if x.node is None or x.node.delta is None or x.node.eta is None:
        return mean, variance
    std = variance.sqrt()
    step = std * x.node.delta
    longest = step.abs().flatten(1).amax(1) if step.ndim > 1 else step.abs()
    share = reach / longest.clamp_min(reach)
    share = share if most is None else torch.minimum(share, most)
    wide = share.reshape(-1, *[1] * (step.ndim - 1))
    return mean + std * step * wide, variance * (1.0 + variance * x.node.eta).clamp_min(1e-6)


def input_prior(
    x: Any, variance: Any, state: State
) -> tuple[tuple[Tensor, ...], int, GaussianTensor]:
    """All inputs as tensors, the index of the uncertain one, and its Gaussian prior."""
    inputs = list(x) if isinstance(x, tuple) else [x]
    uncertain_ones = [i for i, one in enumerate(inputs) if isinstance(one, GaussianTensor)]
    if not uncertain_ones and variance is not None and len(inputs) == 1:
        uncertain_ones = [0]
    elif variance is not None or len(uncertain_ones) != 1:
        raise ValueError(
            "There must be one input to infer: a tensor with its `variance`, or one made by "
            f"uncertain(mean, variance). Got {len(inputs)} inputs, {len(uncertain_ones)} of them "
            f"uncertain, and {'no ' if variance is None else 'a '}variance."
        )
    index = uncertain_ones[0]
    if isinstance(inputs[index], GaussianTensor):
        inputs[index], variance = inputs[index].centre, inputs[index].variance
    tensors: tuple[Any, ...] = tuple(as_inputs(one, state) for one in inputs)
    if not tensors[index].is_floating_point():
        got = tensors[index].dtype
        raise TypeError(f"Inputs to be inferred are floating-point numbers, got {got}.")
    return tensors, index, uncertain(tensors[index], variance)


def clamp(x: Tensor, bounds: Bounds | None) -> Tensor:
    """x moved into the bounds."""
    if bounds is None:
        return x
    low, high = (torch.as_tensor(b, dtype=x.dtype, device=x.device) for b in bounds)
    if not (low < high).all():
        raise ValueError(f"bounds are (least, largest), got {bounds}.")
    return torch.minimum(torch.maximum(x, low), high)
