"""Closed forms and brute force that the tests hold the library against, all in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from bayesrule.matrices import Matrix
from bayesrule.types import Params, Rows

DTYPE = torch.float64


def generator(seed: int = 0) -> torch.Generator:
    """A seeded CPU generator."""
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(shape, dtype=DTYPE, generator=generator(seed))


def close(actual: Tensor, expected: Tensor | float, tol: float = 1e-10) -> None:
    """Equal to `tol`, relative and absolute, with the same shape and type."""
    wanted = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual, wanted, rtol=tol, atol=tol)


def z_close(samples: Tensor, expected: Tensor | float, z: float = 5.0) -> None:
    """The mean of independent samples (first axis) lies within `z` of its standard errors."""
    error = samples.std(0) / math.sqrt(len(samples))
    worst = ((samples.mean(0) - expected).abs() / error.clamp_min(1e-12)).max()
    assert float(worst) < z, f"{float(worst):.1f} standard errors away"


def same_mean(a: Tensor, b: Tensor, z: float = 5.0) -> None:
    """The means of two sets of independent numbers differ by less than `z` standard errors."""
    error = (a.var() / len(a) + b.var() / len(b)).sqrt().clamp_min(1e-12)
    assert float((a.mean() - b.mean()).abs() / error) < z


def flat(params: Params) -> Tensor:
    """All tensors as one vector, (P,)."""
    return torch.cat([value.reshape(-1) for value in params.values()])


def named(vector: Tensor, like: Params) -> Params:
    """One vector (P,) under the names and shapes of `like`."""
    parts = vector.split([value.numel() for value in like.values()])
    return {k: p.reshape(v.shape) for (k, v), p in zip(like.items(), parts, strict=True)}


def columns(function: Callable[[Params], Params], like: Params) -> Tensor:
    """The matrix (P, P) of a linear map of parameters, by its action on the unit vectors."""
    size = sum(value.numel() for value in like.values())
    units = torch.eye(size, dtype=DTYPE)
    return torch.stack([flat(function(named(unit, like))) for unit in units], dim=1)


def dense(matrix: Matrix, like: Params) -> Tensor:
    """The explicit matrix (P, P)."""
    return columns(matrix.matmul, like)


def positive(size: int, seed: int = 0) -> Tensor:
    """A random positive definite matrix."""
    root = randn(size, size, seed=seed)
    return root @ root.mT / size + 0.3 * torch.eye(size, dtype=DTYPE)


def symmetric(size: int, seed: int = 0) -> Tensor:
    """A random symmetric matrix, in general with negative eigenvalues."""
    root = randn(size, size, seed=seed)
    return 0.5 * (root + root.mT)


@dataclass(frozen=True)
class TableRows(Rows):
    """Rows given outright, {name: (V, n, *shape)}: the plainest thing to contract."""

    table: Params

    @classmethod
    def random(cls, params: Params, vectors: int, examples: int, seed: int = 0) -> TableRows:
        """Standard normal rows over the given parameters."""
        shapes = {name: tuple(value.shape) for name, value in params.items()}
        return cls(
            {
                name: randn(vectors, examples, *shape, seed=seed + i)
                for i, (name, shape) in enumerate(shapes.items())
            }
        )

    @property
    def names(self) -> Iterable[str]:
        return self.table

    def only(self, names: tuple[str, ...]) -> TableRows:
        return TableRows({name: self.table[name] for name in names})

    def squares(self) -> Params:
        return {name: rows.square().sum((0, 1)) for name, rows in self.table.items()}

    def per_example(self) -> Params:
        return dict(self.table)

    def gram(self, weights: Params) -> Tensor:
        each = [
            torch.einsum("vnp,wnp,p->nvw", rows, rows, weights[name].reshape(-1))
            for name, rows in ((k, self.table[k].flatten(start_dim=2)) for k in weights)
        ]
        return torch.stack(each).sum(0)

    def jacobian(self, names: tuple[str, ...]) -> Tensor:
        """The rows side by side, (V, n, P)."""
        return torch.cat([self.table[k].flatten(start_dim=2) for k in names], dim=-1)


@dataclass(frozen=True)
class LinearRegression:
    """The exact posterior of `y = X θ + ε` with noise ε ~ N(0, noise²) and prior N(0, I/precision).

    `S = XᵀX / noise² + precision I`, `m = S⁻¹ Xᵀ y / noise²`; X (n, P), y (n,).
    """

    design: Tensor
    y: Tensor
    noise: float
    prior_precision: float

    @property
    def precision(self) -> Tensor:
        eye = torch.eye(self.design.shape[1], dtype=DTYPE)
        return self.design.mT @ self.design / self.noise**2 + self.prior_precision * eye

    @property
    def mean(self) -> Tensor:
        return torch.linalg.solve(self.precision, self.design.mT @ self.y / self.noise**2)

    def predictive(self, design: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and epistemic variance of the outputs at new rows of the design."""
        spread = design @ torch.linalg.inv(self.precision) @ design.mT
        return design @ self.mean, spread.diagonal()


def with_ones(x: Tensor) -> Tensor:
    """The design of `nn.Linear`: its weights first, then its bias."""
    return torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1)


def mlp(*sizes: int) -> nn.Sequential:
    """A tanh network of the given widths with weights that are always the same."""
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(pairwise(sizes)):
        layers += [nn.Tanh(), nn.Linear(a, b)] if i else [nn.Linear(a, b)]
    model = nn.Sequential(*layers).double()
    with torch.no_grad():
        for i, value in enumerate(model.parameters()):
            value.copy_(0.5 * randn(*value.shape, seed=i))
    return model


def jacobian(model: nn.Module, params: Params, x: Tensor, buffers: Params | None = None) -> Tensor:
    """The Jacobian of all outputs of an eval-mode module by `jacrev`, (n, outputs, P)."""

    def outputs(chosen: Params) -> Tensor:
        return functional_call(model, {**chosen, **(buffers or {})}, (x,)).reshape(len(x), -1)

    model.eval()
    found = jacrev(outputs)(params)
    return torch.cat([found[name].flatten(start_dim=2) for name in params], dim=-1)


def gauss_hermite(
    function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor, order: int = 120
) -> Tensor:
    """`E[function(f)]` under `f ~ N(mean, variance)`, elementwise."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    points = mean + variance.sqrt() * torch.tensor(nodes, dtype=DTYPE).reshape(-1, *[1] * mean.ndim)
    shares = torch.tensor(weights / weights.sum(), dtype=DTYPE)
    return torch.einsum("k,k...->...", shares, function(points))


@dataclass(frozen=True)
class GridPosterior:
    """A posterior over one or two parameters by brute force on a grid of their values."""

    points: Tensor
    weights: Tensor

    @classmethod
    def around(
        cls,
        log_joint: Callable[[Tensor], Tensor],
        mean: Tensor,
        covariance: Tensor,
        *,
        reach: float = 8.0,
        steps: int = 161,
    ) -> GridPosterior:
        """Grid of `steps` values a side, `reach` standard deviations around the mean."""
        axis = torch.linspace(-reach, reach, steps, dtype=DTYPE)
        white = torch.cartesian_prod(*[axis] * len(mean)).reshape(-1, len(mean))
        points = mean + white @ torch.linalg.cholesky(covariance).mT
        return cls(points, log_joint(points).softmax(0))

    @property
    def mean(self) -> Tensor:
        return self.weights @ self.points

    @property
    def covariance(self) -> Tensor:
        centred = self.points - self.mean
        return (self.weights.unsqueeze(1) * centred).mT @ centred


def logistic_log_joint(x: Tensor, y: Tensor, prior_precision: float) -> Callable[[Tensor], Tensor]:
    """`log p(y | X θ) + log p(θ)` up to a constant, for θ (G, P)."""

    def value(theta: Tensor) -> Tensor:
        logits = theta @ x.mT
        fit = (y * logits - nn.functional.softplus(logits)).sum(-1)
        return fit - 0.5 * prior_precision * theta.square().sum(-1)

    return value


def logistic_mode(x: Tensor, y: Tensor, prior_precision: float) -> tuple[Tensor, Tensor]:
    """Mode and Hessian of the logistic-regression posterior, by Newton's method."""
    theta = torch.zeros(x.shape[1], dtype=DTYPE)
    for _ in range(50):
        p = torch.sigmoid(x @ theta)
        hessian = logistic_hessian(x, theta, prior_precision)
        theta = theta - torch.linalg.solve(hessian, x.mT @ (p - y) + prior_precision * theta)
    return theta, logistic_hessian(x, theta, prior_precision)


def logistic_hessian(x: Tensor, theta: Tensor, prior_precision: float) -> Tensor:
    """`Xᵀ diag(p (1 − p)) X + prior_precision I`."""
    p = torch.sigmoid(x @ theta)
    eye = torch.eye(x.shape[1], dtype=DTYPE)
    return x.mT @ ((p * (1.0 - p)).unsqueeze(1) * x) + prior_precision * eye
