"""Real-valued targets whose noise depends on the input."""

import math

import pytest
import torch
from contracts.likelihood import LikelihoodContract
from exact import DTYPE, close, randn
from torch import Tensor
from torch.distributions import Distribution, Normal

from bayesrule.likelihoods import HeteroscedasticLikelihood

GRID = torch.linspace(-30.0, 30.0, 6001, dtype=DTYPE), 0.01


class TestHeteroscedastic(LikelihoodContract):
    likelihood = HeteroscedasticLikelihood()
    outputs = randn(4, 2, seed=8)
    targets = randn(4, 1, seed=9)
    glm = False
    spread = 0.3
    off = 0.03  # the draws are of a log-normal, whose tails are heavy

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

    def test_several_missing_targets(self) -> None:
        """One of two targets missing takes nothing from the other."""
        outputs, targets = randn(5, 4, seed=1), randn(5, 2, seed=2)
        variance = randn(5, 4, seed=3).square()
        targets[:, 0] = math.nan
        found = self.likelihood.condition(outputs, variance, targets, {})
        alone = self.likelihood.condition(
            outputs[:, [1, 3]], variance[:, [1, 3]], targets[:, 1:], {}
        )
        assert not found.delta[:, [0, 2]].count_nonzero()
        assert not found.eta[:, [0, 2]].count_nonzero()
        close(found.delta[:, [1, 3]], alone.delta, 0.0)
        close(found.eta[:, [1, 3]], alone.eta, 0.0)
        close(found.log_prob, alone.log_prob, 1e-12)


def _step_by_step(m: Tensor, s: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Deka, Nguyen & Goulet (2024), one quantity after the other."""
    (mean, m2), (spread, s2) = m.chunk(2, -1), s.chunk(2, -1)
    noise, noise_variance = torch.exp(m2 + s2 / 2), torch.exp(2 * m2 + s2) * (torch.exp(s2) - 1)
    total = spread + noise
    error_mean, error_variance = noise / total * (y - mean), noise - noise**2 / total
    square_mean = error_mean**2 + error_variance
    square_variance = 2 * error_variance**2 + 4 * error_variance * error_mean**2
    before = 3 * noise_variance + 2 * noise**2
    gain = noise_variance / before
    step_mean, step_variance = gain * (square_mean - noise), gain**2 * (square_variance - before)
    delta, eta = noise / noise_variance * step_mean, (noise / noise_variance) ** 2 * step_variance
    return torch.cat([(y - mean) / total, delta], -1), torch.cat([-1 / total, eta], -1)


def test_condition_is_variance_inference_step_by_step() -> None:
    m, y = randn(50, 4, seed=1), 2.0 * randn(50, 2, seed=2)
    s = 0.05 + randn(50, 4, seed=3).square()
    found = HeteroscedasticLikelihood().condition(m, s, y, {})
    delta, eta = _step_by_step(m, s, y)
    close(found.delta, delta, 1e-12)
    close(found.eta, eta, 1e-12)


def test_what_is_sure_of_its_mean_learns_by_the_score() -> None:
    """With known f₁ and f₂ nearly known, δ₂ is the score and η₂ minus the Fisher information ½."""
    likelihood, m, y = HeteroscedasticLikelihood(), randn(5, 2, seed=1), randn(5, 1, seed=2)
    found = likelihood.condition(m, torch.full_like(m, 1e-9), y, {})
    leaf = m.clone().requires_grad_()
    (score,) = torch.autograd.grad(likelihood.log_prob(leaf, y, {}).sum(), leaf)
    close(found.delta, score, 1e-6)
    close(found.eta[:, 1], torch.full((5,), -0.5), 1e-6)


def test_posterior_noise_variance_is_that_of_its_square() -> None:
    """By draws of f₂ and the noise: what y says of exp f₂ is linear in the square of the noise."""
    m, s = torch.tensor([[0.3, -0.4]], dtype=DTYPE), torch.tensor([[1e-8, 0.5]], dtype=DTYPE)
    white = randn(1_000_000, 2, seed=4)
    f2 = -0.4 + math.sqrt(0.5) * white[:, 0]
    square = torch.exp(f2) * white[:, 1].square()
    slope = torch.cov(torch.stack([f2, square]))[0, 1] / square.var()
    y = torch.tensor([[2.0]], dtype=DTYPE)
    step = 0.5 * HeteroscedasticLikelihood().condition(m, s, y, {}).delta[0, 1]
    expected = slope * (1.7**2 - math.exp(-0.4 + 0.25))
    assert float(step / expected) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("log_noise", [-500.0, 500.0])
def test_nothing_is_cut_off_and_nothing_is_undefined(log_noise: float) -> None:
    """Beyond the largest float32, the noise is infinite and the step still right."""
    likelihood = HeteroscedasticLikelihood()
    m, s = torch.tensor([[0.0, log_noise]]), torch.ones(1, 2)
    found = likelihood.condition(m, s, torch.ones(1, 1), {})
    assert found.delta.isfinite().all()
    assert found.eta.isfinite().all()
    assert float(likelihood.marginal(m, s, {}).aleatoric) == (math.inf if log_noise > 0 else 0.0)
    scale = 2.0 + 3.0 * math.expm1(1.0)
    expected = [-1.0 / scale, -1.0 / scale] if log_noise > 0 else [0.0, 2 / scale**2 - 1 / scale]
    close(torch.stack([found.delta[0, 1], found.eta[0, 1]]), torch.tensor(expected), 1e-6)
