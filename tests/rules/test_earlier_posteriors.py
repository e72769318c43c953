"""Continual learning: the posterior of earlier data is the prior of later ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from exact import close, positive, randn
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.testing import assert_close

import bayesrule as br
from bayesrule import Dense, Diagonal, GaussianLikelihood, Learner, Natural
from bayesrule.matrices import DenseMatrix, DiagonalMatrix
from bayesrule.posteriors import (
    EarlierPosterior,
    ElboTerms,
    Gaussian,
    GaussianPrior,
    MeanField,
    Posterior,
)
from bayesrule.posteriors.factorised import StdSlope
from bayesrule.tensors import tree
from bayesrule.types import Derivatives, State
from rules.quadratic import Regression, moments, regression

# --- linear regression, where data may come in parts ----------------------------------------------


def _parts(temperature: float) -> tuple[Regression, Regression, Regression]:
    """All data, and the same in two parts of eight and twelve."""
    whole = regression(temperature=temperature)
    first, second = (
        dataclasses.replace(whole, x=whole.x[rows], y=whole.y[rows])
        for rows in (slice(0, 8), slice(8, 20))
    )
    return whole, first, second


def _learner(method: Callable[..., Learner], task: Regression, **options: Any) -> Learner:
    data = {"num_data": len(task.x), "temperature": task.temperature}
    return method(task.model(), task.likelihood, **data, **options)


@pytest.mark.parametrize("temperature", [1.0, 0.25])
@pytest.mark.parametrize("method", [br.ridge, br.newton])
def test_two_parts_of_the_data_are_the_whole(
    method: Callable[..., Learner], temperature: float
) -> None:
    whole, first, second = _parts(temperature)
    one = _learner(method, first, prior_precision=whole.prior)
    earlier, _ = one.step(one.init(), first.batch)
    two = _learner(method, second, prior=earlier.posterior)
    later, info = two.step(two.init(), second.batch)
    mean, precision = moments(later)
    close(mean, whole.mean)
    close(precision, whole.precision)
    close(info.kl, _dense_kl(moments(later), moments(earlier)))


def _dense_kl(q: tuple[Tensor, Tensor], p: tuple[Tensor, Tensor]) -> Tensor:
    """KL of two Gaussians, each given as mean and precision."""
    normals = [torch.distributions.MultivariateNormal(m, precision_matrix=s) for m, s in (q, p)]
    return kl_divergence(*normals)


def test_laplace_adds_the_curvature_of_later_data() -> None:
    whole, first, second = _parts(0.5)
    options: dict[str, Any] = {"structure": Dense()}
    one = _learner(br.laplace, first, prior_precision=whole.prior, **options)
    earlier = one.finish(one.init(), [first.batch])
    two = _learner(br.laplace, second, prior=earlier.posterior, **options)
    later = two.finish(two.init(), [second.batch])
    close(moments(later)[1], whole.precision)


def test_online_laplace_of_two_parts_is_that_of_the_whole() -> None:
    whole, first, second = _parts(1.0)
    options: dict[str, Any] = {"structure": Dense(), "online": True, "learning_rate": 0.5}
    one = _learner(br.laplace, first, prior_precision=whole.prior, **options)
    earlier = _settled(one, first)
    two = _learner(br.laplace, second, prior=earlier.posterior, **options)
    mean, precision = moments(_settled(two, second))
    close(mean, whole.mean)
    close(precision, whole.precision)


def _settled(learner: Learner, task: Regression) -> State:
    """After 3000 steps with rate 0.01, an average of the curvature has forgotten its start."""
    state = learner.init()
    for _ in range(3000):
        state, _ = learner.step(state, task.batch, donate=True)
    return state


def test_the_last_layer_alone_learns_on() -> None:
    """A belief over the last layer and point estimates before it; the curvature adds up there."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x, y = randn(20, 3, seed=1), randn(20, 1, seed=2)

    def finished(rows: slice, **prior: Any) -> State:
        num, likelihood = len(x[rows]), GaussianLikelihood(noise=0.5)
        learner = br.laplace(net, likelihood, num_data=num, empirical_prior=False, **prior)
        return learner.finish(learner.init(), [(x[rows], y[rows])])

    earlier = finished(slice(0, 8), prior_precision=0.7)
    later = finished(slice(8, 20), prior=earlier.posterior)
    whole = finished(slice(0, 20), prior_precision=0.7)
    for name, value in whole.posterior.variance().items():
        close(later.posterior.variance()[name], value)


@pytest.mark.parametrize("structure", [Dense(), Diagonal()], ids=repr)
def test_data_that_say_nothing_leave_the_earlier_belief(structure: br.matrices.Structure) -> None:
    earlier = _belief(structure)
    learner = Learner(
        nn.Linear(3, 1, bias=False),
        GaussianLikelihood(noise=0.5),
        num_data=9,
        posterior=br.GaussianFamily(structure),
        expectation=br.AtMean(),
        curvature=br.GGN(),
        rule=Natural(1.0, 1.0),
        prior=earlier,
    )
    state, info = learner.step(learner.init(), (torch.zeros(4, 3), torch.ones(4, 1)))
    for got, want in zip(moments(state), _moments_of(earlier), strict=True):
        close(got, want)
    close(info.kl, 0.0)


def _belief(structure: br.matrices.Structure, seed: int = 5) -> Gaussian:
    mean = {"weight": randn(1, 3, seed=seed)}
    return Gaussian(mean, structure.project(positive(3, seed=seed), mean))


def _moments_of(belief: Gaussian) -> tuple[Tensor, Tensor]:
    precision = belief.precision
    shown = precision.values if isinstance(precision, DenseMatrix) else None
    diagonal = precision.diagonal()["weight"].flatten()
    return belief.mean["weight"].flatten(), diagonal if shown is None else shown


# --- TAGI, which begins at its prior --------------------------------------------------------------


def _tagi(**options: Any) -> Learner:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 1))
    return br.tagi(net, GaussianLikelihood(noise=0.3), num_data=40, **options)


def _steps(learner: Learner, state: State, steps: range, *, donate: bool = False) -> State:
    for step in steps:
        batch = randn(4, 2, seed=step), randn(4, 1, seed=50 + step)
        state, _ = learner.step(state, batch, donate=donate)
    return state


def test_tagi_from_a_prior_goes_on_as_one_run() -> None:
    whole = _tagi()
    earlier = _steps(whole, whole.init(), range(4))
    straight = _steps(whole, earlier, range(4, 8))
    learner = _tagi(prior=earlier.posterior)
    later = _steps(learner, learner.init(), range(4, 8))
    for name, value in straight.posterior.state_dict().items():
        assert torch.equal(later.posterior.state_dict()[name], value), name
    assert float(learner.divergence(learner.init())) == pytest.approx(0.0, abs=1e-12)
    assert float(learner.divergence(later)) > 0.1


@pytest.mark.parametrize("name", ["tagi", "vogn", "mean_field"])
def test_steps_that_use_up_their_state_leave_the_prior_alone(name: str) -> None:
    net = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 1))

    def made(**options: Any) -> Learner:
        method = br.methods.METHODS[name]
        return method(net, GaussianLikelihood(noise=0.3), num_data=20, **options)

    first = made()
    earlier = _steps(first, first.init(), range(2)).posterior
    before = tree.map_tensors(earlier, torch.clone)
    learner = made(prior=earlier)
    known = learner.prior_precision
    _steps(learner, learner.init(), range(4), donate=True)
    assert learner.prior_precision == known
    for key, value in before.state_dict().items():
        assert torch.equal(earlier.state_dict()[key], value), key


# --- the formulas of diagonal beliefs -------------------------------------------------------------

OLD, OLD_PRECISION = randn(4, seed=1), randn(4, seed=2).square() + 0.5
MEAN, F = randn(4, seed=3), randn(4, seed=4).square() + 1.0
GRADIENT, CURVATURE = randn(4, seed=5), randn(4, seed=6)
WEIGHT = 10.0


def _prior() -> EarlierPosterior:
    return EarlierPosterior(Gaussian({"w": OLD.clone()}, DiagonalMatrix({"w": OLD_PRECISION})))


def _derivatives(curvature: Tensor) -> Derivatives:
    return Derivatives(
        torch.zeros(()),
        {"w": GRADIENT.clone()},
        DiagonalMatrix({"w": curvature.clone()}),
        WEIGHT,
    )


def _kl(mean: Tensor, std: Tensor) -> Tensor:
    return kl_divergence(Normal(mean, std), Normal(OLD, OLD_PRECISION.rsqrt())).sum()


@pytest.mark.parametrize("name", ["vogn", "ivon"])
def test_natural_steps_are_pulled_towards_the_old_mean(name: str) -> None:
    ivon = name == "ivon"
    alpha, rho, decay = 0.3, 0.2, 0.8
    rule = Natural(alpha, rho, br.Average(decay), retract=ivon)
    target = CURVATURE if ivon else CURVATURE.square()
    belief = Gaussian({"w": MEAN.clone()}, DiagonalMatrix({"w": F + OLD_PRECISION}))
    family = br.GaussianFamily(Diagonal())
    memory = rule.init(family, belief, WEIGHT) | {"curvature": DiagonalMatrix({"w": F.clone()})}
    mean, f, average = MEAN, F, torch.zeros(4)
    now: Posterior = belief
    for step in range(3):
        now, memory = rule.step(now, _derivatives(target), _prior(), memory, step)
        bend = 0.5 * rho**2 * (target - f).square() / (f + OLD_PRECISION) if ivon else 0.0
        f = f + rho * (target - f) + bend
        average = decay * average + (1.0 - decay) * GRADIENT
        pull = average / (1.0 - decay ** (step + 1)) + OLD_PRECISION * (mean - OLD)
        mean = mean - alpha * pull / (f + OLD_PRECISION)
        close(now.mean["w"], mean, 1e-12)
        close(now.variance()["w"], 1.0 / (f + OLD_PRECISION), 1e-12)
        close(now.kl(_prior()), _kl(mean, (f + OLD_PRECISION).rsqrt()), 1e-12)


@pytest.mark.parametrize("damped_root", [False, True])
def test_root_steps_have_the_old_precision_in_their_divisor(damped_root: bool) -> None:
    alpha, rho = 0.3, 0.2
    rule = Natural(
        alpha, rho, square_root=True, damped_root=damped_root, prior_at_draws=True, epsilon=0.0
    )
    target, drawn = CURVATURE.square(), randn(4, seed=8)
    belief = Gaussian({"w": MEAN.clone()}, DiagonalMatrix({"w": F + OLD_PRECISION}))
    memory = {"curvature": DiagonalMatrix({"w": F.clone()})}
    mean, f = MEAN, F
    now: Posterior = belief
    for step in range(3):
        given = dataclasses.replace(_derivatives(target), average={"w": drawn})
        now, memory = rule.step(now, given, _prior(), memory, step)
        f = f + rho * (target - f)
        share, delta = f / WEIGHT, OLD_PRECISION / WEIGHT
        divisor = (share + delta).sqrt() if damped_root else share.sqrt() + delta
        slope = (GRADIENT + OLD_PRECISION * (drawn - OLD)) / WEIGHT
        mean = mean - alpha * slope / divisor
        close(now.mean["w"], mean, 1e-12)
        close(now.variance()["w"], 1.0 / (f + OLD_PRECISION), 1e-12)


@pytest.mark.parametrize("kl_weight", [1.0, 0.3])
def test_mean_field_gradients_are_those_of_the_kl(kl_weight: float) -> None:
    slope, share = CURVATURE, 0.1
    mean, log_std = (v.clone().requires_grad_() for v in (MEAN, 0.3 * F))
    loss = (GRADIENT * mean).sum() + (slope * log_std.exp()).sum()
    (share * (loss + kl_weight * _kl(mean, log_std.exp()))).backward()
    belief = MeanField({"w": MEAN.clone()}, {"w": 0.3 * F})
    given = {"w": GRADIENT.clone()}, StdSlope({"w": slope.clone()})
    found = belief.free_gradients(ElboTerms(*given, _prior(), kl_weight, share))
    assert mean.grad is not None
    assert log_std.grad is not None
    close(found["mean"]["w"], mean.grad, 1e-12)
    close(found["scales"]["w"], log_std.grad, 1e-12)
    close(belief.kl(_prior()), _kl(MEAN, (0.3 * F).exp()), 1e-12)


def test_a_mean_field_belief_may_follow_a_full_one() -> None:
    """All that a diagonal belief can keep of a full prior: the gradients and the KL itself."""
    root = randn(3, 3, seed=7)
    full = root @ root.mT + torch.eye(3)
    old = Gaussian({"w": OLD[:3]}, DenseMatrix(full, {"w": (3,)}))
    mean, log_std = (v[:3].clone().requires_grad_() for v in (MEAN, 0.2 * F))
    covariance = torch.diag((2.0 * log_std).exp())
    q = torch.distributions.MultivariateNormal(mean, covariance)
    kl = kl_divergence(q, torch.distributions.MultivariateNormal(OLD[:3], precision_matrix=full))
    kl.backward()
    belief = MeanField({"w": MEAN[:3].clone()}, {"w": 0.2 * F[:3]})
    prior = EarlierPosterior(old)
    close(belief.kl(prior), kl.detach(), 1e-12)
    nothing = {"w": torch.zeros(3)}, StdSlope({"w": torch.zeros(3)})
    found = belief.free_gradients(ElboTerms(*nothing, prior, 1.0, 1.0))
    assert mean.grad is not None
    assert log_std.grad is not None
    close(found["mean"]["w"], mean.grad, 1e-12)
    close(found["scales"]["w"], log_std.grad, 1e-12)


# --- how a prior is given -------------------------------------------------------------------------


def test_a_number_is_short_for_a_gaussian_prior() -> None:
    task = regression()
    start, states = task.model(), []
    for options in ({"prior_precision": 2.0}, {"prior": GaussianPrior(2.0)}):
        learner = br.vogn(start, task.likelihood, num_data=20, **options)
        assert (learner.prior, learner.prior_precision) == (GaussianPrior(2.0), 2.0)
        states.append(learner.step(learner.init(), task.batch)[0].posterior.state_dict())
    assert_close(states[0], states[1], rtol=0.0, atol=0.0)


REFUSED: list[tuple[str, Callable[..., Learner], dict[str, Any], str]] = [
    (
        "both",
        br.vogn,
        {"prior": GaussianPrior(2.0), "prior_precision": 2.0},
        "Give a prior or a prior_precision, not both",
    ),
    ("words", br.vogn, {"prior": "flat"}, "or a Gaussian posterior of earlier data, got 'flat'"),
    (
        "another structure",
        br.vogn,
        {"prior": _belief(Dense())},
        "DenseMatrix, which cannot be added to DiagonalMatrix; use a posterior of the same",
    ),
    (
        "evidence",
        br.laplace,
        {"prior": _belief(Dense()), "empirical_prior": True, "structure": Dense()},
        r"empirical_prior=True looks for the precision of N\(0, I/δ\)",
    ),
]


@pytest.mark.parametrize(
    ("name", "method", "options", "message"), REFUSED, ids=[case[0] for case in REFUSED]
)
def test_priors_that_cannot_work_are_refused(
    name: str, method: Callable[..., Learner], options: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        _learner(method, regression(), **options)


@pytest.mark.parametrize(
    "name", ["vogn", "mean_field", "laplace", "mixture", "dropout", "bayesbinn"]
)
def test_what_was_learned_of_another_module_is_no_prior(name: str) -> None:
    make = getattr(br, name)
    given = br.GaussianLikelihood(noise=0.1)
    earlier = make(nn.Linear(3, 1), given, num_data=5).init().posterior
    words = (
        r"another module: 'weight' has the shape \(1, 2\), and has the shape \(1, 3\) in the prior"
    )
    with pytest.raises(ValueError, match=words):
        make(nn.Linear(2, 1), given, num_data=5, prior=earlier)
    with pytest.raises(
        ValueError, match=r"another module: '0\.weight' .* is not known in the prior"
    ):
        make(nn.Sequential(nn.Linear(3, 1)), given, num_data=5, prior=earlier)


def test_a_posterior_that_is_no_number_is_no_prior() -> None:
    given = nn.Linear(2, 1), br.GaussianLikelihood(noise=0.1)
    earlier = br.vogn(*given, num_data=5).init().posterior
    broken = earlier.with_mean({k: v * torch.nan for k, v in earlier.mean.items()})
    with pytest.raises(ValueError, match="The prior is not finite at 'weight'"):
        br.vogn(*given, num_data=5, prior=broken)
