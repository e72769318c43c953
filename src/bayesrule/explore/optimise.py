"""Optimising inputs without gradients: of a trained network, or of a black box.

A black box is minimised by means of a network that is trained on its values so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from bayesrule.expectations import Moments
from bayesrule.explore.inference import Bounds, FixedNetwork, clamp, input_prior, posterior_moments
from bayesrule.learner import Learner
from bayesrule.likelihoods import GaussianLikelihood
from bayesrule.methods import tagi
from bayesrule.moments import GaussianTensor
from bayesrule.rules import Conditioning
from bayesrule.tensors import seeds
from bayesrule.training.models import mlp
from bayesrule.types import State

# The least distance of a new point from all others, used in turn: large explores, small refines.
_DISTANCES = (0.2, 0.05, 0.02, 0.005)
_STARTS, _NEAR_BEST, _BEST = 32, 8, 4
_BATCH, _PASSES, _ONLINE_PASSES = 16, 60, 4


@dataclass(frozen=True, eq=False)
class Optimised:
    """Where a network's output is best, from each of n starts.

    `x` (n, *) are the best inputs, `mean` and `std` (n,) the network's predictions there; `path`
    (steps + 1, n, *) and `values` (steps + 1, n) are the best inputs so far and their scores.
    """

    x: Tensor
    mean: Tensor
    std: Tensor
    path: Tensor
    values: Tensor


@torch.no_grad()
def optimise_inputs(
    learner: Learner,
    state: State,
    start: Any,
    *,
    maximise: bool = False,
    variance: Any = None,
    steps: int = 30,
    ambition: float = 1.0,
    exploration: float = 0.0,
    bounds: Bounds | None = None,
    how: Moments | None = None,
) -> Optimised:
    """Moves inputs to where a trained network predicts the least (or the largest) output.

    Each step asks for an output `ambition` standard deviations better than the prediction for
    `N(x, variance)`, and infers the input from it. An input that is not better is rejected, and the
    next step is half as long. Better means a lower `mean − exploration · std` (with `maximise`, a
    higher `mean + exploration · std`), with the epistemic std. All starts (n, *) move at once.
    """
    sign = -1.0 if maximise else 1.0
    network = FixedNetwork(learner, state, how)
    (x,), _, prior = input_prior((start,), variance, state)
    x, spread = clamp(x, bounds), prior.variance
    mean, std = _predicted(network, x)
    score = sign * mean - exploration * std
    path, values = [x], [sign * score]
    for _ in range(steps):
        trial = clamp(_better(network, x, spread, sign * ambition), bounds)
        new_mean, new_std = _predicted(network, trial)
        new_score = sign * new_mean - exploration * new_std
        accepted = new_score < score
        mean, std = torch.where(accepted, new_mean, mean), torch.where(accepted, new_std, std)
        score = torch.where(accepted, new_score, score)
        wide = accepted.reshape(-1, *[1] * (x.ndim - 1))
        x, spread = torch.where(wide, trial, x), torch.where(wide, spread, 0.25 * spread)
        path.append(x)
        values.append(sign * score)
    return Optimised(x, mean, std, torch.stack(path), torch.stack(values))


def _predicted(network: FixedNetwork, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and epistemic standard deviation of one output for each example, (n,)."""
    _, outputs = network.forward(x)
    prediction = network.marginal(outputs)
    likelihood = network.learner.likelihood
    if prediction.mean.numel() != len(x) or likelihood.classification:
        raise ValueError(
            "optimise_inputs takes a network with one real-valued output for each example, got "
            f"{type(likelihood).__name__} of shape {tuple(prediction.mean.shape)}."
        )
    return prediction.mean.reshape(-1), prediction.epistemic.reshape(-1).sqrt()


def _better(network: FixedNetwork, x: Tensor, variance: Tensor, ambition: float) -> Tensor:
    """Infers inputs whose output is better by `ambition` standard deviations."""
    propagation, outputs = network.forward(GaussianTensor(x, variance))
    prediction = network.marginal(outputs)
    wanted = prediction.mean - ambition * prediction.epistemic.sqrt()
    network.back(outputs, wanted)
    # A step that goes too far is rejected, so it is not shortened as in infer_inputs.
    return posterior_moments(propagation.inputs[0])[0]


@dataclass(frozen=True, eq=False)
class Search:
    """All evaluations of a black box, in order: `points` (n, d) and `values` (n,)."""

    points: Tensor
    values: Tensor

    @property
    def x(self) -> Tensor:
        """The best point, (d,)."""
        return self.points[self.values.argmin()]

    @property
    def value(self) -> float:
        """The least value."""
        return float(self.values.min())

    @property
    def best(self) -> Tensor:
        """The least value after each evaluation, (n,)."""
        return self.values.cummin(0).values


def minimise(
    function: Callable[[Tensor], float],
    bounds: Sequence[tuple[float, float]],
    *,
    evaluations: int = 50,
    first: int = 10,
    learner: Learner | None = None,
    ambition: float = 1.0,
    exploration: float = 1.0,
    online: bool = False,
    seed: int = 0,
) -> Search:
    """Searches for the least value of `function(x)`, x (d,) within `bounds`, without gradients.

    After `first` random points, these steps repeat: a network is trained by `learner.step` on all
    values so far, it proposes the input that it predicts to be best (`optimise_inputs`), and the
    function is evaluated there. The network is trained from scratch for each proposal; with
    `online` it continues, which is several times as fast but finds less, because it becomes certain
    too early. Proposals keep a least distance from all earlier points. It cycles from a tenth of
    the range to a four-hundredth, so that the search is both wide and fine; Regis & Shoemaker
    (2005).

    `learner` takes inputs (n, d), scaled to [−1, 1], and one output, `log(1 + (y − min y) / c)`
    standardised, which spreads out small differences near the least value; by default it is `tagi`
    with a layer of 50 units. `seed` determines all randomness.

    >>> search = minimise(lambda x: float((x - 0.3).square().sum()), [(-1, 1)], evaluations=15)
    >>> len(search.points), search.value < 0.01
    (15, True)
    """
    corners = torch.as_tensor(bounds, dtype=torch.get_default_dtype())
    if corners.ndim != 2 or corners.shape[1] != 2 or not (corners[:, 0] < corners[:, 1]).all():
        raise ValueError(f"bounds are pairs (least, largest), one for each input, got {bounds}.")
    if not 2 <= first <= evaluations:
        raise ValueError(f"first is from 2 to the {evaluations} evaluations, got {first}.")
    if learner is None:
        # Few points, trained from scratch each time: long steps.
        rule = Conditioning(reach=0.5, largest_share=0.5)
        model, likelihood = mlp(len(bounds), 1, seed=seed), GaussianLikelihood(noise=0.03)
        learner = tagi(model, likelihood, num_data=evaluations, rule=rule)
    state, generator = learner.init(seed), seeds.generator("cpu", seed, 0)
    points = _anywhere(first, len(bounds), generator)
    values = torch.stack([_evaluated(function, corners, u) for u in points])
    while len(points) < evaluations:
        state = state if online else learner.init(seed)
        targets = _flattened(values).unsqueeze(1)
        for _ in range(_ONLINE_PASSES if online else _PASSES):
            for rows in torch.randperm(len(points), generator=generator).split(_BATCH):
                state, _ = learner.step(state, (points[rows], targets[rows]), donate=True)
        starts = _starts(points, values, generator)
        optimised = optimise_inputs(
            learner,
            state,
            starts,
            variance=0.05,
            steps=20,
            ambition=ambition,
            exploration=exploration,
            bounds=(-1.0, 1.0),
        )
        new = _chosen(optimised, points, _DISTANCES[len(points) % len(_DISTANCES)])
        points = torch.cat([points, new[None]])
        values = torch.cat([values, _evaluated(function, corners, new)[None]])
    return Search(_scaled(points, corners), values)


def _anywhere(num: int, size: int, generator: Generator) -> Tensor:
    return 2.0 * torch.rand(num, size, generator=generator) - 1.0


def _scaled(u: Tensor, corners: Tensor) -> Tensor:
    """From [−1, 1] to the bounds."""
    low, high = corners.T
    return low + 0.5 * (u + 1.0) * (high - low)


def _evaluated(function: Callable[[Tensor], float], corners: Tensor, u: Tensor) -> Tensor:
    x = _scaled(u, corners)
    value = torch.as_tensor(function(x), dtype=u.dtype)
    if value.numel() != 1 or not value.isfinite().all():
        raise ValueError(f"The function must give one finite number, got {value} at {x}.")
    return value.reshape(())


def _flattened(values: Tensor) -> Tensor:
    """`log(1 + (y − min y) / c)`, standardised, c a tenth of the median distance from the least."""
    above = values - values.min()
    tiny = torch.finfo(values.dtype).tiny
    logs = torch.log1p(above / (0.1 * above.median()).clamp_min(tiny))
    return (logs - logs.mean()) / logs.std().clamp_min(1e-6)


def _starts(points: Tensor, values: Tensor, generator: Generator) -> Tensor:
    """Random points, and some around the best points so far, at various distances."""
    anywhere = _anywhere(_STARTS, points.shape[1], generator)
    best = points[values.argsort()[:_BEST]].repeat(_NEAR_BEST, 1)
    reach = 0.3 * torch.rand(len(best), 1, generator=generator)
    return torch.cat([anywhere, best + reach * torch.randn(best.shape, generator=generator)])


def _chosen(optimised: Optimised, points: Tensor, distance: float) -> Tensor:
    """The best input on any path that is far enough from all points, or else the farthest one."""
    inputs, scores = optimised.path.flatten(0, 1), optimised.values.flatten()
    gaps = torch.cdist(inputs, points).amin(1)
    if not (gaps > distance).any():
        return inputs[gaps.argmax()]
    return inputs[torch.where(gaps > distance, scores, torch.inf).argmin()]
