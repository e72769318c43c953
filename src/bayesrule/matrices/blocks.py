"""Block-diagonal matrices: groups of parameters, each with its own structure or no variance."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from bayesrule.matrices._base import Matrix, Structure
from bayesrule.matrices.layer_rows import numbered
from bayesrule.tensors import vectors
from bayesrule.tensors.abilities import derived, every, first, some
from bayesrule.types import Params, Rows

Names = tuple[str, ...]


def grouped(patterns: Iterable[str], names: Collection[str]) -> dict[str, Names]:
    """The names that match each pattern; the first match counts, and `|` means or.

    >>> grouped(["*.bias|head.*", "*"], ["a.weight", "a.bias", "head.weight"])
    {'*.bias|head.*': ('a.bias', 'head.weight'), '*': ('a.weight',)}
    """
    remaining, groups = list(names), {}
    for pattern in patterns:
        for part in pattern.split("|"):
            if not fnmatch.filter(names, part):
                raise ValueError(f"No parameter is named {part!r}. There are: {', '.join(names)}.")
        groups[pattern] = tuple(name for name in remaining if _fits(name, pattern))
        remaining = [name for name in remaining if name not in groups[pattern]]
    if remaining:
        raise ValueError(f"{remaining[0]!r} fits no pattern; add one for all others: '*'.")
    return {pattern: members for pattern, members in groups.items() if members}


def _fits(name: str, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(name, part) for part in pattern.split("|"))


def pick(params: Params, names: Iterable[str]) -> Params:
    """Only the named parameters."""
    return {name: params[name] for name in names}


@dataclass(frozen=True)
class KnownMatrix(Matrix):
    """An infinite precision: every product with it or its inverse counts as zero."""

    independent = True

    def matmul(self, vector: Params) -> Params:
        return vectors.zeros_like(vector)

    solve = matmul

    def inv_sqrt(self, noise: Params) -> Params:
        return vectors.zeros_like(noise)

    def diagonal(self) -> Params:
        return {}

    inverse_diagonal = diagonal

    def logdet(self) -> Tensor:
        return torch.zeros(())

    def trace_solve(self, other: Matrix) -> Tensor:
        return torch.zeros(())

    def output_covariance(self, rows: Rows) -> Tensor:
        return torch.zeros(())

    def unchanged(self, *args: Any, **kwargs: Any) -> Self:
        """The matrix itself, whatever is added to it or averaged with it."""
        return self

    plus = times = damped = lerp_ = retract_ = price_ = only = unchanged


@dataclass(frozen=True)
class Known(Structure):
    """The structure of parameters that have no variance."""

    moves = False
    independent = True
    says_if_negative = True
    matrix: ClassVar[KnownMatrix] = KnownMatrix()

    def identity(self, params: Params, scale: float) -> KnownMatrix:
        return self.matrix

    def contract(self, rows: Rows) -> KnownMatrix:
        return self.matrix

    def project(self, matrix: Tensor, params: Params) -> KnownMatrix:
        return self.matrix


@dataclass(frozen=True)
class UnitMatrix(KnownMatrix):
    """The identity, whatever the data: natural parameters move by plain gradients."""

    def matmul(self, vector: Params) -> Params:
        return vector

    solve = matmul


class Unit(Known):
    """The structure of natural parameters that move by plain gradients."""

    matrix = UnitMatrix()


def _in_blocks(operation: str) -> Any:
    """A matrix operation, block by block; other block matrices contribute their own blocks."""

    def blockwise(self: BlockMatrix, *args: Any) -> BlockMatrix:
        blocks = {}
        for group, block in self.blocks.items():
            parts = (arg.blocks[group] if isinstance(arg, BlockMatrix) else arg for arg in args)
            blocks[group] = getattr(block, operation)(*parts)
        return replace(self, blocks=blocks)

    return blockwise


def _of_vectors(operation: str) -> Any:
    """An operation on a vector, which each block applies to its own part."""

    def blockwise(self: BlockMatrix, vector: Params) -> Params:
        parts: Params = {}
        for group, block in self.blocks.items():
            # A vector may leave out parameters that have no variance.
            if part := {name: vector[name] for name in self.groups[group] if name in vector}:
                parts |= getattr(block, operation)(part)
        return {name: parts[name] for name in vector}

    return blockwise


@dataclass(frozen=True)
class BlockMatrix(Matrix):
    """One matrix for each group of parameters, and zero between groups."""

    blocks: dict[str, Matrix]
    groups: dict[str, Names]

    independent = every("blocks", "independent")

    matmul = _of_vectors("matmul")
    solve = _of_vectors("solve")
    inv_sqrt = _of_vectors("inv_sqrt")
    slope = _of_vectors("slope")
    plus = _in_blocks("plus")
    times = _in_blocks("times")
    times_ = _in_blocks("times_")
    damped = _in_blocks("damped")
    lerp_ = _in_blocks("lerp_")
    retract_ = _in_blocks("retract_")
    summed_over_draws = _in_blocks("summed_over_draws")
    anew = _in_blocks("anew")
    refreshed = _in_blocks("refreshed")

    def _sum(self, function: Callable[[str, Matrix], Tensor]) -> Tensor:
        parts = [function(group, block) for group, block in self.blocks.items()]
        return sum(parts[1:], parts[0])

    def logdet(self) -> Tensor:
        return self._sum(lambda _, block: block.logdet())

    def diagonal(self) -> Params:
        return {k: v for block in self.blocks.values() for k, v in block.diagonal().items()}

    def inverse_diagonal(self) -> Params:
        return {k: v for block in self.blocks.values() for k, v in block.inverse_diagonal().items()}

    def trace_solve(self, other: Matrix) -> Tensor:
        def of_block(group: str, block: Matrix) -> Tensor:
            # The other matrix may leave out parameters that have no variance.
            known = isinstance(block, KnownMatrix)
            return block.trace_solve(block if known else other.only(self.groups[group]))

        return self._sum(of_block)

    def output_covariance(self, rows: Rows) -> Tensor:
        return self._sum(
            lambda group, block: block.output_covariance(rows.only(self.groups[group]))
        )

    def price_(self, offset: Params, gradient: Params) -> BlockMatrix:
        blocks = {
            k: block.price_(pick(offset, self.groups[k]), pick(gradient, self.groups[k]))
            for k, block in self.blocks.items()
        }
        return replace(self, blocks=blocks)

    def derived(self) -> Params:
        return {
            f"{group}/{name}": tensor
            for group, block in self.blocks.items()
            for name, tensor in block.derived().items()
        }

    def restore(self, derived: Params) -> None:
        for group, block in self.blocks.items():
            start = f"{group}/"
            block.restore(
                {k.removeprefix(start): v for k, v in derived.items() if k.startswith(start)}
            )

    def only(self, names: Names) -> Matrix:
        for group, members in self.groups.items():
            if set(members) == set(names):
                return self.blocks[group]
        return super().only(names)


@dataclass(frozen=True)
class Blocks(Structure):
    """Groups of parameters by name or pattern, each with a structure of its own.

    >>> from bayesrule.matrices import Dense, Known
    >>> params = {"head.weight": torch.zeros(1, 2), "body.weight": torch.zeros(2, 2)}
    >>> Blocks({"head.*": Dense(), "*": Known()}).identity(params, 2.0).logdet()
    tensor(1.3863)
    """

    parts: Mapping[str, Structure]

    draws_together = every("parts", "draws_together")
    independent = every("parts", "independent")
    moves = some("parts", "moves")
    only_positive = some("parts", "only_positive")
    layered = some("parts", "layered")
    rank_obstacle = first("parts", "rank_obstacle")
    piece_obstacle = first("parts", "piece_obstacle")

    @derived
    def says_if_negative(self) -> bool:
        """Whether every block that data change raises an error if it is negative."""
        return all(part.says_if_negative for part in self.parts.values() if part.moves)

    def in_bases_of(self, matrix: Matrix) -> Structure:
        assert isinstance(matrix, BlockMatrix)
        blocks = {k: self.parts[k].in_bases_of(block) for k, block in matrix.blocks.items()}
        return replace(self, parts={**self.parts, **blocks})

    def for_model(self, model: nn.Module) -> Blocks:
        return replace(self, parts={k: part.for_model(model) for k, part in self.parts.items()})

    def exactly_damped(self) -> Blocks:
        return replace(self, parts={k: part.exactly_damped() for k, part in self.parts.items()})

    def _matrix(
        self, names: Collection[str], block: Callable[[Structure, Names], Matrix]
    ) -> BlockMatrix:
        groups = grouped(self.parts, names)
        return BlockMatrix(
            {k: block(self.parts[k], members) for k, members in groups.items()}, groups
        )

    def identity(self, params: Params, scale: float) -> BlockMatrix:
        return self._matrix(params, lambda part, names: part.identity(pick(params, names), scale))

    def contract(self, rows: Rows) -> BlockMatrix:
        return self._matrix(tuple(rows.names), lambda part, names: part.contract(rows.only(names)))

    def project(self, matrix: Tensor, params: Params) -> BlockMatrix:
        index = numbered(params)

        def block(part: Structure, names: Names) -> Matrix:
            keep = torch.cat([index[name].reshape(-1) for name in names])
            return part.project(matrix[keep][:, keep], pick(params, names))

        return self._matrix(params, block)
