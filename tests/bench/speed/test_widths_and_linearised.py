"""What times widths and linearised predictions, on nets of a few weights."""

from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.curvature import Fisher
from bayesrule.predicting.predict import linearised_outputs
from benchmarks.speed import linearised
from benchmarks.speed import widths as widths_module


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module with two steps of each kind."""
    monkeypatch.setattr(widths_module, "MOST", 2)
    return widths_module


@pytest.mark.parametrize(
    ("stats", "inverse", "shares"),
    [
        (10, 100, {"refresh": 0.01, "statistics": 0.09, "ordinary": 0.9}),
        (1, 100, {"refresh": 0.01, "statistics": 0.99}),
        (5, 5, {"refresh": 0.2, "ordinary": 0.8}),
        (1, 1, {"ordinary": 1.0}),
    ],
)
def test_a_cycle_has_each_kind_of_step_by_its_share(
    widths: ModuleType, stats: int, inverse: int, shares: dict[str, float]
) -> None:
    learner = br.noisy_kfac(
        nn.Linear(2, 1),
        br.GaussianLikelihood(),
        num_data=8,
        stats_every=stats,
        inverse_every=inverse,
    )
    found = widths.kinds(learner)
    assert {kind.name: pytest.approx(kind.share) for kind in found} == shares
    for kind in found:
        sees = learner.rule.curvature_at(learner.curvature, kind.number)
        assert isinstance(sees, Fisher) == (kind.name != "ordinary" or inverse == 1)


def test_periods_that_do_not_fit_are_refused(widths: ModuleType) -> None:
    learner = br.noisy_kfac(
        nn.Linear(2, 1), br.GaussianLikelihood(), num_data=8, stats_every=3, inverse_every=4
    )
    with pytest.raises(ValueError, match="inverse_every=4 is no multiple of stats_every=3"):
        widths.kinds(learner)


def test_a_trial_tells_time_and_bytes_or_why_there_are_none(widths: ModuleType) -> None:
    found = [widths.trial(name, 4) for name in ("map", "noisy_kfac")]
    plain, factored = found
    assert factored["weights"] == 40
    each = factored["kinds"]
    mean = sum(one["share"] * one["milliseconds"] for one in each.values())
    assert factored["mean_milliseconds"] == pytest.approx(mean)
    assert [one["steps"] for one in each.values()] == [2, 2, 2]
    # A mean, a momentum and the diagonal of the precision at least; two factors for each layer.
    assert plain["state_bytes"] >= 40 * 4
    assert factored["state_bytes"] >= 3 * 40 * 4 + 2 * (16 + 25) * 4
    refused = widths.trial("noisy_full", 128)
    assert "33,024 parameters" in refused["refused"]
    drawn = widths.picture([*found, {**plain, "width": 8, "state_bytes": 9999}, refused])
    assert ">map</text>" in drawn
    assert "noisy_full" not in drawn
    assert ">4</text>" in drawn
    assert ">8</text>" in drawn


def test_shared_memory_counts_once(widths: ModuleType) -> None:
    state = br.map(nn.Linear(3, 1), br.GaussianLikelihood(noise=1.0), num_data=8).init()
    shared = torch.zeros(1000)
    before = widths.state_bytes(state)
    state.rule["extra"] = {"a": shared, "b": shared[:10]}
    assert widths.state_bytes(state) == before + 4000


def test_the_covariance_is_held_against_rows_of_the_jacobian(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 10))
    x = torch.randn(6, 3)
    learner = br.laplace(
        net, br.CategoricalLikelihood(), num_data=6, structure=br.Kronecker(), prior_precision=0.5
    )
    state = learner.finish(learner.init(), [(x, torch.arange(6))])
    assert linearised.error(learner, state, x[:2]) < 1e-5
    assert linearised.milliseconds(learner, state, x) > 0

    def doubled(*given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        mean, covariance = linearised_outputs(*given)
        return mean, 2.0 * covariance

    monkeypatch.setattr(linearised, "linearised_outputs", doubled)
    assert linearised.error(learner, state, x[:2]) == pytest.approx(1.0, abs=1e-4)
