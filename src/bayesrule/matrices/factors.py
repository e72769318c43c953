"""The two factors of a Kronecker product, how they are averaged and damped, and their roots."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesrule.types import Number

# Traces below the first count as zero, and the second bounds the ratio of two traces, so that the
# damping of a factor is finite in every dtype.
_TINY, _FAR = 1e-30, 1e20


def _inverse(value: Tensor) -> Tensor:
    """`1 / x`, and 0 for 0."""
    return torch.where(value == 0, value, value.reciprocal())


@dataclass(frozen=True)
class Factors:
    """`A ⊗ S + damping I` with `A = input / count`: means over inputs, sums over output gradients.

    - `input` (in, in) or, between two layers, (in, in'): `Σ a aᵀ` over `count` inputs.
    - `output` (out, out) or (out, out'): `Σ g gᵀ`, which carries all factors of scale.
    - `count`, `damping`: 0-d.

    The factors of several nets are stacked along a first axis of all four tensors.

    Sums over batches and machines add all four, so that A is the mean over all inputs and S the sum
    over all gradients. A multiple scales S. An average averages A and S separately.
    """

    input: Tensor
    output: Tensor
    count: Tensor
    damping: Tensor

    @classmethod
    def of(cls, moments: tuple[Tensor, Tensor, int | Tensor]) -> Factors:
        """From `LayerRows.moments`."""
        inputs, outputs, num = moments
        shape = outputs.shape[:-2]
        if isinstance(num, Tensor):
            count = num.to(outputs).expand(shape)
        else:
            count = outputs.new_full(shape, float(num))
        return cls(inputs, outputs, count, outputs.new_zeros(shape))

    @classmethod
    def identity(cls, size: tuple[int, int], scale: float, like: Tensor) -> Factors:
        """`scale · I`: A is the identity, as if from one input; scale 0 is a sum over no data."""
        outputs, inputs = (torch.eye(n, dtype=like.dtype, device=like.device) for n in size)
        count = like.new_tensor(float(scale != 0))
        return cls(inputs * count, outputs * scale, count, like.new_tensor(0.0))

    @property
    def mean_input(self) -> Tensor:
        """`A`, zero if there were no inputs."""
        return self.input * spread(_inverse(self.count))

    def plus(self, other: Factors) -> Factors:
        """The factors over the data of both operands."""
        return Factors(
            self.input + other.input,
            self.output + other.output,
            self.count + other.count,
            self.damping + other.damping,
        )

    def times(self, factor: Number) -> Factors:
        """`factor (A ⊗ S + damping I)`; the factor is a number, or one for each net."""
        for_output = spread(factor) if isinstance(factor, Tensor) else factor
        return Factors(self.input, self.output * for_output, self.count, self.damping * factor)

    def damped(self, damping: Number) -> Factors:
        """The factors with `damping` added, a number or one for each net."""
        return Factors(self.input, self.output, self.count, self.damping + damping)

    def lerp(self, target: Factors, rate: Number) -> Factors:
        """`(1 − rate) A + rate A'`, and the same for S; a sum over no data does not enter A."""
        count = self.count.lerp(target.count, rate)
        # Cast, because a bool times a number has the default dtype.
        has_data, target_has_data = ((factors.count != 0).to(count) for factors in (self, target))
        shares = (1.0 - rate) * has_data, rate * target_has_data
        total = count * _inverse(shares[0] + shares[1])
        gain, target_gain = (
            total * share * _inverse(factors.count)
            for share, factors in zip(shares, (self, target), strict=True)
        )
        return Factors(
            self.input * spread(gain) + target.input * spread(target_gain),
            self.output.lerp(target.output, rate),
            count,
            self.damping.lerp(target.damping, rate),
        )

    def retract(self, target: Factors, rate: Number, precision: Factors) -> Factors:
        """As `lerp`: only the damping may be negative and needs the retraction."""
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
        # A sum with negative multiples may have a negative damping.
        root = self.damping.clamp_min(0.0).sqrt()
        return pi * root, root / pi


@dataclass(frozen=True)
class Root:
    """`P⁻¹ = (right ⊗ left) diag(gains) (right ⊗ left)ᵀ` on matrices (out, in).

    `left` is (out, out), `right` (in, in) and `gains` (out, in). Stacked nets come along a first
    axis; noise may have axes of draws between that and those of its matrices. `white` says that all
    gains are one. `turns` are orthogonal matrices of the sizes of `left` and `right` that are
    applied to noise first: they undo the arbitrary choice of eigenvectors among equal eigenvalues
    in `left` and `right`, so that a draw does not depend on it.
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
        x = self.left.mT @ x @ self.right
        return self.left @ (x if self.white else self.gains * x) @ self.right.mT

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
        diagonal = outer(quadratic(self.left, s), quadratic(self.right, a))
        return (self.gains * diagonal).sum((-2, -1))

    def through(self, left: Tensor, right: Tensor) -> Root:
        """The root of `(right ⊗ left)ᵀ P⁻¹ (right ⊗ left)`, P⁻¹ after a linear map."""
        return replace(self, left=left.mT @ self.left, right=right.mT @ self.right)


def spread(values: Tensor) -> Tensor:
    """Numbers (num,) or 0-d, one for each net, to broadcast against matrices (*, p, q)."""
    return values[..., None, None]


def between(left: Tensor, x: Tensor, right: Tensor) -> Tensor:
    """`L X Rᵀ` for X (*nets, *draws, out, in), by two products for each net and all its draws."""
    nets = left.ndim - 2
    if x.ndim == left.ndim:
        return left @ x @ right.mT
    flat = x.flatten(nets, -3)
    rows = (flat.flatten(-3, -2) @ right.mT).unflatten(-2, flat.shape[-3:-1])
    columns = left @ rows.transpose(-3, -2).flatten(-2)
    product = columns.unflatten(-1, (flat.shape[-3], -1)).transpose(-3, -2)
    return product.unflatten(nets, x.shape[nets:-2])


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

    If M has none because of rounding, its eigenvalues are kept above a rounding error.
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
    """`inverse_root` without reading any number, which a step in a CUDA graph cannot do.

    It works in double precision, with a rounding error of the trace added to the diagonal, or a
    thousand of these if one is not enough.
    """
    double = matrix.double()
    error = torch.finfo(matrix.dtype).eps * torch.linalg.diagonal(double).sum(-1)
    lower, failed = torch.linalg.cholesky_ex(shifted(double, error))
    safe = torch.linalg.cholesky_ex(shifted(double, 1e3 * error)).L
    lower = torch.where(spread(failed != 0), safe, lower)
    root = torch.linalg.solve_triangular(lower, _eye(double), upper=False).mT
    return root.to(matrix.dtype)


def inverse_roots(matrices: list[Tensor], whose: str) -> list[Tensor]:
    """`inverse_root` of several matrices at once, padded to one size with ones on the diagonal."""
    like, sizes = matrices[0], [matrix.shape[-1] for matrix in matrices]
    widest = max(sizes)
    shape = len(matrices), *like.shape[:-2], widest, widest
    padded = torch.eye(widest, dtype=like.dtype, device=like.device).expand(shape).clone()
    for block, matrix, n in zip(padded, matrices, sizes, strict=True):
        block[..., :n, :n] = matrix
    roots = inverse_root(padded, whose)
    return [root[..., :n, :n] for root, n in zip(roots, sizes, strict=True)]


def eigen(matrix: Tensor, whose: str) -> tuple[Tensor, Tensor]:
    """Eigenvalues, clamped at zero, and eigenvectors of a factor."""
    _refuse_not_finite(matrix, whose)
    diagonal = torch.linalg.diagonal(matrix)
    is_diagonal = (matrix == torch.diag_embed(diagonal)).flatten(-2).all(-1)
    if is_diagonal.all():
        # Every factor is diagonal at the start.
        return diagonal.clamp_min(0.0), _eye(matrix).expand_as(matrix).clone()
    values, directions = torch.linalg.eigh(matrix)
    if is_diagonal.any():
        values = torch.where(is_diagonal.unsqueeze(-1), diagonal, values)
        directions = torch.where(spread(is_diagonal), _eye(matrix), directions)
    # Row-major, as after loading from a file: the rounding of products depends on the layout.
    return values.clamp_min(0.0), directions.contiguous()


def floored(values: Tensor, whose: str) -> Tensor:
    """The eigenvalues (*, p, q) of a matrix, kept above a rounding error of the largest."""
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
