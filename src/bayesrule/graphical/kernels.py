"""Kernels of Gaussian processes: the covariance of f(x) and f(z)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

Positive = float | Sequence[float] | Tensor
"""A positive number; for lengths also one number for each column."""


@dataclass(frozen=True, eq=False)
class Kernel(ABC):
    """`k(x, z) = Cov(f(x), f(z))`; its positive parameters are fields, numbers or tuples.

    Your own kernel is a frozen dataclass with a `covariance`. Kernels add up and multiply:
    `RBF() + Periodic() * Linear()`.
    """

    def __post_init__(self) -> None:
        for name, value in self.parameters.items():
            if value.ndim > 1 or not ((value > 0) & value.isfinite()).all():
                raise ValueError(
                    f"{type(self).__name__}: {name} must be positive and finite, one number"
                    f"{' or one for each column' if name == 'length' else ''}; got "
                    f"{value.tolist()}."
                )
            if not value.requires_grad:
                held = tuple(value.tolist()) if value.ndim else float(value)
                object.__setattr__(self, name, held)

    @abstractmethod
    def covariance(self, x: Tensor, z: Tensor) -> Tensor:
        """`k(x_i, z_j)` of rows (n, d) and (m, d), (n, m)."""

    def diagonal(self, x: Tensor) -> Tensor:
        """`k(x_i, x_i)`, (n,)."""
        return torch.stack([self.covariance(row, row)[0, 0] for row in x.split(1)])

    def _names(self) -> tuple[str, ...]:
        return tuple(field.name for field in fields(self))

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The positive parameters by name, in float64."""
        return {name: self._tensor(name) for name in self._names()}

    def replaced(self, parameters: Mapping[str, Tensor]) -> Self:
        """The same kernel with other parameters."""
        return replace(self, **parameters)

    def _tensor(self, name: str) -> Tensor:
        return torch.as_tensor(getattr(self, name), dtype=torch.float64)

    def __add__(self, other: Kernel) -> Kernel:
        return Sum(self, other)

    def __mul__(self, other: Kernel) -> Kernel:
        return Product(self, other)

    def __repr__(self) -> str:
        settings = (f"{name}={_brief(value)}" for name, value in self.parameters.items())
        return f"{type(self).__name__}({', '.join(settings)})"


@dataclass(frozen=True, eq=False, repr=False)
class _Stationary(Kernel):
    """`variance · shape(|x − z| / length)`; `length` is one number or one for each column."""

    variance: Positive = 1.0
    length: Positive = 1.0

    def diagonal(self, x: Tensor) -> Tensor:
        return self._tensor("variance").expand(len(x))

    def _scaled(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        length = self._tensor("length")
        if length.ndim and len(length) != x.shape[1]:
            raise ValueError(
                f"{type(self).__name__} has {len(length)} lengths for {x.shape[1]} columns; give "
                "one number, or one for each column."
            )
        return x / length, z / length


@dataclass(frozen=True, eq=False, repr=False)
class RBF(_Stationary):
    """`variance · exp(−½ |x − z|² / length²)`: smooth functions.

    >>> RBF(variance=2.0, length=0.5)
    RBF(variance=2, length=0.5)
    """

    def covariance(self, x: Tensor, z: Tensor) -> Tensor:
        a, b = self._scaled(x, z)
        middle = a.detach().mean(0)
        a, b = a - middle, b - middle
        half = 0.5 * (a.square().sum(1)[:, None] + b.square().sum(1)) - a @ b.T
        return self._tensor("variance") * torch.exp(-half.clamp_min(0.0))


@dataclass(frozen=True, eq=False, repr=False)
class Matern(_Stationary):
    """Functions with a given number of derivatives: `smoothness` ½, 3/2 or 5/2.

    `variance · e^−r`, `(1 + r) e^−r` or `(1 + r + r²/3) e^−r`, with `r = √(2ν) |x − z| / length`.
    Rasmussen & Williams (2006), eqs 4.16 and 4.17.

    >>> Matern(length=3.0, smoothness=1.5)
    Matern(variance=1, length=3, smoothness=1.5)
    """

    smoothness: float = 2.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.smoothness not in (0.5, 1.5, 2.5):
            raise ValueError(f"Matern: smoothness is 0.5, 1.5 or 2.5; got {self.smoothness}.")

    def _names(self) -> tuple[str, ...]:
        return "variance", "length"

    def covariance(self, x: Tensor, z: Tensor) -> Tensor:
        a, b = self._scaled(x, z)
        exact = "donot_use_mm_for_euclid_dist"
        r = math.sqrt(2.0 * self.smoothness) * torch.cdist(a, b, compute_mode=exact)
        polynomial = torch.ones_like(r) if self.smoothness < 1.0 else 1.0 + r
        if self.smoothness > 2.0:
            polynomial = polynomial + r.square() / 3.0
        return self._tensor("variance") * polynomial * torch.exp(-r)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, smoothness={self.smoothness:g})"


@dataclass(frozen=True, eq=False, repr=False)
class Periodic(_Stationary):
    """`variance · exp(−2 Σ sin²(π (x − z) / period) / length²)`: functions that repeat.

    >>> Periodic(period=12.0)
    Periodic(variance=1, length=1, period=12)
    """

    period: Positive = 1.0

    def covariance(self, x: Tensor, z: Tensor) -> Tensor:
        length, period = self._tensor("length"), self._tensor("period")
        turn = torch.sin(math.pi * (x[:, None] - z) / period) / length
        return self._tensor("variance") * torch.exp(-2.0 * turn.square().sum(-1))


@dataclass(frozen=True, eq=False, repr=False)
class Linear(Kernel):
    """`variance · xᵀ z`: straight lines through 0.

    >>> Linear(variance=0.1)
    Linear(variance=0.1)
    """

    variance: Positive = 1.0

    def covariance(self, x: Tensor, z: Tensor) -> Tensor:
        return self._tensor("variance") * (x @ z.T)

    def diagonal(self, x: Tensor) -> Tensor:
        return self._tensor("variance") * x.square().sum(1)


@dataclass(frozen=True, eq=False, repr=False)
class _Pair(Kernel):
    """Two kernels as one; parameters are named `0.variance`, `1.variance`, ..."""

    left: Kernel
    right: Kernel

    sign: ClassVar[str]

    def __post_init__(self) -> None:
        for part in (self.left, self.right):
            if not isinstance(part, Kernel):
                raise TypeError(f"Kernels go together with kernels, got {part!r}.")

    @property
    def parameters(self) -> dict[str, Tensor]:
        parts = self.left.parameters, self.right.parameters
        return {f"{k}.{name}": v for k, part in enumerate(parts) for name, v in part.items()}

    def replaced(self, parameters: Mapping[str, Tensor]) -> Self:
        parts = (
            {name[2:]: v for name, v in parameters.items() if name.startswith(f"{k}.")}
            for k in range(2)
        )
        left, right = next(parts), next(parts)
        return type(self)(self.left.replaced(left), self.right.replaced(right))

    def __repr__(self) -> str:
        return f"({self.left!r} {self.sign} {self.right!r})"


class Sum(_Pair):
    """`k₁ + k₂`: the sum of two independent functions."""

    sign = "+"

    def covariance(self, x: Tensor, z: Tensor) -> Tensor:
        return self.left.covariance(x, z) + self.right.covariance(x, z)

    def diagonal(self, x: Tensor) -> Tensor:
        return self.left.diagonal(x) + self.right.diagonal(x)


class Product(_Pair):
    """`k₁ k₂`: large only where both are."""

    sign = "*"

    def covariance(self, x: Tensor, z: Tensor) -> Tensor:
        return self.left.covariance(x, z) * self.right.covariance(x, z)

    def diagonal(self, x: Tensor) -> Tensor:
        return self.left.diagonal(x) * self.right.diagonal(x)


def _brief(value: Tensor) -> str:
    if not value.ndim:
        return f"{float(value):.3g}"
    shown = ", ".join(f"{v:.3g}" for v in value[:4].tolist())
    return f"[{shown}{', ...' if len(value) > 4 else ''}]"
