"""The contract of exponential families: `q(x) = exp(⟨λ, T(x)⟩ − A(λ))`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Generator, Tensor

Natural = tuple[Tensor, ...]
"""Natural or expectation parameters: one tensor for each part of T(x), batch axes first."""


class ImproperError(ValueError):
    """Natural parameters outside of the family's domain."""


@dataclass(frozen=True, eq=False)
class ExponentialFamily(ABC):
    """A batch of distributions `q(x) = exp(⟨λ, T(x)⟩ − A(λ))`, kept by their natural parameters λ.

    The base measure is constant and part of A, so that entropy and divergence need nothing else:
    `H = A(λ) − ⟨λ, μ⟩` and `KL(q ‖ p) = A(λ_p) − A(λ_q) − ⟨λ_p − λ_q, μ_q⟩`, with `μ = ∇A(λ)`.

    A family implements the abstract methods, and names the parts of λ (`parts`) and the number of
    axes of each (`axes`); any axes before those are the batch. Khan & Rue (2023), eqs. 3 and 21.
    """

    natural: Natural

    parts: ClassVar[tuple[str, ...]]
    axes: ClassVar[tuple[int, ...]]

    def __post_init__(self) -> None:
        if len(self.natural) != len(self.parts):
            raise ValueError(
                f"{type(self).__name__} has the natural parameters {', '.join(self.parts)}; got "
                f"{len(self.natural)} tensors."
            )
        for name, value in zip(self.parts, self.natural, strict=True):
            if not value.isfinite().all():
                raise ImproperError(f"{type(self).__name__}: {name} is not finite.")
        self._check()

    @abstractmethod
    def _check(self) -> None:
        """Refuses natural parameters for which A is infinite, by `_refuse`."""

    @property
    @abstractmethod
    def log_partition(self) -> Tensor:
        """`A(λ)`, one number for each distribution."""

    @property
    @abstractmethod
    def expectation(self) -> Natural:
        """`μ = E[T(x)] = ∇A(λ)`, shaped as λ."""

    @classmethod
    @abstractmethod
    def from_expectation(cls, expectation: Natural) -> Self:
        """The distribution with these expectation parameters: `λ = ∇A*(μ)`."""

    @abstractmethod
    def statistics(self, x: Tensor) -> Natural:
        """`T(x)`, shaped as λ with the axes of x in front."""

    @abstractmethod
    def sample(self, num: int, generator: Generator) -> Tensor:
        """`num` draws of each distribution, (num, *batch, *event)."""

    @property
    def batch(self) -> torch.Size:
        """The shape of the batch of distributions."""
        return self.natural[0].shape[: self.natural[0].ndim - self.axes[0]]

    def log_prob(self, x: Tensor) -> Tensor:
        """`log q(x)`."""
        return self.inner(self.natural, self.statistics(x)) - self.log_partition

    @property
    def entropy(self) -> Tensor:
        """`−E[log q(x)]`; of densities it may be negative."""
        return self.log_partition - self.inner(self.natural, self.expectation)

    def kl(self, other: Self) -> Tensor:
        """`KL(self ‖ other)`, the Bregman divergence of A."""
        gap = tuple(theirs - own for own, theirs in zip(self.natural, other.natural, strict=True))
        return other.log_partition - self.log_partition - self.inner(gap, self.expectation)

    @classmethod
    def inner(cls, left: Natural, right: Natural) -> Tensor:
        """`⟨λ, T⟩`, summed over all axes but those of the batch."""
        total = torch.zeros(())
        for a, b, axes in zip(left, right, cls.axes, strict=True):
            product = a * b
            total = total + (product.flatten(-axes).sum(-1) if axes else product)
        return total

    def __getitem__(self, index: int | slice | Tensor) -> Self:
        return type(self)(tuple(value[index] for value in self.natural))

    def __repr__(self) -> str:
        shapes = ", ".join(
            f"{name} {tuple(value.shape)}"
            for name, value in zip(self.parts, self.natural, strict=True)
        )
        return f"{type(self).__name__}(natural: {shapes})"

    def _refuse(self, fine: Tensor, why: str) -> None:
        """Raises if any of the batch is not `fine`, and says how many are not."""
        if not fine.all():
            raise ImproperError(
                f"{type(self).__name__}: improper natural parameters, {why}; "
                f"{int((~fine).sum())} of {fine.numel()} are not."
            )


def to_double(*values: object) -> Natural:
    """Converts numbers, arrays or tensors to tensors; anything but floats becomes float64."""
    tensors = tuple(torch.as_tensor(value) for value in values)
    return tuple(v if v.is_floating_point() else v.double() for v in tensors)
