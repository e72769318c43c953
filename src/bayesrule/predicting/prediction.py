"""The predictive distribution of y at new inputs: a mixture whose components are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesrule.likelihoods import Marginal, TargetDistribution
from bayesrule.likelihoods._targets import quantile
from bayesrule.predicting import metrics


@dataclass(frozen=True)
class Prediction:
    """The predictive distribution `p(y | x) = (1/K) Σ_k p(y | f_k)` of n inputs.

    `mean` is that of y (class probabilities for classes), `epistemic` the variance of the mean
    over the posterior (what more data would remove), `aleatoric` the expected variance of y given f
    (what they would not), each (n, *). For classes these are of the one-hot y.

    `components` are the K distributions p(y | f_k), as the likelihood makes them, and
    `conditional_means` (K, n, *) their means. `information` is the mutual information where one
    component stands for many outputs.
    """

    components: TargetDistribution
    mean: Tensor
    epistemic: Tensor
    aleatoric: Tensor
    conditional_means: Tensor
    information: Tensor | None = None

    @classmethod
    def mixture(cls, components: TargetDistribution) -> Prediction:
        """The equal mixture of K distributions of targets (K, n, *)."""
        means = components.mean
        return cls(
            components=components,
            mean=means.mean(0),
            epistemic=means.var(0, correction=0),
            aleatoric=components.variance.mean(0),
            conditional_means=means,
        )

    @classmethod
    def closed_form(cls, marginal: Marginal) -> Prediction:
        """One component, where a likelihood has integrated out Gaussian outputs."""
        return cls(
            components=marginal.distribution[None],
            mean=marginal.mean,
            epistemic=marginal.epistemic,
            aleatoric=marginal.aleatoric,
            conditional_means=marginal.mean[None],
            information=marginal.information,
        )

    @classmethod
    def pooled(cls, members: Sequence[Prediction]) -> Prediction:
        """The equal mixture of several predictions of the same inputs, such as an ensemble's.

        The variance of the members' means is epistemic: more data would bring the means together.

        >>> from bayesrule.likelihoods import NormalTargets
        >>> unit = torch.ones(1, 1, 1)
        >>> members = [Prediction.mixture(NormalTargets(mean * unit, unit)) for mean in (0.0, 2.0)]
        >>> both = Prediction.pooled(members)
        >>> both.mean, both.epistemic, both.aleatoric
        (tensor([[1.]]), tensor([[1.]]), tensor([[1.]]))
        """
        first, *others = members
        if not others:
            return first
        if len({member.num_components for member in members}) > 1:
            raise ValueError("Pooled predictions must have the same number of components each.")
        means = torch.stack([member.mean for member in members])
        pooled = cls(
            components=first.components.beside([other.components for other in others]),
            mean=means.mean(0),
            epistemic=torch.stack([member.epistemic for member in members]).mean(0)
            + means.var(0, correction=0),
            aleatoric=torch.stack([member.aleatoric for member in members]).mean(0),
            conditional_means=torch.cat([member.conditional_means for member in members]),
        )
        return replace(pooled, information=_pooled_information(pooled, members))

    @property
    def classification(self) -> bool:
        """Whether y is a class or a yes-or-no answer."""
        return self.components.classification

    @property
    def variance(self) -> Tensor:
        """`epistemic + aleatoric`."""
        return self.epistemic + self.aleatoric

    @property
    def std(self) -> Tensor:
        """The square root of the variance."""
        return self.variance.sqrt()

    @property
    def num_components(self) -> int:
        """K, the number of components of the mixture."""
        return len(self.conditional_means)

    def component_log_probs(self, y: Tensor) -> Tensor:
        """`log p(y_i | f_ki)`, (K, n)."""
        return self.components.component_log_probs(y)

    def log_prob(self, y: Tensor) -> Tensor:
        """`log (1/K) Σ_k p(y_i | f_ki)` of each example, (n,): the per-point mixture."""
        return self.components.mixture_log_prob(y)

    def sample(self, num: int, seed: int = 0) -> Tensor:
        """`num` draws of y for each input, (num, n, *); each draw is of one random component."""
        device = self.mean.device
        generator = torch.Generator(device).manual_seed(seed)
        chosen = torch.randint(self.num_components, (num,), generator=generator, device=device)
        return self.components[chosen].sample(generator)

    def cdf(self, y: Tensor) -> Tensor:
        """`P(Y ≤ y)` of the mixture, shaped as the mean."""
        self._needs("cdf")
        return self._cdf(self.components.matched(y))

    def quantile(self, q: float) -> Tensor:
        """The smallest y with `P(Y ≤ y) ≥ q`, by bisection of the mixture's cdf."""
        self._needs("cdf")
        return quantile(self._cdf, self.mean, self.std, q, self.components.whole_numbers)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval that holds y with probability `level`: lower and upper, (n, *)."""
        if not 0.0 < level < 1.0:
            raise ValueError(f"An interval's level lies strictly between 0 and 1, got {level}.")
        return self.quantile(0.5 - 0.5 * level), self.quantile(0.5 + 0.5 * level)

    @property
    def probs(self) -> Tensor:
        """Class probabilities, (n, C); two columns for one yes-or-no target."""
        self._needs_classes("probs")
        return self._of_classes(self.mean)

    @property
    def labels(self) -> Tensor:
        """The most probable class of each input, (n,)."""
        return self.probs.argmax(-1)

    @property
    def entropy(self) -> Tensor:
        """The entropy of the class probabilities in nats, (n,): all uncertainty together."""
        probs = self.probs
        return metrics.entropy(probs.flatten(0, -2)).reshape(probs.shape[:-1])

    @property
    def mutual_information(self) -> Tensor:
        """Information that the weights hold about y in nats, (n,): the epistemic part (BALD).

        Never less than zero, nor more than the entropy.
        """
        self._needs_classes("mutual_information")
        if self.information is not None:
            return self.information.reshape(self.probs.shape[:-1])
        if self.num_components == 1:
            # To second order: ½ Σ_c Var[p_c] / p_c; yes and no have the same variance.
            spread = self.epistemic.reshape(*self.probs.shape[:-1], -1)
            second = 0.5 * (spread / self.probs.clamp_min(1e-12)).sum(-1)
            return torch.minimum(second, self.entropy)
        probs = [self._of_classes(means).flatten(0, -2) for means in self.conditional_means]
        return metrics.mutual_information(torch.stack(probs)).reshape(self.probs.shape[:-1])

    def rescaled(self, shift: Tensor | float, scale: Tensor | float) -> Prediction:
        """The prediction of `shift + scale · y`, for targets that were standardised."""
        self._needs("rescaled")
        shift = torch.as_tensor(shift, dtype=self.mean.dtype, device=self.mean.device)
        scale = torch.as_tensor(scale, dtype=self.mean.dtype, device=self.mean.device)
        if not (scale > 0).all():
            raise ValueError(f"A scale is positive, got {scale}.")
        return replace(
            self,
            components=self.components.rescaled(shift, scale),
            mean=shift + scale * self.mean,
            epistemic=scale.square() * self.epistemic,
            aleatoric=scale.square() * self.aleatoric,
            conditional_means=shift + scale * self.conditional_means,
        )

    def _cdf(self, y: Tensor) -> Tensor:
        return self.components.cdf(y).mean(0)

    def _of_classes(self, p: Tensor) -> Tensor:
        """Class probabilities (n, C): p itself, or those of no and yes where p is that of yes."""
        if self.components.class_numbers:
            return p
        yes = p.reshape(-1)
        return torch.stack([1.0 - yes, yes], dim=1)

    def _needs(self, ability: str) -> None:
        if problem := self.components.lacks(ability):
            raise TypeError(problem)

    def _needs_classes(self, what: str) -> None:
        if not self.classification:
            raise TypeError(f"{what} belongs to classes; this prediction is of numbers.")
        if not self.components.class_numbers and self.mean[0].numel() > 1:
            raise TypeError(
                f"{what} belongs to one choice for each input; this prediction is of "
                f"{self.mean[0].numel()} yes-or-no targets, whose probabilities are its mean."
            )


def _pooled_information(pooled: Prediction, members: Sequence[Prediction]) -> Tensor | None:
    """The mutual information where members have closed forms; None where components give it."""
    of_one_choice = pooled.components.class_numbers or pooled.mean[0].numel() == 1
    if not (pooled.classification and of_one_choice and members[0].num_components == 1):
        return None
    # The entropy of the target given the weights, on average over the members.
    given_weights = torch.stack([m.entropy - m.mutual_information for m in members]).mean(0)
    return (pooled.entropy - given_weights).clamp_min(0.0)
