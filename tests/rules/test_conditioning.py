"""Closed-form conditioning: the Kalman update where it is exact, and its bounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule import Learner
from bayesrule.curvature import GGN, Innovations
from bayesrule.expectations import AtMean, Moments
from bayesrule.matrices import Dense, Diagonal, DiagonalMatrix
from bayesrule.posteriors import Gaussian, GaussianFamily
from bayesrule.rules import Conditioning
from bayesrule.types import Derivatives, State


def kalman(
    mean: Tensor, variance: Tensor, rows: Tensor, y: Tensor, noise: float
) -> tuple[Tensor, Tensor]:
    """The exact posterior N(m, S) of weights N(mean, diag variance) seen through `y = rows w`."""
    gain = torch.diag(variance) @ rows.mT
    gain = gain @ torch.linalg.inv(rows @ gain + noise**2 * torch.eye(len(rows)))
    return mean + gain @ (y - rows @ mean), torch.diag(variance) - gain @ rows @ torch.diag(
        variance
    )


class TestExact:
    """Where independence loses nothing, or nothing yet."""

    noise = 0.3

    def learner(self, model: nn.Module, **options: Any) -> Learner:
        """TAGI with known noise."""
        return br.tagi(model, br.GaussianLikelihood(noise=self.noise), num_data=10, **options)

    def flat(self, state: State, output: int) -> tuple[Tensor, Tensor]:
        """Mean and variance of the weights and the bias of one output."""
        mean, variance = state.posterior.mean, state.posterior.variance()
        found = [
            torch.cat([p["weight"][output], p["bias"][output, None]]) for p in (mean, variance)
        ]
        return found[0], found[1]

    @pytest.mark.parametrize("gain", [0.1, 1.0, 5.0])
    def test_one_observation_of_one_layer_is_the_kalman_update(self, gain: float) -> None:
        learner = self.learner(nn.Linear(4, 2), gain=gain)
        before = learner.init()
        x, y = torch.randn(1, 4), torch.randn(1, 2)
        after, _ = learner.step(before, (x, y))
        row = torch.cat([x, torch.ones(1, 1)], 1)
        for output in range(2):
            mean, covariance = kalman(*self.flat(before, output), row, y[:, output], self.noise)
            found = self.flat(after, output)
            torch.testing.assert_close(found[0], mean, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(found[1], covariance.diagonal(), rtol=1e-12, atol=1e-14)

    @pytest.mark.parametrize("size", [1, 2, 6])
    def test_inputs_that_do_not_meet_are_learned_exactly(self, size: int) -> None:
        """Each weight is seen by one example, so all six in batches of any size are exact."""
        learner = self.learner(
            nn.Linear(6, 1, bias=False),
            gain=0.5,
            rule=Conditioning(reach=100.0, largest_share=0.999),
        )
        state, x, y = learner.init(), torch.diag(torch.randn(6)), torch.randn(6, 1)
        mean, variance = state.posterior.mean["weight"][0], state.posterior.variance()["weight"][0]
        expected, covariance = kalman(mean, variance, x, y[:, 0], self.noise)
        for rows in torch.arange(6).split(size):
            state, _ = learner.step(state, (x[rows], y[rows]))
        torch.testing.assert_close(state.posterior.mean["weight"][0], expected)
        torch.testing.assert_close(
            state.posterior.variance()["weight"][0], covariance.diagonal().contiguous()
        )


def belief(*values: float) -> Gaussian:
    """Weights at zero with these variances."""
    variance = torch.tensor(values)
    return Gaussian({"w": torch.zeros_like(variance)}, DiagonalMatrix({"w": 1.0 / variance}))


def learned(gradient: list[float], curvature: list[float], count: int) -> Derivatives:
    """−δ and −η, from so many examples."""
    return Derivatives(
        loss=torch.zeros(()),
        gradient={"w": torch.tensor(gradient)},
        curvature=DiagonalMatrix({"w": torch.tensor(curvature)}),
        weight=10.0,
        count=count,
    )


class TestBounds:
    """Against their own definition."""

    def step(
        self, rule: Conditioning, before: Gaussian, derivatives: Derivatives
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance after one step; the rule keeps how many examples it has seen."""
        after, memory = rule.step(before, derivatives, 1.0, {}, 0)
        assert memory == {"seen": derivatives.count}
        return after.mean["w"], after.variance()["w"]

    def test_within_them_steps_are_free(self) -> None:
        given = learned([0.5, -0.2], [0.1, 0.05], count=5)
        mean, variance = self.step(Conditioning(0.8, 0.5), belief(1.0, 4.0), given)
        torch.testing.assert_close(mean, torch.tensor([-0.5, 0.8]))
        torch.testing.assert_close(variance, torch.tensor([1.0 - 0.1, 4.0 - 16.0 * 0.05]))

    def test_no_mean_moves_further_than_reach(self) -> None:
        given = learned([5.0, -5.0, 1e30, -torch.inf], [0.0] * 4, count=5)
        mean, variance = self.step(Conditioning(0.8, 0.5), belief(1.0, 4.0, 4.0, 1.0), given)
        torch.testing.assert_close(mean, torch.tensor([-0.8, 1.6, -1.6, 0.8]))
        torch.testing.assert_close(variance, torch.tensor([1.0, 4.0, 4.0, 1.0]))

    def test_no_variance_loses_more_than_its_share(self) -> None:
        given = learned([0.0] * 4, [3.0, 0.1, 1e30, torch.inf], count=5)
        _, variance = self.step(Conditioning(0.8, 0.25), belief(1.0, 2.0, 2.0, 4.0), given)
        torch.testing.assert_close(variance, torch.tensor([0.75, 1.6, 1.5, 3.0]))

    def test_a_variance_may_grow_by_as_much(self) -> None:
        given = learned([0.0, 0.0], [-0.1, -7.0], count=5)
        _, variance = self.step(Conditioning(0.8, 0.25), belief(1.0, 2.0), given)
        torch.testing.assert_close(variance, torch.tensor([1.1, 2.5]))

    def test_one_example_alone_is_taken_in_full(self) -> None:
        given = learned([5.0, 1e9], [0.9, 1e9], count=1)
        mean, variance = self.step(Conditioning(0.1, 0.1), belief(1.0, 4.0), given)
        torch.testing.assert_close(mean, torch.tensor([-5.0, -20.0]))
        torch.testing.assert_close(variance, torch.tensor([0.1, 4e-6]), rtol=1e-9, atol=0.0)

    @pytest.mark.parametrize("size", [1, 3, 40])
    def test_absurd_targets_leave_a_belief(self, size: int) -> None:
        model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)).float()
        learner = br.tagi(model, br.GaussianLikelihood(noise=1e-6), num_data=40)
        state = learner.init()
        generator = torch.Generator().manual_seed(0)
        for _ in range(30):
            x = torch.randn(size, 2, generator=generator, dtype=torch.float32)
            y = 1e6 * torch.randn(size, 1, generator=generator, dtype=torch.float32)
            state, info = learner.step(state, (x, y))
            assert info.loss.isfinite()
        for name, variance in state.posterior.variance().items():
            assert (variance > 0).all()
            assert variance.isfinite().all()
            assert state.posterior.mean[name].isfinite().all()

    @pytest.mark.parametrize(("reach", "share"), [(0.0, 0.5), (-1.0, 0.5), (1.0, 0.0), (1.0, 1.0)])
    def test_bounds_that_are_none_are_refused(self, reach: float, share: float) -> None:
        with pytest.raises(
            ValueError, match="reach must be positive, largest_share and second_look between 0"
        ):
            Conditioning(reach, share)
        with pytest.raises(ValueError, match=r"got nan, 0\.5"):
            Conditioning(float("nan"), 0.5)


class TestParts:
    """It goes with a diagonal Gaussian and closed-form moments only."""

    parts: dict[str, Any]

    @pytest.fixture(autouse=True)
    def fitting(self) -> None:
        """Parts that fit."""
        self.parts = {
            "posterior": GaussianFamily(Diagonal()),
            "expectation": Moments(),
            "curvature": Innovations(),
        }

    def make(self, **other: Any) -> Learner:
        """A learner with some parts replaced."""
        return Learner(
            nn.Linear(2, 1),
            br.GaussianLikelihood(noise=1.0),
            num_data=4,
            rule=Conditioning(),
            **{**self.parts, **other},
        )

    def test_parts_that_fit(self) -> None:
        learner = self.make()
        state, _ = learner.step(learner.init(), (torch.randn(4, 2), torch.randn(4, 1)))
        assert state.step == 1

    def test_a_family_that_is_not_diagonal(self) -> None:
        with pytest.raises(TypeError, match=r"independent Gaussian weights.*Diagonal\(\)"):
            self.make(posterior=GaussianFamily(Dense()))

    def test_an_expectation_or_curvature_of_another_kind(self) -> None:
        with pytest.raises(ValueError, match=r"expectation=Moments\(\).*got AtMean and Innov"):
            self.make(expectation=AtMean())
        with pytest.raises(ValueError, match=r"curvature=Innovations\(\), got Moments and GGN"):
            self.make(curvature=GGN())
