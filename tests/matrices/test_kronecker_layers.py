"""Kronecker factors of real networks: where they are exact, how they add up, what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch
from curvature.zoo import ZOO, Case, TiedEmbedding, Twice
from exact import LinearRegression, close, columns, dense, flat, mlp, randn, with_ones
from torch import Tensor, distributed, nn

import bayesrule as br
from bayesrule.matrices import Blocks, Diagonal, Known, Kronecker, KroneckerMatrix, Structure
from bayesrule.matrices.factors import Factors
from bayesrule.matrices.kronecker_layer import CorrectedLayer
from bayesrule.tensors import tree
from bayesrule.training import checkpoint
from matrices.layer_nets import (
    backward,
    block,
    finite,
    full,
    ggn_rows,
    jacobian,
    params_of,
    rows_of,
)

KINDS = {
    "factored": Kronecker(),
    "exact": Kronecker(exact=True),
    "corrected": Kronecker(corrected=True),
}
every_kind = pytest.mark.parametrize("structure", KINDS.values(), ids=KINDS)


@pytest.fixture(autouse=True)
def _exact(double_precision: None) -> None:
    """Double precision and a fixed seed."""


@every_kind
def test_one_example_and_one_linear_layer_are_exact(structure: Kronecker) -> None:
    model, x = nn.Linear(3, 2), randn(1, 3)
    rows = rows_of(model, x)
    close(dense(structure.contract(rows), params_of(model)), full(rows))


@every_kind
def test_deep_linear_nets_are_exact_layer_by_layer(structure: Kronecker) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False), nn.Linear(2, 2))
    params, rows = params_of(model), ggn_rows(model, randn(9, 3))
    found, wanted = structure.contract(rows), full(rows)
    for layer in found.layers.values():
        close(block(dense(found, params), params, layer.place), block(wanted, params, layer.place))


def test_the_factors_are_means_of_inputs_and_sums_of_gradients() -> None:
    model, x = mlp(3, 4, 2), randn(6, 3)
    rows = rows_of(model, x)
    factors = Kronecker().contract(rows).layers["2.weight"].factors
    inputs = with_ones(model[1](model[0](x)).detach())
    slopes = rows.only(("2.bias",)).per_example()["2.bias"].flatten(end_dim=1)
    close(factors.mean_input, inputs.mT @ inputs / 6)
    close(factors.output, slopes.mT @ slopes)


def test_a_convolution_averages_over_positions() -> None:
    """Grosse & Martens (2016): `F = |T| A ⊗ S` with means over positions, for each example."""
    model = nn.Sequential(nn.Conv2d(2, 3, 2, stride=2, padding=1), nn.Tanh(), nn.Flatten())
    x = randn(5, 2, 4, 4)
    hidden = model[0](x).detach().requires_grad_()
    out = model[2](model[1](hidden))
    given = randn(1, *out.shape)
    (slopes,) = torch.autograd.grad(out, hidden, given[0])
    patches = nn.functional.unfold(x, 2, stride=2, padding=1).mT
    a, g = with_ones(patches.reshape(-1, 8)), slopes.flatten(start_dim=2).mT.reshape(-1, 3)
    positions = 9
    wanted = 5 * positions * torch.kron(g.mT @ g / (5 * positions), a.mT @ a / (5 * positions))
    found = Kronecker().contract(rows_of(model, x, vectors=1))
    place = found.layers["0.weight"].place
    close(block(dense(found, params_of(model)), params_of(model), place), wanted)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@every_kind
@pytest.mark.parametrize("make", ZOO.values(), ids=ZOO)
def test_every_module_agrees_with_its_explicit_matrix(
    make: Callable[[], Case], structure: Kronecker
) -> None:
    model, x = make()
    params, rows = params_of(model), rows_of(model, x)
    matrix = structure.for_model(model).contract(rows).damped(0.5)
    assert sorted(matrix.names) == sorted(params)
    inverse = torch.linalg.inv(dense(matrix, params))
    slopes = jacobian(rows)
    close(matrix.output_covariance(rows), slopes @ inverse @ slopes.mT)
    close(matrix.logdet(), -torch.logdet(inverse))
    variances = matrix.inverse_diagonal()
    close(flat({name: variances[name] for name in params}), inverse.diagonal())
    identity = structure.for_model(model).identity(params, 1.0)
    assert [n for n, _ in tree.leaves(identity)] == [n for n, _ in tree.leaves(matrix)]


@pytest.mark.parametrize("name", ["mlp", "conv2d", "positions", "layer norm", "residual"])
def test_the_correction_is_closer_to_the_curvature_and_keeps_its_trace(name: str) -> None:
    model, x = ZOO[name]()
    params, rows = params_of(model), rows_of(model, x)
    corrected = Kronecker(corrected=True).for_model(model).contract(rows)
    product = Kronecker().for_model(model).contract(rows)
    wanted = full(rows)
    for key, layer in corrected.layers.items():
        part = block(wanted, params, layer.place)
        near, far = (block(dense(m, params), params, layer.place) for m in (corrected, product))
        assert (near - part).norm() < (far - part).norm()
        close(near.trace(), part.trace())
        one = cast(CorrectedLayer, corrected.layers[key])
        basis = torch.kron(one.left, one.right)
        close(one.scales.reshape(-1), (basis.mT @ part @ basis).diagonal())


@pytest.mark.parametrize("name", ["mlp", "conv1d", "layer norm", "embedding"])
def test_a_sum_over_batches_is_the_curvature_of_all_their_data(name: str) -> None:
    model, x = ZOO[name]()
    assert isinstance(x, Tensor)
    structure, params = Kronecker().for_model(model), params_of(model)
    given = randn(2, *model(x).shape, seed=3)
    a, b = (structure.contract(backward(model, x[i], given[:, i])) for i in ([0, 1, 2], [3, 4]))
    whole = structure.contract(backward(model, x, given))
    close(dense(a.plus(b), params), dense(whole, params))


def test_sums_over_machines_are_sums_of_all_tensors() -> None:
    model, x = ZOO["layer norm"]()
    a, b = (Kronecker().for_model(model).contract(rows_of(model, x, seed=i)) for i in range(2))
    theirs = dict(tree.leaves(b))
    added = tree.rebuild(a, lambda name, old: old + theirs[name])
    close(dense(added, params_of(model)), dense(a.plus(b), params_of(model)), 1e-12)


def test_averages_do_not_depend_on_what_an_example_stands_for() -> None:
    model, x = mlp(3, 4, 2), randn(6, 3)
    params, structure = params_of(model), Kronecker()
    start, given = structure.identity(params, 50.0), randn(1, 6, 2, seed=3)
    plain = structure.contract(backward(model, x, given)).times(7.0)
    # The rows of the empirical Fisher carry the scale, so that it is divided by once.
    scaled = structure.contract(backward(model, x, 7.0 * given)).times(1.0 / 7.0)
    wanted = 0.9 * torch.eye(4) + 0.1 * plain.layers["0.weight"].factors.mean_input
    for target in (plain, scaled):
        moved = start.lerp(target, 0.1)
        close(moved.layers["0.weight"].factors.mean_input, wanted)
        close(dense(moved, params), dense(start.lerp(plain, 0.1), params))


def test_an_average_that_starts_at_zero_takes_the_first_inputs_as_they_are() -> None:
    plain = Factors.of((randn(3, 3), randn(2, 2), 5))
    zero = Factors.identity((2, 3), 0.0, randn(1))
    moved = zero.lerp(plain, 0.1)
    close(moved.mean_input, plain.mean_input)
    close(moved.output, 0.1 * plain.output)
    close(zero.lerp(zero, 0.1).mean_input, torch.zeros(3, 3))


@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_singular_factors_never_give_nan(structure: Kronecker, dtype: torch.dtype) -> None:
    model = mlp(3, 4, 4, 2).to(dtype)
    # The second layer sees zeros, and no gradient reaches the first.
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    params = params_of(model)
    for x in (torch.zeros(2, 3, dtype=dtype), 1e4 * torch.ones(2, 3, dtype=dtype)):
        curvature = structure.contract(backward(model, x, torch.ones(1, 2, 2, dtype=dtype)))
        for damping in (1e-10, 1e-4, 1e6):
            assert finite(curvature.damped(damping), params)
            assert finite(structure.identity(params, 0.0).damped(damping), params)


@every_kind
def test_what_is_singular_without_damping_is_floored_or_said(structure: Kronecker) -> None:
    model = nn.Linear(3, 2)
    assert finite(structure.contract(rows_of(model, randn(1, 3))), params_of(model))
    nothing = structure.identity({"w": torch.zeros(2, 3)}, 0.0)
    with pytest.raises(ValueError, match=r"layer of 'w' is zero.*prior_precision"):
        nothing.logdet()
    with pytest.raises(ValueError, match=r"layer of 'w' holds numbers that are not finite"):
        nothing.times(float("nan")).damped(1.0).logdet()


def test_wide_layers_are_warned_about_and_get_a_diagonal_block() -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 2))
    structure, params = Kronecker(widest=6).for_model(model), params_of(model)
    with pytest.warns(UserWarning, match=r"'0\.weight'.* 7 × 7 .*Kronecker\(widest=7\)"):
        identity = structure.identity(params, 1.0)
    assert set(identity.layers) == {"2.weight"}
    rows = rows_of(model, randn(4, 6))
    found = structure.contract(rows)
    close(found.rest["0.weight"], Diagonal().contract(rows).values["0.weight"])
    assert set(Kronecker(widest=7).identity(params, 1.0).layers) == {"0.weight", "2.weight"}
    with pytest.raises(ValueError, match="widest=0"):
        Kronecker(widest=0)


@every_kind
def test_a_weight_used_twice_keeps_the_trace_of_its_whole_curvature(structure: Kronecker) -> None:
    model, x = Twice(), randn(5, 3)
    rows = rows_of(model, x)
    found = structure.for_model(model).contract(rows)
    assert set(found.layers) == {"layer.weight"}
    close(dense(found, params_of(model)).trace(), full(rows).trace())


def test_layers_are_found_by_the_kind_of_their_module() -> None:
    model = nn.ModuleDict(
        {
            "words": nn.Embedding(5, 3),
            "norm": nn.LayerNorm([2, 3]),
            "one": nn.Linear(3, 3),
            "two": nn.Conv2d(2, 4, 3, bias=False),
            "groups": nn.Conv1d(2, 4, 3, groups=2),
            "back": nn.ConvTranspose1d(2, 2, 3),
            "memory": nn.LSTM(2, 3),
            "tied": TiedEmbedding(),
        }
    )
    assert Kronecker().for_model(model).layers == (
        ("one.weight", "one.bias"),
        ("two.weight", None),
        ("memory.weight_ih_l0", "memory.bias_ih_l0"),
        ("memory.weight_hh_l0", "memory.bias_hh_l0"),
    )
    named = Blocks({"one.weight": Kronecker(), "*": Known()}).for_model(model)
    matrix = named.identity(params_of(model), 2.0).only(("one.weight",))
    assert isinstance(matrix, KroneckerMatrix)
    assert matrix.layers["one.weight"].place.bias is None


def test_roots_are_found_once_and_bases_are_kept_under_damping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = mlp(3, 4, 2)
    params, rows = params_of(model), rows_of(model, randn(5, 3))
    calls = {"cholesky_ex": 0, "eigh": 0}

    def counted(name: str) -> None:
        function = getattr(torch.linalg, name)

        def call(*args: Tensor) -> object:
            calls[name] += 1
            return function(*args)

        monkeypatch.setattr(torch.linalg, name, call)

    counted("cholesky_ex")
    counted("eigh")
    factored = Kronecker().contract(rows).damped(1.0)
    exact = Kronecker(exact=True).contract(rows)
    for _ in range(3):
        factored.solve(params), factored.inv_sqrt(params), factored.logdet()
        factored.inverse_diagonal(), factored.output_covariance(rows)
    exact.damped(1.0).logdet()
    assert calls == {"cholesky_ex": 4, "eigh": 4}
    exact.logdet()
    assert calls["eigh"] == 8
    for damping in (0.1, 1.0, 10.0):
        exact.damped(damping).solve(params)
    assert calls == {"cholesky_ex": 4, "eigh": 8}


def test_corrections_of_several_machines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(structure: Structure) -> br.Learner:
        return br.Learner(
            nn.Linear(2, 1),
            br.GaussianLikelihood(noise=0.3),
            posterior=br.GaussianFamily(structure),
            expectation=br.AtMean(),
            curvature=br.GGN(),
            rule=br.Natural(),
            num_data=20,
        )

    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    corrected = Kronecker(corrected=True)
    for structure in (corrected, Blocks({"weight": corrected, "bias": Known()})):
        with pytest.raises(TypeError, match=r"corrected=True.*Kronecker\(exact=True\)"):
            build(structure)
    build(Kronecker())
    monkeypatch.setattr(distributed, "get_world_size", lambda: 1)
    build(corrected)


def test_a_step_on_linear_regression_is_the_exact_posterior() -> None:
    x, y = randn(20, 3), randn(20, 1, seed=1)
    learner = br.Learner(
        nn.Linear(3, 1),
        br.GaussianLikelihood(noise=0.3),
        posterior=br.GaussianFamily(Kronecker(exact=True)),
        expectation=br.AtMean(),
        curvature=br.GGN(),
        rule=br.Natural(1.0, 1.0),
        num_data=20,
        prior_precision=0.7,
    )
    state, _ = learner.step(learner.init(), (x, y))
    truth = LinearRegression(with_ones(x), y[:, 0], 0.3, 0.7)
    belief = state.posterior
    assert isinstance(belief, br.posteriors.Gaussian)
    close(flat(belief.mean), truth.mean)
    close(columns(belief.precision.matmul, belief.mean), truth.precision)


@every_kind
def test_training_resumes_from_a_file_bit_for_bit(structure: Kronecker, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 1))
    x, y = randn(8, 3), randn(8, 1, seed=1)
    learner = br.Learner(
        model,
        br.GaussianLikelihood(noise=0.3),
        posterior=br.GaussianFamily(structure.for_model(model)),
        expectation=br.Draws(2),
        curvature=br.Fisher(),
        rule=br.Natural(0.05, 0.1, br.Average(0.9)),
        num_data=8,
    )
    state = learner.init()
    for _ in range(3):
        state, info = learner.step(state, (x, y))
    assert info.elbo.isfinite()
    path = checkpoint.save(tmp_path / "state.safetensors", state)
    again, _ = checkpoint.load(path, learner.init())
    assert checkpoint.same(learner.step(state, (x, y))[0], learner.step(again, (x, y))[0])
