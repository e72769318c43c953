"""The ELBO's gradient: against autograd, torch's own optimisers and exact optima."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from exact import DTYPE, randn
from torch import Tensor, nn
from torch.testing import assert_close

from bayesrule import (
    GGN,
    AtMean,
    CategoricalLikelihood,
    Dense,
    Diagonal,
    Draws,
    Elbo,
    Fisher,
    GaussianFamily,
    GaussianLikelihood,
    Learner,
    MeanFieldFamily,
    PerGroup,
    PointEstimate,
    Price,
    mean_field,
    schedules,
)
from bayesrule.curvature import Curvature, NoCurvature
from bayesrule.expectations import Expectation
from bayesrule.matrices import Isotropic
from bayesrule.tensors import seeds
from bayesrule.tensors.step_randomness import DRAWS
from bayesrule.training import checkpoint
from bayesrule.types import State

NUM, DELTA, TEMPERATURE = 40, 2.0, 0.7
X, Y = randn(10, 3, seed=1), randn(10, 2, seed=2)


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(DTYPE)


def _learner(rule: Elbo, **options: Any) -> Learner:
    given: dict[str, Any] = {
        "posterior": MeanFieldFamily(),
        "expectation": Draws(2),
        "curvature": Price(),
        "prior_precision": DELTA,
        "temperature": TEMPERATURE,
        **options,
    }
    return Learner(_net(), GaussianLikelihood(noise=0.5), num_data=NUM, rule=rule, **given)


def _nll(net: nn.Module, params: dict[str, Tensor]) -> Tensor:
    outputs = torch.func.functional_call(net, params, (X,))
    return -torch.distributions.Normal(outputs, 0.5).log_prob(Y).sum()


class _ByHand:
    """The same objective through autograd on plain leaves, with the same draws."""

    def __init__(self, learner: Learner, state: State) -> None:
        self.learner, self.net = learner, _net()
        self.mean = {k: v.clone().requires_grad_() for k, v in state.posterior.mean.items()}
        scales = getattr(state.posterior, "scales", {})
        self.log_std = {k: v.clone().requires_grad_() for k, v in scales.items()}

    def objective(self, step: int, kl_weight: float = 1.0) -> Tensor:
        """`E[loss]/N + (T/N) w KL` of the batch, per datum."""
        source = seeds.generator(torch.device("cpu"), 0, step, DRAWS)
        loss = torch.zeros((), dtype=DTYPE)
        draws = self.learner.expectation.num
        for _ in range(draws):
            flat = torch.empty(sum(v.numel() for v in self.mean.values()), dtype=DTYPE)
            parts = flat.normal_(generator=source).split([v.numel() for v in self.mean.values()])
            noise = dict(zip(self.mean, parts, strict=True))
            theta = {
                k: m + self.log_std[k].exp() * noise[k].view(m.shape) for k, m in self.mean.items()
            }
            loss = loss + _nll(self.net, theta) / (draws * len(X))
        return loss + kl_weight * TEMPERATURE / NUM * self.kl()

    def kl(self) -> Tensor:
        prior = torch.distributions.Normal(torch.zeros((), dtype=DTYPE), DELTA**-0.5)
        parts = [
            torch.distributions.kl_divergence(
                torch.distributions.Normal(m, self.log_std[k].exp()), prior
            ).sum()
            for k, m in self.mean.items()
        ]
        return torch.stack(parts).sum()


OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": partial(torch.optim.AdamW, weight_decay=0.1),
    "sgd": torch.optim.SGD,
    "heavy ball": partial(torch.optim.SGD, momentum=0.9),
    "rmsprop": torch.optim.RMSprop,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adagrad": partial(torch.optim.Adagrad, initial_accumulator_value=0.1),
    "adamax": torch.optim.Adamax,
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_it_is_autograd_and_the_optimiser(name: str) -> None:
    rate = schedules.linear(0.02, 0.01, 4)
    learner = _learner(Elbo(rate, 5.0, optimiser=OPTIMISERS[name]))
    state = learner.init(0)
    hand = _ByHand(learner, state)
    groups = [
        {"params": list(hand.mean.values()), "lr": rate(0)},
        {"params": list(hand.log_std.values()), "lr": 5.0 * rate(0)},
    ]
    optimiser = OPTIMISERS[name](groups, lr=rate(0))
    for step in range(4):
        state, _ = learner.step(state, (X, Y))
        optimiser.param_groups[0]["lr"] = rate(step)
        optimiser.param_groups[1]["lr"] = 5.0 * rate(step)
        optimiser.zero_grad()
        hand.objective(step).backward()
        optimiser.step()
    for own, other in ((state.posterior.mean, hand.mean), (state.posterior.scales, hand.log_std)):
        for key in own:
            assert_close(own[key], other[key].detach(), rtol=1e-10, atol=1e-12)


def test_annealing_and_clipping() -> None:
    learner = _learner(
        Elbo(0.1, optimiser=torch.optim.SGD, kl_weight=schedules.linear(0.0, 1.0, 2), clip=0.5)
    )
    state = learner.init(0)
    hand = _ByHand(learner, state)
    tensors = [*hand.mean.values(), *hand.log_std.values()]
    optimiser = torch.optim.SGD(tensors, 0.1)
    for step, weight in enumerate((0.0, 0.5, 1.0)):
        state, _ = learner.step(state, (X, Y))
        optimiser.zero_grad()
        hand.objective(step, weight).backward()
        assert torch.nn.utils.clip_grad_norm_(tensors, 0.5) > 0.5
        optimiser.step()
    for key, value in state.posterior.mean.items():
        assert_close(value, hand.mean[key].detach(), rtol=1e-6, atol=1e-9)


def test_a_point_is_map() -> None:
    rule = Elbo(0.01)
    options = {"posterior": GaussianFamily(Isotropic()), "expectation": AtMean()}
    learner = _learner(rule, curvature=NoCurvature(), **options)
    state, net = learner.init(0), _net()
    optimiser = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(5):
        state, _ = learner.step(state, (X, Y))
        optimiser.zero_grad()
        params = dict(net.named_parameters())
        prior = sum((0.5 * DELTA * v.square()).sum() for v in params.values())
        (_nll(net, params) / len(X) + TEMPERATURE / NUM * prior).backward()
        optimiser.step()
    for key, value in net.named_parameters():
        assert_close(state.posterior.mean[key], value.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("expectation", "curvature", "tolerance"),
    [(AtMean(), GGN(), 1e-5), (Draws(8, antithetic=True), Price(), 0.1)],
)
def test_it_reaches_the_mean_field_optimum_of_linear_regression(
    expectation: Expectation, curvature: Curvature, tolerance: float
) -> None:
    x = randn(30, 3, seed=3) @ torch.tensor([[1.0, 0.5, 0.0], [0, 1, 0.3], [0, 0, 1]], dtype=DTYPE)
    y = x @ randn(3, 1, seed=4) + 0.3 * randn(30, 1, seed=5)
    net = nn.Linear(3, 1, bias=False).to(DTYPE)
    learner = Learner(
        net,
        GaussianLikelihood(noise=0.3),
        num_data=30,
        posterior=MeanFieldFamily(),
        expectation=expectation,
        curvature=curvature,
        rule=Elbo(schedules.cosine(0.05, 800)),
        prior_precision=1.5,
    )
    state = learner.init()
    for _ in range(800):
        state, _ = learner.step(state, (x, y), donate=True)
    precision = x.mT @ x / 0.09 + 1.5 * torch.eye(3, dtype=DTYPE)
    mean = torch.linalg.solve(precision, x.mT @ y / 0.09)
    assert_close(state.posterior.mean["weight"], mean.mT, rtol=1e-4, atol=2e-3)
    best = precision.diagonal().reciprocal()
    assert_close(state.posterior.variance()["weight"][0], best, rtol=tolerance, atol=0.0)


def test_a_resumed_run_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    learner = _learner(Elbo(0.01, optimiser=partial(torch.optim.SGD, momentum=0.9)))
    state = learner.init(0)
    for _ in range(3):
        state, _ = learner.step(state, (X, Y))
    checkpoint.save(tmp_path / "state", state)
    read, _ = checkpoint.load(tmp_path / "state", learner.init(0))
    for _ in range(2):
        state, _ = learner.step(state, (X, Y))
        read, _ = learner.step(read, (X, Y))
    for key, value in state.posterior.state_dict().items():
        assert torch.equal(value, read.posterior.state_dict()[key])


def test_steps_leave_the_old_state_alone() -> None:
    learner = _learner(Elbo(0.1))
    state = learner.init(0)
    before = {k: v.clone() for k, v in state.posterior.state_dict().items()}
    learner.step(state, (X, Y))
    for key, value in state.posterior.state_dict().items():
        assert torch.equal(value, before[key])


def test_known_weights_follow_the_likelihood_alone() -> None:
    rule = Elbo(0.1, optimiser=torch.optim.SGD)
    family = PerGroup({"0.*": PointEstimate(with_prior=False), "*": MeanFieldFamily()})
    learner = _learner(rule, posterior=family, expectation=Draws(1))
    state = learner.init(0)
    assert set(state.posterior.free()["scales"]) == {"2.weight", "2.bias"}
    assert not state.posterior.variance()["0.weight"].any()
    new, info = learner.step(state, (X, Y))
    drawn = state.posterior.sample(seeds.generator(torch.device("cpu"), 0, 0, DRAWS))
    theta = {k: v.requires_grad_() for k, v in drawn.items()}
    (_nll(_net(), theta) / len(X)).backward()
    for name in ("0.weight", "0.bias"):
        assert theta[name].grad is not None
        wanted = state.posterior.mean[name] - 0.1 * theta[name].grad
        assert_close(new.posterior.mean[name], wanted, rtol=1e-10, atol=1e-12)
    assert info.kl > 0


def test_gradients_are_kept_on_request() -> None:
    learner = _learner(Elbo(0.1, keep_gradients=True))
    state = learner.init(0)
    names = {k: set(v) for k, v in state.rule["gradients"].items()}
    state, _ = learner.step(state, (X, Y))
    assert {k: set(v) for k, v in state.rule["gradients"].items()} == names
    assert all(v.abs().sum() > 0 for v in state.rule["gradients"]["scales"].values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"posterior": GaussianFamily(Diagonal())}, "MeanFieldFamily"),
        ({"posterior": GaussianFamily(Dense())}, "MeanFieldFamily"),
        ({"expectation": AtMean()}, "needs weight draws"),
        ({"expectation": AtMean(), "curvature": NoCurvature()}, "says nothing of the scales"),
    ],
)
def test_parts_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        _learner(Elbo(), **options)


@pytest.mark.parametrize(
    "options", [{"learning_rate": -1.0}, {"scale_multiplier": float("inf")}, {"clip": 0.0}]
)
def test_numbers_that_make_no_sense_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Elbo(**options)


def test_curvature_at_the_mean_moves_the_scales_too() -> None:
    rule = Elbo(0.02)
    learner = _learner(rule, expectation=AtMean(), curvature=Fisher())
    state = learner.init(0)
    new, _ = learner.step(state, (X, Y))
    assert all((new.posterior.scales[k] != v).all() for k, v in state.posterior.scales.items())


def test_unknown_names_are_told() -> None:
    with pytest.raises(ValueError, match=r"embedding.*0\.weight"):
        mean_field(_net(), CategoricalLikelihood(), num_data=1, known=("embedding*",))
    with pytest.raises(ValueError, match="leaves no weight with a variance"):
        mean_field(_net(), CategoricalLikelihood(), num_data=1, known=("*",))
    with pytest.raises(ValueError, match=r"All weights fit '0\.\*\|2\.\*' and have no variance"):
        mean_field(_net(), CategoricalLikelihood(), num_data=1, known=("0.*", "2.*"))
