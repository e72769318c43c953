"""Classes read straight off the outputs."""

import pytest
import torch
from contracts.likelihood import LikelihoodContract
from exact import DTYPE, close, randn
from torch import Tensor
from torch.distributions import Categorical, Distribution
from torch.nn.functional import one_hot

from bayesrule.likelihoods import MISSING, OneHotLikelihood


class TestOneHot(LikelihoodContract):
    likelihood = OneHotLikelihood()
    targets = torch.tensor([0, 2, 1, 1, 0])
    outputs = 0.45 + 0.1 * randn(5, 3, seed=4)
    bad_targets = (
        torch.tensor([0, 1, 2, 3, 0]),
        torch.tensor([0, 1, 2, -1, 0]),
        torch.tensor([0.0, 1.0, 2.0, 0.0, 1.0]),
    )
    glm = False
    spread = 0.01
    off = 0.02
    off_epistemic = 0.02

    def values(self) -> tuple[Tensor, float]:
        return torch.arange(3), 1.0

    def features(self, y: Tensor) -> Tensor:
        return one_hot(y, 3).to(DTYPE)

    def no_targets(self) -> Tensor:
        return torch.full((5,), MISSING)

    def reference(self, outputs: Tensor) -> Distribution:
        scores = torch.special.ndtr((outputs - 0.5) / 0.15)
        return Categorical(probs=scores / scores.sum(-1, keepdim=True))

    def test_a_label_is_the_kalman_update_of_its_code(self) -> None:
        variance, noise = 0.1 + randn(5, 3, seed=5).square(), 0.1
        found = self.likelihood.condition(self.outputs, variance, self.targets, {})
        gain = variance / (variance + noise**2)
        code = one_hot(self.targets, 3).to(DTYPE)
        close(self.outputs + variance * found.delta, self.outputs + gain * (code - self.outputs))
        close(variance + variance.square() * found.eta, variance * (1.0 - gain), 1e-12)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan")])
def test_a_scale_that_is_none_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="scale must be positive"):
        OneHotLikelihood(scale=scale)
