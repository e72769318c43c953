"""The two factors of a Kronecker product, how they are averaged and damped, and their roots."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Traces below this count as zero, and the ratio of two traces is kept within 1e±20: the damping of
# a factor is then finite in every type.
_TINY, _FAR = 1e-30, 1e20


def _inverse(value: Tensor) -> Tensor:
    """`1 / x`, and 0 for 0."""
    return torch.where(value == 0, torch.zeros_like(value), 1.0 / value)


@dataclass(frozen=True)
class Factors:
    """`A ⊗ S + damping I` with `A = input / count`: means over inputs, sums over output gradients.

    - `input` (in, in) or, between two layers, (in, in'): `Σ a aᵀ` over `count` inputs.
    - `output` (out, out) or (out, out'): `Σ g gᵀ`, with all factors of scale.
    - `count`, `damping`: 0-d.

    Sums over batches and machines add all four, so that A is the mean over all inputs and S the sum
    over all gradients; multiples change S; averages are those of A and of S, each for itself.
    """

    input: Tensor
    output: Tensor
    count: Tensor
    damping: Tensor

    @classmethod
    def of(cls, moments: tuple[Tensor, Tensor, int]) -> Factors:
        """From `LayerRows.moments`."""
        inputs, outputs, count = moments
        return cls(inputs, outputs, outputs.new_tensor(float(count)), outputs.new_tensor(0.0))

    @classmethod
    def identity(cls, size: tuple[int, int], scale: float, like: Tensor) -> Factors:
        """`scale · I`: A is the identity, as if of one input; zero is a sum over none."""
        out, wide = (torch.eye(n, dtype=like.dtype, device=like.device) for n in size)
        count = like.new_tensor(float(scale != 0))
        return cls(wide * count, out * scale, count, like.new_tensor(0.0))

    @property
    def mean_input(self) -> Tensor:
        """`A`, zero if there was no input."""
        return self.input * _inverse(self.count)

    def plus(self, other: Factors) -> Factors:
        """The factors over the data of both."""
        return Factors(
            self.input + other.input,
            self.output + other.output,
            self.count + other.count,
            self.damping + other.damping,
        )

    def times(self, factor: float) -> Factors:
        """`factor (A ⊗ S + damping I)`."""
        return Factors(self.input, self.output * factor, self.count, self.damping * factor)

    def damped(self, damping: float) -> Factors:
        """With `damping` more."""
        return Factors(self.input, self.output, self.count, self.damping + damping)

    def lerp(self, target: Factors, rate: float) -> Factors:
        """`(1 − rate) A + rate A'` and the same of S; a sum over no data has no part in A."""
        count = self.count.lerp(target.count, rate)
        # In the type of the factors: a flag times a number has the default type.
        here, there = ((factors.count != 0).to(count) for factors in (self, target))
        shares = (1.0 - rate) * here, rate * there
        whole = count * _inverse(shares[0] + shares[1])
        mine, theirs = (
            whole * share * _inverse(factors.count)
            for share, factors in zip(shares, (self, target), strict=True)
        )
        return Factors(
            self.input * mine + target.input * theirs,
            self.output.lerp(target.output, rate),
            count,
            self.damping.lerp(target.damping, rate),
        )

    def retract(self, target: Factors, rate: float, damping: float) -> Factors:
        """As `lerp`, for the factors are never negative; only the damping can be, and bends."""
        moved, step = self.lerp(target, rate), target.damping - self.damping
        bend = 0.5 * rate**2 * step**2 / (self.damping + damping)
        return Factors(moved.input, moved.output, moved.count, moved.damping + bend)

    def shares(self) -> tuple[Tensor, Tensor]:
        """What factored damping adds to A and to S: `π√d` and `√d/π`, `π² = (tr A/n)/(tr S/m)`.

        Martens & Grosse (2015), sec. 6.3.
        """
        inputs = self.mean_input.diagonal().mean().clamp_min(_TINY)
        outputs = self.output.diagonal().mean().clamp_min(_TINY)
        pi = (inputs / outputs).clamp(1.0 / _FAR, _FAR).sqrt()
        # The sum of matrices with negative multiples may have less than no damping.
        root = self.damping.clamp_min(0.0).sqrt()
        return pi * root, root / pi

    def damped_factors(self) -> tuple[Tensor, Tensor]:
        """`S + √d/π I` and `A + π√d I`."""
        right, left = self.shares()
        return shifted(self.output, left), shifted(self.mean_input, right)


@dataclass(frozen=True)
class Root:
    """`P⁻¹ = (right ⊗ left) diag(gains) (right ⊗ left)ᵀ` on matrices (out, in).

    `left` is (out, out), `right` (in, in), `gains` (out, in).
    """

    left: Tensor
    right: Tensor
    gains: Tensor

    def solve(self, x: Tensor) -> Tensor:
        """`P⁻¹ x`."""
        return self.left @ (self.gains * (self.left.mT @ x @ self.right)) @ self.right.mT

    def draw(self, noise: Tensor) -> Tensor:
        """`B ε` with `B Bᵀ = P⁻¹`."""
        return self.left @ (self.gains.sqrt() * noise) @ self.right.mT

    def diagonal(self) -> Tensor:
        """The diagonal of `P⁻¹`, (out, in)."""
        return self.left.square() @ self.gains @ self.right.square().mT

    def through(self, left: Tensor, right: Tensor) -> Root:
        """That of `(right ⊗ left)ᵀ P⁻¹ (right ⊗ left)`, which P⁻¹ becomes behind a linear map."""
        return Root(left.mT @ self.left, right.mT @ self.right, self.gains)


def shifted(matrix: Tensor, amount: Tensor) -> Tensor:
    """`M + amount I`."""
    moved = matrix.clone()
    moved.diagonal().add_(amount)
    return moved


def quadratic(root: Tensor, matrix: Tensor) -> Tensor:
    """The diagonal of `rootᵀ M root`."""
    return (root * (matrix @ root)).sum(0)


def inverse_root(matrix: Tensor, whose: str) -> Tensor:
    """An upper triangular R with `R Rᵀ = M⁻¹`, from the Cholesky factor of M.

    Where rounding leaves M without one, its eigenvalues are kept above a rounding error.
    """
    lower, failed = torch.linalg.cholesky_ex(matrix)
    if failed.any():
        values, directions = eigen(matrix, whose)
        roots = floored(values, whose).sqrt()
        lower = torch.linalg.qr(roots.unsqueeze(1) * directions.mT).R.mT
    eye = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    return torch.linalg.solve_triangular(lower, eye, upper=False).mT


def eigen(matrix: Tensor, whose: str) -> tuple[Tensor, Tensor]:
    """Eigenvalues, at least zero, and eigenvectors of a factor."""
    _refuse_not_finite(matrix, whose)
    values = matrix.diagonal()
    if torch.equal(matrix, torch.diag(values)):
        # As every factor is to begin with.
        return values.clamp_min(0.0), torch.eye(
            len(matrix), dtype=matrix.dtype, device=matrix.device
        )
    values, directions = torch.linalg.eigh(matrix)
    # Laid out by rows, as a file has them: products round by the layout.
    return values.clamp_min(0.0), directions.contiguous()


def floored(values: Tensor, whose: str) -> Tensor:
    """Eigenvalues kept above a rounding error of the largest."""
    _refuse_not_finite(values, whose)
    largest = float(values.max())
    if not largest > 0:
        raise ValueError(
            f"The curvature of {whose} is zero and nothing is added to it, so it has no inverse. "
            "A positive prior_precision mends this."
        )
    return values.clamp_min(largest * torch.finfo(values.dtype).eps)


def _refuse_not_finite(values: Tensor, whose: str) -> None:
    if not bool(values.isfinite().all()):
        raise ValueError(
            f"The curvature of {whose} holds numbers that are not finite: the training diverged. "
            "A smaller learning_rate, or a larger prior_precision or damping, mends this."
        )
