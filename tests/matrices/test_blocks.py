"""Groups of parameters with structures of their own, some of them known: no variance."""

from typing import cast

import pytest
import torch
from contracts.structure import PARAMS, StructureContract
from exact import DTYPE, TableRows, close, dense, flat, randn
from torch import Tensor

from bayesrule.matrices import (
    BlockMatrix,
    Blocks,
    BlockTridiagonal,
    Dense,
    Diagonal,
    Isotropic,
    Known,
    KnownMatrix,
    Kronecker,
    LowRank,
    LowRankMatrix,
    Matrix,
    Structure,
)
from bayesrule.matrices.blocks import grouped
from bayesrule.posteriors import StdSlope


class SomeContract(StructureContract):
    """A structure over two parameters; the third is known."""

    names = ("b", "s")
    separate: tuple[tuple[str, ...], ...] = (("b", "s"),)


class TestSomeIsotropic(SomeContract):
    structure = Blocks({"b|s": Isotropic(), "*": Known()})

    def keep(self, matrix: Tensor) -> Tensor:
        return matrix.diagonal().mean() * torch.eye(len(matrix), dtype=DTYPE)


class TestSomeDiagonal(SomeContract):
    structure = Blocks({"b|s": Diagonal(), "*": Known()})

    def keep(self, matrix: Tensor) -> Tensor:
        return matrix.diagonal().diag()


class TestSomeDense(SomeContract):
    structure = Blocks({"w": Known(), "*": Dense()})

    def keep(self, matrix: Tensor) -> Tensor:
        return matrix


class TestSomeLowRank(SomeContract):
    """Four directions for four weights: exact."""

    structure = Blocks({"b|s": LowRank(4), "*": Known()})
    has_price = False

    def keep(self, matrix: Tensor) -> Tensor:
        values, directions = torch.linalg.eigh(matrix)
        positive = directions @ values.clamp_min(0.0).diag() @ directions.mT
        return positive + (matrix - positive).diagonal().diag()

    def retracted(self, old: Matrix, target: Matrix, rate: float, precision: Matrix) -> Tensor:
        f, t, s = (cast(LowRankMatrix, m.only(self.names)) for m in (old, target, precision))
        step = t.d - f.d
        bent = f.d + rate * step + 0.5 * rate**2 * step.square() / s.d
        return bent.diag() + (1 - rate) * f.u @ f.u.mT + rate * t.u @ t.u.mT


class TestSeveralStructures(StructureContract):
    """A full block whose members do not stand together, and a diagonal one between them."""

    structure = Blocks({"w|s": Dense(), "b": Diagonal()})
    separate = (("w", "s"), ("b",))

    def keep(self, matrix: Tensor) -> Tensor:
        full = torch.tensor([True] * 4 + [False] * 3 + [True])
        both = full.unsqueeze(1) & full
        return torch.where(both | torch.eye(8, dtype=torch.bool), matrix, 0.0)


class TestOneGroup(StructureContract):
    structure = Blocks({"*": Dense()})
    separate = (("w", "b", "s"),)

    def keep(self, matrix: Tensor) -> Tensor:
        return matrix


# Which parameters belong to which group.


def test_the_first_pattern_that_fits_counts() -> None:
    names = ("a.weight", "a.bias", "head.weight", "head.bias")
    assert grouped(["head.*", "*.bias", "*"], names) == {
        "head.*": ("head.weight", "head.bias"),
        "*.bias": ("a.bias",),
        "*": ("a.weight",),
    }
    assert grouped(["head.bias|a.weight", "*"], names)["head.bias|a.weight"] == (
        "a.weight",
        "head.bias",
    )
    assert "*.bias" not in grouped(["a.*|head.*", "*.bias"], names), "nothing is left for it"


def test_names_that_fit_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match=r"No parameter is named 'v'\. There are: w, b, s"):
        Blocks({"b|v": Diagonal(), "*": Known()}).identity(PARAMS, 1.0)
    with pytest.raises(ValueError, match=r"'w' fits no pattern; add one for all others: '\*'"):
        Blocks({"b|s": Diagonal()}).identity(PARAMS, 1.0)


def test_rows_outside_do_not_matter() -> None:
    rows = TableRows.random(PARAMS, 1, 4)
    louder = TableRows({**rows.table, "w": 100.0 * rows.table["w"]})
    structure = Blocks({"b|s": Dense(), "*": Known()})
    one, two = structure.contract(rows).damped(1.0), structure.contract(louder).damped(1.0)
    close(one.logdet(), two.logdet(), 0.0)
    close(one.output_covariance(rows), two.output_covariance(louder), 0.0)
    assert set(one.diagonal()) == {"b", "s"}


def test_only_whole_groups_can_be_taken_alone() -> None:
    matrix = Blocks({"w|s": Dense(), "b": Diagonal()}).identity(PARAMS, 2.0)
    assert matrix.only(("s", "w")) is matrix.blocks["w|s"], "in any order"
    with pytest.raises(TypeError, match="BlockMatrix has no block for w, b alone"):
        matrix.only(("w", "b"))


# What is known.


def test_a_known_matrix_has_no_part_in_anything() -> None:
    matrix, vector = KnownMatrix(), {"w": randn(3)}
    zero = {"w": torch.zeros(3, dtype=DTYPE)}
    for found in (matrix.matmul(vector), matrix.solve(vector), matrix.inv_sqrt(vector)):
        close(found["w"], zero["w"], 0.0)
    changed = (
        matrix.damped(2.0),
        matrix.times(3.0),
        matrix.plus(matrix),
        matrix.lerp(matrix, 0.3),
        matrix.retract(matrix, 0.3, matrix),
        matrix.price(vector, vector),
    )
    assert all(one == matrix for one in changed)
    assert matrix.diagonal() == matrix.inverse_diagonal() == {}
    assert float(matrix.logdet()) == float(matrix.trace_solve(matrix)) == 0.0
    assert not Known().moves
    assert matrix.independent


# What a structure of several blocks can do follows from its parts.


ABILITIES: dict[str, tuple[Structure, ...]] = {
    "moves": (Blocks({"w": Known(), "*": Diagonal()}),),
    "independent": (Blocks({"w": Diagonal(), "b": Isotropic(), "*": Known()}),),
    "only_positive": (Blocks({"w": LowRank(1), "*": Diagonal()}),),
    "says_if_negative": (Blocks({"w": Dense(), "*": Known()}),),
    "layered": (Blocks({"w": Kronecker(), "*": Known()}),),
    "draws_together": (Blocks({"w": Kronecker(), "*": Dense()}),),
}
LACKING: dict[str, tuple[Structure, ...]] = {
    "moves": (Blocks({"*": Known()}),),
    "independent": (Blocks({"w": Dense(), "*": Diagonal()}),),
    "only_positive": (Blocks({"w": Dense(), "*": Known()}),),
    "says_if_negative": (Blocks({"w": Dense(), "*": Diagonal()}),),
    "layered": (Blocks({"w": Dense(), "*": Known()}),),
    "draws_together": (Blocks({"w": Kronecker(corrected=True), "*": Dense()}),),
}


@pytest.mark.parametrize("ability", ABILITIES)
def test_abilities_are_those_of_the_parts(ability: str) -> None:
    assert all(getattr(structure, ability) for structure in ABILITIES[ability])
    assert not any(getattr(structure, ability) for structure in LACKING[ability])


@pytest.mark.parametrize(
    "structure",
    [Diagonal(), Isotropic(), Dense(), LowRank(2), Kronecker(), BlockTridiagonal(), Known()],
    ids=repr,
)
def test_one_block_can_do_what_its_structure_can(structure: Structure) -> None:
    blocks = Blocks({"*": structure})
    for ability in ABILITIES:
        assert getattr(blocks, ability) == getattr(structure, ability), ability
    assert blocks.rank_obstacle == structure.rank_obstacle


def test_what_one_part_cannot_do_on_several_machines_the_whole_cannot() -> None:
    assert Blocks({"w": Dense(), "*": Known()}).rank_obstacle is None
    reason = Blocks({"w": Kronecker(corrected=True), "*": Known()}).rank_obstacle
    assert reason is not None
    assert "cannot be summed" in reason


def test_kept_bases_are_those_of_each_block() -> None:
    structure = Blocks({"w": Kronecker(corrected=True), "*": Diagonal()})
    rows, more = TableRows.random(PARAMS, 2, 3, seed=1), TableRows.random(PARAMS, 2, 3, seed=8)
    old = structure.contract(rows).damped(0.5)
    kept = structure.in_bases_of(old)
    assert isinstance(kept, Blocks)
    assert kept.parts["w"].bases is old.blocks["w"]  # type: ignore[attr-defined]
    assert kept.parts["*"] == Diagonal()
    found = kept.contract(more).blocks["w"]
    basis, new = old.blocks["w"], found
    part = {"w": PARAMS["w"]}
    together = dense(basis, part) @ dense(new, part)
    close(together, together.mT, 1e-10)  # They commute: the eigenvectors are the same.


def test_blocks_are_summed_over_draws_as_their_parts_are() -> None:
    drawn = {"w": randn(2, 3, 4), "b": randn(2, 3, 2)}
    slopes = {name: randn(*value.shape, seed=5) for name, value in drawn.items()}
    parts: dict[str, Matrix] = {name: StdSlope({name: value}) for name, value in slopes.items()}
    found = BlockMatrix(parts, {name: (name,) for name in drawn}).summed_over_draws(drawn)
    close(flat(found.diagonal()), flat({name: v.sum(1) for name, v in slopes.items()}))
