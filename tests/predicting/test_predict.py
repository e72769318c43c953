"""Predictions from a belief against closed forms, quadrature and brute force."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from exact import (
    DTYPE,
    GridPosterior,
    LinearRegression,
    TableRows,
    close,
    dense,
    flat,
    gauss_hermite,
    jacobian,
    logistic_hessian,
    logistic_log_joint,
    logistic_mode,
    mlp,
    named,
    positive,
    randn,
    with_ones,
    z_close,
)
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.func import functional_call

import bayesrule as br
from bayesrule.learner import Learner
from bayesrule.matrices import Blocks, Known, Structure
from bayesrule.methods.laplace import last_layer_names
from bayesrule.predicting.predict import linearised_outputs
from bayesrule.tensors import seeds
from bayesrule.types import Params, State


def believing(learner: Learner, precision: br.matrices.Matrix) -> State:
    """The learner's first state with another precision."""
    state = learner.init()
    return dataclasses.replace(
        state, posterior=br.posteriors.Gaussian(state.posterior.mean, precision)
    )


def precision_of(state: State) -> br.matrices.Matrix:
    """The precision of a Gaussian belief."""
    assert isinstance(state.posterior, br.posteriors.Gaussian)
    return state.posterior.precision


def full_belief(
    model: nn.Module, likelihood: br.likelihoods.Likelihood, scale: float = 1.0
) -> tuple[Learner, State, Tensor]:
    """A learner with a full random precision over the weights, its state and the covariance."""
    learner = br.ridge(model, likelihood, num_data=10)
    mean = learner.init().posterior.mean
    precision = positive(len(flat(mean)), seed=3) * scale
    state = believing(learner, br.Dense().project(precision, mean))
    return learner, state, torch.linalg.inv(precision)


class TestLinearRegression:
    x, y = randn(12, 3, seed=1), randn(12, seed=2)
    new = randn(5, 3, seed=3)
    exact = LinearRegression(with_ones(x), y, noise=0.6, prior_precision=1.3)

    def learned(self) -> tuple[Learner, State]:
        likelihood = br.GaussianLikelihood(noise=0.6)
        learner = br.ridge(mlp(3, 1), likelihood, num_data=12, prior_precision=1.3)
        return learner, learner.step(learner.init(), (self.x, self.y))[0]

    def test_linearised_is_the_exact_predictive(self) -> None:
        p = br.predict(*self.learned(), self.new)
        mean, epistemic = self.exact.predictive(with_ones(self.new))
        close(p.mean[:, 0], mean)
        close(p.epistemic[:, 0], epistemic)
        close(p.aleatoric, torch.full((5, 1), 0.36, dtype=DTYPE))
        y = randn(5, seed=4)
        close(p.log_prob(y), Normal(mean, (epistemic + 0.36).sqrt()).log_prob(y))

    def test_draws_tend_to_it(self) -> None:
        p = br.predict(*self.learned(), self.new, br.Draws(3000))
        mean, epistemic = self.exact.predictive(with_ones(self.new))
        z_close(p.conditional_means[..., 0], mean)
        z_close((p.conditional_means[..., 0] - mean).square(), epistemic)
        close(p.epistemic, p.conditional_means.var(0, correction=0))
        z_close(p.sample(3000)[..., 0], p.mean[:, 0])
        z_close((p.sample(3000) - p.mean).square(), p.variance)

    def test_at_the_mean_there_is_no_epistemic_part(self) -> None:
        p = br.predict(*self.learned(), self.new, br.AtMean())
        close(p.mean[:, 0], self.exact.predictive(with_ones(self.new))[0])
        close(p.epistemic, torch.zeros(5, 1), 0.0)


def batch_norm() -> nn.Module:
    """A convolutional net whose running statistics are not the first ones."""
    norm = nn.BatchNorm1d(2)
    net = nn.Sequential(nn.Conv1d(1, 2, 2), norm, nn.Tanh(), nn.Flatten(), nn.Linear(4, 2))
    buffers = dict(norm.named_buffers())
    buffers["running_mean"].copy_(randn(2, seed=5))
    buffers["running_var"].copy_(randn(2, seed=6).exp())
    return net.double()


MODELS = {
    "mlp": (lambda: mlp(3, 4, 2), randn(6, 3, seed=7)),
    "squeezed": (lambda: nn.Sequential(*mlp(3, 4, 1), nn.Flatten(0)), randn(6, 3, seed=7)),
    "batch norm": (batch_norm, randn(6, 1, 3, seed=8)),
}
STRUCTURES = [br.matrices.Isotropic(), br.Diagonal(), br.Dense(), br.LowRank(3), br.LowRank(99)]


def _covariance(precision: br.matrices.Matrix, mean: Params) -> Tensor:
    """The explicit covariance; weights outside a subset have none."""
    some = {name: mean[name] for name in precision.diagonal()}
    return torch.linalg.inv(dense(precision, some))


@pytest.mark.parametrize("subset", [False, True], ids=["all", "last layer"])
@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
@pytest.mark.parametrize("kind", MODELS)
def test_output_covariance_is_that_of_the_jacobian(
    kind: str, structure: Structure, subset: bool
) -> None:
    make, x = MODELS[kind]
    model = make()
    learner = br.ridge(model, br.GaussianLikelihood(noise=1.0), num_data=6)
    mean = learner.init().posterior.mean
    names = last_layer_names(model) if subset else tuple(mean)
    blocks = {"|".join(names): structure, "*": Known()}
    chosen = Blocks(blocks) if subset else structure
    precision = chosen.contract(TableRows.random(mean, 1, 9)).damped(2.0)
    model.train()
    outputs, found = linearised_outputs(learner, believing(learner, precision), x, chunk=4)
    assert all(module.training for module in model.modules())
    model.eval()
    close(outputs, model(x).detach())
    part = {name: mean[name] for name in names}
    rows = jacobian(model, part, x, dict(model.named_buffers()))
    covariance = _covariance(precision.only(names) if subset else precision, mean)
    close(found, rows @ covariance @ rows.mT)


class TestClasses:
    x = torch.linspace(-4.0, 4.0, 9, dtype=DTYPE).unsqueeze(1)

    def logistic(self) -> tuple[Learner, State, Tensor, Tensor]:
        """A 1-d logistic regression: mean and variance of its logit at `x`."""
        learner, state, covariance = full_belief(mlp(1, 1), br.BernoulliLikelihood(), 0.6)
        design = with_ones(self.x)
        mean = design @ flat(state.posterior.mean)
        return learner, state, mean, (design @ covariance @ design.mT).diagonal()

    def test_probit_is_near_quadrature(self) -> None:
        """The approximation is known to be within 0.02 for logits of any spread."""
        learner, state, mean, variance = self.logistic()
        p = br.predict(learner, state, self.x, br.Linearised())
        exact = gauss_hermite(torch.sigmoid, mean, variance)
        assert float((p.mean[:, 0] - exact).abs().max()) < 0.02
        close(p.mean[:, 0], torch.sigmoid(mean / (1 + math.pi * variance / 8).sqrt()))

    def test_probit_keeps_the_variance_of_the_target(self) -> None:
        learner, state, mean, variance = self.logistic()
        p = br.predict(learner, state, self.x)
        close(p.variance, p.mean * (1 - p.mean))
        exact = gauss_hermite(torch.sigmoid, mean, variance)
        spread = gauss_hermite(lambda f: torch.sigmoid(f).square(), mean, variance) - exact**2
        close(p.epistemic[:, 0], spread, 5e-3)

    def test_monte_carlo_link_tends_to_quadrature(self) -> None:
        learner, state, mean, variance = self.logistic()
        p = br.predict(learner, state, self.x, br.Linearised(br.predicting.MonteCarlo(20_000)))
        exact = gauss_hermite(torch.sigmoid, mean, variance)
        z_close(p.conditional_means[..., 0], exact)
        spread = gauss_hermite(lambda f: torch.sigmoid(f).square(), mean, variance) - exact**2
        close(p.epistemic[:, 0], spread, 5e-3)
        assert (p.mutual_information > 0).all()

    def test_several_classes(self) -> None:
        learner, state, covariance = full_belief(mlp(2, 3), br.CategoricalLikelihood())
        x = randn(4, 2, seed=9)
        mean, output_covariance = linearised_outputs(learner, state, x)
        rows = jacobian(learner.model, state.posterior.mean, x)
        close(output_covariance, rows @ covariance @ rows.mT)
        p = br.predict(learner, state, x)
        spread = output_covariance.diagonal(dim1=1, dim2=2)
        close(p.probs, (mean / (1 + math.pi * spread / 8).sqrt()).softmax(-1))
        drawn = torch.linalg.cholesky(output_covariance) @ randn(20_000, 4, 3, 1, seed=10)
        reference = (mean + drawn.squeeze(-1)).softmax(-1)
        sampled = br.predict(learner, state, x, br.Linearised(br.predicting.MonteCarlo(20_000)))
        z_close(reference - sampled.conditional_means, 0.0)
        # Probit drops the covariance of the logits: close only as far as this for three classes.
        assert float((p.probs - reference.mean(0)).abs().max()) < 0.1
        learner, sure, _ = full_belief(mlp(2, 3), br.CategoricalLikelihood(), 1e4)
        small = br.predict(learner, sure, x)
        wanted = 1e-4 * self.delta(mean.softmax(-1), output_covariance)
        torch.testing.assert_close(small.epistemic, wanted, rtol=2e-3, atol=0.0)

    def delta(self, p: Tensor, covariance: Tensor) -> Tensor:
        """The variance of the softmax to first order."""
        slope = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
        return (slope @ covariance @ slope.mT).diagonal(dim1=1, dim2=2)


@pytest.mark.parametrize("bias", [False, True], ids=["one parameter", "two parameters"])
class TestLaplaceOfLogisticRegression:
    def data(self, bias: bool, n: int) -> tuple[Tensor, Tensor, Tensor]:
        x = randn(n, 1, seed=11)
        y = (torch.sigmoid(1.2 * x[:, 0] - 0.4 * bias) > randn(n, seed=12).sigmoid()).to(DTYPE)
        return x, y, with_ones(x) if bias else x

    def laplace(self, bias: bool, n: int) -> tuple[State, Tensor, Tensor]:
        x, y, design = self.data(bias, n)
        model = nn.Linear(1, 1, bias=bias).double()
        given: dict[str, Any] = {"structure": br.Dense(), "prior_precision": 1.0}
        learner = br.laplace(model, br.BernoulliLikelihood(), num_data=n, **given)
        state = learner.init()
        mode, hessian = logistic_mode(design, y, 1.0)
        posterior = br.posteriors.Gaussian(named(mode, state.posterior.mean), precision_of(state))
        state = dataclasses.replace(state, posterior=posterior)
        batches = [(x[i : i + 64], y[i : i + 64]) for i in range(0, n, 64)]
        return learner.finish(state, batches), mode, hessian

    def test_curvature_is_the_analytic_hessian(self, bias: bool) -> None:
        state, mode, hessian = self.laplace(bias, 200)
        mean = state.posterior.mean
        close(dense(precision_of(state), mean), hessian)
        close(hessian, logistic_hessian(self.data(bias, 200)[2], mode, 1.0))

    def test_marginals_are_those_of_the_true_posterior(self, bias: bool) -> None:
        """With 4000 data: means within 5 % of a standard deviation, deviations within 1 %."""
        state, mode, hessian = self.laplace(bias, 4000)
        _, y, design = self.data(bias, 4000)
        log_joint = logistic_log_joint(design, y, 1.0)
        truth = GridPosterior.around(log_joint, mode, torch.linalg.inv(hessian), steps=81)
        std = flat(state.posterior.variance()).sqrt()
        exact = truth.covariance.diagonal().sqrt()
        assert float(((mode - truth.mean) / exact).abs().max()) < 0.05
        assert float((std / exact - 1).abs().max()) < 0.01

    def test_newton_finds_the_mode(self, bias: bool) -> None:
        x, y, _ = self.data(bias, 200)
        _, mode, hessian = self.laplace(bias, 200)
        model = nn.Linear(1, 1, bias=bias).double()
        learner = br.newton(model, br.BernoulliLikelihood(), num_data=200)
        state = learner.init()
        for _ in range(12):
            state, _ = learner.step(state, (x, y))
        close(flat(state.posterior.mean), mode, 1e-8)
        close(dense(precision_of(state), state.posterior.mean), hessian, 1e-8)


def test_linearised_heteroscedastic_regression() -> None:
    learner, state, _ = full_belief(mlp(2, 2), br.HeteroscedasticLikelihood(), 2.0)
    x = randn(4, 2, seed=13)
    mean, covariance = linearised_outputs(learner, state, x)
    p = br.predict(learner, state, x)
    close(p.mean, mean[:, :1])
    close(p.epistemic[:, 0], covariance[:, 0, 0])
    close(p.aleatoric[:, 0], gauss_hermite(torch.exp, mean[:, 1], covariance[:, 1, 1]))
    drawn = br.predict(learner, state, x, br.Draws(4000))
    z_close(drawn.components.variance, p.aleatoric)  # a linear net is its own linearisation


def test_linearised_counts() -> None:
    learner, state, _ = full_belief(mlp(2, 1), br.PoissonLikelihood(), 4.0)
    x = randn(4, 2, seed=14)
    mean, covariance = linearised_outputs(learner, state, x)
    p = br.predict(learner, state, x, br.Linearised(br.predicting.MonteCarlo(20_000)))
    rate = (mean[:, 0] + 0.5 * covariance[:, 0, 0]).exp()
    z_close(p.conditional_means[..., 0], rate)
    close(p.aleatoric, p.mean)
    z_close((p.conditional_means[..., 0] - rate).square(), rate**2 * covariance[:, 0, 0].expm1())
    assert br.predict(learner, state, x).num_components == 100


def test_draws_are_a_mixture_over_the_weights() -> None:
    """Every component is the module itself at one draw, with the state's statistics."""
    model, x = batch_norm(), randn(5, 1, 3, seed=15)
    learner = br.vogn(model, br.CategoricalLikelihood(), num_data=5)
    state = learner.init()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    p = br.predict(learner, state, x, br.Draws(4), seed=3, batch_size=2)
    model.eval()
    points = br.Draws(4).points(state.posterior, seeds.generator("cpu", 3, 0))
    outputs = [functional_call(model, {**q.params, **state.buffers}, (x,)) for q in points]
    close(p.conditional_means, torch.stack(outputs).softmax(-1).detach())
    close(p.mean, torch.stack(outputs).softmax(-1).mean(0).detach())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    again = br.predict(learner, state, x, br.Draws(4), seed=3)
    close(again.mean, p.mean)
    assert not torch.equal(br.predict(learner, state, x, br.Draws(4), seed=4).mean, again.mean)


def _elbo_by_hand(model: nn.Module, std: float, x: Tensor, y: Tensor, seed: int) -> Tensor:
    """`E_q[log p(y | f)] − T KL` of a mean-field Gaussian from its definition, 7 draws, T = ½."""
    params = {name: value.detach() for name, value in model.named_parameters()}
    source = seeds.generator("cpu", seed, 0)
    fits = []
    for _ in range(7):
        size = sum(v.numel() for v in params.values())
        white = torch.randn(size, dtype=DTYPE, generator=source)
        drawn = {}
        for name, v in params.items():
            drawn[name] = v + std * white[: v.numel()].reshape(v.shape)
            white = white[v.numel() :]
        f = functional_call(model, drawn, (x,))[:, 0]
        fits.append(Normal(f, 0.3).log_prob(y).sum())
    prior = Normal(torch.tensor(0.0, dtype=DTYPE), torch.tensor(2.0, dtype=DTYPE) ** -0.5)
    kl = [kl_divergence(Normal(v, torch.full_like(v, std)), prior).sum() for v in params.values()]
    return torch.stack(fits).mean() - 0.5 * torch.stack(kl).sum()


def test_elbo_of_a_mean_field_gaussian() -> None:
    model, x, y = mlp(10, 50, 50, 1), randn(40, 10, seed=16), randn(40, seed=17)
    likelihood = br.GaussianLikelihood(noise=0.3)
    learner = br.vogn(model, likelihood, num_data=40, prior_precision=2.0, temperature=0.5)
    precision = br.Diagonal().identity(learner.init().posterior.mean, 0.05**-2)
    found = br.predicting.elbo(learner, believing(learner, precision), (x, y), br.Draws(7), seed=8)
    expected = _elbo_by_hand(model, 0.05, x, y, seed=8)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-10, atol=0.0)


class TestInputs:
    model = mlp(2, 1)
    learner = br.vogn(model, br.GaussianLikelihood(noise=1.0), num_data=5)
    x = randn(3, 2, seed=18)

    def test_arrays_and_lists_are_taken(self) -> None:
        state = self.learner.init()
        expected = br.predict(self.learner, state, self.x).mean
        frozen = self.x.numpy().copy()
        frozen.flags.writeable = False
        backwards = np.ascontiguousarray(self.x.numpy()[::-1])[::-1]
        for x in (self.x.numpy(), self.x.tolist(), frozen, backwards, self.x.numpy().copy("F")):
            close(br.predict(self.learner, state, x).mean, expected, 1e-7)
        single = br.predict(self.learner, state, self.x.float()).mean
        assert single.dtype == DTYPE

    def test_several_inputs(self) -> None:
        model, x = nn.Bilinear(2, 3, 1).double(), (randn(4, 2, seed=1), randn(4, 3, seed=2))
        learner = br.vogn(model, br.GaussianLikelihood(noise=1.0), num_data=5)
        p = br.predict(learner, learner.init(), x, br.AtMean(), batch_size=3)
        close(p.mean, model(*x).detach())

    def test_nothing_to_predict_is_refused(self) -> None:
        for how in (br.AtMean(), br.Linearised()):
            with pytest.raises(ValueError, match="no inputs to predict"):
                br.predict(self.learner, self.learner.init(), self.x[:0], how)

    def test_a_way_that_is_none_is_refused(self) -> None:
        with pytest.raises(TypeError, match=r"AtMean\(\), Linearised\(\) or Moments\(\)"):
            br.predict(self.learner, self.learner.init(), self.x, "draws")  # type: ignore[arg-type]


def test_all_arguments_may_be_given_by_name() -> None:
    learner = br.ridge(nn.Linear(1, 1), br.GaussianLikelihood(noise=1.0), num_data=2)
    state, x = learner.init(), torch.ones(3, 1)
    named = br.predict(x=x, state=state, learner=learner)
    assert torch.equal(named.mean, br.predict(learner, state, x).mean)
    with pytest.raises(TypeError, match=r"predict\(\) missing .* 'state'"):
        br.predict(learner)  # type: ignore[call-arg]
