"""Kronecker factors against explicit matrices, for all three kinds of damping."""

from typing import cast

import torch
from contracts.structure import PARAMS, StructureContract
from exact import DTYPE, randn
from torch import Tensor

from bayesrule.matrices import Blocks, Known, Kronecker, KroneckerMatrix, Matrix, Structure
from bayesrule.matrices.factors import Factors

LAYER = {"l.weight": randn(2, 3, seed=1), "s": randn(2, seed=2), "l.bias": randn(2, seed=3)}

WIDER = {**PARAMS, "far": randn(3, 2, seed=4)}


def factored(a: Tensor, s: Tensor, damping: Tensor) -> Tensor:
    """`(S + √d/π I) ⊗ (A + π√d I)`, outputs first as weights (out, in) are laid out."""
    pi = ((a.trace() / len(a)) / (s.trace() / len(s))).sqrt()
    left = s + damping.sqrt() / pi * torch.eye(len(s), dtype=DTYPE)
    return torch.kron(left, a + pi * damping.sqrt() * torch.eye(len(a), dtype=DTYPE))


def exact(a: Tensor, s: Tensor, damping: Tensor) -> Tensor:
    """`S ⊗ A + d I`."""
    return torch.kron(s, a) + damping * torch.eye(len(s) * len(a), dtype=DTYPE)


def eigenbasis(a: Tensor, s: Tensor) -> Tensor:
    """The product of the eigenvectors of the two factors."""
    return torch.kron(torch.linalg.eigh(s).eigenvectors, torch.linalg.eigh(a).eigenvectors)


def partial_traces(matrix: Tensor, out: int) -> tuple[Tensor, Tensor]:
    """`A` and `S` with the partial traces of the positive part of a matrix, and its trace."""
    values, directions = torch.linalg.eigh(matrix)
    positive = (directions * values.clamp_min(0.0)) @ directions.mT
    blocks = positive.reshape(out, -1, out, len(matrix) // out)
    s = torch.stack([torch.stack([b.trace() for b in row.transpose(0, 1)]) for row in blocks])
    a = sum((blocks[o, :, o] for o in range(out)), torch.zeros(()))
    return a / positive.trace(), s


class KroneckerContract(StructureContract):
    """One layer `name`, whose entries (out, in) stand at `grid`; all else is diagonal."""

    has_price = False
    name = "w"
    separate: tuple[tuple[str, ...], ...] = (("w",), ("b", "s"))
    grid = torch.tensor([[0, 1], [2, 3]])

    def block(self, a: Tensor, s: Tensor, damping: Tensor) -> Tensor:
        """The layer's explicit matrix, outputs first."""
        raise NotImplementedError

    def placed(self, block: Tensor, rest: Tensor) -> Tensor:
        """The explicit matrix over all parameters from the layer's and from a diagonal."""
        place = self.grid.reshape(-1)
        full = rest.clone().diag()
        full[place.unsqueeze(1), place] = block
        return full

    def keep(self, matrix: Tensor) -> Tensor:
        place = self.grid.reshape(-1)
        a, s = partial_traces(matrix[place][:, place], len(self.grid))
        return self.placed(self.block(a, s, torch.zeros((), dtype=DTYPE)), matrix.diagonal())

    def factors(self, matrix: Matrix) -> Factors:
        return self.kronecker(matrix).layers[self.name].factors

    def kronecker(self, matrix: Matrix) -> KroneckerMatrix:
        """The matrix itself, or that of its group."""
        return cast(KroneckerMatrix, matrix)

    def explicit(self, matrix: Matrix, a: Tensor, s: Tensor, damping: Tensor) -> Tensor:
        """With other factors and the diagonal of the given matrix elsewhere."""
        rest = self.dense(matrix).diagonal()
        return self.placed(self.block(a, s, damping), rest)

    def summed(self, a: Matrix, b: Matrix) -> Tensor:
        """The mean of A over all inputs, the sum of S over all gradients."""
        f, g = self.factors(a), self.factors(b)
        mean = (f.input + g.input) / (f.count + g.count)
        block = self.block(mean, f.output + g.output, f.damping + g.damping)
        return self.placed(block, self.dense(a).diagonal() + self.dense(b).diagonal())

    def averaged(self, a: Matrix, b: Matrix, rate: float) -> Tensor:
        """The averages of A and of S, each for itself."""
        f, g = self.factors(a), self.factors(b)
        mean = (1 - rate) * f.input / f.count + rate * g.input / g.count
        output = (1 - rate) * f.output + rate * g.output
        damping = (1 - rate) * f.damping + rate * g.damping
        rest = (1 - rate) * self.dense(a).diagonal() + rate * self.dense(b).diagonal()
        return self.placed(self.block(mean, output, damping), rest)

    def shifted(self, a: Matrix, damping: float) -> Tensor:
        f = self.factors(a)
        block = self.block(f.input / f.count, f.output, f.damping + damping)
        return self.placed(block, self.dense(a).diagonal() + damping)

    def carried(self, matrix: Matrix) -> tuple[str, ...]:
        """The roots of a layer's damped factors; eigenvectors are found anew."""
        layer = self.kronecker(matrix).layers[self.name]
        return layer.place.names if layer.derived() else ()

    def retracted(self, old: Matrix, target: Matrix, rate: float, precision: Matrix) -> Tensor:
        """The factors are never negative and go straight; the diagonal bends."""
        f, step = self.dense(old).diagonal(), self.dense(target).diagonal()
        step = step - f
        bent = f + rate * step + 0.5 * rate**2 * step**2 / self.dense(precision).diagonal()
        place = self.grid.reshape(-1)
        return self.placed(self.averaged(old, target, rate)[place][:, place], bent)


class TestFactored(KroneckerContract):
    structure: Structure = Kronecker()
    # The damping enters by its root, so that there are higher orders.
    second_order = 0.02

    def block(self, a: Tensor, s: Tensor, damping: Tensor) -> Tensor:
        return factored(a, s, damping)


class TestExact(KroneckerContract):
    structure: Structure = Kronecker(exact=True)

    def block(self, a: Tensor, s: Tensor, damping: Tensor) -> Tensor:
        return exact(a, s, damping)


class WithBias(KroneckerContract):
    """The bias is the last input column, wherever it stands among the parameters."""

    params = LAYER
    names = tuple(LAYER)
    name = "l.weight"
    separate = (("l.weight", "l.bias"), ("s",))
    grid = torch.tensor([[0, 1, 2, 8], [3, 4, 5, 9]])


class TestFactoredWithBias(WithBias, TestFactored):
    pass


class TestExactWithBias(WithBias, TestExact):
    pass


class CorrectedContract(KroneckerContract):
    """The diagonal of the curvature itself in the eigenbases of the factors."""

    structure: Structure = Kronecker(corrected=True)

    def rotated(self, matrices: list[Tensor], a: Tensor, s: Tensor, damping: Tensor) -> Tensor:
        """The sum of matrices as far as it is diagonal in the bases of the factors."""
        basis, place = eigenbasis(a, s), self.grid.reshape(-1)
        total = torch.stack(matrices).sum(0)[place][:, place]
        values = (basis.mT @ total @ basis).diagonal()
        return basis @ (values + damping).diag() @ basis.mT

    def keep(self, matrix: Tensor) -> Tensor:
        place = self.grid.reshape(-1)
        part = matrix[place][:, place]
        values, directions = torch.linalg.eigh(part)
        positive = (directions * values.clamp_min(0.0)) @ directions.mT
        whole = self.placed(positive, matrix.diagonal())
        factors = partial_traces(part, len(self.grid))
        return self.placed(
            self.rotated([whole], *factors, torch.zeros((), dtype=DTYPE)), matrix.diagonal()
        )

    def bare(self, matrix: Matrix) -> Tensor:
        """Without the layer's damping."""
        return self.dense(matrix) - self.factors(matrix).damping * self.eye

    def summed(self, a: Matrix, b: Matrix) -> Tensor:
        f, g = self.factors(a), self.factors(b)
        bases = (f.input + g.input) / (f.count + g.count), f.output + g.output
        block = self.rotated([self.bare(a), self.bare(b)], *bases, f.damping + g.damping)
        return self.placed(block, self.dense(a).diagonal() + self.dense(b).diagonal())

    def averaged(self, a: Matrix, b: Matrix, rate: float) -> Tensor:
        f, g = self.factors(a), self.factors(b)
        mean = (1 - rate) * f.input / f.count + rate * g.input / g.count
        output = (1 - rate) * f.output + rate * g.output
        damping = (1 - rate) * f.damping + rate * g.damping
        parts = [(1 - rate) * self.bare(a), rate * self.bare(b)]
        rest = (1 - rate) * self.dense(a).diagonal() + rate * self.dense(b).diagonal()
        return self.placed(self.rotated(parts, mean, output, damping), rest)

    def shifted(self, a: Matrix, damping: float) -> Tensor:
        return self.dense(a) + damping * self.eye


class TestCorrected(CorrectedContract):
    pass


class TestCorrectedWithBias(WithBias, CorrectedContract):
    pass


class TestOneLayerOfSeveral(TestFactored):
    """The others are known."""

    params = WIDER
    names = ("w", "b", "s")
    structure = Blocks({"w|b|s": Kronecker(), "*": Known()})
    separate = (("w", "b", "s"),)

    def kronecker(self, matrix: Matrix) -> KroneckerMatrix:
        return super().kronecker(matrix.only(self.names))
