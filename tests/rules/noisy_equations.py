"""Noisy natural gradients written out by hand for a net of two layers, in dense matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.distributions import Normal

from bayesrule import Draws, GaussianLikelihood, Natural
from bayesrule.posteriors import Point, Posterior
from bayesrule.types import Params

NUM_DATA, NOISE, PRIOR, TEMPERATURE = 40, 0.7, 1.3, 0.8
WEIGHT, GAMMA = NUM_DATA / TEMPERATURE, TEMPERATURE * PRIOR / NUM_DATA
SIZES = (3, 3), (2, 4)

Matrices = list[Tensor]
"""The weights of both layers, (out, in + 1), with the bias as the last column."""


def noisy(learning_rate: Any = 1e-2, rate: Any = 1e-3, **options: Any) -> Natural:
    """Natural gradients with the prior at the drawn weights, and nothing added to a root."""
    given = {"prior_at_draws": True, "epsilon": 0.0, **options}
    return Natural(learning_rate, rate, **given)


def model() -> nn.Sequential:
    """Two layers with tanh between them."""
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))


def matrices(params: Params) -> Matrices:
    """Named parameters as one matrix for each layer."""
    pairs = (params[f"{i}.weight"] for i in (0, 2)), (params[f"{i}.bias"] for i in (0, 2))
    return [torch.cat([w, b.unsqueeze(1)], dim=1) for w, b in zip(*pairs, strict=True)]


@dataclass(frozen=True)
class WatchedDraws(Draws):
    """Draws that are kept."""

    kept: list[Params] = field(default_factory=list)

    def points(
        self, posterior: Posterior, generator: Generator, *, tracked: bool = True
    ) -> Iterator[Point]:
        for point in super().points(posterior, generator):
            self.kept.append(point.plain)
            yield point

    def weights(self) -> list[Matrices]:
        """The draws of the last step; they are then forgotten."""
        kept = list(self.kept)
        self.kept.clear()
        return [matrices(params) for params in kept]


@dataclass(frozen=True)
class ToldTargets(GaussianLikelihood):
    """A likelihood that keeps the targets that were drawn from the model."""

    kept: list[Tensor] = field(default_factory=list)

    def sample(self, outputs: Tensor, noise: Params, generator: Generator) -> Tensor:
        self.kept.append(super().sample(outputs, noise, generator))
        return self.kept[-1]

    def targets(self) -> list[Tensor]:
        """The targets of a step, one for each draw of the weights."""
        kept = list(self.kept)
        self.kept.clear()
        return kept


def passes(weights: Matrices, x: Tensor, y: Tensor) -> tuple[Matrices, Matrices]:
    """Inputs (n, in + 1) of both layers and gradients (n, out) of `−log p(y | f)` after them."""
    first, second = weights
    ones = torch.ones(len(x), 1)
    a0 = torch.cat([x, ones], dim=1)
    hidden = torch.tanh(a0 @ first.mT)
    a1 = torch.cat([hidden, ones], dim=1)
    g1 = (a1 @ second.mT - y) / NOISE**2
    g0 = (g1 @ second[:, :-1]) * (1.0 - hidden.square())
    return [a0, a1], [g0, g1]


def gradients(draws: list[Matrices], x: Tensor, y: Tensor, prior: bool = True) -> Matrices:
    """The mean over draws of `∇ mean loss(w) + γ w`, at the drawn weights."""
    total = [torch.zeros(size) for size in SIZES]
    for weights in draws:
        inputs, slopes = passes(weights, x, y)
        for out, a, g, w in zip(total, inputs, slopes, weights, strict=True):
            out += (g.mT @ a / len(x) + (GAMMA * w if prior else 0.0)) / len(draws)
    return total


def loss(draws: list[Matrices], x: Tensor, y: Tensor) -> float:
    """The mean over examples and draws of `−log p(y | f)`."""
    total = 0.0
    for first, second in draws:
        hidden = torch.tanh(x @ first[:, :-1].mT + first[:, -1])
        outputs = hidden @ second[:, :-1].mT + second[:, -1]
        total -= float(Normal(outputs, NOISE).log_prob(y).sum()) / (len(x) * len(draws))
    return total


def flat(parts: Matrices) -> Tensor:
    """Both layers as one vector, column by column: that of `A ⊗ S`."""
    return torch.cat([part.mT.reshape(-1) for part in parts])


def unflat(vector: Tensor) -> Matrices:
    """Back to matrices."""
    parts = vector.split([out * wide for out, wide in SIZES])
    return [p.reshape(wide, out).mT for p, (out, wide) in zip(parts, SIZES, strict=True)]


Averages = dict[str, Tensor]
Found = Callable[[list[Matrices], Tensor, list[Tensor]], Averages]


def factors(draws: list[Matrices], x: Tensor, targets: list[Tensor]) -> Averages:
    """`A_ij` and `S_ij` over all examples and draws, eq. 11 of Zhang et al. (2018)."""
    each = [passes(w, x, t) for w, t in zip(draws, targets, strict=True)]
    found = {}
    for i, j in ((0, 0), (1, 1), (0, 1)):
        for name, which in (("A", 0), ("S", 1)):
            products = [one[which][i].mT @ one[which][j] / len(x) for one in each]
            found[f"{name}{i}{j}"] = torch.stack(products).mean(0)
    return found


def full(draws: list[Matrices], x: Tensor, targets: list[Tensor]) -> Averages:
    """The Fisher information itself."""
    total = torch.zeros(17, 17)
    for weights, target in zip(draws, targets, strict=True):
        inputs, slopes = passes(weights, x, target)
        for n in range(len(x)):
            row = flat([torch.outer(g[n], a[n]) for a, g in zip(inputs, slopes, strict=True)])
            total += torch.outer(row, row) / (len(x) * len(draws))
    return {"F": total}


def first_factors(curvature: float) -> Averages:
    """`A = I` and `S = curvature · I`, and nothing between the layers."""
    found = {"A01": torch.zeros(3, 4), "S01": torch.zeros(3, 2)}
    for i, (out, wide) in enumerate(SIZES):
        found |= {f"A{i}{i}": torch.eye(wide), f"S{i}{i}": curvature * torch.eye(out)}
    return found


def _damped(now: Averages, i: int, gamma: float) -> tuple[Tensor, Tensor]:
    """`A + π√γ I` and `S + √γ/π I`, eq. 12 of Zhang et al. (2018)."""
    a, s = now[f"A{i}{i}"], now[f"S{i}{i}"]
    pi = ((a.trace() / len(a)) / (s.trace() / len(s))).sqrt()
    root = gamma**0.5
    return a + pi * root * torch.eye(len(a)), s + root / pi * torch.eye(len(s))


def kronecker(now: Averages, gamma: float) -> Tensor:
    """`F + γI` with factored damping, (17, 17)."""
    return torch.block_diag(*[torch.kron(*_damped(now, i, gamma)) for i in (0, 1)])


def exact_kronecker(now: Averages, gamma: float) -> Tensor:
    """`A ⊗ S + γI`."""
    blocks = [torch.kron(now[f"A{i}{i}"], now[f"S{i}{i}"]) for i in (0, 1)]
    return torch.block_diag(*blocks) + gamma * torch.eye(17)


def tridiagonal(now: Averages, gamma: float) -> Tensor:
    """The inverse of `Ξᵀ Λ Ξ`: Martens & Grosse (2015), sec. 4.3."""
    first, second = (torch.kron(*_damped(now, i, gamma)) for i in (0, 1))
    link = torch.kron(now["A01"], now["S01"])
    psi = link @ torch.linalg.inv(second)
    conditional = first - psi @ second @ psi.mT
    xi = torch.eye(17)
    xi[:9, 9:] = -psi
    parts = torch.block_diag(torch.linalg.inv(conditional), torch.linalg.inv(second))
    return torch.linalg.inv(xi.mT @ parts @ xi)


def dense(now: Averages, gamma: float) -> Tensor:
    """`F + γI`."""
    return now["F"] + gamma * torch.eye(17)


@dataclass
class Equations:
    """Algorithm 2 of Zhang et al. (2018) with momentum, damping and the KL clip.

    The clip grows with the loss of a datum, from 1 nat on.

    `precision` is `F + γI` of the belief, the precision of which is `N/λ` times that.
    """

    mean: Tensor
    averages: Averages
    damp: Callable[[Averages, float], Tensor]
    look: Found
    alpha: float
    beta: float
    average: float = 0.0
    velocity: float = 0.0
    damping: float = 0.0
    clip: float = torch.inf
    stats: int = 1
    inverse: int = 1
    prior_at_draws: bool = True
    step: int = 0
    precision: Tensor = field(default_factory=lambda: torch.zeros(0))
    divisor: Tensor = field(default_factory=lambda: torch.zeros(0))
    momentum: Tensor = field(default_factory=lambda: torch.zeros(17))
    speed: Tensor = field(default_factory=lambda: torch.zeros(17))

    def advance(self, draws: list[Matrices], x: Tensor, y: Tensor, targets: list[Tensor]) -> None:
        """One step."""
        if self.step % self.stats == 0:
            new = self.look(draws, x, targets)
            self.averages = {
                k: (1.0 - self.beta) * v + self.beta * new[k] for k, v in self.averages.items()
            }
        if self.step % self.inverse == 0:
            self.precision = self.damp(self.averages, GAMMA)
            self.divisor = self.damp(self.averages, GAMMA + self.damping)
        v = flat(gradients(draws, x, y, self.prior_at_draws))
        if not self.prior_at_draws:
            v = v + GAMMA * self.mean
        self.step += 1
        self.momentum = self.average * self.momentum + (1.0 - self.average) * v
        m = self.momentum / (1.0 - self.average**self.step) if self.average else v
        direction = torch.linalg.solve(self.divisor, m)
        moved = self.alpha**2 * m @ direction
        most = self.clip * max(1.0, loss(draws, x, y))
        direction = min(1.0, float((most / moved).sqrt())) * direction
        if self.velocity:
            self.speed = direction = self.velocity * self.speed + direction
        self.mean = self.mean - self.alpha * direction
