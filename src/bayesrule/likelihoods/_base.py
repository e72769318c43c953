"""The contract of every likelihood p(y | f)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor
from torch.distributions import Distribution

from bayesrule.types import Params


@dataclass(frozen=True)
class Conditioned:
    """What targets say of Gaussian outputs.

    The first and second derivatives δ and η of `log p(y)` in the outputs' means: given y, an output
    has the mean `m + s δ` and the variance `s + s² η`. `log_prob` is `log p(y)` of each example,
    (n,), and `statistics` what the likelihood itself learns from.
    """

    delta: Tensor
    eta: Tensor
    log_prob: Tensor
    statistics: Params = field(default_factory=dict)


@dataclass(frozen=True)
class Marginal:
    """p(y) with Gaussian outputs integrated out, and the two parts of its variance."""

    distribution: Distribution
    mean: Tensor
    epistemic: Tensor
    aleatoric: Tensor


class Likelihood(ABC):
    """How targets y come from the outputs f of a network, examples along the first axis.

    `noise` holds what the likelihood itself learns (`init`, `update`); it is empty for most.
    Log-probabilities are one number for each example; sums and scaling happen elsewhere, once.
    """

    classification: bool = False
    normal_sampling: bool = False
    learns: bool = False

    def init(self, like: Tensor) -> Params:
        """The likelihood's own state before the first step, typed and placed as `like`."""
        return {}

    def statistics(self, outputs: Tensor, targets: Tensor) -> Params:
        """What the likelihood learns from, summed over the batch."""
        return {}

    def update(self, noise: Params, statistics: Params, weight: float) -> Params:
        """The likelihood's own state after a batch.

        `statistics` are scaled to the whole data over the temperature, `weight` is that scale.
        """
        return noise

    @abstractmethod
    def check(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The targets in the shape of the outputs, or a ValueError that says what does not fit."""

    @abstractmethod
    def distribution(self, outputs: Tensor, noise: Params) -> Distribution:
        """p(y | f), independent over all but the event axes, for outputs (..., n, *)."""

    @abstractmethod
    def log_prob(self, outputs: Tensor, targets: Tensor, noise: Params) -> Tensor:
        """`log p(y | f)` of each example, (n,), expected over what the noise is not sure of."""

    @abstractmethod
    def sample(self, outputs: Tensor, noise: Params, generator: Generator) -> Tensor:
        """Targets drawn from p(y | f)."""

    @abstractmethod
    def fisher_vectors(self, outputs: Tensor, noise: Params) -> Tensor:
        """`L` (V, n, *) with `Σ_v L_v L_vᵀ` the Fisher information of f (the Hessian for GLMs)."""

    @abstractmethod
    def moments(self, outputs: Tensor, noise: Params) -> tuple[Tensor, Tensor]:
        """Mean and variance of y given f (of the one-hot y for classes)."""

    def lacks(self, ability: str) -> str | None:
        """Why an ability (the name of a method) is not there, in words; None if it is."""
        return None

    def condition(
        self, mean: Tensor, variance: Tensor, targets: Tensor, noise: Params
    ) -> Conditioned:
        """What the targets say of outputs N(mean, variance), in closed form; NaN says nothing."""
        raise TypeError(
            f"{type(self).__name__} has no closed form for Gaussian outputs, which tagi needs. "
            "Gaussian, heteroscedastic, categorical, hierarchical, Remax and Bernoulli ones have."
        )

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, targets: Tensor, noise: Params
    ) -> Tensor:
        """`E[log p(y | f)]` of each example, (n,), over independent outputs f ~ N(mean, variance).

        It can be differentiated once, in mean and variance.
        """
        raise TypeError(
            f"{type(self).__name__} does not know E[log p(y | f)] of Gaussian outputs, which "
            "ExpectedLoss() needs. Gaussian, heteroscedastic, categorical, Bernoulli and Poisson "
            "ones do; the others are learned with weight draws: Draws(1) and Price()."
        )

    def marginal(self, mean: Tensor, variance: Tensor, noise: Params) -> Marginal:
        """What is believed of y where the outputs are N(mean, variance), in closed form."""
        raise TypeError(
            f"{type(self).__name__} has no closed form for Gaussian outputs; use Draws(num)."
        )


def match(outputs: Tensor, targets: Tensor, kind: str) -> Tensor:
    """Real-valued targets in the shape of the outputs; (n,) and (n, 1) are taken for each other."""
    if targets.shape == outputs.shape:
        return targets.to(outputs.dtype)
    trailing = {tuple(outputs.shape), tuple(targets.shape)}
    if trailing == {(len(outputs),), (len(outputs), 1)}:
        return targets.reshape(outputs.shape).to(outputs.dtype)
    raise ValueError(
        f"{kind} needs targets of the shape of the network's outputs {tuple(outputs.shape)}, got "
        f"{tuple(targets.shape)}."
    )


def per_example(values: Tensor) -> Tensor:
    """Sums over all but the first axis: (n, ...) to (n,)."""
    return values if values.ndim == 1 else values.flatten(start_dim=1).sum(1)


def one_vector_per_output(root: Tensor) -> Tensor:
    """Vectors (V, n, *) for a diagonal Fisher with elementwise square root `root` (n, *)."""
    flat = root.reshape(len(root), -1)
    vectors = torch.diag_embed(flat).transpose(0, 1)
    return vectors.reshape(-1, *root.shape)
