"""Several minima of a differentiable function in one run: a mixture that follows the rule."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from bayesrule.explore.mixture_descent import Batched, FullMixture, derivatives
from bayesrule.tensors import seeds

# The first temperature is how far typical points are above the best one, the last a share of it.
_COLDER = 0.01
_FIRST_POINTS = 256
# Cooling takes this share of the steps; over the last ones the rate falls to nearly zero.
_COOLING, _SETTLING, _LAST_RATE = 0.5, 0.3, 0.05
# Newton's steps at the means: how many, how often each is halved, and when they have arrived.
_NEWTON_STEPS, _HALVINGS, _ARRIVED = 100, 30, 1e-6
# Minima that are nearer to each other than this share of `spread` are the same one.
_SAME = 1e-3


@dataclass(frozen=True, eq=False)
class Minima:
    """What `find_minima` found, the lowest first: one row for each of M minima.

    - `minima` (M, d), `values` (M,) and `curvatures` (M, d, d), the Hessians there.
    - `component_minimum` (K,): the row that each component of the mixture stands at. Several may
      share one, and −1 is for those whose mean leads to no minimum.
    - `mixture`: the belief `q ≈ exp(−f / temperature)`, normalised.
    """

    minima: Tensor
    values: Tensor
    curvatures: Tensor
    component_minimum: Tensor
    mixture: FullMixture
    temperature: float

    def __len__(self) -> int:
        return len(self.minima)

    def __repr__(self) -> str:
        rows = zip(self.minima.tolist(), self.values.tolist(), strict=True)
        shown = [f"  {value:.6g} at ({_numbers(x)})" for x, value in rows][:10]
        more = [f"  … {len(self) - 10} more"] if len(self) > 10 else []
        components = f"found by {len(self.component_minimum)} components"
        return "\n".join([f"<Minima: {len(self)} {components}", *shown, *more]) + ">"


def _numbers(x: list[float]) -> str:
    return ", ".join(f"{one:.4g}" for one in x[:6]) + (", …" if len(x) > 6 else "")


def find_minima(
    function: Batched,
    *,
    dim: int,
    components: int = 10,
    seed: int = 0,
    centre: Tensor | float = 0.0,
    spread: float = 3.0,
    steps: int = 1000,
    rate: float = 0.05,
    draws: int = 10,
    temperature: float | None = None,
) -> Minima:
    """Finds several minima of `function`, points (n, d) to values (n,), in one run.

    A mixture of K Gaussians with full covariances follows the Bayesian learning rule: every
    component descends with the mean gradient and Hessian over its own draws, and the entropy of
    the whole mixture keeps components apart; Khan & Rue (2023), sec. 3.2, eqs 29 and 30. Precisions
    stay positive definite for any `rate`. From each mean Newton's method then goes to the minimum
    nearby, which is the same rule with the expectation taken at the mean (eq. 33).

    - `components`: K; at most so many minima are found, and some more than there are minima help.
    - `centre`, `spread`: mean and standard deviation of the first means, where to look.
    - `temperature`: T of the last belief `q ∝ exp(−f/T)`; None is a hundredth of how far typical
      first points are above the best. The first temperature is higher, and falls.
    - `steps`, `rate`, `draws`: how many steps, ρ, and how many draws of each component a step has.

    Everything runs in float64 and follows from `seed`. See `minimise` for functions that are dear
    to ask or have no gradients.

    >>> found = find_minima(lambda x: (x.square() - 1.0).square().sum(-1), dim=1, components=4)
    >>> found.minima.flatten().sort().values.round(decimals=3)
    tensor([-1.,  1.], dtype=torch.float64)
    """
    _check(dim, components, steps, draws, spread, rate, temperature)
    source = seeds.generator("cpu", seed, 0)
    belief = _first(dim, components, centre, spread, source)
    high = _typical_height(function, belief, source)
    last = _COLDER * high if temperature is None else temperature
    for step in range(steps):
        done = step / steps
        hot = max(high / last, 1.0) ** max(0.0, 1.0 - done / _COOLING)
        slower = 1.0 - (1.0 - _LAST_RATE) * max(0.0, (done - 1.0) / _SETTLING + 1.0)
        belief = belief.moved(
            function, rate=rate * slower, draws=draws, temperature=hot * last, generator=source
        )
    places, arrived = _descended(function, belief.means, spread)
    return _merged(function, places, arrived, belief, last, _SAME * spread)


def _check(
    dim: int,
    components: int,
    steps: int,
    draws: int,
    spread: float,
    rate: float,
    temperature: float | None,
) -> None:
    counts = {"dim": dim, "components": components, "steps": steps, "draws": draws}
    for name, value in counts.items():
        if not (isinstance(value, int) and value >= 1):
            raise ValueError(f"{name} is a whole number, at least 1, got {value!r}.")
    sizes = {"spread": spread, "rate": rate, "temperature": temperature}
    for name, size in sizes.items():
        if size is not None and not (size > 0 and math.isfinite(size)):
            raise ValueError(f"{name} must be positive and finite, got {size}.")


def _first(
    dim: int, components: int, centre: Tensor | float, spread: float, source: Generator
) -> FullMixture:
    """Components scattered about the centre, each as wide as all of them together."""
    middle = torch.as_tensor(centre, dtype=torch.float64).detach()
    if middle.ndim > 1 or (middle.ndim == 1 and len(middle) != dim):
        raise ValueError(f"centre is a number or a point ({dim},), got {tuple(middle.shape)}.")
    noise = torch.randn(components, dim, dtype=torch.float64, generator=source)
    wide = torch.eye(dim, dtype=torch.float64).expand(components, dim, dim) / spread**2
    return FullMixture(middle + spread * noise, wide, torch.zeros(components, dtype=torch.float64))


def _typical_height(function: Batched, belief: FullMixture, source: Generator) -> float:
    """How far the function is above its least value at half of some first points."""
    values, _, _ = derivatives(function, belief.sample(_FIRST_POINTS, source))
    high = float(values.median() - values.min())
    return high if high > 0 else 1.0


def _descended(function: Batched, points: Tensor, spread: float) -> tuple[Tensor, Tensor]:
    """Points (K, d) after Newton's steps downhill, and which have come to a minimum, (K,)."""
    value, slope, bend = derivatives(function, points)
    for _ in range(_NEWTON_STEPS):
        step = _downhill(slope, bend, spread)
        points, moved = _halved(function, points, value, step)
        value, slope, bend = derivatives(function, points)
        if not bool(moved.any()):
            break
    left = torch.linalg.vector_norm(_downhill(slope, bend, spread), dim=1)
    curved = torch.linalg.eigvalsh(bend)
    inward = curved[:, 0] > -_ARRIVED * curved.abs().amax(1)
    return points, (left < _ARRIVED * spread) & inward


def _downhill(slope: Tensor, bend: Tensor, longest: float) -> Tensor:
    """`−|H|⁻¹ g`, |H| with the sizes of the eigenvalues, no longer than `longest`."""
    sizes, bases = torch.linalg.eigh(bend)
    sizes = sizes.abs()
    least = 1e-9 * sizes.amax(1, keepdim=True) + torch.finfo(slope.dtype).tiny
    turned = torch.einsum("nde,nd->ne", bases, slope) / sizes.clamp_min(least)
    step = -torch.einsum("nde,ne->nd", bases, turned)
    length = torch.linalg.vector_norm(step, dim=1, keepdim=True)
    return step * (longest / length.clamp_min(longest))


def _halved(
    function: Batched, points: Tensor, value: Tensor, step: Tensor
) -> tuple[Tensor, Tensor]:
    """The points after steps that are halved until the value is lower, and which have moved."""
    moved = torch.zeros_like(value, dtype=torch.bool)
    for _ in range(_HALVINGS):
        with torch.no_grad():
            lower = (function(points + step) < value) & ~moved
        points = torch.where(lower.unsqueeze(1), points + step, points)
        moved = moved | lower
        if bool(moved.all()):
            break
        step = torch.where(moved.unsqueeze(1), step, 0.5 * step)
    return points, moved


def _merged(
    function: Batched,
    places: Tensor,
    arrived: Tensor,
    belief: FullMixture,
    temperature: float,
    same: float,
) -> Minima:
    """Each minimum once, the lowest first."""
    if not bool(arrived.any()):
        within = _numbers([float(places.min()), float(places.max())])
        raise RuntimeError(
            f"No component came to a minimum; their means are within {within} "
            "(least and largest coordinate). Is the function bounded below? Say where to look with "
            "centre= and spread=, or take more steps."
        )
    values, _, bends = derivatives(function, places)
    near = torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist") < same
    kept: list[int] = []
    owner = torch.full((len(places),), -1)
    order = values.argsort()
    for k in order[arrived[order]].tolist():
        found = [i for i, one in enumerate(kept) if near[k, one]]
        owner[k] = found[0] if found else len(kept)
        kept = kept if found else [*kept, k]
    return Minima(places[kept], values[kept], bends[kept], owner, belief, temperature)
