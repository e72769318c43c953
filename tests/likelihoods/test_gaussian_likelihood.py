"""Real-valued targets with known, scheduled and learned noise."""

import math
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from contracts.likelihood import LikelihoodContract
from exact import DTYPE, close, randn
from scipy import integrate, stats  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from bayesrule.likelihoods import GaussianLikelihood
from bayesrule.methods import tagi
from bayesrule.predicting.predict import predict
from bayesrule.schedules import constant, linear, piecewise
from bayesrule.training import checkpoint
from bayesrule.types import Params

GRID = torch.linspace(-30.0, 30.0, 6001, dtype=DTYPE), 0.01


class TestKnownNoise(LikelihoodContract):
    likelihood = GaussianLikelihood(noise=0.7)
    outputs = randn(4, 1, seed=1)
    targets = randn(4, 1, seed=2)
    gradient = True

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
    gradient = True

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
    gradient = True

    def state(self) -> Params:
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
        noise = self.state()
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
        found = likelihood.update(self.state(), {"squares": torch.tensor([8.0], dtype=DTYPE)}, 40.0)
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


class TestScheduledNoise(LikelihoodContract):
    """Three steps in, where the noise is 0.7."""

    likelihood = GaussianLikelihood(noise=piecewise(1.4, {3: 0.5}))
    outputs = randn(4, 1, seed=1)
    targets = randn(4, 1, seed=2)
    gradient = True

    def state(self) -> Params:
        noise = self.likelihood.init(self.outputs)
        for _ in range(3):
            noise = self.likelihood.update(noise, {}, 10.0)
        return noise

    def reference(self, outputs: Tensor) -> Distribution:
        return Normal(outputs, 0.7)

    def values(self) -> tuple[Tensor, float]:
        return GRID

    def test_the_state_counts_the_steps(self) -> None:
        first, third = self.likelihood.init(self.outputs), self.state()
        assert (int(first["step"]), int(third["step"])) == (0, 3)
        close(first["std"], 1.4)
        assert third["std"].dtype == DTYPE

    def test_the_learner_counts_and_predictions_follow(self) -> None:
        learner = tagi(nn.Linear(1, 1), self.likelihood, num_data=4)
        state = learner.init()
        for expected in (1.4, 1.4, 1.4, 0.7):
            found = predict(learner, state, torch.zeros(1, 1)).aleatoric
            close(found, torch.full((1, 1), expected**2), 1e-6)
            state, _ = learner.step(state, (self.outputs.float(), self.targets.float()))

    def test_a_saved_state_goes_on_where_it_was(self, tmp_path: Path) -> None:
        learner = tagi(nn.Linear(1, 1), self.likelihood, num_data=4)
        batch = self.outputs.float(), self.targets.float()
        state, _ = learner.step(learner.init(), batch)
        checkpoint.save(tmp_path / "state", state)
        loaded, _ = checkpoint.load(tmp_path / "state", learner.init())
        assert checkpoint.same(loaded, state)
        assert checkpoint.same(learner.step(loaded, batch)[0], learner.step(state, batch)[0])

    def test_a_schedule_that_ends_at_zero_is_refused_there(self) -> None:
        likelihood = GaussianLikelihood(noise=linear(1.0, 0.0, steps=1))
        with pytest.raises(ValueError, match=r"must be positive: 0\.0 at step 1"):
            likelihood.update(likelihood.init(self.outputs), {}, 1.0)


@pytest.mark.parametrize("noise", ["0.1", [0.1], constant])
def test_noise_is_a_number_or_a_schedule(noise: object) -> None:
    with pytest.raises(TypeError, match=r"schedule of them, got .* for example 0\.1"):
        GaussianLikelihood(noise=noise)  # type: ignore[arg-type]


def test_condition_is_the_kalman_update() -> None:
    """`K = s / (s + r)`: mean `m + K (y − m)`, variance `(1 − K) s`, for each output."""
    m, y = randn(5, 2, seed=1), randn(5, 2, seed=2)
    s = randn(5, 2, seed=3).square() + 0.1
    found = GaussianLikelihood(noise=0.4).condition(m, s, y, {})
    gain = s / (s + 0.16)
    close(m + s * found.delta, m + gain * (y - m), 1e-12)
    close(s + s.square() * found.eta, (1.0 - gain) * s, 1e-12)
    close(found.log_prob, Normal(m, (s + 0.16).sqrt()).log_prob(y).sum(1), 1e-12)


class TestLearningNoiseFromGaussianOutputs:
    """What `condition` says of the noise is the noise's own second moment given the targets."""

    likelihood = GaussianLikelihood()
    m, y = randn(6, 2, seed=1), randn(6, 2, seed=2)
    s = randn(6, 2, seed=3).square() + 0.1
    noise: ClassVar[Params] = {
        "a": torch.tensor([9.0, 8.0], dtype=DTYPE),
        "b": torch.tensor([4.0, 2.0], dtype=DTYPE),
    }

    def test_squares(self) -> None:
        around = self.noise["b"] / self.noise["a"]
        found = self.likelihood.condition(self.m, self.s, self.y, self.noise).statistics
        mean = around / (self.s + around) * (self.y - self.m)
        variance = around - around.square() / (self.s + around)
        close(found["squares"], (mean.square() + variance).sum(0), 1e-12)
        assert found["count"].tolist() == [6.0, 6.0]

    def test_missing_targets_are_as_if_they_were_not_there(self) -> None:
        y = self.y.clone()
        y[:4, 1] = math.nan
        found = self.likelihood.condition(self.m, self.s, y, self.noise).statistics
        few = self.likelihood.condition(self.m[4:], self.s[4:], self.y[4:], self.noise).statistics
        whole = self.likelihood.condition(self.m, self.s, self.y, self.noise).statistics
        for name in ("squares", "again", "count"):
            close(found[name], torch.stack([whole[name][0], few[name][1]]), 1e-12)

    def test_data_seen_before_count_as_they_are_believed(self) -> None:
        """`E[(y − f)²]` of an f that knows y already."""
        found = self.likelihood.condition(self.m, self.s, self.y, self.noise).statistics
        close(found["again"], ((self.y - self.m).square() + self.s).sum(0), 1e-12)

    def test_one_pass_adds_up_and_later_ones_are_averaged(self) -> None:
        """100 data in ten batches of which one output sees all, one a fifth and one nothing."""
        count = torch.tensor([100.0, 20.0, 0.0], dtype=DTYPE)
        batches = torch.tensor([10.0, 10.0, 0.0], dtype=DTYPE)
        scaled = {"squares": 0.5 * count, "again": 3.0 * count, "count": count, "batches": batches}
        noise = self.likelihood.init(self.m)
        for done in range(1, 11):
            noise = self.likelihood.update(noise, scaled, 100.0)
            close(noise["a"], 6.0 + 0.05 * done * count)
            close(noise["b"], 6.0 + 0.025 * done * count)
        later = self.likelihood.update(noise, scaled, 100.0)
        close(later["a"], noise["a"])
        close(later["b"], noise["b"] + 0.01 * (6.0 + 1.5 * count - noise["b"]) * (count > 0))

    def test_early_mistakes_are_forgotten_as_fast_as_by_averaging(self) -> None:
        """Ten new data of a million after a thousand: one in a hundred is the last batch's say."""
        noise = {"a": torch.tensor([506.0], dtype=DTYPE), "b": torch.tensor([506.0], dtype=DTYPE)}
        ones = torch.ones(1, dtype=DTYPE)
        scaled = {"squares": 0.2 * 1e6 * ones, "again": ones, "count": 1e6 * ones}
        found = self.likelihood.update(noise, {**scaled, "batches": 1e5 * ones}, 1e6)
        close(found["a"], 511.0 * ones)
        close(found["b"] / found["a"], 0.99 * 1.0 * ones + 0.01 * 0.2)

    @pytest.mark.parametrize("share", [0.0, 0.5])
    def test_one_pass_finds_the_noise(self, share: float) -> None:
        """A line through data seen once, one by one, with some targets missing."""
        x, y = randn(4000, 1, seed=4), randn(4000, 1, seed=5)
        y = (2.0 * x - 1.0 + 0.3 * y).masked_fill(
            randn(4000, 1, seed=6).erf() > 1 - 2 * share, math.nan
        )
        learner = tagi(nn.Linear(1, 1).double(), GaussianLikelihood(), num_data=4000)
        state = learner.init()
        for batch in zip(x.split(8), y.split(8), strict=True):
            state, _ = learner.step(state, batch, donate=True)
        found = predict(learner, state, torch.zeros(1, 1)).aleatoric
        close(found.sqrt(), torch.full((1, 1), 0.3), 0.03)


@pytest.mark.parametrize("noise", [0.0, -1.0, math.inf, math.nan])
def test_noise_must_be_a_standard_deviation(noise: float) -> None:
    with pytest.raises(ValueError, match="standard deviation and must be positive"):
        GaussianLikelihood(noise=noise)


def test_prior_must_be_a_gamma() -> None:
    with pytest.raises(ValueError, match=r"Gamma\(0\.0, 6\.0\) needs positive"):
        GaussianLikelihood(shape=0.0)
