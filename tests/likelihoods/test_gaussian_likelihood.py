"""Real-valued targets with known, learned and input-dependent noise."""

import math

import pytest
import torch
from contracts.likelihood import LikelihoodContract
from exact import DTYPE, close, randn
from scipy import integrate, stats  # type: ignore[import-untyped]
from torch import Tensor
from torch.distributions import Distribution, Normal

from bayesrule.likelihoods import GaussianLikelihood, HeteroscedasticLikelihood
from bayesrule.types import Params

GRID = torch.linspace(-30.0, 30.0, 6001, dtype=DTYPE), 0.01


class TestKnownNoise(LikelihoodContract):
    likelihood = GaussianLikelihood(noise=0.7)
    outputs = randn(4, 1, seed=1)
    targets = randn(4, 1, seed=2)

    def reference(self, outputs: Tensor) -> Distribution:
        return Normal(outputs, 0.7)

    def values(self) -> tuple[Tensor, float]:
        return GRID

    def test_columns_and_vectors_are_taken_for_each_other(self) -> None:
        expected = self.expected_log_prob(self.outputs, self.targets)
        close(self.likelihood.log_prob(self.outputs, self.targets[:, 0], {}), expected)
        close(self.likelihood.log_prob(self.outputs[:, 0], self.targets, {}), expected)


class TestSeveralOutputs(LikelihoodContract):
    """Two targets for each example; sums over all values of y are taken for one."""

    likelihood = GaussianLikelihood(noise=0.7)
    outputs = randn(4, 2, seed=1)
    targets = randn(4, 2, seed=2)

    def reference(self, outputs: Tensor) -> Distribution:
        return Normal(outputs, 0.7)

    def table(self) -> tuple[Tensor, Tensor, Tensor]:
        axis = torch.linspace(-12.0, 12.0, 121, dtype=DTYPE)
        grid = torch.cartesian_prod(axis, axis)
        outputs = self.outputs.expand(len(grid), 4, 2)
        targets = grid.unsqueeze(1).expand(len(grid), 4, 2)
        return outputs, targets, 0.04 * self.reference(outputs).log_prob(targets).sum(-1).exp()


class TestLearnedNoise(LikelihoodContract):
    likelihood = GaussianLikelihood()
    outputs = randn(4, 1, seed=3)
    targets = randn(4, 1, seed=4)

    def noise(self) -> Params:
        return {"a": torch.tensor(9.0, dtype=DTYPE), "b": torch.tensor([4.0], dtype=DTYPE)}

    def reference(self, outputs: Tensor) -> Distribution:
        return Normal(outputs, (4.0 / 9.0) ** 0.5)

    def values(self) -> tuple[Tensor, float]:
        return GRID

    def expected_log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """`E[log N(y | f, 1/τ)]` under `τ ~ Gamma(9, 4)`, by quadrature."""
        gamma = stats.gamma(9.0, scale=0.25)

        def one(error: float) -> float:
            def integrand(tau: float) -> float:
                return float(gamma.pdf(tau) * stats.norm.logpdf(error, scale=tau**-0.5))

            return float(integrate.quad(integrand, 1e-9, 40.0, epsabs=1e-13, limit=200)[0])

        return torch.tensor([one(float(e)) for e in (targets - outputs)], dtype=DTYPE)

    def test_fixed_point(self) -> None:
        """`a = 6 + N/2T` and `b = 6 + N E[(y − f)²]/2T`, reached from anywhere."""
        likelihood = GaussianLikelihood(averaging=0.5)
        squares = (self.targets - self.outputs).square().sum(0)
        weight = 100.0 / 0.5  # N = 100 data at temperature T = ½
        scaled = {"squares": squares * weight / 4}
        noise = self.noise()
        for _ in range(60):
            noise = likelihood.update(noise, scaled, weight)
        close(noise["a"], 6.0 + 0.5 * weight)
        close(noise["b"], 6.0 + 0.5 * weight * squares / 4)
        mean_square = float(squares / 4)
        found = likelihood.moments(self.outputs, noise)[1][0, 0]
        close(found, (6.0 + 100.0 * mean_square) / (6.0 + 100.0))

    def test_statistics_are_squared_errors_of_each_output(self) -> None:
        outputs, targets = randn(6, 2, seed=5), randn(6, 2, seed=6)
        found = self.likelihood.statistics(outputs, targets)["squares"]
        close(found, (targets - outputs).square().sum(0))

    def test_each_step_is_an_average(self) -> None:
        likelihood = GaussianLikelihood(averaging=0.25)
        found = likelihood.update(self.noise(), {"squares": torch.tensor([8.0], dtype=DTYPE)}, 40.0)
        close(found["a"], 0.75 * 9.0 + 0.25 * 26.0)
        close(found["b"], torch.tensor([0.75 * 4.0 + 0.25 * 10.0]))

    @pytest.mark.parametrize("shape", [(5,), (5, 1), (5, 3)])
    def test_first_batch_gives_the_conjugate_answer(self, shape: tuple[int, ...]) -> None:
        outputs, targets = torch.zeros(shape, dtype=DTYPE), randn(*shape, seed=7)
        noise = self.likelihood.init(outputs)
        statistics = self.likelihood.statistics(outputs, targets)
        found = self.likelihood.update(noise, statistics, 5.0)
        close(found["a"], 8.5)
        close(found["b"], 6.0 + 0.5 * targets.square().sum(0))
        again = self.likelihood.update(found, {"squares": torch.zeros(shape[1:], dtype=DTYPE)}, 5.0)
        close(again["b"], 0.99 * found["b"] + 0.01 * 6.0, 1e-13)


class TestHeteroscedastic(LikelihoodContract):
    likelihood = HeteroscedasticLikelihood()
    outputs = randn(4, 2, seed=8)
    targets = randn(4, 1, seed=9)
    glm = False

    def reference(self, outputs: Tensor) -> Distribution:
        mean, log_variance = outputs.chunk(2, dim=-1)
        return Normal(mean, (0.5 * log_variance).exp())

    def values(self) -> tuple[Tensor, float]:
        return GRID

    def test_odd_or_flat_outputs_are_refused(self) -> None:
        for outputs in (randn(4, 3), randn(4)):
            with pytest.raises(ValueError, match="a mean and a log-variance"):
                self.likelihood.log_prob(outputs, self.targets, {})

    def test_several_targets(self) -> None:
        """The first half of the outputs are means, the second log-variances."""
        outputs, targets = randn(5, 4, seed=1), randn(5, 2, seed=2)
        expected = Normal(outputs[:, :2], outputs[:, 2:].mul(0.5).exp()).log_prob(targets).sum(1)
        close(self.likelihood.log_prob(outputs, targets, {}), expected)
        vectors = self.likelihood.fisher_vectors(outputs, {})
        found = torch.einsum("vni,vnj->nij", vectors, vectors)
        scale = torch.cat([(-outputs[:, 2:]).exp(), torch.full((5, 2), 0.5, dtype=DTYPE)], dim=1)
        close(found, torch.diag_embed(scale))

    def test_log_variances_are_limited(self) -> None:
        wild = torch.tensor([[0.0, 500.0], [0.0, -500.0]], dtype=DTYPE)
        found = self.likelihood.moments(wild, {})[1]
        close(found, torch.tensor([[math.exp(20.0)], [math.exp(-20.0)]]).to(DTYPE), 1e-6)
        assert self.likelihood.log_prob(wild, torch.zeros(2, 1), {}).isfinite().all()


@pytest.mark.parametrize("noise", [0.0, -1.0, math.inf, math.nan])
def test_noise_must_be_a_standard_deviation(noise: float) -> None:
    with pytest.raises(ValueError, match="standard deviation and must be positive"):
        GaussianLikelihood(noise=noise)


def test_prior_must_be_a_gamma() -> None:
    with pytest.raises(ValueError, match=r"Gamma\(0\.0, 6\.0\) needs positive"):
        GaussianLikelihood(shape=0.0)
