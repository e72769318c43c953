"""What can step together is known, and what cannot is said in words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule import Learner
from bayesrule.execution.stacked.obstacles import obstacle, ragged_obstacle
from bayesrule.posteriors import Family, Posterior
from bayesrule.rules import Memory, Now
from bayesrule.training.models import mlp

TOGETHER = (
    *("sgd", "rmsprop", "adam", "map", "newton", "ridge", "ogn", "vogn", "ivon", "laplace", "tagi"),
    *("mean_field", "k_tied", "variational_laplace", "noisy_adam", "noisy_full"),
    *("noisy_kfac", "noisy_ekfac", "noisy_tridiagonal"),
)


def learner(name: str, model: nn.Module | None = None, **options: Any) -> Learner:
    """A method on real-valued targets."""
    made: Learner = getattr(br, name)(
        model or mlp(3, 1, activation=nn.Tanh), br.GaussianLikelihood(), num_data=20, **options
    )
    return made


@pytest.mark.parametrize("name", TOGETHER)
def test_methods_that_step_together(name: str) -> None:
    assert obstacle(learner(name)) is None


class Lamb(torch.optim.Adam):
    """An optimiser of somebody's own."""


class Steps(br.rules.Rule):
    """A rule of somebody's own, which says nothing of stacks."""

    rule = br.Natural()

    def check(self, *parts: Any) -> None:
        self.rule.check(*parts)

    def structure(self, family: Family) -> br.matrices.Structure:
        return self.rule.structure(family)

    def init(self, *first: Any) -> Memory:
        return self.rule.init(*first)

    def rates(self, step: int) -> Any:
        return self.rule.rates(step)

    def move(self, now: Now) -> tuple[Posterior, Memory]:
        return self.rule.move(now)


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("noisy_kfac", {"stats_every": 1, "inverse_every": 1, "draws": 10}, None),
        ("noisy_kfac", {"curvature": br.curvature.SquaredGradient()}, "structure Kronecker"),
        ("noisy_adam", {"draws": 1}, None),
        ("mean_field", {"clip": 1.0}, "norm of a whole gradient"),
        ("mean_field", {"optimiser": Lamb}, "the optimiser Lamb"),
        ("mean_field", {"expectation": br.LocalDraws()}, "the expectation LocalDraws"),
        ("mean_field", {"expectation": br.Moments()}, "the expectation Moments"),
        ("variational_laplace", {"exact": True}, "the curvature SecondOrder"),
        ("noisy_full", {"kl_clip": 0.1}, None),
        ("laplace", {"online": True, "structure": br.Dense()}, None),
        ("laplace", {"online": True, "structure": br.LowRank(2)}, "structure LowRank"),
        ("laplace", {"structure": br.LowRank(2)}, None),
    ],
)
def test_options_that_stand_in_the_way(name: str, options: dict[str, Any], why: str | None) -> None:
    found = obstacle(learner(name, **options))
    assert found is None if why is None else found is not None and why in found


@pytest.mark.parametrize("name", ["variational_laplace", "noisy_kfac", "vogn"])
def test_classes_are_drawn_with_a_stream_for_each_net(name: str) -> None:
    model = mlp(3, 3, activation=nn.Tanh)
    build = br.methods.find(name)
    assert obstacle(build(model, br.CategoricalLikelihood(), num_data=20)) is None


def test_drawn_answers() -> None:
    """Numbers for yes-or-no answers have no streams for many nets."""
    learner = br.noisy_kfac(mlp(3, 1), br.BernoulliLikelihood(), num_data=20)
    assert obstacle(learner) == "targets drawn by BernoulliLikelihood"


def test_modules_that_mix_or_draw() -> None:
    norm = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    drop = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.1), nn.Linear(4, 1))
    assert "batch norm" in str(obstacle(learner("vogn", norm)))
    assert "dropout" in str(obstacle(learner("vogn", drop)))
    for model in (norm, drop):
        assert obstacle(learner("ivon", model)) is None
    assert "batch norm" in str(ragged_obstacle(learner("ivon", norm)))
    assert ragged_obstacle(learner("ivon", drop)) is None
    assert "one example alone" in str(ragged_obstacle(learner("tagi")))


def test_rules_and_families_of_somebodys_own() -> None:
    parts: dict[str, Any] = {"expectation": br.AtMean(), "curvature": br.PerExample()}
    own = Learner(
        mlp(3, 1),
        br.GaussianLikelihood(),
        num_data=20,
        posterior=br.GaussianFamily(),
        rule=Steps(),
        **parts,
    )
    assert obstacle(own) == "the rule Steps"
    x, y = torch.randn(20, 3), torch.randn(20, 1)
    runs = br.fit_many([own, own], [(x, y)] * 2, epochs=1, progress=False)
    assert [run.predict(x).mean.shape for run in runs] == [(20, 1)] * 2
    isotropic = Learner(
        mlp(3, 1),
        br.GaussianLikelihood(),
        num_data=20,
        posterior=br.GaussianFamily(br.matrices.Isotropic()),
        rule=br.Natural(),
        **parts,
    )
    assert obstacle(isotropic) == "a covariance of the structure Isotropic"


class Recurrent(nn.Module):
    """The last state of an LSTM, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.cell(x)[0][:, -1])


@pytest.mark.parametrize("name", ["mean_field", "map", "noisy_adam"])
def test_recurrent_nets_train_one_by_one(name: str) -> None:
    assert obstacle(learner(name, Recurrent())) == "LSTM, over which torch does not map"
    x, y = torch.randn(20, 4, 2), torch.randn(20, 1)
    runs = br.fit_many(
        lambda x, y: learner(name, Recurrent()), [(x, y)] * 2, epochs=1, progress=False
    )
    assert [run.predict(x).mean.shape for run in runs] == [(20, 1)] * 2
