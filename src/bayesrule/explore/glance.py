"""A trained network that is looked at, not taught: the tape from a wanted output to its causes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bayesrule.expectations import Moments
from bayesrule.learner import Learner
from bayesrule.likelihoods._base import per_example
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


class Glance:
    """A trained network that is only looked at: outputs, and what targets say of anything in it."""

    def __init__(self, learner: Learner, state: State, how: Moments | None = None) -> None:
        self.learner, self.state = learner, state
        own = learner.predictive
        self.how = how or (own if isinstance(own, Moments) else Moments())
        self._variance = independent_variances(state)

    @torch.no_grad()
    def forward(self, x: Inputs) -> tuple[Propagation, GaussianTensor]:
        """The outputs at x, and the way back from them."""
        way = Propagation(self.learner.network, self.how.activations)
        mean = self.state.posterior.mean
        # Gaussian, but not on the tape: the way back then leaves the weights out, half its cost.
        weights: Params = {
            k: GaussianTensor(v, self._variance[k], way.tape) if k in self._variance else v
            for k, v in mean.items()
        }
        return way, way.forward(weights, {}, dict(self.state.buffers), x, training=False)

    @torch.no_grad()
    def back(
        self,
        way: Propagation,
        outputs: GaussianTensor,
        y: Tensor,
        *,
        variance: Tensor | None = None,
        times: int = 1,
    ) -> Tensor:
        """Carries what the targets say back to the inputs and to all between; `log p(y)`, (n,).

        `variance` is that of the outputs, or of the part of them that is to be learned about. With
        `times` the targets are seen so often, which leaves ever less of the noise: first once, then
        twice at once, four times and so on. For k equal observations at once
        `δ_k = k δ / (1 − (k − 1) s η)` and `η_k = k η / (1 − (k − 1) s η)`, exact where
        observations are Gaussian.
        """
        s = outputs.variance if variance is None else variance
        delta, eta = torch.zeros_like(s), torch.zeros_like(s)
        seen, log_probs = 0, []
        while seen < times:
            k = min(seen + 1, times - seen)
            # What is left of the variance after what was seen, s⁺ / s, passes the next on.
            kept = 1.0 + s * eta
            found = self.learner.likelihood.condition(
                outputs.centre + s * delta, s * kept, y, self.state.likelihood
            )
            scale = k / (1.0 - (k - 1) * s * kept * found.eta)
            delta = delta + kept * scale * found.delta
            eta = eta + kept.square() * scale * found.eta
            log_probs.append(found.log_prob)
            seen += k
        way.tape.back(outputs, delta, eta)
        return log_probs[0]


def learned(x: GaussianTensor, *, reach: float = 10.0) -> tuple[Tensor, Tensor]:
    """Mean `m + s δ` and variance `s + s² η` of a quantity on a tape that was gone back.

    Outputs that are taken as independent may together ask for more than each of them: the step of
    an example is shortened where it is longer than `reach` standard deviations of some element, and
    a millionth of the variance stays.
    """
    return _moved(x, reach, None)


def learned_inputs(x: GaussianTensor, outputs: GaussianTensor) -> tuple[Tensor, Tensor]:
    """`learned` for inputs, whose mean moves by no more than what the outputs ask for.

    Outputs of variance S that are to move by `S δ` cannot be made by inputs to move further. But
    `J s Jᵀ`, the inputs' own share, may be larger than S where S was summed up over hidden units
    that were taken as independent although one input drives them all. The step of an example is
    therefore scaled by `δᵀ S δ / δᵀ J s Jᵀ δ` if that is below one.
    """
    if x.node is None or x.node.delta is None:
        return x.centre, x.variance
    assert outputs.node is not None
    assert outputs.node.delta is not None
    asked = per_example(outputs.variance * outputs.node.delta.square())
    implied = per_example(x.variance * x.node.delta.square())
    tiny = torch.finfo(implied.dtype).tiny
    return _moved(x, 10.0, (asked / implied.clamp_min(tiny)).clamp_max(1.0))


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


def place(x: Any, variance: Any, state: State) -> tuple[tuple[Tensor, ...], int, GaussianTensor]:
    """All inputs as tensors, which of them is uncertain, and that one itself."""
    given = list(x) if isinstance(x, tuple) else [x]
    spots = [i for i, one in enumerate(given) if isinstance(one, GaussianTensor)]
    if not spots and variance is not None and len(given) == 1:
        spots = [0]
    elif variance is not None or len(spots) != 1:
        raise ValueError(
            "What is to be inferred is one input: a tensor and its `variance`, or one tensor made "
            f"by uncertain(mean, variance). Got {len(given)} inputs, {len(spots)} of them "
            f"uncertain, and {'no ' if variance is None else 'a '}variance."
        )
    at = spots[0]
    one = given[at]
    centre = as_inputs(one.centre if isinstance(one, GaussianTensor) else one, state)
    assert isinstance(centre, Tensor)
    if not centre.is_floating_point():
        raise TypeError(f"Inputs to be inferred are floating-point numbers, got {centre.dtype}.")
    spread = one.variance if isinstance(one, GaussianTensor) else variance
    given[at] = centre
    return as_inputs(tuple(given), state), at, uncertain(centre, spread)  # type: ignore[return-value]


def within(x: Tensor, bounds: Bounds | None) -> Tensor:
    """x moved into the bounds."""
    if bounds is None:
        return x
    low, high = (torch.as_tensor(b, dtype=x.dtype, device=x.device) for b in bounds)
    if not (low < high).all():
        raise ValueError(f"bounds are (least, largest), got {bounds}.")
    return torch.minimum(torch.maximum(x, low), high)
