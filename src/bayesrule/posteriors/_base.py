"""The contract of every family of beliefs over the weights."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Generator, Tensor, nn

from bayesrule.tensors import tree, vectors
from bayesrule.types import Params


class Posterior(ABC):
    """A belief q over the weights of a network."""

    mean: Params

    @property
    @abstractmethod
    def num_parameters(self) -> int:
        """How many numbers are learned to describe the belief."""

    @abstractmethod
    def variance(self) -> Params:
        """Marginal variances, named and shaped as the weights."""

    @abstractmethod
    def offset(self, generator: Generator) -> Params:
        """A draw of `θ − mean`."""

    def sample(self, generator: Generator) -> Params:
        """One draw of the weights."""
        return vectors.add_(self.offset(generator), self.mean)

    @abstractmethod
    def kl(self, prior_precision: float) -> Tensor:
        """`KL(q ‖ N(0, I / prior_precision))` in nats, summed over all weights."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """`−E_q[log q]` in nats."""

    @property
    def device(self) -> torch.device:
        """Where the belief's tensors are."""
        return self.witness.device

    @property
    def witness(self) -> Tensor:
        """One of the belief's own tensors."""
        return next(v for _, v in tree.leaves(self) if isinstance(v, Tensor))

    def state_dict(self) -> Params:
        """All tensors of the belief, by slash-separated names."""
        return {k: v for k, v in tree.leaves(self) if isinstance(v, Tensor)}


class Family(ABC):
    """A choice of family: makes the first belief from the module's own parameters."""

    @abstractmethod
    def init(self, params: Params, *, weight: float, prior_precision: float) -> Posterior:
        """The belief before the first step; `weight` is num_data / temperature."""

    def for_model(self, model: nn.Module) -> Family:
        """The same choice for one module, whose layers it may have to know."""
        return self
