"""The contract of every likelihood p(y | f)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from inspect import isabstract
from typing import ClassVar

import torch
from torch import Generator, Tensor

from bayesrule.likelihoods import _abilities
from bayesrule.likelihoods._targets import TargetDistribution, match
from bayesrule.types import Number, Params


@dataclass(frozen=True)
class Conditioned:
    """What the targets say about Gaussian outputs.

    `delta` and `eta` are the first and second derivatives δ and η of `log p(y)` in the outputs'
    means: given y, an output has mean `m + s δ` and variance `s + s² η`. `log_prob` is `log p(y)`
    of each example, (n,); the likelihood updates its own state from `statistics`.
    """

    delta: Tensor
    eta: Tensor
    log_prob: Tensor
    statistics: Params = field(default_factory=dict)


@dataclass(frozen=True)
class Marginal:
    """p(y) with Gaussian outputs integrated out, and the two parts of its variance.

    `information` is the mutual information of f and a class or binary answer y in nats, (n, *).
    """

    distribution: TargetDistribution
    mean: Tensor
    epistemic: Tensor
    aleatoric: Tensor
    information: Tensor | None = None


class Likelihood(ABC):
    """How targets y depend on the outputs f of a network; examples are along the first axis.

    A likelihood must implement `check`, `distribution` and `log_prob`, and set
    `distribution_class`. `fisher_vectors`, `condition`, `expected_log_prob` and `marginal` are
    optional abilities: if one is not implemented, `lacks` says so, and calling it raises.
    Log-probabilities are one number per example; one place elsewhere sums and scales them.

    `state` is what the likelihood itself learns or counts (`init`, `update`), such as a posterior
    of the noise. Most likelihoods have an empty state.
    """

    distribution_class: ClassVar[type[TargetDistribution]]
    """The class that `distribution` returns; its abilities are the likelihood's too."""
    stacked_sampling: ClassVar[bool] = False
    """Whether `sample` has streams for many nets: all its numbers are those of `normal_like` and
    `exponential_like` of `tensors/randomness.py`."""
    probit_marginal: ClassVar[bool] = False
    """Whether `marginal` is MacKay's probit approximation, to which draws may be preferred."""
    calibrates: ClassVar[bool] = False
    """Whether scaling the outputs changes only the confidence of a prediction."""
    uncertain_targets: ClassVar[bool] = False
    """Whether targets may have a variance of their own, `br.uncertain(y, variance)`."""

    @property
    def classification(self) -> bool:
        """Whether targets are classes or binary answers."""
        return self.distribution_class.classification

    @property
    def spread_share(self) -> float:
        """By default, how large the outputs' variance at the data may be, over the noise variance.

        Weight draws then cost half this number of nats per datum. Real-valued targets lose as much
        by their noise alone. Nearly certain classes lose far less, and would not be learned well
        where training sees the spread of the weights.
        """
        return 0.05 if self.classification else 1.0

    @property
    def least_loss(self) -> float:
        """The nats per datum that count as at stake in a step, however small the loss is.

        The loss of a well-known class is near zero, and a step that costs more would unlearn it.
        The loss of a real-valued target may have any value, since it is a density's.
        """
        return 0.02 if self.classification else 1.0

    @property
    def learns(self) -> bool:
        """Whether the state depends on the data; a schedule's does not."""
        return False

    @property
    def widens(self) -> bool:
        """Whether the noise was learned, so that calibration may widen or narrow it."""
        return False

    def widened(self, state: Params, factor: Tensor | float) -> Params:
        """The state with the noise variance multiplied by `factor`."""
        return state

    @property
    def scheduled(self) -> bool:
        """Whether the state follows a schedule, which needs the number of the step."""
        return callable(getattr(self, "noise", None))

    def lacks(self, ability: str) -> str | None:
        """None if the likelihood has the ability, else a sentence that says what is missing.

        `ability` is the name of a method: one of the optional ones, or `sample`, `cdf` or
        `rescaled` of the targets' distribution. The sentence says who needs it and the way out.
        """
        if _has(type(self), ability):
            return None
        library = _library(Likelihood.__subclasses__())
        able = sorted(kind.__name__ for kind in library if _has(kind, ability))
        return _abilities.sentence(type(self).__name__, ability, able)

    def weighed(self, targets: Tensor) -> Tensor:
        """The targets, with example weights if the likelihood assigns any."""
        return targets

    def num_outputs(self, targets: int) -> int:
        """How many outputs a network needs for this number of target columns, or of classes."""
        return targets

    def init(self, like: Tensor) -> Params:
        """The likelihood's own state before the first step, in the type and device of `like`."""
        return {}

    def statistics(self, outputs: Tensor, targets: Tensor) -> Params:
        """The sums over the batch that the likelihood learns from."""
        return {}

    def expected_statistics(self, outputs: Tensor, targets: Tensor, state: Params) -> Params:
        """As `statistics`; for uncertain targets their expectation under the state."""
        return self.statistics(outputs, targets)

    def update(self, state: Params, statistics: Params, weight: Number) -> Params:
        """The likelihood's own state after a batch.

        `statistics` are scaled to the whole data set of `weight` examples, whatever the
        temperature.
        """
        return state

    def kl(self, state: Params) -> Tensor | float:
        """The divergence of the state's posterior from its prior, in nats."""
        return 0.0

    @abstractmethod
    def check(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The targets in the shape of the outputs, or a ValueError that says what does not fit."""

    @abstractmethod
    def distribution(self, outputs: Tensor, state: Params) -> TargetDistribution:
        """p(y | f) of each target, for outputs (..., n, *)."""

    @abstractmethod
    def log_prob(self, outputs: Tensor, targets: Tensor, state: Params) -> Tensor:
        """`log p(y | f)` of each example, (n,), averaged over an uncertain state."""

    def sample(self, outputs: Tensor, state: Params, generator: Generator) -> Tensor:
        """Targets drawn from p(y | f)."""
        return self.distribution(outputs, state).sample(generator)

    def moments(self, outputs: Tensor, state: Params) -> tuple[Tensor, Tensor]:
        """Mean and variance of y given f (of the one-hot y for classes)."""
        distribution = self.distribution(outputs, state)
        return distribution.mean, distribution.variance

    def fisher_vectors(self, outputs: Tensor, state: Params) -> Tensor:
        """`L` (V, n, *) with `Σ_v L_v L_vᵀ` the Fisher information of f (the Hessian for GLMs)."""
        raise TypeError(self.lacks("fisher_vectors"))

    def condition(
        self, mean: Tensor, variance: Tensor, targets: Tensor, state: Params
    ) -> Conditioned:
        """What the targets say about outputs N(mean, variance), in closed form.

        A missing target (NaN, or the class -1) says nothing.
        """
        raise TypeError(self.lacks("condition"))

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, targets: Tensor, state: Params
    ) -> Tensor:
        """`E[log p(y | f)]` of each example, (n,), over independent outputs f ~ N(mean, variance).

        Differentiable once in mean and variance.
        """
        raise TypeError(self.lacks("expected_log_prob"))

    def marginal(self, mean: Tensor, variance: Tensor, state: Params) -> Marginal:
        """The predictive of y for independent outputs f ~ N(mean, variance)."""
        raise TypeError(self.lacks("marginal"))

    def marginal_targets(
        self, mean: Tensor, variance: Tensor, state: Params, *, joint: bool = False
    ) -> TargetDistribution:
        """The distribution of `marginal`, or of `joint_marginal`, without its variances."""
        marginal = self.joint_marginal if joint else self.marginal
        return marginal(mean, variance, state).distribution

    def joint_marginal(self, mean: Tensor, covariance: Tensor, state: Params) -> Marginal:
        """The predictive of y for outputs with a covariance (n, C, C) for each example.

        Covariances matter only to likelihoods that mix the outputs, as softmax does.
        """
        variance = covariance.diagonal(dim1=-2, dim2=-1).reshape(mean.shape)
        return self.marginal(mean, variance, state)


def _has(kind: type[Likelihood], ability: str) -> bool:
    """Whether a likelihood or its targets' distribution implements this method."""
    parts = (kind, Likelihood), (kind.distribution_class, TargetDistribution)
    return any(_abilities.gives(part, contract, ability) for part, contract in parts)


def _library(kinds: Iterable[type[Likelihood]]) -> Iterator[type[Likelihood]]:
    """The concrete likelihoods of this library among `kinds` and their subclasses."""
    for kind in kinds:
        if not isabstract(kind) and kind.__module__.startswith("bayesrule."):
            yield kind
        yield from _library(kind.__subclasses__())


def per_example(values: Tensor) -> Tensor:
    """Sums over all but the first axis: (n, ...) to (n,)."""
    return values if values.ndim == 1 else values.flatten(start_dim=1).sum(1)


def one_vector_per_output(root: Tensor) -> Tensor:
    """Vectors (V, n, *) for a diagonal Fisher with elementwise square root `root` (n, *)."""
    flat = root.reshape(len(root), -1)
    vectors = torch.diag_embed(flat).transpose(0, 1)
    return vectors.reshape(-1, *root.shape)


class ElementwiseLikelihood(Likelihood):
    """One output for each target: (n,), (n, 1) or (n, D)."""

    allowed: ClassVar[str]
    """The allowed targets in words."""

    @staticmethod
    @abstractmethod
    def is_allowed(targets: Tensor) -> Tensor:
        """Which targets are allowed, elementwise."""

    def check(self, outputs: Tensor, targets: Tensor) -> Tensor:
        matched = match(outputs, targets, type(self).__name__)
        if not self.is_allowed(matched).all():
            missing = " br.weighted(y) leaves out rows whose targets are NaN, as missing ones are."
            more = missing if matched.isnan().any() else ""
            raise ValueError(f"{type(self).__name__} needs {self.allowed}.{more}")
        return matched

    def _checked(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """As `check` on the CPU; a GPU would have to wait, so there bad targets become NaN."""
        if targets.device.type == "cpu":
            return self.check(outputs, targets)
        matched = match(outputs, targets, type(self).__name__)
        return matched.masked_fill(self.is_allowed(matched).logical_not(), math.nan)
