"""What every structure must do, held against the explicit matrix (P, P).

A subclass gives `structure` and `keep`, what the structure keeps of a dense matrix, and inherits
the whole suite. A structure that is not closed under sums also says what it makes of them
(`summed`, `averaged`, `shifted`, `retracted`); one over some of the parameters names them
(`names`), one that takes certain parameters only gives them (`params`, `rows`), and one whose
blocks can be taken alone says which (`separate`).
"""

from __future__ import annotations

import pytest
import torch
from exact import DTYPE, TableRows, close, columns, dense, flat, named, randn, symmetric, z_close
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from bayesrule.matrices import Diagonal, Isotropic, Matrix, Structure
from bayesrule.tensors import tree
from bayesrule.types import Params, Rows
from contracts.kept_matrix import KeptMatrixContract

PARAMS = {"w": randn(2, 2, seed=1), "b": randn(3, seed=2), "s": randn(1, seed=3)}

stable = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    database=None,
    # One test serves every subclass.
    suppress_health_check=[HealthCheck.differing_executors],
)


class StructureContract(KeptMatrixContract):
    """Tests that every structure inherits."""

    structure: Structure
    params: Params = PARAMS
    names: tuple[str, ...] = tuple(PARAMS)
    has_price = True
    # Groups of parameters that depend on no others, so that their block can be had alone.
    separate: tuple[tuple[str, ...], ...] = ()
    # How far the second order is all that `retract` adds to `lerp`.
    second_order = 1e-6

    def keep(self, matrix: Tensor) -> Tensor:
        """What the structure keeps of a symmetric matrix over `names`."""
        raise NotImplementedError

    def summed(self, a: Matrix, b: Matrix) -> Tensor:
        """`A + B` as the structure knows it."""
        return self.dense(a) + self.dense(b)

    def averaged(self, a: Matrix, b: Matrix, rate: float) -> Tensor:
        """`(1 − rate) A + rate B` as the structure knows it."""
        return self.summed(a.times(1.0 - rate), b.times(rate))

    def shifted(self, a: Matrix, damping: float) -> Tensor:
        """`A + damping I` as the structure knows it."""
        return self.dense(a) + damping * self.eye

    def retracted(self, old: Matrix, target: Matrix, rate: float, precision: Matrix) -> Tensor:
        """`F + ρG + ½ρ² G S⁻¹ G` with `G = T − F` and the precision S."""
        f, step = self.dense(old), self.dense(target) - self.dense(old)
        bend = step @ torch.linalg.solve(self.dense(precision), step)
        return f + rate * step + 0.5 * rate**2 * bend

    @property
    def like(self) -> Params:
        """The parameters that the structure covers, in its order."""
        return {name: self.params[name] for name in self.names}

    @property
    def size(self) -> int:
        return len(flat(self.like))

    @property
    def eye(self) -> Tensor:
        return torch.eye(self.size, dtype=DTYPE)

    def spread(self, part: Tensor) -> Tensor:
        """A matrix over `names` as one over all parameters in their order, zero elsewhere."""
        place = self.places()
        full = torch.zeros(len(flat(self.params)), len(flat(self.params)), dtype=DTYPE)
        full[place.unsqueeze(1), place] = part
        return full

    def places(self) -> Tensor:
        """Where the covered parameters stand among all."""
        index = named(torch.arange(len(flat(self.params))), self.params)
        return torch.cat([index[name].reshape(-1) for name in self.names])

    def dense(self, matrix: Matrix) -> Tensor:
        """The explicit matrix over `names`."""
        return dense(matrix, self.like)

    def jacobian(self, rows: Rows) -> Tensor:
        """The rows of the covered parameters side by side, (V, n, P)."""
        table = rows.per_example()
        return torch.cat([table[name].flatten(start_dim=2) for name in self.names], dim=-1)

    def rows(self, seed: int = 0) -> Rows:
        """Two vectors for each of three examples over all parameters: fewer rows than weights."""
        return TableRows.random(self.params, 2, 3, seed=10 + 7 * seed)

    def precision(self, seed: int = 0) -> Matrix:
        """A random positive definite matrix of the structure."""
        return self.structure.contract(self.rows(seed)).damped(0.7)

    def indefinite(self, seed: int = 0) -> Matrix:
        """A random matrix of the structure with negative directions."""
        target = symmetric(len(flat(self.params)), seed) - 0.5 * torch.eye(
            len(flat(self.params)), dtype=DTYPE
        )
        return self.structure.project(2.0 * target, self.params)

    def test_contract_is_what_is_kept_of_the_sum_of_outer_products(self) -> None:
        jacobian = self.jacobian(self.rows()).flatten(end_dim=1)
        found = self.structure.contract(self.rows())
        close(self.dense(found), self.keep(jacobian.mT @ jacobian))

    def test_project_is_what_is_kept_of_a_matrix(self) -> None:
        target = symmetric(len(flat(self.params)), 5)
        place = self.places()
        found = self.structure.project(target, self.params)
        close(self.dense(found), self.keep(target[place][:, place]))

    def test_identity(self) -> None:
        found = self.structure.identity(self.params, 2.5)
        close(self.dense(found), 2.5 * self.eye)
        close(found.logdet(), self.size * torch.tensor(2.5, dtype=DTYPE).log())

    def test_vectors_keep_names_shapes_and_type(self) -> None:
        vector = {name: randn(*value.shape, seed=4) for name, value in self.params.items()}
        matrix = self.precision()
        for found in (matrix.matmul(vector), matrix.solve(vector), matrix.inv_sqrt(vector)):
            assert list(found) == list(self.params)
            for name, value in self.params.items():
                assert found[name].shape == value.shape
                assert found[name].dtype == DTYPE
        for part in (matrix.diagonal(), matrix.inverse_diagonal()):
            assert {k: v.shape for k, v in part.items()} == {
                k: v.shape for k, v in self.like.items()
            }

    def test_weights_outside_are_known(self) -> None:
        matrix = self.precision()
        for function, part in (
            (matrix.matmul, self.dense(matrix)),
            (matrix.solve, torch.linalg.inv(self.dense(matrix))),
        ):
            close(columns(function, self.params), self.spread(part))

    def test_matmul_is_symmetric(self) -> None:
        found = self.dense(self.precision())
        close(found, found.mT)

    def test_solve(self) -> None:
        matrix = self.precision()
        close(columns(matrix.solve, self.like), torch.linalg.inv(self.dense(matrix)))

    def test_inv_sqrt_is_a_root_of_the_inverse(self) -> None:
        matrix = self.precision()
        root = columns(matrix.inv_sqrt, self.like)
        close(root @ root.mT, torch.linalg.inv(self.dense(matrix)))

    def test_inv_sqrt_of_white_noise_has_the_covariance(self) -> None:
        matrix = self.precision()
        noise = randn(2000, self.size, seed=6)
        draws = torch.stack([flat(matrix.inv_sqrt(named(e, self.like))) for e in noise])
        products = draws.unsqueeze(2) * draws.unsqueeze(1)
        z_close(draws, 0.0)
        # A structure that keeps zeros has draws whose products are noise around zero.
        z_close(products, torch.linalg.inv(self.dense(matrix)))

    def test_logdet(self) -> None:
        matrix = self.precision()
        close(matrix.logdet(), torch.logdet(self.dense(matrix)))

    def test_diagonal_and_inverse_diagonal(self) -> None:
        matrix = self.precision()
        explicit = self.dense(matrix)
        close(self.in_order(matrix.diagonal()), explicit.diagonal())
        close(self.in_order(matrix.inverse_diagonal()), torch.linalg.inv(explicit).diagonal())

    def in_order(self, part: Params) -> Tensor:
        """What is given by name as one vector over `names`."""
        assert set(part) == set(self.names)
        return flat({name: part[name] for name in self.names})

    def test_trace_solve(self) -> None:
        matrix = self.precision()
        others = [self.precision(1), self.precision(1).damped(-0.2)]
        others += [Isotropic().identity(self.like, 3.0), Diagonal().contract(self.part_of_rows())]
        for other in others:
            expected = torch.linalg.solve(self.dense(matrix), self.dense(other)).trace()
            close(matrix.trace_solve(other), expected)

    def part_of_rows(self) -> TableRows:
        """Rows over the covered parameters only."""
        return TableRows({name: self.rows(2).per_example()[name] for name in self.names})

    def test_output_covariance(self) -> None:
        matrix, rows = self.precision(), self.rows(3)
        jacobian = self.jacobian(rows).transpose(0, 1)
        inverse = torch.linalg.inv(self.dense(matrix))
        close(matrix.output_covariance(rows), jacobian @ inverse @ jacobian.mT)

    def test_sums_and_multiples(self) -> None:
        a, b = self.precision(), self.precision(1)
        close(self.dense(a.plus(b)), self.summed(a, b))
        close(self.dense(a.times(1.7)), 1.7 * self.dense(a))
        close(self.dense(a.damped(0.4)), self.shifted(a, 0.4))

    def test_lerp(self) -> None:
        a, b = self.precision(), self.precision(1)
        close(self.dense(a.lerp(b, 0.3)), self.averaged(a, b, 0.3))
        close(self.dense(a.lerp(b, 0.0)), self.dense(a))
        close(self.dense(a.lerp(b, 1.0)), self.dense(b))

    def test_retract_follows_its_formula(self) -> None:
        old, target = self.structure.contract(self.rows()), self.indefinite()
        # The prior may be a number for all weights, or the precision of an earlier belief.
        for precision in (old.damped(0.7), old.plus(self.precision(2))):
            found = old.retract(target, 0.4, precision)
            close(self.dense(found), self.retracted(old, target, 0.4, precision))

    @stable
    @given(seed=st.integers(0, 10**6), rate=st.floats(1e-4, 1.0), damping=st.floats(0.05, 3.0))
    def test_retract_stays_positive(self, seed: int, rate: float, damping: float) -> None:
        target = self.indefinite(seed).damped(-3.0)
        old = self.structure.contract(self.rows())
        moved = old.retract(target, rate, old.damped(damping))
        assert torch.linalg.eigvalsh(self.dense(moved.damped(damping))).min() > 0
        assert moved.damped(damping).logdet().isfinite()

    def test_retract_agrees_with_lerp_to_first_order(self) -> None:
        old, target = self.precision(), self.indefinite()

        def gap(rate: float) -> float:
            curved = old.retract(target, rate, old.damped(0.1))
            straight = old.lerp(target, rate)
            return float((self.dense(curved) - self.dense(straight)).norm())

        assert gap(1e-3) == pytest.approx(1e-2 * gap(1e-2), rel=self.second_order)
        assert gap(1e-2) > 0

    def test_what_may_use_memory_again_gives_the_same(self) -> None:
        old, target, vector = self.precision(), self.indefinite(), self.like

        def copies() -> tuple[Matrix, Matrix, Params]:
            return (
                tree.map_tensors(old, torch.clone),
                tree.map_tensors(target, torch.clone),
                tree.map_tensors(vector, torch.clone),
            )

        a, b, x = copies()
        _, _, y = copies()
        close(flat(a.descend_(x, y, 0.3)), flat(vector) - 0.3 * flat(old.solve(vector)), 1e-12)
        a, b, x = copies()
        _, _, y = copies()
        moved = flat(vector) @ flat(old.solve(vector))
        shortened = a.descend_shortened_(x, y, lambda found: 0.3 * found)
        close(flat(shortened), flat(vector) - 0.3 * moved * flat(old.solve(vector)), 1e-12)
        a, b, x = copies()
        close(self.dense(a.times_(2.5)), self.dense(old.times(2.5)), 1e-12)
        a, b, x = copies()
        close(self.dense(a.lerp_(b, 0.3)), self.dense(old.lerp(target, 0.3)), 1e-12)
        a, b, x = copies()
        wanted = self.dense(old.retract(target, 0.3, old.damped(0.7)))
        close(self.dense(a.retract_(b, 0.3, old.damped(0.7))), wanted, 1e-12)
        if self.has_price:
            expected = self.dense(old.price(self.params, self.params))
            close(
                self.dense(old.price_(tree.map_tensors(self.params, torch.clone), self.params)),
                expected,
            )

    def test_price_of_a_quadratic_is_its_hessian(self) -> None:
        hessian = symmetric(len(flat(self.params)), 8)
        matrix = self.precision()
        if not self.has_price:
            with pytest.raises(TypeError, match="Price"):
                matrix.price(self.params, self.params)
            return
        # ± √P B e_i have the Gaussian's moments up to the third: exact for what is quadratic here.
        root = self.size**0.5 * columns(matrix.inv_sqrt, self.params)[:, self.places()]
        points = torch.cat([root, -root], dim=1).mT
        total = self.structure.identity(self.params, 0.0)
        for offset in points:
            gradient = hessian @ (offset + randn(len(offset), seed=9))
            one = matrix.price(named(offset, self.params), named(gradient, self.params))
            close(self.dense(one), self.dense(one).mT)
            total = total.plus(one)
        place = self.places()
        found = self.dense(total.times(1.0 / len(points)))
        close(found, self.keep(hessian[place][:, place]))

    def test_tree_round_trip(self) -> None:
        matrix = self.precision()
        kept = dict(tree.leaves(matrix))
        again = tree.rebuild(self.structure.identity(self.params, 1.0), lambda name, _: kept[name])
        close(self.dense(again), self.dense(matrix), 0.0)
        close(flat(again.solve(self.params)), flat(matrix.solve(self.params)), 0.0)
        halved = tree.map_tensors(matrix, lambda value: value.float())
        assert all(v.dtype == torch.float32 for v in halved.diagonal().values())

    def test_nothing_changes_in_place(self) -> None:
        a, b = self.precision(), self.precision(1)
        before = self.dense(a).clone(), self.dense(b).clone()
        a.plus(b), a.lerp(b, 0.3), a.retract(b, 0.3, a.damped(0.1)), a.damped(5.0), a.times(3.0)
        a.solve(self.params), a.inv_sqrt(self.params), a.logdet(), a.output_covariance(self.rows())
        close(self.dense(a), before[0], 0.0)
        close(self.dense(b), before[1], 0.0)

    def test_the_block_of_some_parameters(self) -> None:
        matrix = self.precision()
        if not self.separate:
            with pytest.raises(TypeError, match=f"no block for {self.names[0]} alone"):
                matrix.only(self.names[:1])
        for names in self.separate:
            part = {name: self.params[name] for name in names}
            found = columns(lambda v, names=names: self._within(matrix, v), part)  # type: ignore[misc]
            close(dense(matrix.only(names), part), found)
            close(matrix.only(names).logdet(), torch.logdet(found))

    def _within(self, matrix: Matrix, part: Params) -> Params:
        """`S v` for a vector that is zero but for some parameters, as seen by these."""
        whole = {name: part.get(name, torch.zeros_like(v)) for name, v in self.params.items()}
        seen = matrix.matmul(whole)
        assert all(bool((seen[name] == 0).all()) for name in seen if name not in part)
        return {name: seen[name] for name in part}

    def test_slopes_in_standard_deviations(self) -> None:
        matrix = tree.map_tensors(self.precision(), torch.clone)
        std = {name: value.exp() for name, value in self.like.items()}
        wanted = self.dense(matrix).diagonal() * flat(std)
        close(flat(matrix.slope(std)), wanted)
