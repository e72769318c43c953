"""Block-tridiagonal inverses over chains of layers, against explicit matrices."""

from collections.abc import Callable
from itertools import pairwise
from typing import cast

import pytest
import torch
from contracts.structure import StructureContract
from curvature.zoo import ZOO, Case
from exact import DTYPE, close, columns, dense, flat, mlp, randn, with_ones, z_close
from torch import Tensor, nn

import bayesrule as br
from bayesrule.matrices import BlockTridiagonal, BlockTridiagonalMatrix, Kronecker, Matrix
from bayesrule.matrices.factors import Factors
from bayesrule.tensors import tree
from bayesrule.types import Rows
from matrices.layer_nets import block, finite, full, ggn_rows, jacobian, params_of, rows_of
from matrices.test_kronecker import factored, partial_traces

Chain = tuple[list[Factors], list[Factors]]


@pytest.fixture(autouse=True)
def _exact(double_precision: None) -> None:
    """Double precision and a fixed seed."""


def blocks_of(layers: list[Factors], links: list[Factors]) -> dict[tuple[int, int], Tensor]:
    """The damped blocks on the diagonal and those beside it, outputs first."""
    found = {}
    for i, one in enumerate(layers):
        found[i, i] = factored(one.input / one.count, one.output, one.damping)
    for i, link in enumerate(links):
        found[i, i + 1] = torch.kron(link.output, link.input / link.count)
    return found


def explicit_inverse(layers: list[Factors], links: list[Factors]) -> Tensor:
    """`Ξᵀ Λ Ξ` in explicit matrices, layer after layer, outputs first."""
    blocks, count = blocks_of(layers, links), len(layers)
    sizes = [len(blocks[i, i]) for i in range(count)]
    starts = [sum(sizes[:i]) for i in range(count + 1)]
    mixing, middle = torch.eye(starts[-1], dtype=DTYPE), torch.zeros(starts[-1], starts[-1])
    for i in range(count):
        here = slice(starts[i], starts[i + 1])
        spread = blocks[i, i]
        if i + 1 < count:
            psi = blocks[i, i + 1] @ torch.linalg.inv(blocks[i + 1, i + 1])
            mixing[here, starts[i + 1] : starts[i + 2]] = -psi
            spread = spread - psi @ blocks[i + 1, i + 1] @ psi.mT
        middle[here, here] = torch.linalg.inv(spread)
    return mixing.mT @ middle @ mixing


def parts(matrix: Matrix) -> Chain:
    chain = cast(BlockTridiagonalMatrix, matrix)
    return list(chain.layers.values()), list(chain.links.values())


NET = mlp(2, 2, 1)


class TestBlockTridiagonal(StructureContract):
    """Two layers, 2 → 2 → 1, each with its bias."""

    structure = BlockTridiagonal()
    params = params_of(NET)
    names = tuple(params_of(NET))
    has_price = False
    second_order = 0.02
    # The layers' matrices (out, in), bias last, one after the other, among the parameters.
    order = torch.tensor([0, 1, 4, 2, 3, 5, 6, 7, 8])

    def rows(self, seed: int = 0) -> Rows:
        return rows_of(NET, randn(3, 2, seed=seed), seed=10 + 7 * seed)

    def placed(self, layers: list[Factors], links: list[Factors]) -> Tensor:
        """The explicit matrix over the parameters in their order."""
        found = torch.linalg.inv(explicit_inverse(layers, links))
        back = self.order.argsort()
        return found[back][:, back]

    def keep(self, matrix: Tensor) -> Tensor:
        """The layers' blocks by their partial traces, neighbours apart."""
        found = torch.zeros_like(matrix)
        for place, out in ((self.order[:6], 2), (self.order[6:], 1)):
            a, s = partial_traces(matrix[place][:, place], out)
            found[place.unsqueeze(1), place] = torch.kron(s, a)
        return found

    def test_contract_is_what_is_kept_of_the_sum_of_outer_products(self) -> None:
        """The blocks are those of the factors, of which `test_blocks_are_exact` tells the rest."""
        found = self.structure.contract(self.rows()).damped(0.3)
        close(self.dense(found), self.placed(*parts(found)))

    def summed(self, a: Matrix, b: Matrix) -> Tensor:
        return self.combined(a, b, lambda f, g: f.plus(g))

    def averaged(self, a: Matrix, b: Matrix, rate: float) -> Tensor:
        return self.combined(a, b, lambda f, g: _average(f, g, rate))

    def combined(
        self, a: Matrix, b: Matrix, function: Callable[[Factors, Factors], Factors]
    ) -> Tensor:
        pairs = zip(parts(a), parts(b), strict=True)
        layers, links = ([function(f, g) for f, g in zip(*pair, strict=True)] for pair in pairs)
        return self.placed(layers, links)

    def shifted(self, a: Matrix, damping: float) -> Tensor:
        layers, links = parts(a)
        more = [Factors(f.input, f.output, f.count, f.damping + damping) for f in layers]
        return self.placed(more, links)

    def retracted(self, old: Matrix, target: Matrix, rate: float, precision: Matrix) -> Tensor:
        # Neither has any damping here, so that nothing bends.
        return self.averaged(old, target, rate)


def _average(f: Factors, g: Factors, rate: float) -> Factors:
    return Factors(
        (1 - rate) * f.input / f.count + rate * g.input / g.count,
        (1 - rate) * f.output + rate * g.output,
        torch.ones((), dtype=DTYPE),
        (1 - rate) * f.damping + rate * g.damping,
    )


CHAINS: dict[str, Callable[[], Case]] = {
    "four layers": lambda: (mlp(3, 4, 3, 2, 2), randn(6, 3)),
    "one layer": lambda: (nn.Linear(3, 2), randn(6, 3)),
    "without biases": lambda: (
        nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(inplace=True), nn.Linear(4, 2)),
        randn(6, 3),
    ),
    "convolutions": lambda: (
        nn.Sequential(
            nn.Conv1d(2, 3, 2),
            nn.Tanh(),
            nn.Conv1d(3, 2, 2, bias=False),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(6, 2),
        ),
        randn(6, 2, 5),
    ),
    "residual without a shortcut": ZOO["residual"],
}
every_chain = pytest.mark.parametrize("make", CHAINS.values(), ids=CHAINS)


@every_chain
def test_chains_agree_with_their_explicit_matrix(make: Callable[[], Case]) -> None:
    model, x = make()
    params, rows = params_of(model), rows_of(model, x)
    structure = BlockTridiagonal().for_model(model)
    matrix = structure.contract(rows).damped(0.4)
    index = {k: torch.arange(v.numel()).reshape(v.shape) for k, v in params.items()}
    offset, start = {}, 0
    for name, value in params.items():
        offset[name], start = index[name] + start, start + value.numel()
    order = torch.cat([place.join(offset).reshape(-1) for place in matrix.places])
    inverse = explicit_inverse(*parts(matrix))[order.argsort()][:, order.argsort()]
    close(columns(matrix.solve, params), inverse)
    close(dense(matrix, params), torch.linalg.inv(inverse))
    close(matrix.logdet(), -torch.logdet(inverse))
    close(flat(matrix.inverse_diagonal()), inverse.diagonal())
    close(flat(matrix.diagonal()), torch.linalg.inv(inverse).diagonal())
    root = columns(matrix.inv_sqrt, params)
    close(root @ root.mT, inverse)
    slopes = jacobian(rows)
    close(matrix.output_covariance(rows), slopes @ inverse @ slopes.mT)
    other = structure.contract(rows_of(model, x, seed=5)).damped(0.2)
    close(matrix.trace_solve(other), (inverse @ dense(other, params)).trace())
    assert [n for n, _ in tree.leaves(structure.identity(params, 1.0))] == [
        n for n, _ in tree.leaves(matrix)
    ]


def test_the_inverse_has_no_blocks_beyond_neighbours_and_the_matrix_keeps_its_own() -> None:
    model = mlp(3, 4, 3, 2, 2)
    params, rows = params_of(model), rows_of(model, randn(6, 3))
    matrix = BlockTridiagonal().contract(rows).damped(0.4)
    found, inverse = dense(matrix, params), columns(matrix.solve, params)
    blocks = blocks_of(*parts(matrix))
    for i, a in enumerate(matrix.places):
        for j, b in enumerate(matrix.places):
            if (i, j) in blocks:
                close(block(found, params, a, b), blocks[i, j])
            if abs(i - j) > 1:
                assert block(inverse, params, a, b).abs().max() < 1e-12
                assert block(found, params, a, b).abs().max() > 1e-6


def test_blocks_are_exact_for_deep_linear_nets() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2, bias=False), nn.Linear(2, 2))
    params, rows = params_of(model), ggn_rows(model, randn(9, 3))
    # The damping is on the diagonal alone, so that blocks beside it are those of the curvature.
    matrix = BlockTridiagonal().contract(rows).damped(0.4)
    found, wanted = dense(matrix, params), full(rows)
    apart = dense(Kronecker().contract(rows).damped(0.4), params)
    for i, a in enumerate(matrix.places):
        close(block(found, params, a), block(apart, params, a))
        for b in matrix.places[i + 1 : i + 2]:
            close(block(found, params, a, b), block(wanted, params, a, b))
            assert block(wanted, params, a, b).abs().max() > 0.1


def test_positions_enter_the_products_of_neighbours_by_their_mean() -> None:
    model, x = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten(), nn.Linear(12, 2)), randn(6, 2, 5)
    rows = rows_of(model, x)
    ((link,),) = parts(BlockTridiagonal().contract(rows))[1:]
    patches = nn.functional.unfold(x.unsqueeze(2), (1, 2)).mean(2)
    hidden = model[1](model[0](x)).detach()
    close(link.input, with_ones(patches).mT @ with_ones(hidden))
    # The rows of a bias are its gradients, summed over the four positions.
    first, second = (rows.per_example()[name].flatten(end_dim=1) for name in ("0.bias", "2.bias"))
    close(link.output, first.mT @ second / 4**0.5)
    close(link.count, 6.0)


def test_neighbours_are_together_never_negative() -> None:
    """Where all positions are alike, the products of neighbours are as large as they can be."""
    model = nn.Sequential(
        nn.Conv1d(2, 3, 1),
        nn.Tanh(),
        nn.Conv1d(3, 2, 1),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(2, 2),
    )
    layers, links = parts(BlockTridiagonal().contract(rows_of(model, torch.ones(6, 2, 5))))
    for (a, b), link in zip(pairwise(layers), links, strict=True):
        for mine, cross, theirs in (
            (a.mean_input, link.mean_input, b.mean_input),
            (a.output, link.output, b.output),
        ):
            both = torch.cat([torch.cat([mine, cross], 1), torch.cat([cross.mT, theirs], 1)])
            assert both.trace() > 1e-3
            assert torch.linalg.eigvalsh(both).min() > -1e-12 * both.trace()


def test_draws_have_the_covariance() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1))
    params = params_of(model)
    matrix = BlockTridiagonal().contract(rows_of(model, randn(5, 1))).damped(0.1)
    generator = torch.Generator().manual_seed(0)
    belief = br.posteriors.Gaussian({k: torch.zeros_like(v) for k, v in params.items()}, matrix)
    draws = torch.stack([flat(belief.sample(generator)) for _ in range(4000)])
    z_close(draws, 0.0)
    covariance = torch.linalg.inv(dense(matrix, params))
    z_close(draws.unsqueeze(2) * draws.unsqueeze(1), covariance)
    assert covariance[:2, 2:].abs().max() > 0.1


def test_without_links_it_is_the_kronecker_matrix() -> None:
    params = params_of(mlp(3, 4, 2))
    ours, theirs = (s.identity(params, 2.0).damped(0.3) for s in (BlockTridiagonal(), Kronecker()))
    close(dense(ours, params), dense(theirs, params))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layers_that_tell_all_of_each_other_never_give_nan(dtype: torch.dtype) -> None:
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(3)]).to(dtype)
    curvature = BlockTridiagonal().contract(ggn_rows(model, randn(2, 3).to(dtype)))
    for damping in (0.0, 1e-12, 1e-3):
        assert finite(curvature.damped(damping), params_of(model))


def test_learning_with_a_chain_raises_the_evidence_bound() -> None:
    model, x = mlp(1, 4, 1), randn(30, 1)
    y = torch.sin(2.0 * x)
    learner = br.Learner(
        model,
        br.GaussianLikelihood(noise=0.2),
        posterior=br.GaussianFamily(BlockTridiagonal().for_model(model)),
        expectation=br.Draws(2),
        curvature=br.Fisher(),
        rule=br.Natural(0.05, 0.05, br.Average(0.9)),
        num_data=30,
    )
    state, bounds = learner.init(), []
    for _ in range(60):
        state, info = learner.step(state, (x, y))
        bounds.append(float(info.elbo))
    assert sum(bounds[-10:]) / 10 > sum(bounds[:10]) / 10 + 50
