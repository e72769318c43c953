"""The log density that is sampled is that of the library, however it is computed."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable

import numpy as np
import pytest
import torch
from exact import DTYPE, close, flat, mlp, randn
from torch import Tensor, nn
from torch.distributions import Gamma, Normal

import bayesrule as br
from bayesrule.hmc import LogDensity
from bayesrule.hmc.density import value_and_gradient


def _data(n: int = 12, inputs: int = 2) -> tuple[Tensor, Tensor]:
    x = randn(n, inputs, seed=1)
    return x, x.sum(1, keepdim=True).tanh() + 0.3 * randn(n, 1, seed=2)


def _log_prior(theta: Tensor, precision: float = 1.0) -> Tensor:
    std = torch.tensor(precision**-0.5, dtype=DTYPE)
    return Normal(torch.zeros_like(std), std).log_prob(theta).sum()


LIKELIHOODS: list[tuple[br.likelihoods.Likelihood, int, Callable[[Tensor], Tensor]]] = [
    (br.GaussianLikelihood(noise=0.7), 1, lambda y: y),
    (br.HeteroscedasticLikelihood(), 2, lambda y: y),
    (br.CategoricalLikelihood(), 3, lambda y: (y.squeeze(1) > 0).long()),
    (br.BernoulliLikelihood(), 1, lambda y: (y > 0).double()),
    (br.PoissonLikelihood(), 1, lambda y: y.abs().round()),
]


EACH = pytest.mark.parametrize(
    ("likelihood", "outputs", "targets"),
    LIKELIHOODS,
    ids=[type(case[0]).__name__ for case in LIKELIHOODS],
)


@EACH
def test_the_density_is_the_likelihood_and_the_prior(
    likelihood: br.likelihoods.Likelihood, outputs: int, targets: Callable[[Tensor], Tensor]
) -> None:
    model, (x, y) = mlp(2, 3, outputs), _data()
    y = targets(y)
    density = LogDensity(model, likelihood, (x, y), prior_precision=2.0, temperature=0.5)
    theta = flat(dict(model.named_parameters())).detach()
    fit = likelihood.log_prob(model(x), y, {}).sum() / 0.5
    close(density(theta), (fit + _log_prior(theta, 2.0)).detach())


@EACH
def test_the_traced_gradient_is_that_of_autograd(
    likelihood: br.likelihoods.Likelihood, outputs: int, targets: Callable[[Tensor], Tensor]
) -> None:
    x, y = _data()
    density = LogDensity(mlp(2, 3, outputs), likelihood, (x, targets(y)))
    theta = randn(density.num, seed=5)
    value, slope = value_and_gradient(density, compile=False)(theta.numpy())
    theta.requires_grad_()
    (expected,) = torch.autograd.grad(density(theta), theta)
    close(torch.from_numpy(slope), expected)
    assert value == pytest.approx(float(density(theta.detach())), rel=1e-12)


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_the_compiled_gradient_is_the_traced_one() -> None:
    density = LogDensity(nn.Linear(2, 1), br.GaussianLikelihood(), _data())
    theta = randn(density.num, seed=5).numpy()
    compiled, traced = (value_and_gradient(density, compile=way)(theta) for way in (True, False))
    assert compiled[0] == pytest.approx(traced[0], rel=1e-12)
    np.testing.assert_allclose(compiled[1], traced[1], rtol=1e-10)


def test_without_a_compiler_there_is_a_warning_and_the_same_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no g++ here\nand more")

    monkeypatch.setattr("torch._inductor.compile", fail)
    density = LogDensity(nn.Linear(2, 1), br.GaussianLikelihood(), _data())
    theta = randn(density.num).numpy()
    with pytest.warns(UserWarning, match=r"could not be compiled.*no g\+\+ here.*compile=False"):
        found = value_and_gradient(density)(theta)
    np.testing.assert_array_equal(found[1], value_and_gradient(density, compile=False)(theta)[1])


def test_a_learned_precision_is_integrated_out() -> None:
    model, likelihood, (x, y) = nn.Linear(2, 1).double(), br.GaussianLikelihood(), _data()
    density = LogDensity(model, likelihood, (x, y), temperature=2.0)
    theta = flat(dict(model.named_parameters())).detach()
    # ∫ Gamma(τ) Π N(y | f, 1/τ)^(1/T) dτ by brute force over log τ.
    log_tau = torch.linspace(-8, 4, 20001, dtype=DTYPE).unsqueeze(1)
    tau = log_tau.exp()
    fit = Normal(model(x).squeeze(1), tau.rsqrt()).log_prob(y.squeeze(1)).sum(1) / 2.0
    joint = fit + (Gamma(*torch.full((2,), 6.0, dtype=DTYPE)).log_prob(tau) + log_tau).squeeze(1)
    expected = joint.logsumexp(0) + math.log(12.0 / 20000)
    close(density(theta), (expected + _log_prior(theta)).detach(), 1e-8)


class _Branching(nn.Module):
    """A module that a trace cannot hold: which way it goes depends on its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out.tanh() if float(self.inner.weight.sum()) > 0 else out


def test_a_module_that_cannot_be_traced_is_called_as_it_is() -> None:
    density = LogDensity(_Branching(), br.GaussianLikelihood(noise=0.5), _data())
    function = value_and_gradient(density, compile=False)
    for sign in (-1.0, 1.0):
        theta = torch.full((3,), sign, dtype=DTYPE)
        assert function(theta.numpy())[0] == pytest.approx(float(density(theta)))


def test_a_random_module_is_refused() -> None:
    class Noisy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + torch.randn(len(x), 1)

    with pytest.raises(ValueError, match="different outputs for the same weights"):
        value_and_gradient(LogDensity(Noisy(2, 1), br.GaussianLikelihood(noise=1.0), _data()))


def test_norms_and_dropout_are_in_evaluation_mode_and_the_module_is_left_alone() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(), nn.Linear(3, 1))
    model[1].running_mean.fill_(0.5)
    x, y = _data()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    density = LogDensity(model, br.GaussianLikelihood(noise=1.0), (x, y))
    value = density(flat(density.params))
    again = LogDensity(model.eval(), br.GaussianLikelihood(noise=1.0), (x, y))
    close(again(flat(again.params)), value)
    fit = Normal(model.double()(x), torch.ones(1, dtype=DTYPE)).log_prob(y).sum().detach()
    close(value - _log_prior(flat(density.params)), fit)
    assert all(torch.equal(before[k], v.to(before[k].dtype)) for k, v in model.state_dict().items())
