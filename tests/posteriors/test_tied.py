"""The k-tied Normal: against mean-field, torch's own normals, autograd and the paper's counts."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from contracts.family import PARAMS, FamilyContract
from exact import DTYPE, close, flat, generator, randn
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from bayesrule import Draws, Elbo, GaussianLikelihood, Learner, Price, k_tied, mean_field
from bayesrule.posteriors import (
    FanIn,
    KTied,
    KTiedFamily,
    MeanField,
    MeanFieldFamily,
    PerGroup,
    PointEstimate,
    Rank,
)
from bayesrule.posteriors.factorised import ScaleKL
from bayesrule.posteriors.tied import matrix_shape, tied_ranks
from bayesrule.tensors import seeds
from bayesrule.tensors.step_randomness import DRAWS
from bayesrule.types import Params


def _tied(rank: int = 2, seed: int = 0) -> KTied:
    """A belief over a 6 × 4 matrix, a 5 × (2·3·3) kernel and a bias."""
    mean = {"w": randn(6, 4, seed=1), "c": randn(5, 2, 3, 3, seed=2), "b": randn(5, seed=3)}
    scales = {
        "w.u": 0.4 * randn(rank, 6, seed=seed + 4) - 1.0,
        "w.v": 0.4 * randn(rank, 4, seed=seed + 5),
        "c.u": 0.4 * randn(rank, 5, seed=seed + 6) - 0.5,
        "c.v": 0.4 * randn(rank, 18, seed=seed + 7),
        "b": 0.4 * randn(5, seed=seed + 8),
    }
    return KTied(mean, scales)


def _matrix(q: KTied, name: str, scales: Params | None = None) -> Tensor:
    """`U Vᵀ` entry by entry, as the sum of outer products."""
    given = scales or q.scales
    u, v = given[f"{name}.u"].exp(), given[f"{name}.v"].exp()
    return torch.stack([torch.outer(*pair) for pair in zip(u, v, strict=True)]).sum(0)


class TestKTied(FamilyContract):
    family = KTiedFamily(rank=1)

    def posterior(self, seed: int = 0) -> KTied:
        scales = {"w.u": 0.3 * randn(1, 2, seed=41), "w.v": 0.3 * randn(1, 2, seed=42)}
        scales["b"] = 0.3 * randn(2, seed=43) - 0.5
        mean = {name: value + 0.5 * seed for name, value in PARAMS.items()}
        return KTied(mean, {name: value + 0.2 * seed for name, value in scales.items()})

    def log_prob(self, q: Any, params: Any) -> Tensor:
        return Normal(flat(q.mean), flat(q.std())).log_prob(flat(params)).sum()


# What it is.


def test_standard_deviations_are_the_product() -> None:
    q = _tied()
    std = q.std()
    close(std["w"], _matrix(q, "w"), 1e-14)
    close(std["c"].flatten(start_dim=1), _matrix(q, "c"), 1e-14)
    close(std["b"], q.scales["b"].exp(), 1e-14)
    assert {k: v.shape for k, v in std.items()} == {k: v.shape for k, v in q.mean.items()}
    assert torch.linalg.matrix_rank(std["c"].flatten(start_dim=1)) == 2


def test_divergence_is_that_of_normals() -> None:
    q = _tied()
    std = torch.cat([_matrix(q, k).reshape(-1) for k in ("w", "c")] + [q.scales["b"].exp()])
    prior = Normal(torch.zeros_like(std), 1.3**-0.5)
    close(q.kl(1.3), kl_divergence(Normal(flat(q.mean), std), prior).sum(), 1e-12)


def test_with_full_rank_it_is_mean_field() -> None:
    mean, log_std = {"w": randn(6, 4, seed=1)}, 0.1 * randn(6, 4, seed=2)
    v = torch.eye(4, dtype=DTYPE) + 0.05
    u = torch.linalg.solve(v, log_std.exp(), left=False)
    assert (u > 0).all()
    # v is symmetric, so u vᵀ = u v.
    tied, free = (
        KTied(mean, {"w.u": u.mT.log(), "w.v": v.mT.log()}),
        MeanField(mean, {"w": log_std}),
    )
    close(tied.std()["w"], free.std()["w"], 1e-12)
    close(tied.kl(1.7), free.kl(1.7), 1e-12)
    close(tied.offset(generator(3))["w"], free.offset(generator(3))["w"], 1e-12)


# Gradients.


@pytest.mark.parametrize("placed", [float, partial(torch.tensor, dtype=DTYPE)])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_gradients_in_the_factors_follow_the_chain_rule(
    rank: int, placed: Callable[[float], float | Tensor]
) -> None:
    q = _tied(rank)
    leaves = {name: value.clone().requires_grad_() for name, value in q.scales.items()}
    std = {k: _matrix(q, k, leaves).view(q.mean[k].shape) for k in ("w", "c")}
    std["b"] = leaves["b"].exp()
    slope = {
        name: randn(*value.shape, seed=60 + i) for i, (name, value) in enumerate(q.mean.items())
    }
    each = [slope[k] * s - 0.3 * s.log() + 0.5 * 0.7 * s.square() for k, s in std.items()]
    wanted = torch.autograd.grad(0.2 * sum(one.sum() for one in each), list(leaves.values()))
    given = {name: value.clone() for name, value in slope.items()}
    found = q.scale_gradients(given, 0.2, ScaleKL(placed(0.3), placed(0.7)))
    assert list(found) == list(q.scales)
    for got, want in zip(found.values(), wanted, strict=True):
        close(got, want, 1e-12)


@pytest.mark.parametrize("shape", [(5, 2, 3, 3), (5, 4, 2, 3), (5, 2, 3, 1), (5, 7, 1, 1)])
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_channels_may_lie_last(shape: tuple[int, int, int, int], rank: int) -> None:
    mean, slope = randn(*shape, seed=1), randn(*shape, seed=2)
    columns = shape[1] * shape[2] * shape[3]
    scales = {"c.u": randn(rank, 5, seed=3), "c.v": randn(rank, columns, seed=4)}
    plain = KTied({"c": mean}, scales)
    last = torch.channels_last
    moved = KTied({"c": mean.contiguous(memory_format=last)}, scales)
    close(moved.std()["c"], plain.std()["c"])
    assert moved.std()["c"].stride() == moved.mean["c"].stride(), "read together, so laid out alike"
    no_kl = ScaleKL(0.0, 0.0)
    wanted = plain.scale_gradients({"c": slope.clone()}, 1.0, no_kl)
    for given in (slope.clone(), slope.contiguous(memory_format=last)):
        found = moved.scale_gradients({"c": given}, 1.0, no_kl)
        for name, value in wanted.items():
            close(found[name], value)


def test_nets_without_vectors_or_without_ranks_learn_too() -> None:
    net = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 1, bias=False))
    batch = randn(5, 3, seed=1).float(), randn(5, 1, seed=2).float()
    for rank in (2, {"*": None}):
        learner = k_tied(net, GaussianLikelihood(noise=0.1), num_data=10, rank=rank)
        first = learner.init()
        state, _ = learner.step(first, batch)
        assert list(state.posterior.scales) == list(first.posterior.scales)
        assert all(
            (state.posterior.scales[k] != v).all() for k, v in first.posterior.scales.items()
        )


def test_a_step_follows_the_reparameterised_gradient() -> None:
    """Bonnet, Price and `scale_gradients` against autograd through `θ = μ + (U Vᵀ) ε`."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(DTYPE)
    learner = Learner(
        net,
        GaussianLikelihood(noise=0.5),
        num_data=40,
        prior_precision=2.0,
        posterior=KTiedFamily({"0.*": 2}),
        expectation=Draws(1),
        curvature=Price(),
        rule=Elbo(keep_gradients=True),
    )
    x, y = randn(10, 3, seed=1), randn(10, 2, seed=2)
    state = learner.init(0)
    q = state.posterior
    assert isinstance(q, KTied)
    std = q.std()
    offset = q.offset(seeds.generator("cpu", 0, 0, DRAWS))
    leaves = {name: value.clone().requires_grad_() for name, value in q.scales.items()}
    live = KTied(q.mean, leaves).std()
    theta = {k: m + live[k] * (offset[k] / std[k]) for k, m in q.mean.items()}
    outputs = torch.func.functional_call(net, theta, (x,))
    nll = -Normal(outputs, 0.5).log_prob(y).sum() / len(x)
    prior = Normal(torch.zeros((), dtype=DTYPE), 2.0**-0.5)
    kl = sum(kl_divergence(Normal(m, live[k]), prior).sum() for k, m in q.mean.items())
    wanted = torch.autograd.grad(nll + kl / 40, list(leaves.values()))
    moved, _ = learner.step(state, (x, y))
    found = moved.rule["gradients"]["scales"]
    for got, want in zip(found.values(), wanted, strict=True):
        close(got, want, 1e-12)


# How many numbers, and which matrices.


def _mlp() -> nn.Module:
    sizes = (784, 400, 400, 10)
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))


@pytest.mark.parametrize(("rank", "thousands"), [(None, 957), (1, 482), (2, 484), (3, 486)])
def test_parameters_are_as_many_as_in_the_paper(rank: int | None, thousands: int) -> None:
    """Swiatkowski et al. (2020), figure 6: MNIST, MLP. Biases are counted with scales."""
    params = {k: v.detach() for k, v in _mlp().named_parameters()}
    family = MeanFieldFamily() if rank is None else KTiedFamily(rank)
    found = family.init(params, weight=1.0, prior=1.0).num_parameters
    assert round(found / 1000) == thousands
    tied = 784 * 400 + 400 * 400 + 400 * 10 if rank is None else rank * (784 + 3 * 400 + 400 + 10)
    assert found == 478_410 + 810 + tied


def test_kernels_of_recurrent_layers_are_tied_over_their_gates() -> None:
    params = {k: v.detach() for k, v in nn.LSTM(7, 8).named_parameters()}
    scales = KTiedFamily(2).init(params, weight=1.0, prior=1.0).scales
    assert {k: tuple(v.shape) for k, v in scales.items()} == {
        "weight_ih_l0.u": (2, 32),
        "weight_ih_l0.v": (2, 7),
        "weight_hh_l0.u": (2, 32),
        "weight_hh_l0.v": (2, 8),
        "bias_ih_l0": (32,),
        "bias_hh_l0": (32,),
    }


def test_the_first_pattern_that_fits_counts() -> None:
    q = _tied()
    names = {"w": q.mean["w"], "v": q.mean["w"], "conv": q.mean["c"], "b": q.mean["b"]}
    assert tied_ranks(names, 3) == {"w": 3, "v": 3, "conv": 3}
    assert tied_ranks(names, {"conv": None, "*": 2}) == {"w": 2, "v": 2}
    assert tied_ranks(names, {"w": 1, "c*": 4}) == {"w": 1, "conv": 4}
    assert tied_ranks(names, {"b": None, "w": 4}) == {"w": 4}


def test_vectors_are_not_tied() -> None:
    row, column = torch.zeros(1, 8), torch.zeros(8, 1)
    assert matrix_shape(row) is matrix_shape(column) is matrix_shape(torch.zeros(())) is None
    assert matrix_shape(torch.zeros(8, 1, 3, 3)) == (8, 9)
    assert tied_ranks({"a": row, "b": column, "c": torch.zeros(8)}, 2) == {}


REFUSED: list[tuple[Rank, str]] = [
    (5, r"Rank 5 is too large for 'w', a 6 × 4 matrix: it may have at most 4"),
    ({"w": 2, "c": 6}, r"Rank 6 is too large for 'c', a 5 × 18 matrix"),
    ({"x*": 2}, r"No matrix with standard deviations is named 'x\*'.*There are: w, c"),
    ({"b": 2}, "No matrix with standard deviations is named 'b', which has rank 2"),
    ({"x": None}, "No weight is named 'x'.*There are: w, c, b"),
    (0, "whole number of at least 1 or None, got 0"),
    (1.5, "got 1.5"),  # type: ignore[list-item]
    (True, "got True"),
]


@pytest.mark.parametrize(("rank", "message"), REFUSED, ids=[str(case[0]) for case in REFUSED])
def test_ranks_that_do_not_fit_are_refused(rank: Rank, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KTiedFamily(rank).init(_tied().mean, weight=1.0, prior=1.0)


def test_a_known_weight_cannot_be_tied() -> None:
    with pytest.raises(ValueError, match=r"is named 'w', which has rank 2\. There are: c"):
        PerGroup({"w": PointEstimate(), "*": KTiedFamily({"w": 2})}).init(
            _tied().mean, weight=1.0, prior=1.0
        )


# The first belief.


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("spread", [0.05, FanIn(0.5)], ids=repr)
def test_the_first_mean_is_that_of_mean_field(rank: int, spread: float | FanIn) -> None:
    params = {"w": torch.zeros(300, 200), "c": torch.zeros(64, 32, 3, 3), "b": torch.zeros(300)}
    found = KTiedFamily(rank, spread).init(params, weight=1.0, prior=4.0).std()
    wanted = MeanFieldFamily(spread).init(params, weight=1.0, prior=4.0).std()
    for name in params:
        # `close` takes its tolerance twice, so this is within 3 %.
        close(found[name].mean() / wanted[name].mean(), 1.0, 0.015)
        spread_out = found[name].std() > 1e-3 * found[name].mean()
        assert spread_out == (name != "b")


def test_the_first_logarithms_are_spread_by_the_jitter() -> None:
    q = KTiedFamily(2, jitter=0.3).init(
        {"w": torch.zeros(4000, 100, dtype=DTYPE)}, weight=1.0, prior=1.0
    )
    logs = torch.cat([q.scales["w.u"], q.scales["w.v"]], dim=1)
    close(logs.std(), 0.3, 0.01)
    close(logs.mean(), 0.5 * (torch.tensor(0.05 / 2, dtype=DTYPE).log() - 0.3**2), 0.01)
    with pytest.raises(ValueError, match=r"jitter must be positive, got 0\.0"):
        KTiedFamily(jitter=0.0)


def test_the_first_belief_follows_from_the_names_alone() -> None:
    params = {"a": torch.zeros(5, 6), "b": torch.zeros(5, 6)}
    before = torch.random.get_rng_state()
    one, two = (KTiedFamily().init(params, weight=1.0, prior=1.0) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(one.scales[k], two.scales[k]) for k in one.scales)
    assert not torch.equal(one.scales["a.u"], one.scales["b.u"])
    assert not torch.equal(one.scales["a.u"], one.scales["a.v"][:, :5])
    double = {name: value.double() for name, value in params.items()}
    same = KTiedFamily().init(double, weight=1.0, prior=1.0)
    assert same.scales["a.u"].dtype == DTYPE
    close(same.scales["a.u"].float(), one.scales["a.u"], 1e-6)


# The method.


def test_the_method_learns_with_fewer_numbers_than_mean_field() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 30), nn.Tanh(), nn.Linear(30, 1))
    x = torch.randn(64, 8)
    likelihood = GaussianLikelihood(noise=0.3)
    final, size = {}, {}
    for method in (mean_field, k_tied):
        learner = method(net, likelihood, num_data=64, learning_rate=0.01)
        state = learner.init(0)
        for _ in range(150):
            state, info = learner.step(state, (x, x[:, :1]), donate=True)
        final[method], size[method] = -float(info.elbo) / 64, state.posterior.num_parameters
    assert size[k_tied] == size[mean_field] - 240 + 2 * 38
    assert final[k_tied] < 1.1 * final[mean_field]
