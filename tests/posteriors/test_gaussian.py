"""Gaussians over every structure against torch's own and against their draws."""

import pytest
import torch
from contracts.family import PARAMS
from contracts.gaussian_family import GaussianContract
from exact import DTYPE, close, dense, flat, mlp, randn
from matrices.layer_nets import params_of, rows_of
from torch.distributions import Normal, kl_divergence

from bayesrule.matrices import (
    Blocks,
    BlockTridiagonal,
    Dense,
    Diagonal,
    Isotropic,
    Known,
    Kronecker,
    LowRank,
)
from bayesrule.posteriors import Gaussian, GaussianFamily
from bayesrule.types import Rows

NET = mlp(2, 2, 1)


class TestIsotropicGaussian(GaussianContract):
    structure = Isotropic()
    free = 1


class TestDiagonalGaussian(GaussianContract):
    structure = Diagonal()
    free = 6

    def test_equals_independent_normals(self) -> None:
        q = self.posterior()
        normal = Normal(flat(q.mean), flat(q.variance()).sqrt())
        close(q.entropy(), normal.entropy().sum())
        prior = Normal(torch.zeros(6, dtype=DTYPE), torch.full((6,), 2.0**-0.5, dtype=DTYPE))
        close(q.kl(2.0), kl_divergence(normal, prior).sum())
        theta = {name: value - 0.2 for name, value in PARAMS.items()}
        close(q.log_prob(theta), normal.log_prob(flat(theta)).sum())


class TestDenseGaussian(GaussianContract):
    structure = Dense()
    free = 36


class TestLowRankGaussian(GaussianContract):
    structure = LowRank(2)
    free = 6 + 12


class TestLowRankGaussianOfFullRank(GaussianContract):
    structure = LowRank(6)
    free = 6 + 36


class TestKroneckerGaussian(GaussianContract):
    """Two factors (2, 2), their count and damping, and two numbers on the diagonal."""

    structure = Kronecker()
    free = 4 + 4 + 2 + 2
    adds_damping = False


class TestExactKroneckerGaussian(GaussianContract):
    structure = Kronecker(exact=True)
    free = 4 + 4 + 2 + 2


class TestCorrectedKroneckerGaussian(GaussianContract):
    """Two bases and the eigenvalues, besides."""

    structure = Kronecker(corrected=True)
    free = 4 + 4 + 2 + 2 + 3 * 4


class TestTridiagonalGaussian(GaussianContract):
    """Two layers, 2 → 2 → 1, and the products of their inputs and of their gradients."""

    structure = BlockTridiagonal()
    params = params_of(NET)
    names = tuple(params_of(NET))
    free = (9 + 4 + 2) + (9 + 1 + 2) + (9 + 2 + 2)
    adds_damping = False

    def rows(self, seed: int) -> Rows:
        return rows_of(NET, randn(4, 2, seed=seed), vectors=1, seed=seed)


class TestBlocksGaussian(GaussianContract):
    structure = Blocks({"w": Dense(), "b": Diagonal()})
    free = 16 + 2


class TestIndependentBlocksGaussian(GaussianContract):
    structure = Blocks({"w": Isotropic(), "b": Diagonal()})
    free = 1 + 2


class TestSomeWeightsGaussian(GaussianContract):
    structure = Blocks({"b": Dense(), "*": Known()})
    names = ("b",)
    free = 4

    def test_known_weights_do_not_move(self) -> None:
        for draw in self.draws()[:3]:
            close(draw["w"], PARAMS["w"], 0.0)


class TestSomeIndependentWeightsGaussian(GaussianContract):
    structure = Blocks({"b": Diagonal(), "*": Known()})
    names = ("b",)
    free = 2


@pytest.mark.parametrize("structure", [Isotropic(), Diagonal(), Dense()], ids=repr)
def test_expectation_parameters_both_ways(structure: Isotropic | Diagonal | Dense) -> None:
    root = torch.arange(1.0, 37.0, dtype=DTYPE).reshape(6, 6).sin()
    precision = structure.project(root @ root.mT + torch.eye(6, dtype=DTYPE), PARAMS)
    q = Gaussian(PARAMS, precision)
    first, second = q.expectation()
    again = Gaussian.from_expectation(first, second)
    close(flat(again.mean), flat(q.mean))
    close(dense(again.precision, PARAMS), dense(precision, PARAMS))
    whole = torch.outer(flat(PARAMS), flat(PARAMS)) + torch.linalg.inv(dense(precision, PARAMS))
    if isinstance(second, dict):
        close(flat(second), whole.diagonal())
    else:
        close(second, whole if second.ndim else whole.trace())


def test_families_without_expectation_parameters_say_so() -> None:
    q = Gaussian(PARAMS, LowRank(2).identity(PARAMS, 1.0))
    with pytest.raises(TypeError, match="LowRankMatrix is not an exponential family"):
        q.expectation()


def test_what_is_not_a_structure_is_refused() -> None:
    with pytest.raises(TypeError, match=r"structure such as Diagonal\(\)"):
        GaussianFamily("diagonal")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must not be negative"):
        GaussianFamily(curvature=-1.0)
