"""What a matrix must do with what it has worked out from its tensors, such as roots."""

from __future__ import annotations

from exact import close, flat

from bayesrule.matrices import Matrix
from bayesrule.tensors import tree
from bayesrule.types import Params


class KeptMatrixContract:
    """Tests that every structure inherits: the same matrix in a new object, and its roots."""

    params: Params

    def precision(self, seed: int = 0) -> Matrix:
        """A random positive definite matrix of the structure."""
        raise NotImplementedError

    def test_anew_has_the_same_tensors(self) -> None:
        matrix = self.precision()
        matrix.inv_sqrt(self.params)
        again = matrix.anew()
        kept, shared = dict(tree.leaves(matrix)), dict(tree.leaves(again))
        assert kept.keys() == shared.keys()
        assert all(shared[name] is value for name, value in kept.items())
        close(flat(again.matmul(self.params)), flat(matrix.matmul(self.params)), 0.0)
        assert all(
            value is not matrix.derived()[name] for name, value in again.derived().items()
        ), "what was worked out before is not taken along"

    def test_what_was_worked_out_can_be_carried_along(self) -> None:
        matrix, other = self.precision(), self.precision(1)
        again, moved = matrix.anew(), matrix.anew()
        again.restore(matrix.derived())
        close(flat(again.inv_sqrt(self.params)), flat(matrix.inv_sqrt(self.params)), 0.0)
        assert all(again.derived()[name] is value for name, value in matrix.derived().items())
        # What is restored is used: with the tensors of another matrix, draws are the other's.
        moved.restore(other.derived())
        draw, wanted = moved.inv_sqrt(self.params), other.inv_sqrt(self.params)
        for name in self.carried(matrix):
            close(draw[name], wanted[name], 0.0)

    def carried(self, matrix: Matrix) -> tuple[str, ...]:
        """The parameters whose draws follow from what is carried along."""
        assert not matrix.derived()
        return ()
