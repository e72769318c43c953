"""A black box minimised by a network that learns it while it is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from bayesrule.explore.optimise import Optimised, optimise_inputs
from bayesrule.learner import Learner
from bayesrule.likelihoods import GaussianLikelihood
from bayesrule.methods import tagi
from bayesrule.rules import Conditioning
from bayesrule.tensors import seeds
from bayesrule.training.models import mlp
from bayesrule.types import State

# How far a new point is at least from all others, in turn: far ones explore, near ones refine.
_DISTANCES = (0.2, 0.05, 0.02, 0.005)
_STARTS, _NEAR_BEST, _BEST = 32, 8, 4
_BATCH, _PASSES, _ONLINE_PASSES = 16, 60, 4


@dataclass(frozen=True, eq=False)
class Search:
    """All that a black box was asked, in order: `points` (n, d) and `values` (n,)."""

    points: Tensor
    values: Tensor

    @property
    def x(self) -> Tensor:
        """The best point, (d,)."""
        return self.points[self.values.argmin()]

    @property
    def value(self) -> float:
        """The least value that was found."""
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
    """Looks for the least value of `function(x)`, x (d,) within `bounds`, without gradients.

    After `first` points drawn at random, a network learns by `learner.step` what is known so far,
    proposes the input that it believes to be best (`optimise_inputs`), and the function is asked
    there. It learns afresh for each proposal; with `online` it goes on from where it was, which is
    several times as fast and, as it grows sure too early, finds less. How far a proposal must be
    from all earlier ones goes in turn from a tenth of the range to a four-hundredth, so that far
    and near are looked at alike; Regis & Shoemaker (2005).

    `learner` takes inputs (n, d), scaled to [−1, 1], and one output, `log(1 + (y − min y) / c)`
    standardised, which sees fine differences near the least value; by default it is `tagi` on a
    layer of 50 units. Everything random follows from `seed`.

    >>> found = minimise(lambda x: float((x - 0.3).square().sum()), [(-1, 1)], evaluations=15)
    >>> len(found.points), found.value < 0.01
    (15, True)
    """
    low, high = _corners(bounds)
    if not 2 <= first <= evaluations:
        raise ValueError(
            f"first is between 2 and evaluations, got {first} of {evaluations} evaluations."
        )
    learner = learner or _default(len(bounds), evaluations, seed)
    state, generator = learner.init(seed), seeds.generator(torch.device("cpu"), seed, 0)
    points = _anywhere(first, len(bounds), generator)
    values = torch.stack([_asked(function, low, high, u) for u in points])
    while len(points) < evaluations:
        state = state if online else learner.init(seed)
        passes = _ONLINE_PASSES if online else _PASSES
        state = _learn(learner, state, points, _flattened(values), passes, generator)
        starts = _starts(points, values, generator)
        found = optimise_inputs(
            learner,
            state,
            starts,
            variance=0.05,
            steps=20,
            ambition=ambition,
            exploration=exploration,
            bounds=(-1.0, 1.0),
        )
        new = _chosen(found, points, _DISTANCES[len(points) % len(_DISTANCES)])
        points = torch.cat([points, new[None]])
        values = torch.cat([values, _asked(function, low, high, new)[None]])
    return Search(_scaled(points, low, high), values)


def _corners(bounds: Sequence[tuple[float, float]]) -> tuple[Tensor, Tensor]:
    corners = torch.as_tensor(bounds, dtype=torch.get_default_dtype())
    if corners.ndim != 2 or corners.shape[1] != 2 or not (corners[:, 0] < corners[:, 1]).all():
        raise ValueError(f"bounds are pairs (least, largest), one for each input, got {bounds}.")
    return corners[:, 0], corners[:, 1]


def _default(num: int, evaluations: int, seed: int) -> Learner:
    # Few points, learned afresh each time: long steps.
    return tagi(
        mlp(num, 1, seed=seed),
        GaussianLikelihood(noise=0.03),
        num_data=evaluations,
        rule=Conditioning(reach=0.5, largest_share=0.5),
    )


def _anywhere(num: int, size: int, generator: Generator) -> Tensor:
    return 2.0 * torch.rand(num, size, generator=generator) - 1.0


def _scaled(u: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """From [−1, 1] to the bounds."""
    return low + 0.5 * (u + 1.0) * (high - low)


def _asked(function: Callable[[Tensor], float], low: Tensor, high: Tensor, u: Tensor) -> Tensor:
    value = torch.as_tensor(function(_scaled(u, low, high)), dtype=u.dtype)
    if value.numel() != 1 or not value.isfinite().all():
        raise ValueError(
            f"The function must give one finite number, got {value} at {_scaled(u, low, high)}."
        )
    return value.reshape(())


def _flattened(values: Tensor) -> Tensor:
    """`log(1 + (y − min y) / c)`, standardised, c a tenth of the median distance from the least."""
    above = values - values.min()
    tiny = torch.finfo(values.dtype).tiny
    logs = torch.log1p(above / (0.1 * above.median()).clamp_min(tiny))
    return (logs - logs.mean()) / logs.std().clamp_min(1e-6)


def _learn(
    learner: Learner,
    state: State,
    points: Tensor,
    values: Tensor,
    passes: int,
    generator: Generator,
) -> State:
    """So many passes through all that is known."""
    targets = values.unsqueeze(1)
    for _ in range(passes):
        order = torch.randperm(len(points), generator=generator)
        for rows in order.split(_BATCH):
            state, _ = learner.step(state, (points[rows], targets[rows]), donate=True)
    return state


def _starts(points: Tensor, values: Tensor, generator: Generator) -> Tensor:
    """Points from anywhere, and some about the best ones so far, near and not so near."""
    anywhere = _anywhere(_STARTS, points.shape[1], generator)
    best = points[values.argsort()[:_BEST]].repeat(_NEAR_BEST, 1)
    reach = 0.3 * torch.rand(len(best), 1, generator=generator)
    return torch.cat([anywhere, best + reach * torch.randn(best.shape, generator=generator)])


def _chosen(found: Optimised, points: Tensor, distance: float) -> Tensor:
    """The best input on any path that is far enough from all points; else the farthest one."""
    inputs, scores = found.path.flatten(0, 1), found.values.flatten()
    gaps = torch.cdist(inputs, points).amin(1)
    if not (gaps > distance).any():
        return inputs[gaps.argmax()]
    return inputs[torch.where(gaps > distance, scores, torch.inf).argmin()]
