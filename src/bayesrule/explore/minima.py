"""Several minima of a differentiable function in one run, by a mixture of Gaussians."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from bayesrule.explore.mixture_descent import Batched, FullMixture, derivatives
from bayesrule.tensors import seeds

# The first temperature is the height of typical points above the best one, the last this share.
_COLDER = 0.01
_FIRST_POINTS = 256
# Cooling takes this share of the steps; over the last ones the rate falls to nearly zero.
_COOLING, _SETTLING, _LAST_RATE = 0.5, 0.3, 0.05
# Newton's method from the means: steps, halvings of each, and the tolerance of convergence.
_NEWTON_STEPS, _HALVINGS, _ARRIVED = 100, 30, 1e-6
# Minima closer to each other than this share of `spread` count as one.
_SAME = 1e-3


@dataclass(frozen=True, eq=False)
class Minima:
    """The M minima that `find_minima` found, the lowest first.

    - `minima` (M, d), `values` (M,) and `curvatures` (M, d, d), the Hessians there.
    - `component_minimum` (K,): the minimum that each component of the mixture leads to. Several may
      share one; −1 if the mean of a component leads to none.
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
    return ", ".join(f"{number:.4g}" for number in x[:6]) + (", …" if len(x) > 6 else "")


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
    """Finds several minima of `function`, which maps points (n, d) to values (n,), in one run.

    A mixture of K Gaussians with full covariances follows the Bayesian learning rule: every
    component descends with the mean gradient and Hessian over its own draws, and the entropy of
    the whole mixture keeps components apart; Khan & Rue (2023), sec. 3.2, eqs 29 and 30. Precisions
    stay positive definite for any `rate`. From each mean Newton's method then descends to the
    nearby minimum, which is the same rule with the expectation taken at the mean (eq. 33).

    - `components`: K, the largest number of minima to find; a few more than there are minima help.
    - `centre`, `spread`: mean and standard deviation of the first means, where to look.
    - `temperature`: T of the last belief `q ∝ exp(−f/T)`; by default a hundredth of the height of
      typical first points above the best. The temperature starts higher and falls to T.
    - `steps`, `rate`, `draws`: the number of steps, ρ, and the draws of each component in a step.

    Everything runs in float64 and is determined by `seed`. For functions that are expensive or have
    no gradients see `minimise`.

    >>> result = find_minima(lambda x: (x.square() - 1.0).square().sum(-1), dim=1, components=4)
    >>> result.minima.flatten().sort().values.round(decimals=3)
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
    """Components scattered about the centre, each as wide as their scatter."""
    middle = torch.as_tensor(centre, dtype=torch.float64).detach()
    if middle.ndim > 1 or (middle.ndim == 1 and len(middle) != dim):
        raise ValueError(f"centre is a number or a point ({dim},), got {tuple(middle.shape)}.")
    noise = torch.randn(components, dim, dtype=torch.float64, generator=source)
    wide = torch.eye(dim, dtype=torch.float64).expand(components, dim, dim) / spread**2
    return FullMixture(middle + spread * noise, wide, torch.zeros(components, dtype=torch.float64))


def _typical_height(function: Batched, belief: FullMixture, source: Generator) -> float:
    """The median height of the function above its least value, over random first points."""
    values, _, _ = derivatives(function, belief.sample(_FIRST_POINTS, source))
    high = float(values.median() - values.min())
    return high if high > 0 else 1.0


def _descended(function: Batched, points: Tensor, spread: float) -> tuple[Tensor, Tensor]:
    """Points (K, d) after Newton's method, and which have reached a minimum, (K,)."""
    value, slope, bend = derivatives(function, points)
    for _ in range(_NEWTON_STEPS):
        step = _downhill(slope, bend, spread)
        points, moved = _halved(function, points, value, step)
        value, slope, bend = derivatives(function, points)
        if not bool(moved.any()):
            break
    remaining = torch.linalg.vector_norm(_downhill(slope, bend, spread), dim=1)
    curvatures = torch.linalg.eigvalsh(bend)
    convex = curvatures[:, 0] > -_ARRIVED * curvatures.abs().amax(1)
    return points, (remaining < _ARRIVED * spread) & convex


def _downhill(slope: Tensor, bend: Tensor, longest: float) -> Tensor:
    """`−|H|⁻¹ g`, no longer than `longest`; |H| has the absolute eigenvalues of H."""
    sizes, bases = torch.linalg.eigh(bend)
    sizes = sizes.abs()
    least = 1e-9 * sizes.amax(1, keepdim=True) + torch.finfo(slope.dtype).tiny
    rotated = torch.einsum("nde,nd->ne", bases, slope) / sizes.clamp_min(least)
    step = -torch.einsum("nde,ne->nd", bases, rotated)
    length = torch.linalg.vector_norm(step, dim=1, keepdim=True)
    return step * (longest / length.clamp_min(longest))


def _halved(
    function: Batched, points: Tensor, value: Tensor, step: Tensor
) -> tuple[Tensor, Tensor]:
    """The points after steps, each halved until it lowers the value, and which have moved."""
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
    """The distinct minima, the lowest first."""
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
        same_minimum = [i for i, other in enumerate(kept) if near[k, other]]
        owner[k] = same_minimum[0] if same_minimum else len(kept)
        kept = kept if same_minimum else [*kept, k]
    return Minima(places[kept], values[kept], bends[kept], owner, belief, temperature)
