"""What is believed of y at new inputs: a mixture over weight draws, its parts kept apart."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Normal, Poisson

from bayesrule.likelihoods._base import match, per_example
from bayesrule.predicting import metrics


@dataclass(frozen=True)
class Prediction:
    """The predictive distribution `p(y | x) = (1/K) Σ_k p(y | f_k)` of n inputs.

    `mean` is that of y (class probabilities for classes), `epistemic` the variance of the mean
    over the belief (what more data would remove), `aleatoric` the expected variance of y given f
    (what it would not), each (n, *). For classes these are of the one-hot y.
    """

    components: Distribution
    mean: Tensor
    epistemic: Tensor
    aleatoric: Tensor
    conditional_means: Tensor
    classification: bool = False

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
        y = self._aligned(y)
        log_probs = self.components.log_prob(y.expand(self.num_components, *y.shape))
        return torch.stack([per_example(one) for one in log_probs])

    def log_prob(self, y: Tensor) -> Tensor:
        """`log (1/K) Σ_k p(y_i | f_ki)` of each example, (n,): the per-point mixture."""
        return self.component_log_probs(y).logsumexp(0) - math.log(self.num_components)

    def sample(self, num: int, seed: int = 0) -> Tensor:
        """`num` draws of y for each input, (num, n, *); the mixture's component is drawn too."""
        generator = torch.Generator(self.mean.device).manual_seed(seed)
        pick = torch.randint(
            self.num_components, (num,), generator=generator, device=self.mean.device
        )
        draws = [self._draw(int(k), generator) for k in pick]
        return torch.stack(draws)

    def cdf(self, y: Tensor) -> Tensor:
        """`P(Y ≤ y)` of the mixture, shaped as the mean."""
        self._needs_order("cdf")
        return self._cdf(self._aligned(y))

    def quantile(self, q: float) -> Tensor:
        """The smallest y with `P(Y ≤ y) ≥ q`, by bisection of the mixture's cdf."""
        self._needs_order("quantile")
        if not 0.0 < q < 1.0:
            raise ValueError(f"A quantile's level lies strictly between 0 and 1, got {q}.")
        reach = (self.std * max(10.0, (1.0 / min(q, 1.0 - q)) ** 0.5)).clamp_min(1e-30)
        low, high = self.mean - reach, self.mean + reach
        for _ in range(100):
            middle = 0.5 * (low + high)
            below = self._cdf(middle) < q
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        # The upper end stops on the count or a hair above it, never below.
        return high.floor() if isinstance(self.components, Poisson) else 0.5 * (low + high)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval that holds y with probability `level`: lower and upper, (n, *)."""
        if not 0.0 < level < 1.0:
            raise ValueError(f"An interval's level lies strictly between 0 and 1, got {level}.")
        return self.quantile(0.5 - 0.5 * level), self.quantile(0.5 + 0.5 * level)

    @property
    def probs(self) -> Tensor:
        """Class probabilities, (n, C); two columns for one yes-or-no target."""
        self._needs_classes("probs")
        if self.mean.ndim == 2 and self.mean.shape[1] > 1:
            return self.mean
        p = self.mean.reshape(-1)
        return torch.stack([1.0 - p, p], dim=1)

    @property
    def labels(self) -> Tensor:
        """The most probable class of each input, (n,)."""
        return self.probs.argmax(-1)

    @property
    def entropy(self) -> Tensor:
        """The entropy of the class probabilities in nats, (n,): all uncertainty together."""
        return metrics.entropy(self.probs)

    @property
    def mutual_information(self) -> Tensor:
        """Information that the weights hold about y in nats, (n,): the epistemic part (BALD).

        With one component (the probit link) to second order: `½ Σ_c Var[p_c] / p_c`.
        """
        self._needs_classes("mutual_information")
        if self.num_components == 1:
            spread = self.epistemic.expand_as(self.probs)
            return 0.5 * (spread / self.probs.clamp_min(1e-12)).sum(-1)
        means = self.conditional_means
        if means.ndim == 2 or means.shape[-1] == 1:
            p = means.reshape(len(means), -1)
            means = torch.stack([1.0 - p, p], dim=-1)
        return metrics.mutual_information(means)

    def rescaled(self, shift: Tensor | float, scale: Tensor | float) -> Prediction:
        """The prediction of `shift + scale · y`, for targets that were standardised."""
        if not isinstance(self.components, Normal):
            raise TypeError("Only real-valued predictions can be rescaled.")
        shift = torch.as_tensor(shift, dtype=self.mean.dtype, device=self.mean.device)
        scale = torch.as_tensor(scale, dtype=self.mean.dtype, device=self.mean.device)
        if not (scale > 0).all():
            raise ValueError(f"A scale is positive, got {scale}.")
        normal = self.components
        return replace(
            self,
            components=Normal(
                shift + scale * normal.loc, scale * normal.scale, validate_args=False
            ),
            mean=shift + scale * self.mean,
            epistemic=scale.square() * self.epistemic,
            aleatoric=scale.square() * self.aleatoric,
            conditional_means=shift + scale * self.conditional_means,
        )

    def _aligned(self, y: Tensor) -> Tensor:
        if not isinstance(self.components, Categorical):
            return match(self.mean, y, "This prediction")
        if y.shape != self.mean.shape[:1]:
            raise ValueError(
                f"This prediction needs class numbers of shape ({len(self.mean)},), got "
                f"{tuple(y.shape)}."
            )
        return y

    def _draw(self, k: int, generator: torch.Generator) -> Tensor:
        part = self.components
        if isinstance(part, Normal):
            white = torch.empty_like(part.loc[k]).normal_(generator=generator)
            return part.loc[k] + part.scale[k] * white
        if isinstance(part, Poisson):
            return torch.poisson(part.rate[k], generator=generator)
        p = self.conditional_means[k]
        if p.ndim == 2 and p.shape[1] > 1 and len(part.batch_shape) == 2:
            return torch.multinomial(p, 1, generator=generator).squeeze(-1)
        return torch.bernoulli(p, generator=generator)

    def _cdf(self, y: Tensor) -> Tensor:
        if isinstance(self.components, Poisson):
            count = y.floor()
            rate = self.components.rate
            inside = torch.special.gammaincc((count + 1.0).clamp_min(1e-30).expand_as(rate), rate)
            return torch.where(count < 0, torch.zeros_like(y), inside.mean(0))
        return self.components.cdf(y.expand_as(self.conditional_means)).mean(0)

    def _needs_order(self, what: str) -> None:
        if self.classification:
            raise TypeError(f"Classes have no order, so there is no {what}; use probs or entropy.")

    def _needs_classes(self, what: str) -> None:
        if not self.classification:
            raise TypeError(f"{what} belongs to classes; this prediction is of numbers.")
        if not isinstance(self.components, Categorical) and self.mean[0].numel() > 1:
            raise TypeError(
                f"{what} belongs to one choice for each input; this prediction is of "
                f"{self.mean[0].numel()} yes-or-no targets, whose probabilities are its mean."
            )
