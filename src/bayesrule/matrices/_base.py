"""The contract of every structure that a precision or a curvature may have."""

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

    Curvatures `F` (positive semi-definite or an estimate that may be negative) and precisions
    `S = F + δI` are both such matrices. Operations return new matrices and leave others as they
    are, except where their names end in an underscore.
    """

    independent: bool = False
    """Whether it is diagonal: each parameter has a number of its own."""

    @abstractmethod
    def matmul(self, vector: Params) -> Params:
        """`S v`."""

    @abstractmethod
    def solve(self, vector: Params) -> Params:
        """`S⁻¹ v`."""

    @abstractmethod
    def inv_sqrt(self, noise: Params) -> Params:
        """`B ε` with `B Bᵀ = S⁻¹`: white noise to a draw of the Gaussian with precision S."""

    @abstractmethod
    def logdet(self) -> Tensor:
        """`log |S|`, a 0-d tensor."""

    @abstractmethod
    def diagonal(self) -> Params:
        """The diagonal of S."""

    @abstractmethod
    def inverse_diagonal(self) -> Params:
        """The diagonal of S⁻¹: marginal variances."""

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
        """`(1 − rate) F + rate T`: the natural-gradient step of a precision; may use up F."""

    @abstractmethod
    def retract_(self, target: Self, rate: Number, precision: Self) -> Self:
        """A step towards a target that may be negative, after which the precision is positive.

        `F + ρG + ½ρ² G S⁻¹ G` with `G = T − F` and the precision S, which is F with the prior:
        Lin, Schmidt & Khan (2020), eq. 17. May use up F and T.
        """

    def price_(self, offset: Params, gradient: Params) -> Self:
        """Price's curvature from one draw, `E[∇²ℓ] = E[S (θ − m) ∇ℓᵀ]`; may use up the offset."""
        raise TypeError(
            f"Price's estimate may be negative, and the factors of {type(self).__name__} are not; "
            "use Fisher(), PerExample() or GGN(), or Diagonal() for Price()."
        )

    def second_moment(self, mean: Params) -> Params | Tensor:
        """`E[θθᵀ]` of the Gaussian with this precision, as far as the structure knows it."""
        raise TypeError(
            f"{type(self).__name__} is not an exponential family, so it has no expectation "
            "parameters. Isotropic, Diagonal and Dense have."
        )

    def only(self, names: tuple[str, ...]) -> Matrix:
        """The block of the named parameters, where it does not depend on the others."""
        raise TypeError(f"{type(self).__name__} has no block for {', '.join(names)} alone.")

    def slope(self, std: Params) -> Params:
        """`∂E[ℓ]/∂σ = σ ∘ diag`, where this is the curvature `E[∇²ℓ]`; may use it up."""
        diagonal = self.diagonal()
        return vectors.mul({name: diagonal[name] for name in std}, std)

    def summed_over_draws(self, drawn: Params) -> Matrix:
        """The sum over draws, for what has an axis of them as the drawn weights have."""
        return self

    def adds_to(self, other: Matrix) -> bool:
        """Whether `other.plus(self)` is a matrix of the other's kind."""
        return isinstance(self, type(other))

    # What a matrix has worked out from its tensors and keeps, such as roots.

    several_draws: bool = False
    """Whether `inv_sqrt` takes noise with an axis of draws after that of the nets of a stack."""

    def anew(self) -> Self:
        """The same tensors in a new object, which has worked out nothing yet."""
        return replace(self)  # type: ignore[type-var]

    def derived(self) -> Params:
        """What steps use of this matrix besides its own tensors, to be carried along with them."""
        return {}

    def restore(self, derived: Params) -> None:  # noqa: B027
        """Takes what `derived` gave of the same matrix, instead of working it out."""

    def refreshed(self) -> Self:
        """The same matrix, with all that was kept of an earlier one found anew."""
        return self

    # For matrices and vectors that nobody else has: their memory may be used again.

    def times_(self, factor: Number) -> Self:
        """`factor S`; may use up S."""
        return self.times(factor)

    def descend_(self, point: Params, gradient: Params, rate: Number) -> Params:
        """`x − rate S⁻¹ g`; may use up x."""
        return vectors.add_(point, self.solve(gradient), alpha=-rate)

    def descend_shortened_(
        self, point: Params, gradient: Params, rate_of: Callable[[Tensor], Number], nets: int = 0
    ) -> Params:
        """`x − rate S⁻¹ g` with a rate that depends on `gᵀ S⁻¹ g`; may use up x.

        With `nets=1` each net of a stack has such a number of its own, (num,).
        """
        direction = self.solve(gradient)
        rate = rate_of(vectors.dot(gradient, direction, nets))
        return vectors.add_(point, direction, alpha=-rate)

    # The same, for those that others still need.

    def lerp(self, target: Self, rate: Number) -> Self:
        """As `lerp_`; uses up nothing."""
        return self.times(1.0).lerp_(target, rate)

    def retract(self, target: Self, rate: Number, precision: Self) -> Self:
        """As `retract_`; uses up nothing."""
        return self.times(1.0).retract_(target.times(1.0), rate, precision)

    def price(self, offset: Params, gradient: Params) -> Self:
        """As `price_`; uses up nothing."""
        return self.price_(vectors.scale(offset, 1.0), gradient)


class Structure(Part, ABC):
    """A choice of structure, and what its matrices can do: makes them from rows, for example."""

    moves: bool = True  # Data change it; False where it stays as it is.
    independent: bool = False  # Matrices are diagonal: a number for each parameter or for all.
    counts_each: bool = False  # Parameters, or layers, are determined without a look at others.
    elementwise: bool = False  # Each parameter has a number of its own, so roots can be taken.
    # It is kept by factors that are never negative, so it has no estimate by Price's theorem and
    # no differences (heavy ball).
    only_positive: bool = False
    positive_part: bool = False  # It keeps what is positive of a curvature: no retraction needed.
    needs_layers: bool = False  # It can only be made from single examples, layer by layer.
    says_if_negative: bool = False  # It says so when it is used as a precision and is negative.
    mixes_entropy: bool = False  # Estimates hold the entropy's own curvature: perhaps negative.
    has_eigenbases: bool = False  # Matrices are diagonal in bases that they can be turned to.
    layered: bool = False  # It is made layer by layer from inputs and output gradients.
    stacks: bool = False  # Matrices can have the nets of a stack along their first axis.
    draws_together: bool = True  # Curvatures at several draws of a net can be summed at once.
    replays: bool = False  # Working with it waits for no number, so that a GPU can replay it.
    rank_obstacle: str | None = None  # Why it cannot be summed over several machines, in words.
    piece_obstacle: str | None = None  # Why those of pieces of a batch do not add up to its own.

    @classmethod
    def check(cls, given: object, taker: str) -> None:
        """Refuses what is no structure."""
        if not isinstance(given, cls):
            raise TypeError(f"{taker} takes a structure such as Diagonal(), got {given!r}.")

    def for_model(self, model: nn.Module) -> Structure:
        """The structure with what it has to know of a module; most know enough."""
        return self

    def own_form(self, matrix: Matrix) -> Matrix:
        """A matrix of earlier data in the form of this structure, where there are several."""
        return matrix

    def exactly_damped(self) -> Structure:
        """The structure whose matrices are damped by `d I` exactly; for most it is the same."""
        return self

    def in_bases_of(self, matrix: Matrix) -> Structure:
        """The structure for curvatures to be averaged with a matrix whose bases are to be kept."""
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
