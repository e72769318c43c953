"""Block-diagonal matrices: groups of parameters, each with a structure of its own."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.matrices._base import Matrix, Structure
from bayesrule.matrices.known import KnownMatrix
from bayesrule.tensors.abilities import every, some
from bayesrule.types import Params, Rows

Names = tuple[str, ...]
Groups = Mapping[str, Names]
"""The parameters of each group, by the group's name."""


def grouped(patterns: Iterable[str], names: Collection[str]) -> dict[str, Names]:
    """The names that fit each pattern; of several patterns the first counts, and `|` means or.

    >>> grouped(["*.bias|head.*", "*"], ["a.weight", "a.bias", "head.weight"])
    {'*.bias|head.*': ('a.bias', 'head.weight'), '*': ('a.weight',)}
    """
    left, groups = list(names), {}
    for pattern in patterns:
        for part in pattern.split("|"):
            if not fnmatch.filter(names, part):
                raise ValueError(f"No parameter is named {part!r}. There are: {', '.join(names)}.")
        groups[pattern] = tuple(name for name in left if _fits(name, pattern))
        left = [name for name in left if name not in groups[pattern]]
    if left:
        raise ValueError(f"{left[0]!r} fits no pattern; add one for all others: '*'.")
    return {pattern: members for pattern, members in groups.items() if members}


def _fits(name: str, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(name, part) for part in pattern.split("|"))


def pick(params: Params, names: Iterable[str]) -> Params:
    """Only the named parameters."""
    return {name: params[name] for name in names}


@dataclass(frozen=True)
class BlockMatrix(Matrix):
    """A matrix for each group of parameters, and nothing between groups."""

    blocks: dict[str, Matrix]
    groups: dict[str, Names]

    independent = every("blocks", "independent")

    def _vector(self, function: Callable[[Matrix, Params], Params], vector: Params) -> Params:
        parts: Params = {}
        for group, block in self.blocks.items():
            # A vector need not have those parameters that are known.
            if part := {name: vector[name] for name in self.groups[group] if name in vector}:
                parts |= function(block, part)
        return {name: parts[name] for name in vector}

    def _gather(self, function: Callable[[Matrix], Params]) -> Params:
        return {name: v for block in self.blocks.values() for name, v in function(block).items()}

    def _sum(self, function: Callable[[str, Matrix], Tensor]) -> Tensor:
        parts = [function(group, block) for group, block in self.blocks.items()]
        return sum(parts[1:], parts[0])

    def _map(self, function: Callable[[Any, Any], Any], other: BlockMatrix) -> BlockMatrix:
        """A new matrix, block by block from two."""
        pairs = self.blocks.items()
        return replace(self, blocks={k: function(block, other.blocks[k]) for k, block in pairs})

    def matmul(self, vector: Params) -> Params:
        return self._vector(lambda block, part: block.matmul(part), vector)

    def solve(self, vector: Params) -> Params:
        return self._vector(lambda block, part: block.solve(part), vector)

    def inv_sqrt(self, noise: Params) -> Params:
        return self._vector(lambda block, part: block.inv_sqrt(part), noise)

    def logdet(self) -> Tensor:
        return self._sum(lambda _, block: block.logdet())

    def diagonal(self) -> Params:
        return self._gather(lambda block: block.diagonal())

    def inverse_diagonal(self) -> Params:
        return self._gather(lambda block: block.inverse_diagonal())

    def trace_solve(self, other: Matrix) -> Tensor:
        def one(group: str, block: Matrix) -> Tensor:
            # The other matrix need not have those parameters that are known.
            known = isinstance(block, KnownMatrix)
            return block.trace_solve(block if known else other.only(self.groups[group]))

        return self._sum(one)

    def output_covariance(self, rows: Rows) -> Tensor:
        return self._sum(
            lambda group, block: block.output_covariance(rows.only(self.groups[group]))
        )

    def plus(self, other: BlockMatrix) -> BlockMatrix:
        return self._map(lambda a, b: a.plus(b), other)

    def times(self, factor: float | Tensor) -> BlockMatrix:
        return self._map(lambda a, _: a.times(factor), self)

    def damped(self, damping: float) -> BlockMatrix:
        return self._map(lambda a, _: a.damped(damping), self)

    def lerp(self, target: BlockMatrix, rate: float | Tensor) -> BlockMatrix:
        return self._map(lambda a, b: a.lerp(b, rate), target)

    def lerp_(self, target: BlockMatrix, rate: float | Tensor) -> BlockMatrix:
        return self._map(lambda a, b: a.lerp_(b, rate), target)

    def times_(self, factor: float | Tensor) -> BlockMatrix:
        return self._map(lambda a, _: a.times_(factor), self)

    def retract(
        self, target: BlockMatrix, rate: float | Tensor, precision: BlockMatrix
    ) -> BlockMatrix:
        blocks = {
            group: block.retract(target.blocks[group], rate, precision.blocks[group])
            for group, block in self.blocks.items()
        }
        return replace(self, blocks=blocks)

    def price(self, offset: Params, gradient: Params) -> BlockMatrix:
        blocks = {
            group: block.price(pick(offset, self.groups[group]), pick(gradient, self.groups[group]))
            for group, block in self.blocks.items()
        }
        return replace(self, blocks=blocks)

    def slope(self, std: Params) -> Params:
        return self._vector(lambda block, part: block.slope(part), std)

    def summed_over_draws(self, drawn: Params) -> BlockMatrix:
        return self._map(lambda a, _: a.summed_over_draws(drawn), self)

    def anew(self) -> BlockMatrix:
        return self._map(lambda a, _: a.anew(), self)

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

    def refreshed(self) -> BlockMatrix:
        return self._map(lambda a, _: a.refreshed(), self)

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

    @property
    def says_if_negative(self) -> bool:  # type: ignore[override]
        """Whether all blocks that move say so when they are negative."""
        return all(part.says_if_negative for part in self.parts.values() if part.moves)

    @property
    def rank_obstacle(self) -> str | None:
        return next((one for part in self.parts.values() if (one := part.rank_obstacle)), None)

    def in_bases_of(self, matrix: Matrix) -> Structure:
        assert isinstance(matrix, BlockMatrix)
        blocks = {k: self.parts[k].in_bases_of(block) for k, block in matrix.blocks.items()}
        return replace(self, parts={**self.parts, **blocks})

    def for_model(self, model: nn.Module) -> Blocks:
        return replace(self, parts={k: part.for_model(model) for k, part in self.parts.items()})

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
        places = torch.arange(matrix.shape[-1], device=matrix.device)
        at = dict(zip(params, places.split([v.numel() for v in params.values()]), strict=True))

        def block(part: Structure, names: Names) -> Matrix:
            keep = torch.cat([at[name] for name in names])
            return part.project(matrix[keep][:, keep], pick(params, names))

        return self._matrix(params, block)
