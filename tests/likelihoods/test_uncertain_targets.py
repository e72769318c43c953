"""Targets with a variance of their own: as so much more noise, by every method, however run."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.execution import Compiled, Stacked
from bayesrule.likelihoods import OneHotLikelihood
from bayesrule.tensors import tree

METHODS: list[Callable[..., br.Learner]] = [
    br.tagi, br.vogn, br.ivon, br.noisy_kfac, br.noisy_full, br.mean_field, br.map, br.adam,
    br.variational_laplace, br.noisy_adam, br.k_tied, br.ogn, br.laplace,
]  # fmt: skip


@pytest.fixture(autouse=True)
def _double() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def _net(outputs: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, outputs))


def _data(seed: int, n: int = 8, outputs: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, generator=generator), torch.randn(n, outputs, generator=generator)


def _same(a: Any, b: Any, rtol: float = 1e-10) -> None:
    first, second = dict(tree.leaves(a.posterior)), dict(tree.leaves(b.posterior))
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=rtol, atol=1e-10, msg=name)


def _closed_form(x: Tensor, y: Tensor, noise: Tensor, prior: float) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the weights of linear regression; `noise` is one of each target."""
    rows = torch.cat([x, torch.ones(len(x), 1)], 1)
    precision = rows.mT @ (rows / noise[:, None]) + prior * torch.eye(rows.shape[1])
    covariance = precision.inverse()
    return covariance @ (rows.mT @ (y / noise)), covariance


@pytest.mark.parametrize("as_batch", [True, False])
def test_linear_regression_is_the_closed_form(as_batch: bool) -> None:
    x, y = _data(1, 12, 1)
    variance = torch.linspace(0.01, 2.0, 12)[:, None]
    model = nn.Linear(3, 1)
    learner = br.ridge(model, br.GaussianLikelihood(noise=0.3), num_data=12, prior_precision=0.7)
    target = br.uncertain(y, variance)
    data = target if as_batch else br.uncertain(y[:, 0], variance[:, 0])
    state, _ = learner.step(learner.init(), (x, data))
    mean, covariance = _closed_form(x, y[:, 0], 0.09 + variance[:, 0], 0.7)
    found = torch.cat([state.posterior.mean["weight"].flatten(), state.posterior.mean["bias"]])
    torch.testing.assert_close(found, mean, rtol=1e-10, atol=1e-10)
    spread = state.posterior.variance()
    spread = torch.cat([spread["weight"].flatten(), spread["bias"]])
    torch.testing.assert_close(spread, covariance.diagonal(), rtol=1e-10, atol=1e-10)


def test_tagi_of_one_weight_is_the_closed_form() -> None:
    model = nn.Linear(1, 1, bias=False)
    learner = br.tagi(model, br.GaussianLikelihood(noise=0.5), num_data=6)
    state = learner.init()
    precision = 1.0 / state.posterior.variance()["weight"]
    mean = precision * state.posterior.mean["weight"]
    for seed in range(6):
        x, y, v = torch.randn(3, 1, 1, generator=torch.Generator().manual_seed(seed)).abs()
        state, _ = learner.step(state, (x, br.uncertain(y, v)))
        precision = precision + x * x / (0.25 + v)
        mean = mean + x * y / (0.25 + v)
    torch.testing.assert_close(state.posterior.mean["weight"], mean / precision, rtol=1e-10, atol=0)
    found = state.posterior.variance()["weight"]
    torch.testing.assert_close(found, 1.0 / precision, rtol=1e-10, atol=0)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.__name__)
def test_equal_variances_are_more_noise(method: Callable[..., br.Learner]) -> None:
    extra = 0.35
    more = math.sqrt(0.04 + extra)
    a = method(_net(), br.GaussianLikelihood(noise=0.2), num_data=40)
    b = method(_net(), br.GaussianLikelihood(noise=more), num_data=40)
    one, other = a.init(seed=3), b.init(seed=3)
    for seed in range(3):
        x, y = _data(seed)
        one, info = a.step(one, (x, br.uncertain(y, extra)))
        other, expected = b.step(other, (x, y))
        torch.testing.assert_close(info.loss, expected.loss, rtol=1e-10, atol=0)
    batch = _data(9)
    one = a.finish(one, [(batch[0], br.uncertain(batch[1], extra))])
    _same(one, b.finish(other, [batch]), rtol=1e-8)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.__name__)
def test_learned_noise_without_variance_is_as_before(method: Callable[..., br.Learner]) -> None:
    learner = method(_net(), br.GaussianLikelihood(), num_data=40)
    plain, tiny = learner.init(seed=1), learner.init(seed=1)
    for seed in range(3):
        x, y = _data(seed)
        plain, _ = learner.step(plain, (x, y))
        tiny, _ = learner.step(tiny, (x, br.uncertain(y, 1e-14)))
    _same(plain, tiny, rtol=1e-7)
    for name, value in plain.likelihood.items():
        torch.testing.assert_close(tiny.likelihood[name], value, rtol=1e-8, atol=0)


@pytest.mark.parametrize(("method", "size", "passes"), [(br.tagi, 20, 1), (br.ridge, 4000, 100)])
def test_learned_noise_leaves_the_targets_own_variance_out(
    method: Any, size: int, passes: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    n = 4000
    x = torch.randn(n, 3, generator=generator)
    own = 0.02 + 0.3 * torch.rand(n, 1, generator=generator)
    y = x.sum(1, keepdim=True) + 0.5 * torch.randn(n, 1, generator=generator)
    y = y + own.sqrt() * torch.randn(n, 1, generator=generator)
    learner = method(nn.Linear(3, 1), br.GaussianLikelihood(averaging=0.1), num_data=n)
    noise = []
    for targets in (y, br.uncertain(y, own)):
        state = learner.init()
        for k in range(0, n * passes, size):
            rows = slice(k % n, k % n + size)
            state, _ = learner.step(state, (x[rows], targets[rows]))
        noise.append(float(state.likelihood["b"] / state.likelihood["a"]))
    assert noise[0] == pytest.approx(0.25 + 0.17, abs=0.08)
    assert noise[1] == pytest.approx(0.25, abs=0.05)


def test_the_bound_is_the_evidence_with_a_hidden_target() -> None:
    """`log_prob` against quadrature over the hidden target z, its distribution the best one."""
    likelihood = br.GaussianLikelihood()
    state = {"a": torch.tensor(7.0), "b": torch.tensor(3.0)}
    f, y, v = torch.tensor([[0.4]]), torch.tensor([[1.5]]), 0.8
    z = torch.linspace(-30, 30, 200_001)[:, None]
    each = likelihood.log_prob(f.expand_as(z), z, state)
    error = torch.distributions.Normal(z[:, 0], v**0.5).log_prob(y[0])
    expected = torch.trapezoid((each + error).exp(), z[:, 0]).log()
    found = likelihood.log_prob(f, br.uncertain(y, v), state)
    torch.testing.assert_close(found[0], expected, rtol=1e-9, atol=1e-9)
    weights = (each + error - expected).exp()
    squares = torch.trapezoid(weights * (z - f).square()[:, 0], z[:, 0])
    statistics = likelihood.expected_statistics(f, br.uncertain(y, v), state)
    torch.testing.assert_close(statistics["squares"][0], squares, rtol=1e-9, atol=1e-9)


def test_missing_targets_stay_missing() -> None:
    learner = br.tagi(_net(), br.GaussianLikelihood(noise=0.2), num_data=8)
    x, y = _data(0)
    y[3:] = math.nan
    some, _ = learner.step(learner.init(), (x, br.uncertain(y, 0.3)))
    alone, _ = learner.step(learner.init(), (x[:3], br.uncertain(y[:3], 0.3)))
    _same(some, alone)


@pytest.mark.parametrize("noise", [0.2, None])
@pytest.mark.parametrize("method", [br.tagi, br.vogn, br.mean_field, br.noisy_kfac, br.map])
def test_a_stack_is_its_nets(method: Callable[..., br.Learner], noise: float | None) -> None:
    learner = method(_net(), br.GaussianLikelihood(noise=noise), num_data=20)
    stack = Stacked(learner, 3)
    state = stack.init([1, 2, 3])
    singles = stack.unstack(state)
    for step in range(3):
        batches = [_data(10 * step + k) for k in range(3)]
        variances = [
            0.1 + torch.rand(8, 2, generator=torch.Generator().manual_seed(k)) for k in range(3)
        ]
        x, y = (torch.stack(part) for part in zip(*batches, strict=True))
        state, _ = stack.step(state, (x, br.uncertain(y, torch.stack(variances))))
        for k, (inputs, targets) in enumerate(batches):
            given = inputs, br.uncertain(targets, variances[k])
            singles[k], _ = learner.step(singles[k], given)
    for found, expected in zip(stack.unstack(state), singles, strict=True):
        _same(found, expected, rtol=1e-8)
        for name, value in expected.likelihood.items():
            torch.testing.assert_close(found.likelihood[name], value, rtol=1e-8, atol=0)


@pytest.mark.parametrize("noise", [0.2, None])
def test_compiled_steps_are_the_same(noise: float | None) -> None:
    learner = br.tagi(_net(), br.GaussianLikelihood(noise=noise), num_data=40)
    compiled = Compiled(learner, backend="eager")
    one, other = learner.init(), learner.init()
    for seed in range(4):
        x, y = _data(seed)
        batch = x, br.uncertain(y, 0.1 + torch.rand(8, 2))
        one, _ = learner.step(one, batch)
        other, _ = compiled.step(other, batch)
    _same(one, other)


class _Pairs(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.x[i], self.y[i]


@pytest.mark.parametrize("kind", ["pair", "set", "loader"])
@pytest.mark.parametrize("method", [br.tagi, br.vogn])
def test_fit_takes_them(kind: str, method: Callable[..., br.Learner]) -> None:
    x, y = _data(0, 20)
    target = br.uncertain(y, 0.3)
    sets = {"pair": (x, target), "set": _Pairs(x, target)}
    sets["loader"] = torch.utils.data.DataLoader(_Pairs(x, target), batch_size=5)
    extra = method(_net(), br.GaussianLikelihood(noise=math.sqrt(0.34)), num_data=20)
    plain = method(_net(), br.GaussianLikelihood(noise=0.2), num_data=20)
    options: dict[str, Any] = {"epochs": 2, "batch_size": 5, "progress": False}
    found = br.fit(plain, sets[kind], **options)
    same = {"pair": (x, y), "set": _Pairs(x, y)}
    same["loader"] = torch.utils.data.DataLoader(_Pairs(x, y), batch_size=5)
    _same(found.state, br.fit(extra, same[kind], **options).state)


def test_fit_many_takes_them() -> None:
    sets = [_data(k, 10 + k) for k in range(2)]
    uncertain = [(x, br.uncertain(y, 0.3)) for x, y in sets]

    def build(noise: float) -> Any:
        return lambda x, y: br.vogn(_net(), br.GaussianLikelihood(noise=noise), num_data=len(y))

    options: dict[str, Any] = {"epochs": 2, "batch_size": 4, "progress": False}
    found = br.fit_many(build(0.2), uncertain, **options)
    expected = br.fit_many(build(math.sqrt(0.34)), sets, **options)
    for one, other in zip(found, expected, strict=True):
        _same(one.state, other.state)


def test_where_gradients_are_off() -> None:
    learner = br.vogn(_net(), br.GaussianLikelihood(noise=0.2), num_data=8)
    x, y = _data(0)
    expected, _ = learner.step(learner.init(), (x, br.uncertain(y, 0.3)))
    with torch.no_grad():
        found, _ = learner.step(learner.init(), (x, br.uncertain(y, 0.3)))
    _same(found, expected)


@pytest.mark.parametrize("likelihood", [br.CategoricalLikelihood(), OneHotLikelihood()])
def test_classes_are_refused_by_name(likelihood: Any) -> None:
    learner = br.tagi(_net(), OneHotLikelihood(), num_data=8)
    learner.likelihood = likelihood
    x, y = _data(0)
    with pytest.raises(TypeError, match=r"takes targets that are known.*GaussianLikelihood"):
        learner.step(learner.init(), (x, br.uncertain(y, 0.3)))
