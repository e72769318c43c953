"""Classes behind Remax and the closed-form softmax."""

from collections.abc import Callable

import pytest
import torch
from contracts.likelihood import LikelihoodContract
from exact import DTYPE, close, randn
from torch import Tensor
from torch.distributions import Categorical, Distribution
from torch.nn.functional import one_hot

from bayesrule.likelihoods import (
    MISSING,
    CategoricalLikelihood,
    ClassProbabilities,
    RemaxLikelihood,
    SoftmaxLikelihood,
)
from bayesrule.moments.softmax import remax_moments, softmax_moments
from bayesrule.schedules import exponential

BOTH: dict[type[ClassProbabilities], Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = {
    RemaxLikelihood: remax_moments,
    SoftmaxLikelihood: softmax_moments,
}


class OneHotContract(LikelihoodContract):
    targets = torch.tensor([0, 2, 1, 1, 0])
    bad_targets = (
        torch.tensor([0, 1, 2, 3, 0]),
        torch.tensor([0, 1, 2, -1, 0]),
        torch.tensor([0.0, 1.0, 2.0, 0.0, 1.0]),
    )
    glm = False

    def values(self) -> tuple[Tensor, float]:
        return torch.arange(3), 1.0

    def features(self, y: Tensor) -> Tensor:
        return one_hot(y, 3).to(DTYPE)

    def no_targets(self) -> Tensor:
        return torch.full((5,), MISSING)


class TestRemax(OneHotContract):
    likelihood = RemaxLikelihood()
    outputs = 1.5 + 0.5 * randn(5, 3, seed=4)
    off_epistemic = 0.015

    def reference(self, outputs: Tensor) -> Distribution:
        positive = outputs.clamp_min(1e-6)
        return Categorical(probs=positive / positive.sum(-1, keepdim=True))

    def test_outputs_below_zero_have_hardly_a_chance(self) -> None:
        f = torch.tensor([[2.0, -1.0, 6.0]], dtype=DTYPE)
        found = self.likelihood.log_probs(f).exp()
        close(found, torch.tensor([[0.25, 0.0, 0.75]]).to(DTYPE), 1e-6)


class TestSoftmax(OneHotContract):
    likelihood = SoftmaxLikelihood(noise=exponential(0.3, rate=0.9))
    outputs = 1.5 * randn(5, 3, seed=1)
    glm = True
    spread = 0.3
    off, off_epistemic = 0.01, 0.01

    def reference(self, outputs: Tensor) -> Distribution:
        return Categorical(logits=outputs)

    def test_is_categorical_but_for_what_labels_say(self) -> None:
        other = CategoricalLikelihood()
        close(
            self.likelihood.log_prob(self.outputs, self.targets, {}),
            other.log_prob(self.outputs, self.targets, {}),
            1e-12,
        )


@pytest.mark.parametrize("kind", BOTH)
def test_condition_is_the_gaussian_rule_on_one_hot_targets(kind: type[ClassProbabilities]) -> None:
    m, s = 1.0 + randn(6, 4, seed=1), 0.1 + randn(6, 4, seed=2).square()
    labels = torch.tensor([0, 1, 2, 3, 1, 0])
    found = kind(noise=0.4).condition(m, s, labels, {})  # type: ignore[call-arg]
    mean, variance, slope = BOTH[kind](m, s)
    total = variance + 0.16
    close(found.delta, slope * (one_hot(labels, 4) - mean) / total, 1e-12)
    close(found.eta, -slope.square() / total, 1e-12)
    close(found.log_prob, mean[torch.arange(6), labels].log(), 1e-12)


@pytest.mark.parametrize("kind", BOTH)
def test_the_schedule_is_followed(kind: type[ClassProbabilities]) -> None:
    scheduled = kind(noise=exponential(0.8, rate=0.5))  # type: ignore[call-arg]
    m, s, labels = randn(2, 3), torch.ones(2, 3, dtype=DTYPE), torch.tensor([0, 1])
    noise = scheduled.update(scheduled.init(m), {}, 1.0)
    found = scheduled.condition(m, s, labels, noise)
    expected = kind(noise=0.4).condition(m, s, labels, {})  # type: ignore[call-arg]
    close(found.delta, expected.delta, 1e-12)


@pytest.mark.parametrize("kind", BOTH)
def test_labels_are_named_when_they_do_not_fit(kind: type[ClassProbabilities]) -> None:
    with pytest.raises(ValueError, match="class 7, but the network has 3 outputs"):
        kind().condition(randn(2, 3), torch.ones(2, 3), torch.tensor([0, 7]), {})
    with pytest.raises(ValueError, match=f"{kind.__name__}.*use BernoulliLikelihood"):
        kind().log_prob(randn(2, 1), torch.tensor([0, 1]), {})


@pytest.mark.parametrize("kind", BOTH)
def test_however_wrong_a_label_is_its_loss_is_finite(kind: type[ClassProbabilities]) -> None:
    m = torch.tensor([[500.0, -500.0]])
    found = kind().condition(m, torch.ones(1, 2), torch.tensor([1]), {})
    assert found.log_prob.isfinite().all()
    assert found.delta.isfinite().all()
