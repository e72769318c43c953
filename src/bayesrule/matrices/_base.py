"""The contract of every structure that a precision or a curvature may have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Self

from torch import Tensor, nn

from bayesrule.tensors import vectors
from bayesrule.types import Params, Rows


class Matrix(ABC):
    """A symmetric matrix over all parameters, kept in one structure.

    Curvatures `F` (positive semi-definite or an estimate that may be negative) and precisions
    `S = F + δI` are both such matrices. Operations return new matrices; nothing changes in place.
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
    def times(self, factor: float | Tensor) -> Self:
        """`factor S`."""

    @abstractmethod
    def damped(self, damping: float) -> Self:
        """`S + damping I`."""

    @abstractmethod
    def lerp(self, target: Self, rate: float | Tensor) -> Self:
        """`(1 − rate) F + rate T`: the natural-gradient step of a precision."""

    @abstractmethod
    def retract(self, target: Self, rate: float | Tensor, precision: Self) -> Self:
        """A step towards a target that may be negative, after which the precision is positive.

        `F + ρG + ½ρ² G S⁻¹ G` with `G = T − F` and the precision S, which is F with the prior:
        Lin, Schmidt & Khan (2020), eq. 17.
        """

    @abstractmethod
    def price(self, offset: Params, gradient: Params) -> Self:
        """Price's curvature from one draw: `E[∇²ℓ] = E[S (θ − m) ∇ℓᵀ]`, symmetric part."""

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

    def anew(self) -> Matrix:
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

    # The same, for matrices and vectors that nobody else has: their memory may be used again.

    def times_(self, factor: float | Tensor) -> Self:
        """`factor S`; may use up S."""
        return self.times(factor)

    def descend_(self, point: Params, gradient: Params, rate: float | Tensor) -> Params:
        """`x − rate S⁻¹ g`; may use up x."""
        return vectors.add_(point, self.solve(gradient), alpha=-rate)

    def lerp_(self, target: Self, rate: float | Tensor) -> Self:
        """`(1 − rate) F + rate T`; may use up F."""
        return self.lerp(target, rate)

    def price_(self, offset: Params, gradient: Params) -> Self:
        """As `price`; may use up the offset."""
        return self.price(offset, gradient)

    def retract_(self, target: Self, rate: float | Tensor, precision: Self) -> Self:
        """As `retract`; may use up F and T."""
        return self.retract(target, rate, precision)


class Structure(ABC):
    """A choice of structure: makes matrices of it, from the identity or from rows.

    What its matrices can do:

    - `moves`: data change it; False where it stays as it is.
    - `independent`: its matrices are diagonal, with one number for each parameter or for all.
    - `elementwise`: each parameter has a number of its own, so roots can be taken one by one.
    - `only_positive`: it is kept by factors that are never negative, so it has no estimate by
      Price's theorem and no differences (heavy ball).
    - `positive_part`: of a negative curvature it keeps what is positive, so it needs no retraction.
    - `needs_layers`: it can only be made from single examples, layer by layer.
    - `says_if_negative`: it can be negative and says so itself when it is used as a precision.
    - `mixes_entropy`: estimates hold the entropy's own curvature, which may be negative.
    - `has_eigenbases`: its matrices are diagonal in bases that they can be turned to.
    - `layered`: it is made layer by layer from inputs and output gradients.
    - `stacks`: its matrices can have the nets of a stack along their first axis.
    - `draws_together`: curvatures at several draws of a net can be summed at once.
    - `replays`: working with it waits for no number, so that a GPU can replay it.
    """

    moves: bool = True
    independent: bool = False
    elementwise: bool = False
    only_positive: bool = False
    positive_part: bool = False
    needs_layers: bool = False
    says_if_negative: bool = False
    mixes_entropy: bool = False
    has_eigenbases: bool = False
    layered: bool = False
    stacks: bool = False
    draws_together: bool = True
    replays: bool = False

    def words(self) -> str:
        """The choice, in a word or two."""
        return type(self).__name__

    @property
    def rank_obstacle(self) -> str | None:
        """Why curvatures cannot be summed over several machines, in words; None if they can."""
        return None

    def for_model(self, model: nn.Module) -> Structure:
        """The structure with what it has to know of a module; most know enough."""
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
