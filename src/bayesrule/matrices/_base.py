"""The contract of every structure that a precision or a curvature can have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Self

from torch import Tensor, nn

from bayesrule.tensors import vectors
from bayesrule.types import Number, Params, Part, Rows


class Matrix(ABC):
    """A symmetric matrix over all parameters, kept in one structure.

    Curvatures `F` (positive semi-definite, or an estimate that may be negative) and precisions
    `S = F + δI` are both such matrices. Operations return new matrices; only those whose names end
    in an underscore may overwrite their arguments.
    """

    independent: bool = False
    """Whether the matrix is diagonal."""

    @abstractmethod
    def matmul(self, vector: Params) -> Params:
        """`S v`."""

    @abstractmethod
    def solve(self, vector: Params) -> Params:
        """`S⁻¹ v`."""

    @abstractmethod
    def inv_sqrt(self, noise: Params) -> Params:
        """`B ε` with `B Bᵀ = S⁻¹`: turns white noise into a draw of N(0, S⁻¹)."""

    @abstractmethod
    def logdet(self) -> Tensor:
        """`log |S|`, a 0-d tensor."""

    @abstractmethod
    def diagonal(self) -> Params:
        """The diagonal of S."""

    @abstractmethod
    def inverse_diagonal(self) -> Params:
        """The diagonal of S⁻¹, the marginal variances."""

    @abstractmethod
    def trace_solve(self, other: Matrix) -> Tensor:
        """`tr(S⁻¹ P)` for another matrix P that is diagonal or of the same structure."""

    @abstractmethod
    def output_covariance(self, rows: Rows) -> Tensor:
        """`J S⁻¹ Jᵀ` of each example, (n, V, V), for the rows J of V outputs."""

    @abstractmethod
    def plus(self, other: Self) -> Self:
        """`S + P`."""

    @abstractmethod
    def times(self, factor: Number) -> Self:
        """`factor S`."""

    @abstractmethod
    def damped(self, damping: float) -> Self:
        """`S + damping I`."""

    @abstractmethod
    def lerp_(self, target: Self, rate: Number) -> Self:
        """`(1 − rate) F + rate T`: the natural-gradient step of a precision; may overwrite F."""

    @abstractmethod
    def retract_(self, target: Self, rate: Number, precision: Self) -> Self:
        """A step towards a target that may be negative, after which the precision is positive.

        `F + ρG + ½ρ² G S⁻¹ G` with `G = T − F`, where the precision S is F plus that of the prior:
        Lin, Schmidt & Khan (2020), eq. 17. May overwrite F and T.
        """

    def price_(self, offset: Params, gradient: Params) -> Self:
        """Price's curvature at one draw, `E[∇²ℓ] = E[S (θ − m) ∇ℓᵀ]`; may overwrite `offset`."""
        raise TypeError(
            f"Price's estimate may be negative, and the factors of {type(self).__name__} are not; "
            "use Fisher(), PerExample() or GGN(), or Diagonal() for Price()."
        )

    def second_moment(self, mean: Params) -> Params | Tensor:
        """`E[θθᵀ]` of the Gaussian with this precision, as far as the structure keeps it."""
        raise TypeError(
            f"{type(self).__name__} is not an exponential family, so it has no expectation "
            "parameters. Isotropic, Diagonal and Dense have."
        )

    def only(self, names: tuple[str, ...]) -> Matrix:
        """The block of the named parameters, if nothing links them to the others."""
        raise TypeError(f"{type(self).__name__} has no block for {', '.join(names)} alone.")

    def slope(self, std: Params) -> Params:
        """`∂E[ℓ]/∂σ = σ ∘ diag(F)` for the curvature `F = E[∇²ℓ]`; may overwrite F."""
        diagonal = self.diagonal()
        return vectors.mul({name: diagonal[name] for name in std}, std)

    def summed_over_draws(self, drawn: Params) -> Matrix:
        """The sum over draws, for tensors with the axis of draws that the `drawn` weights have."""
        return self

    def adds_to(self, other: Matrix) -> bool:
        """Whether `other.plus(self)` is a matrix of the same kind as `other`."""
        return isinstance(self, type(other))

    # Quantities that a matrix computes from its tensors once and keeps, such as roots.

    several_draws: bool = False
    """Whether `inv_sqrt` takes noise with an axis of draws after that of stacked nets."""

    def anew(self) -> Self:
        """The same tensors in a new object, which keeps nothing computed from them."""
        return replace(self)  # type: ignore[type-var]

    def derived(self) -> Params:
        """The kept quantities that steps use, to be carried along with the matrix's own tensors."""
        return {}

    def restore(self, derived: Params) -> None:  # noqa: B027
        """Takes over what `derived` returned for the same matrix, instead of computing it."""

    def refreshed(self) -> Self:
        """The same matrix, with anything taken over from an earlier one computed anew."""
        return self

    # In-place versions, for matrices and vectors that nobody else uses.

    def times_(self, factor: Number) -> Self:
        """`factor S`; may overwrite S."""
        return self.times(factor)

    def descend_(self, point: Params, gradient: Params, rate: Number) -> Params:
        """`x − rate S⁻¹ g`; may overwrite x."""
        return vectors.add_(point, self.solve(gradient), alpha=-rate)

    def descend_shortened_(
        self, point: Params, gradient: Params, rate_of: Callable[[Tensor], Number], nets: int = 0
    ) -> Params:
        """`x − rate S⁻¹ g` with a rate that depends on `gᵀ S⁻¹ g`; may overwrite x.

        With `nets=1`, `gᵀ S⁻¹ g` is computed for each net of a stack, (num,).
        """
        direction = self.solve(gradient)
        rate = rate_of(vectors.dot(gradient, direction, nets))
        return vectors.add_(point, direction, alpha=-rate)

    # Versions that overwrite nothing.

    def lerp(self, target: Self, rate: Number) -> Self:
        """As `lerp_`, but overwrites nothing."""
        return self.times(1.0).lerp_(target, rate)

    def retract(self, target: Self, rate: Number, precision: Self) -> Self:
        """As `retract_`, but overwrites nothing."""
        return self.times(1.0).retract_(target.times(1.0), rate, precision)

    def price(self, offset: Params, gradient: Params) -> Self:
        """As `price_`, but overwrites nothing."""
        return self.price_(vectors.scale(offset, 1.0), gradient)


class Structure(Part, ABC):
    """A choice of structure: makes matrices, and says what they can do."""

    moves: bool = True  # Data change the matrix; False: it stays as it is.
    independent: bool = False  # Matrices are diagonal: one number for each parameter, or for all.
    counts_each: bool = False  # Each parameter or layer counts as determined without others.
    elementwise: bool = False  # Each parameter has a number of its own, so roots can be taken.
    # It is kept by factors that are never negative: no estimates by Price's theorem and no
    # differences (heavy ball).
    only_positive: bool = False
    positive_part: bool = False  # It keeps the positive part of a curvature: needs no retraction.
    needs_layers: bool = False  # It can only be made from rows that are known layer by layer.
    says_if_negative: bool = False  # A negative matrix that is used as a precision raises an error.
    mixes_entropy: bool = False  # Estimates include the entropy's curvature: may be negative.
    has_eigenbases: bool = False  # Matrices are diagonal in bases that parameters can be taken to.
    layered: bool = False  # It is made layer by layer from inputs and output gradients.
    stacks: bool = False  # Matrices of several nets can be stacked along a first axis.
    draws_together: bool = True  # Curvatures at several draws of a net can be summed at once.
    replays: bool = False  # No operation waits for a number, so a CUDA graph can replay it.
    rank_obstacle: str | None = None  # Why matrices cannot be summed over machines, in words.
    piece_obstacle: str | None = None  # Why the pieces of a batch do not add up to the whole.

    @classmethod
    def check(cls, candidate: object, taker: str) -> None:
        """Refuses anything but a structure."""
        if not isinstance(candidate, cls):
            raise TypeError(f"{taker} takes a structure such as Diagonal(), got {candidate!r}.")

    def for_model(self, model: nn.Module) -> Structure:
        """The structure with what it has to know of a module; most need to know nothing."""
        return self

    def own_form(self, matrix: Matrix) -> Matrix:
        """A matrix from earlier data in the form that this structure uses, if it has several."""
        return matrix

    def exactly_damped(self) -> Structure:
        """The structure whose matrices are damped by exactly `d I`; for most it is the same."""
        return self

    def in_bases_of(self, matrix: Matrix) -> Structure:
        """The structure of curvatures in the bases of a matrix, to be averaged with it there."""
        return self

    @abstractmethod
    def identity(self, params: Params, scale: float) -> Matrix:
        """`scale · I` over the given parameters."""

    @abstractmethod
    def contract(self, rows: Rows) -> Matrix:
        """`Σ r rᵀ`, or what the structure keeps of it."""

    @abstractmethod
    def project(self, matrix: Tensor, params: Params) -> Matrix:
        """What the structure keeps of a dense matrix (P, P) over the given parameters."""
