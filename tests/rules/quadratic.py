"""Linear models whose posteriors are known in closed form."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesrule import GaussianLikelihood
from bayesrule.matrices import DenseMatrix
from bayesrule.posteriors import Gaussian
from bayesrule.types import State

NOISE, PRIOR = 0.7, 1.3


@dataclass(frozen=True)
class Regression:
    """Bayesian linear regression with known noise: `S = XᵀX/(σ²T) + δI`, `S m = Xᵀy/(σ²T)`."""

    x: Tensor
    y: Tensor
    noise: float = NOISE
    prior: float = PRIOR
    temperature: float = 1.0

    @property
    def batch(self) -> tuple[Tensor, Tensor]:
        return self.x, self.y.unsqueeze(1)

    @property
    def likelihood(self) -> GaussianLikelihood:
        return GaussianLikelihood(noise=self.noise)

    @property
    def curvature(self) -> Tensor:
        return self.x.mT @ self.x / (self.noise**2 * self.temperature)

    @property
    def precision(self) -> Tensor:
        return self.curvature + self.prior * torch.eye(self.x.shape[1])

    @property
    def first(self) -> Tensor:
        """The first natural parameter, `S m`."""
        return self.x.mT @ self.y / (self.noise**2 * self.temperature)

    @property
    def mean(self) -> Tensor:
        return torch.linalg.solve(self.precision, self.first)

    def model(self) -> nn.Module:
        """A linear model that starts anywhere."""
        return nn.Linear(self.x.shape[1], 1, bias=False)


def regression(num: int = 20, width: int = 3, temperature: float = 1.0) -> Regression:
    """Data with correlated inputs, so that the full posterior is far from diagonal."""
    x = torch.randn(num, width) @ (torch.eye(width) + 0.5 * torch.ones(width, width))
    return Regression(x, x.sum(1) + torch.randn(num), temperature=temperature)


def moments(state: State) -> tuple[Tensor, Tensor]:
    """Mean (P,) and precision, (P, P) where it is dense and (P,) where it is diagonal."""
    belief = state.posterior
    assert isinstance(belief, Gaussian)
    mean = belief.mean["weight"].flatten()
    if isinstance(belief.precision, DenseMatrix):
        return mean, belief.precision.values
    return mean, belief.precision.diagonal()["weight"].flatten()
