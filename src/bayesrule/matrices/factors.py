"""The two factors of a Kronecker product, how they are averaged and damped, and their roots."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesrule.types import Number

# Traces below this count as zero, and the ratio of two traces is kept within 1e±20: the damping of
# a factor is then finite in every type.
_TINY, _FAR = 1e-30, 1e20


def _inverse(value: Tensor) -> Tensor:
    """`1 / x`, and 0 for 0."""
    return torch.where(value == 0, value, value.reciprocal())


@dataclass(frozen=True)
class Factors:
    """`A ⊗ S + damping I` with `A = input / count`: means over inputs, sums over output gradients.

    - `input` (in, in) or, between two layers, (in, in'): `Σ a aᵀ` over `count` inputs.
    - `output` (out, out) or (out, out'): `Σ g gᵀ`, with all factors of scale.
    - `count`, `damping`: 0-d.

    Those of several nets are stacked along a first axis of all four.

    Sums over batches and machines add all four, so that A is the mean over all inputs and S the sum
    over all gradients; multiples change S; averages are those of A and of S, each for itself.
    """

    input: Tensor
    output: Tensor
    count: Tensor
    damping: Tensor

    @classmethod
    def of(cls, moments: tuple[Tensor, Tensor, int | Tensor]) -> Factors:
        """From `LayerRows.moments`."""
        inputs, outputs, given = moments
        shape = outputs.shape[:-2]
        if isinstance(given, Tensor):
            count = given.to(outputs).expand(shape)
        else:
            count = outputs.new_full(shape, float(given))
        return cls(inputs, outputs, count, outputs.new_zeros(shape))

    @classmethod
    def identity(cls, size: tuple[int, int], scale: float, like: Tensor) -> Factors:
        """`scale · I`: A is the identity, as if of one input; zero is a sum over none."""
        out, wide = (torch.eye(n, dtype=like.dtype, device=like.device) for n in size)
        count = like.new_tensor(float(scale != 0))
        return cls(wide * count, out * scale, count, like.new_tensor(0.0))

    @property
    def mean_input(self) -> Tensor:
        """`A`, zero if there was no input."""
        return self.input * spread(_inverse(self.count))

    def plus(self, other: Factors) -> Factors:
        """The factors over the data of both."""
        return Factors(
            self.input + other.input,
            self.output + other.output,
            self.count + other.count,
            self.damping + other.damping,
        )

    def times(self, factor: Number) -> Factors:
        """`factor (A ⊗ S + damping I)`; the factor is a number, or one for each net."""
        each = spread(factor) if isinstance(factor, Tensor) else factor
        return Factors(self.input, self.output * each, self.count, self.damping * factor)

    def damped(self, damping: Number) -> Factors:
        """With `damping` more, a number or one for each net."""
        return Factors(self.input, self.output, self.count, self.damping + damping)

    def lerp(self, target: Factors, rate: Number) -> Factors:
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
            self.input * spread(mine) + target.input * spread(theirs),
            self.output.lerp(target.output, rate),
            count,
            self.damping.lerp(target.damping, rate),
        )

    def retract(self, target: Factors, rate: Number, precision: Factors) -> Factors:
        """As `lerp`, for the factors are never negative; only the damping can be, and bends."""
        moved, step = self.lerp(target, rate), target.damping - self.damping
        bend = 0.5 * rate**2 * step**2 / precision.damping
        return Factors(moved.input, moved.output, moved.count, moved.damping + bend)

    def shares(self) -> tuple[Tensor, Tensor]:
        """What factored damping adds to A and to S: `π√d` and `√d/π`, `π² = (tr A/n)/(tr S/m)`.

        Martens & Grosse (2015), sec. 6.3.
        """
        inputs, outputs = (torch.linalg.diagonal(x).mean(-1) for x in (self.input, self.output))
        inputs = (inputs * _inverse(self.count)).clamp_min(_TINY)
        outputs = outputs.clamp_min(_TINY)
        pi = (inputs / outputs).clamp(1.0 / _FAR, _FAR).sqrt()
        # The sum of matrices with negative multiples may have less than no damping.
        root = self.damping.clamp_min(0.0).sqrt()
        return pi * root, root / pi


@dataclass(frozen=True)
class Root:
    """`P⁻¹ = (right ⊗ left) diag(gains) (right ⊗ left)ᵀ` on matrices (out, in).

    `left` is (out, out), `right` (in, in), `gains` (out, in); nets are stacked along a first axis,
    and noise may have further axes between that and those of its matrices: several draws.
    `white` says that all gains are one. `turns`, orthogonal matrices of the sizes of `left` and
    `right`, are applied to noise first: where `left` and `right` have a basis of eigenvectors
    in them, a draw then does not depend on the choice of it among equal eigenvalues.
    """

    left: Tensor
    right: Tensor
    gains: Tensor
    white: bool = False
    turns: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, left: Tensor, right: Tensor) -> Root:
        """`P⁻¹ = (right ⊗ left) (right ⊗ left)ᵀ`."""
        ones = left.new_ones(1).expand(left.shape[-1], right.shape[-1])
        return cls(left, right, ones, white=True)

    def solve(self, x: Tensor) -> Tensor:
        """`P⁻¹ x`."""
        seen = self.left.mT @ x @ self.right
        return self.left @ (seen if self.white else self.gains * seen) @ self.right.mT

    def draw(self, noise: Tensor) -> Tensor:
        """`B ε` with `B Bᵀ = P⁻¹`."""
        if self.turns is not None:
            noise = between(self.turns[0].mT, noise, self.turns[1].mT)
        if not self.white:
            draws = [1] * (noise.ndim - self.gains.ndim)
            gains = self.gains.reshape(*self.gains.shape[:-2], *draws, *self.gains.shape[-2:])
            noise = gains.sqrt() * noise
        return between(self.left, noise, self.right)

    def diagonal(self) -> Tensor:
        """The diagonal of `P⁻¹`, (out, in)."""
        return self.left.square() @ self.gains @ self.right.square().mT

    def trace(self, s: Tensor, a: Tensor) -> Tensor:
        """`tr(P⁻¹ (A ⊗ S))` for factors that need not be symmetric."""
        seen = outer(quadratic(self.left, s), quadratic(self.right, a))
        return (self.gains * seen).sum((-2, -1))

    def through(self, left: Tensor, right: Tensor) -> Root:
        """That of `(right ⊗ left)ᵀ P⁻¹ (right ⊗ left)`, which P⁻¹ becomes behind a linear map."""
        return replace(self, left=left.mT @ self.left, right=right.mT @ self.right)


def spread(values: Tensor) -> Tensor:
    """One number for each net, (num,) or 0-d, beside matrices (*, p, q)."""
    return values[..., None, None]


def between(left: Tensor, x: Tensor, right: Tensor) -> Tensor:
    """`L X Rᵀ` for X (*nets, *draws, out, in): two products for each net, whatever the draws."""
    nets = left.ndim - 2
    if x.ndim == left.ndim:
        return left @ x @ right.mT
    flat = x.flatten(nets, -3)
    rows = (flat.flatten(-3, -2) @ right.mT).unflatten(-2, flat.shape[-3:-1])
    columns = left @ rows.transpose(-3, -2).flatten(-2)
    found = columns.unflatten(-1, (flat.shape[-3], -1)).transpose(-3, -2)
    return found.unflatten(nets, x.shape[nets:-2])


def outer(a: Tensor, b: Tensor) -> Tensor:
    """`a bᵀ` for vectors (*, p) and (*, q)."""
    return a.unsqueeze(-1) * b.unsqueeze(-2)


def shifted(matrix: Tensor, amount: Tensor) -> Tensor:
    """`M + amount I`."""
    moved = matrix.clone()
    torch.linalg.diagonal(moved).add_(amount.unsqueeze(-1))
    return moved


def quadratic(root: Tensor, matrix: Tensor) -> Tensor:
    """The diagonal of `rootᵀ M root`."""
    return (root * (matrix @ root)).sum(-2)


def inverse_root(matrix: Tensor, whose: str) -> Tensor:
    """An upper triangular R with `R Rᵀ = M⁻¹`, from the Cholesky factor of M.

    Where rounding leaves M without one, its eigenvalues are kept above a rounding error.
    """
    if matrix.is_cuda and torch.cuda.is_current_stream_capturing():
        return inverse_root_unseen(matrix)
    lower, failed = torch.linalg.cholesky_ex(matrix)
    if failed.any():
        values, directions = eigen(matrix, whose)
        roots = floored(values.unsqueeze(-2), whose).squeeze(-2).sqrt()
        kept = torch.linalg.qr(roots.unsqueeze(-1) * directions.mT).R.mT
        lower = torch.where(spread(failed != 0), kept, lower)
    return torch.linalg.solve_triangular(lower, _eye(matrix), upper=False).mT


def inverse_root_unseen(matrix: Tensor) -> Tensor:
    """`inverse_root` without a look at the numbers, which a step in a CUDA graph cannot take.

    In double precision, with a rounding error of the trace more on the diagonal, and a thousand of
    them where that does not do.
    """
    wide = matrix.double()
    error = torch.finfo(matrix.dtype).eps * torch.linalg.diagonal(wide).sum(-1)
    lower, failed = torch.linalg.cholesky_ex(shifted(wide, error))
    safe = torch.linalg.cholesky_ex(shifted(wide, 1e3 * error)).L
    lower = torch.where(spread(failed != 0), safe, lower)
    found = torch.linalg.solve_triangular(lower, _eye(wide), upper=False).mT
    return found.to(matrix.dtype)


def inverse_roots(matrices: list[Tensor], whose: str) -> list[Tensor]:
    """`inverse_root` of matrices of several sizes at once, each as a block beside an identity."""
    first, wide = matrices[0], max(matrix.shape[-1] for matrix in matrices)
    shape = len(matrices), *first.shape[:-2], wide, wide
    whole = torch.eye(wide, dtype=first.dtype, device=first.device).expand(shape).clone()
    for place, matrix in zip(whole, matrices, strict=True):
        size = matrix.shape[-1]
        place[..., :size, :size] = matrix
    found = inverse_root(whole, whose)
    sizes = [matrix.shape[-1] for matrix in matrices]
    return [root[..., :n, :n] for root, n in zip(found, sizes, strict=True)]


def eigen(matrix: Tensor, whose: str) -> tuple[Tensor, Tensor]:
    """Eigenvalues, at least zero, and eigenvectors of a factor."""
    _refuse_not_finite(matrix, whose)
    known = torch.linalg.diagonal(matrix)
    plain = (matrix == torch.diag_embed(known)).flatten(-2).all(-1)
    if plain.all():
        # As every factor is to begin with.
        return known.clamp_min(0.0), _eye(matrix).expand_as(matrix).clone()
    values, directions = torch.linalg.eigh(matrix)
    if plain.any():
        values = torch.where(plain.unsqueeze(-1), known, values)
        directions = torch.where(spread(plain), _eye(matrix), directions)
    # Laid out by rows, as a file has them: products round by the layout.
    return values.clamp_min(0.0), directions.contiguous()


def floored(values: Tensor, whose: str) -> Tensor:
    """The eigenvalues (*, p, q) of a matrix kept above a rounding error of the largest."""
    _refuse_not_finite(values, whose)
    largest = values.amax((-2, -1), keepdim=True)
    if not bool((largest > 0).all()):
        raise ValueError(
            f"The curvature of {whose} is zero and nothing is added to it, so it has no inverse. "
            "A positive prior_precision mends this."
        )
    return values.maximum(largest * torch.finfo(values.dtype).eps)


def _eye(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


def _refuse_not_finite(values: Tensor, whose: str) -> None:
    if not bool(values.isfinite().all()):
        raise ValueError(
            f"The curvature of {whose} holds numbers that are not finite: the training diverged. "
            "A smaller learning_rate, or a larger prior_precision or damping, mends this."
        )
