"""Criteria against closed forms of Bayesian linear regression and enumeration of classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.expectations import AtMode
from bayesrule.explore import acquisitions
from bayesrule.tensors import seeds
from tests import exact

NOISE, PRIOR = 0.3, 2.0


def linear(
    model: nn.Module | None = None,
) -> tuple[br.Learner, br.types.State, exact.LinearRegression]:
    """The exact posterior of a linear model by `ridge`, and the same by its formula."""
    x = exact.randn(12, 2, seed=1)
    y = x @ torch.tensor([1.0, -0.5], dtype=exact.DTYPE)
    module = model or nn.Linear(2, 1).double()
    likelihood = br.GaussianLikelihood(noise=NOISE)
    learner = br.ridge(module, likelihood, num_data=12, prior_precision=PRIOR)
    state, _ = learner.step(learner.init(), (x, y.unsqueeze(1)))
    return learner, state, exact.LinearRegression(exact.with_ones(x), y, NOISE, PRIOR)


POOL, THERE = 2.0 * exact.randn(7, 2, seed=2), exact.randn(5, 2, seed=3)


def scores(
    criterion: br.explore.Criterion, learner: br.Learner, state: br.types.State, x: Tensor
) -> Tensor:
    return criterion.scores(learner, state, x, exact.generator(0))


class TestLinearRegression:
    """All in closed form, so exact, but for EPIG's draws."""

    def test_the_largest_variance_is_that_of_the_posterior(self) -> None:
        learner, state, truth = linear()
        _, variance = truth.predictive(exact.with_ones(POOL))
        exact.close(scores(br.explore.LargestVariance(), learner, state, POOL), variance)

    def test_bald_is_the_entropy_that_a_label_takes_from_the_weights(self) -> None:
        learner, state, truth = linear()
        found = scores(br.explore.BALD(), learner, state, POOL)
        for row, gain in zip(exact.with_ones(POOL), found, strict=True):
            after = truth.precision + torch.outer(row, row) / NOISE**2
            exact.close(gain, 0.5 * (torch.logdet(after) - torch.logdet(truth.precision)))

    def test_epig_is_that_of_the_joint_gaussian(self) -> None:
        learner, state, truth = linear()
        expected = joint_information(truth, POOL, THERE)
        criterion = br.explore.EPIG(THERE, draws=1500)
        found = scores(criterion, learner, state, POOL)
        torch.testing.assert_close(found, expected, rtol=0.15, atol=4e-3)

    def test_epig_of_any_way_to_draw_agrees_where_the_model_is_linear(self) -> None:
        learner, state, _ = linear()
        one, two = (br.explore.EPIG(THERE, linearised=way, draws=20) for way in (True, False))
        exact.close(scores(one, learner, state, POOL), scores(two, learner, state, POOL))

    def test_epig_asks_for_what_matters_and_bald_for_what_is_unknown(self) -> None:
        learner, state, _ = linear(nn.Linear(2, 1, bias=False).double())
        pool = torch.tensor([[1.5, 0.0], [0.0, 9.0]], dtype=exact.DTYPE)
        targets = torch.tensor([[1.0, 0.0], [2.0, 0.0]], dtype=exact.DTYPE)
        assert int(scores(br.explore.BALD(), learner, state, pool).argmax()) == 1
        assert int(scores(br.explore.EPIG(targets), learner, state, pool).argmax()) == 0


def joint_information(truth: exact.LinearRegression, x: Tensor, there: Tensor) -> Tensor:
    """The mean over targets of `H[y] + H[y*] − H[y, y*]` of Gaussians, by determinants."""
    covariance = torch.linalg.inv(truth.precision)
    found = []
    for a in exact.with_ones(x):
        gains = []
        for b in exact.with_ones(there):
            both = torch.stack([a, b])
            joint = both @ covariance @ both.mT + NOISE**2 * torch.eye(2, dtype=exact.DTYPE)
            gains.append(0.5 * (joint[0, 0] * joint[1, 1] / torch.det(joint)).log())
        found.append(torch.stack(gains).mean())
    return torch.stack(found)


def test_gaussian_information_from_draws_with_the_exact_covariance() -> None:
    _, _, truth = linear()
    # Draws whose second moments are exactly those of the posterior leave no Monte Carlo error.
    root = torch.linalg.cholesky(torch.linalg.inv(truth.precision))
    white = math.sqrt(3.0) * torch.cat([torch.eye(3), -torch.eye(3)]).to(exact.DTYPE)
    theta = truth.mean + white @ root.mT
    f, g = (theta @ exact.with_ones(x).mT for x in (POOL, THERE))
    noises = (torch.full((len(x), 1), NOISE**2, dtype=exact.DTYPE) for x in (POOL, THERE))
    here, there = noises
    found = acquisitions.gaussian_information(f.unsqueeze(-1), here, g.unsqueeze(-1), there)
    exact.close(found, joint_information(truth, POOL, THERE))


def test_linearised_draws_are_the_mean_and_the_slope_times_the_offset() -> None:
    model = exact.mlp(2, 3, 2)
    likelihood = br.GaussianLikelihood(noise=NOISE)
    learner = br.laplace(model, likelihood, num_data=4, structure=br.Diagonal())
    state = learner.init()
    found = acquisitions.joint_outputs(learner, state, POOL, 3, linearised=True, seed=5)
    generator = seeds.generator("cpu", 5, 0)
    slope = exact.jacobian(model, state.posterior.mean, POOL)
    for draw in found:
        offset = exact.flat(state.posterior.offset(generator))
        exact.close(draw, model(POOL).detach() + slope @ offset)


def enumerated(p: Tensor, q: Tensor) -> Tensor:
    """The mean information between choices, by summing over all pairs of them, (n,)."""
    found = torch.zeros(p.shape[1], dtype=p.dtype)
    for i, j in product(range(p.shape[1]), range(q.shape[1])):
        for a, b in product(range(p.shape[2]), range(q.shape[2])):
            joint = float((p[:, i, a] * q[:, j, b]).mean())
            apart = float(p[:, i, a].mean()) * float(q[:, j, b].mean())
            if joint > 0:
                found[i] += joint * math.log(joint / apart) / q.shape[1]
    return found


class TestClasses:
    """Against plain sums over the classes."""

    @pytest.mark.parametrize("room", [1, 10**6])
    def test_information_of_classes(self, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(acquisitions, "_ROOM", room)
        p, q = (exact.randn(4, n, 3, seed=n).mul(2.0).softmax(-1) for n in (5, 6))
        exact.close(acquisitions.class_information(p, q), enumerated(p, q))

    def test_draws_that_know_all_and_draws_that_agree(self) -> None:
        sure = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
        exact.close(acquisitions.class_information(sure, sure), math.log(2.0) * torch.ones(1))
        alike = torch.tensor([[[0.3, 0.7]], [[0.3, 0.7]]])
        assert float(acquisitions.class_information(alike, sure)) == pytest.approx(0.0, abs=1e-7)

    @pytest.mark.parametrize(
        ("outputs", "likelihood"),
        [(1, br.BernoulliLikelihood()), (2, br.CategoricalLikelihood())],
    )
    def test_bald_and_epig(self, outputs: int, likelihood: br.likelihoods.Likelihood) -> None:
        learner = br.vogn(exact.mlp(2, outputs), likelihood, num_data=6)
        state, seed = learner.init(), 11
        p, q = (
            probabilities(acquisitions.joint_outputs(
                learner, state, x, 6, linearised=False, seed=seed
            ))
            for x in (POOL, THERE)
        )  # fmt: skip
        told = _Told(seed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(acquisitions, "_seed", told)
            epig = scores(br.explore.EPIG(THERE, draws=6), learner, state, POOL)
            bald = scores(br.explore.BALD(br.Draws(6)), learner, state, POOL)
        exact.close(epig, enumerated(p, q))
        mean = p.mean(0)
        within = -(p * p.log()).sum(-1).mean(0)
        exact.close(bald, -(mean * mean.log()).sum(-1) - within)


class _Told:
    """A seed that is known beforehand."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, generator: torch.Generator) -> int:
        return self.seed


def probabilities(outputs: Tensor) -> Tensor:
    if outputs.shape[-1] > 1:
        return outputs.softmax(-1)
    return torch.cat([torch.sigmoid(-outputs), torch.sigmoid(outputs)], -1)


def test_targets_are_drawn_from_the_pool_where_none_are_given() -> None:
    learner, state, truth = linear()
    pool = exact.randn(40, 2, seed=8)
    every = scores(br.explore.EPIG(num_targets=40, draws=1500), learner, state, pool)
    expected = joint_information(truth, pool, pool)
    torch.testing.assert_close(every, expected, rtol=0.15, atol=4e-3)
    one, two = (
        br.explore.EPIG(num_targets=3).scores(learner, state, pool, exact.generator(i))
        for i in (0, 1)
    )
    assert not torch.allclose(one, two)


def test_random_rows_are_uniform() -> None:
    learner, state, _ = linear()
    picks = [
        int(br.explore.Random().scores(learner, state, POOL, exact.generator(seed)).argmax())
        for seed in range(700)
    ]
    counts = torch.bincount(torch.tensor(picks), minlength=7)
    # Six degrees of freedom: one in a thousand is above 22.5.
    assert float((counts - 100.0).square().sum() / 100.0) < 22.5


@pytest.mark.parametrize("name", list(br.methods.METHODS))
@pytest.mark.parametrize("kind", ["numbers", "classes"])
@pytest.mark.parametrize("make", [br.explore.LargestVariance, br.explore.BALD, br.explore.EPIG])
def test_every_method(name: str, kind: str, make: Callable[[], br.explore.Criterion]) -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))
    likelihood = br.GaussianLikelihood() if kind == "numbers" else br.CategoricalLikelihood()
    learner = br.methods.METHODS[name](model, likelihood, num_data=7)
    state = learner.init()
    if isinstance(learner.predictive, br.AtMean | AtMode):
        with pytest.raises(ValueError, match="without epistemic uncertainty"):
            scores(make(), learner, state, POOL)
        return
    found = scores(make(), learner, state, POOL.float())
    assert found.shape == (7,)
    assert bool((found.isfinite() & (found >= 0)).all())
    assert len(found.unique()) > 1


def test_weights_of_a_learner_without_a_predictive_of_its_own_can_be_drawn() -> None:
    learner = br.map(nn.Linear(2, 1), br.GaussianLikelihood(noise=0.1), num_data=7)
    for criterion in (
        br.explore.LargestVariance(br.Draws(4)),
        br.explore.EPIG(draws=4, linearised=False),
    ):
        assert len(scores(criterion, learner, learner.init(), POOL.float()).unique()) > 1


def test_several_outputs_are_taken_together() -> None:
    model = nn.Linear(2, 3)
    learner = br.vogn(model, br.GaussianLikelihood(noise=0.2), num_data=7)
    state, x = learner.init(), POOL.float()
    seed = acquisitions._seed(exact.generator(0))
    p = br.predict(learner, state, x, seed=seed)
    exact.close(scores(br.explore.LargestVariance(), learner, state, x), p.epistemic.sum(1), 1e-5)
    expected = 0.5 * (1.0 + p.epistemic / 0.04).log().sum(1)
    exact.close(scores(br.explore.BALD(), learner, state, x), expected, 1e-5)
    assert scores(br.explore.EPIG(), learner, state, x).shape == (7,)


def test_what_epig_does_not_take_is_refused() -> None:
    with pytest.raises(ValueError, match="2 draws, got num_targets=100 and draws=1"):
        br.explore.EPIG(draws=1)
    with pytest.raises(ValueError, match="num_targets=0"):
        br.explore.EPIG(num_targets=0)
    with pytest.raises(TypeError, match=r"got list; use torch\.as_tensor"):
        br.explore.EPIG([[1.0]])  # type: ignore[arg-type]
    learner = br.vogn(nn.Linear(2, 3), br.BernoulliLikelihood(), num_data=7)
    with pytest.raises(TypeError, match="3 yes-or-no targets"):
        scores(br.explore.EPIG(), learner, learner.init(), POOL.float())
