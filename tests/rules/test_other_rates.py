"""Rules with another learning rate: one that falls at the end of training, and a smaller one."""

from __future__ import annotations

import pytest
import torch
from sine import X, Y, net

import bayesrule as br
from bayesrule import Conditioning, Elbo, Learner, Natural
from bayesrule.rules import Rule
from bayesrule.schedules import cosine, falling, linear, times


@pytest.mark.parametrize("rule", [Natural(falling(0.5), rate=0.1), Elbo(falling(0.5), 3.0)])
def test_a_falling_rate_ends_at_zero(rule: Natural | Elbo) -> None:
    bound = rule.falling(10, 20)
    assert type(bound) is type(rule)
    assert [bound.rates(step).learning_rate for step in (0, 10, 20, 30)] == [0.5, 0.5, 0.25, 0.0]
    # The rule itself stays as it is, and is told from the other.
    assert rule.rates(30).learning_rate == 0.5
    assert rule != bound
    assert "learning_rate" not in bound.constant_rates


@pytest.mark.parametrize(
    "rule",
    [
        Natural(0.5),
        Elbo(cosine(0.5, 9)),
        Conditioning(fall=1.0),
        Natural(falling(0.5, start=1, steps=2)),
    ],
)
def test_other_rates_stay_as_they_are(rule: Rule) -> None:
    assert rule.falling(10, 20) is rule


def test_slower() -> None:
    assert Natural(0.5, rate=0.1).slower(0.25) == Natural(0.125, rate=0.1)
    assert Elbo(falling(0.5)).slower(0.5) == Elbo(falling(0.25))
    assert Elbo(linear(0, 1, 4)).slower(0.5) == Elbo(times(linear(0, 1, 4), 0.5))
    assert Conditioning().slower(0.25) is None


def test_a_schedule_of_the_curvature_counts_the_estimates() -> None:
    rule = Natural(rate=lambda looks: 1.0 / (looks + 1), stats_every=3)
    assert [rule.rates(step).rate for step in (0, 2, 3, 5, 6)] == [1.0, 1.0, 0.5, 0.5, 1 / 3]


def test_a_learner_with_another_rule() -> None:
    given: dict[str, int] = {"num_data": 20}
    learner = br.sgd(net(), br.GaussianLikelihood(noise=0.1), learning_rate=0.1, **given)
    slow = learner.rule.slower(0.5)
    assert slow is not None
    expected = br.sgd(net(), br.GaussianLikelihood(noise=0.1), learning_rate=0.05, **given)
    batch = X.double(), Y.double()
    found = [one.step(one.init(), batch)[0] for one in (learner.with_rule(slow), expected)]
    for name, value in found[0].posterior.mean.items():
        assert torch.equal(value, found[1].posterior.mean[name])
    assert isinstance(learner, Learner)
    assert learner.rule.rates(0).learning_rate == 0.1
    with pytest.raises(TypeError, match="rule takes a Rule"):
        learner.with_rule(0.1)  # type: ignore[arg-type]
