"""Classes, yes-or-no answers and counts."""

import pytest
import torch
from contracts.likelihood import LikelihoodContract
from exact import DTYPE, close, randn
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Poisson
from torch.nn.functional import one_hot

from bayesrule.likelihoods import (
    MISSING,
    BernoulliLikelihood,
    CategoricalLikelihood,
    PoissonLikelihood,
)


class TestCategorical(LikelihoodContract):
    likelihood = CategoricalLikelihood()
    outputs = 1.5 * randn(5, 3, seed=1)
    targets = torch.tensor([0, 2, 1, 1, 0])
    bad_targets = (
        torch.tensor([0, 1, 2, 3, 0]),
        torch.tensor([0, 1, 2, -1, 0]),
        torch.tensor([[0], [1], [2], [0], [1]]),
        torch.tensor([0.0, 1.0, 2.0, 0.0, 1.0]),
    )

    def reference(self, outputs: Tensor) -> Distribution:
        return Categorical(logits=outputs)

    def values(self) -> tuple[Tensor, float]:
        return torch.arange(3), 1.0

    def features(self, y: Tensor) -> Tensor:
        return one_hot(y, 3).to(DTYPE)

    gradient = True
    off, off_epistemic = 0.03, 0.04

    def no_targets(self) -> Tensor:
        return torch.full((5,), MISSING)

    def test_no_label_is_for_conditioning_only(self) -> None:
        variance = self.variance()
        for label in (-2, 3):
            wrong = torch.tensor([0, MISSING, label, 1, 0])
            with pytest.raises(ValueError, match=f"class {label}, but the network has 3 outputs"):
                self.likelihood.condition(self.outputs, variance, wrong, {})

    def test_one_logit_is_refused_with_a_way_out(self) -> None:
        with pytest.raises(ValueError, match="use BernoulliLikelihood"):
            self.likelihood.log_prob(randn(5, 1), self.targets, {})

    def test_the_message_names_the_class(self) -> None:
        with pytest.raises(ValueError, match="class 7, but the network has 3 outputs"):
            self.likelihood.log_prob(self.outputs, torch.tensor([0, 1, 7, 1, 0]), {})


class OneOutputContract(LikelihoodContract):
    """Likelihoods with one output for each target."""

    def test_columns_and_vectors_are_taken_for_each_other(self) -> None:
        column = self.likelihood.log_prob(self.outputs, self.targets[:, 0], self.state())
        vector = self.likelihood.log_prob(self.outputs[:, 0], self.targets, self.state())
        for found in (column, vector):
            close(found, self.expected_log_prob(self.outputs, self.targets))

    def test_several_outputs_add_up(self) -> None:
        outputs, targets = self.outputs.reshape(2, 2), self.targets.reshape(2, 2)
        each = self.likelihood.log_prob(self.outputs, self.targets, self.state())
        found = self.likelihood.log_prob(outputs, targets, self.state())
        close(found, each.reshape(2, 2).sum(1))
        vectors = self.likelihood.fisher_vectors(outputs, self.state())
        rows = torch.einsum("vni,vnj->nij", vectors, vectors)
        close(rows, torch.diag_embed(self.fisher().reshape(2, 2)))


class TestBernoulli(OneOutputContract):
    likelihood = BernoulliLikelihood()
    outputs = 2.0 * randn(4, 1, seed=2)
    targets = torch.tensor([[0.0], [1.0], [1.0], [0.0]], dtype=DTYPE)
    bad_targets = (torch.tensor([[0.0], [1.0], [2.0], [0.0]]), torch.full((4, 1), 0.5))
    gradient = True
    off_epistemic = 0.02

    def reference(self, outputs: Tensor) -> Distribution:
        return Bernoulli(logits=outputs)

    def values(self) -> tuple[Tensor, float]:
        return torch.tensor([0.0, 1.0], dtype=DTYPE), 1.0

    def test_integers_are_taken(self) -> None:
        found = self.likelihood.log_prob(self.outputs, self.targets.long(), {})
        close(found, self.expected_log_prob(self.outputs, self.targets))


class TestPoisson(OneOutputContract):
    likelihood = PoissonLikelihood()
    outputs = randn(4, 1, seed=3) + 0.5
    targets = torch.tensor([[0.0], [3.0], [1.0], [7.0]], dtype=DTYPE)
    bad_targets = (torch.tensor([[0.0], [-1.0], [2.0], [0.0]]), torch.full((4, 1), 0.5))

    def reference(self, outputs: Tensor) -> Distribution:
        return Poisson(outputs.exp())

    def values(self) -> tuple[Tensor, float]:
        return torch.arange(0.0, 80.0, dtype=DTYPE), 1.0


def test_extreme_logits_stay_finite() -> None:
    logits = torch.tensor([[-200.0], [200.0]], dtype=DTYPE)
    targets = torch.tensor([[1.0], [0.0]], dtype=DTYPE)
    close(BernoulliLikelihood().log_prob(logits, targets, {}), torch.full((2,), -200.0))
    both = torch.cat([logits, -logits], dim=1)
    found = CategoricalLikelihood().log_prob(both, torch.tensor([0, 1]), {})
    close(found, torch.full((2,), -400.0))
