"""Yes-or-no answers."""

import torch
from contracts.likelihood import OneOutputContract
from exact import DTYPE, close, randn
from torch import Tensor
from torch.distributions import Bernoulli, Distribution

from bayesrule.likelihoods import BernoulliLikelihood


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

    def test_extreme_logits_stay_finite(self) -> None:
        logits = torch.tensor([[-200.0], [200.0]], dtype=DTYPE)
        targets = torch.tensor([[1.0], [0.0]], dtype=DTYPE)
        close(self.likelihood.log_prob(logits, targets, {}), torch.full((2,), -200.0))
