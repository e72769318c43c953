"""Finite mixtures of any family: `q(x) = Σ_c π_c q_c(x)`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from bayesrule.families._base import ExponentialFamily
from bayesrule.families.discrete import Categorical


@dataclass(frozen=True, eq=False)
class Mixture:
    """`q(x) = Σ_c π_c q_c(x)`, K components of one family in a batch of K.

    Only the joint distribution of x and the component z is an exponential family, so natural
    parameters are those of `weights` and `components` (Khan & Rue 2023, Sec. 3.2). Entropy and
    divergence have no closed form and are estimated from draws.

    >>> from bayesrule.families import Normal
    >>> q = Mixture(Categorical.make([0.5, 0.5]), Normal.make([-1.0, 1.0], [1.0, 1.0]))
    >>> q.responsibilities(torch.tensor([0.0]))
    tensor([[0.5000, 0.5000]])
    """

    weights: Categorical
    components: ExponentialFamily

    def __post_init__(self) -> None:
        num = self.weights.natural[0].shape[-1]
        if self.components.batch != (num,):
            raise ValueError(
                f"{num} weights need a batch of {num} components; got {self.components!r}."
            )

    def joint_log_prob(self, x: Tensor) -> Tensor:
        """`log π_c + log q_c(x)`, (n, K)."""
        return self.weights.normalised.natural[0] + self.components.log_prob(x.unsqueeze(1))

    def log_prob(self, x: Tensor) -> Tensor:
        """`log q(x)`, (n,)."""
        return self.joint_log_prob(x).logsumexp(-1)

    def responsibilities(self, x: Tensor) -> Tensor:
        """`q(z = c | x)`, (n, K)."""
        return self.joint_log_prob(x).softmax(-1)

    def sample(self, num: int, generator: Generator) -> Tensor:
        """`num` draws, (num, *event)."""
        which = self.weights.sample(num, generator).argmax(-1)
        drawn = self.components.sample(num, generator)
        return drawn[torch.arange(num, device=which.device), which]

    def entropy(self, generator: Generator, num: int = 1000) -> Tensor:
        """`−E[log q]`, from draws."""
        return -self.log_prob(self.sample(num, generator)).mean()

    def kl(self, other: Mixture, generator: Generator, num: int = 1000) -> Tensor:
        """`KL(self ‖ other)`, from draws of self."""
        x = self.sample(num, generator)
        return (self.log_prob(x) - other.log_prob(x)).mean()
