"""Noisy natural gradients: optimisers whose weight noise is the posterior."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import nn

from bayesrule.curvature import Curvature, Fisher, SquaredGradient
from bayesrule.expectations import Draws
from bayesrule.matrices import BlockTridiagonal, Dense, Diagonal, Kronecker
from bayesrule.methods._record import TEMPERED, Need, Parts, Rate, method
from bayesrule.methods._words import AT_DRAWS, AVERAGED, DIAGONAL, FULL
from bayesrule.posteriors import FactoredFamily, GaussianFamily, Posterior, Prior, RotatedFamily
from bayesrule.rules import Average, Natural, Velocity
from bayesrule.schedules import averaging, falling

PER_LAYER = "a matrix Gaussian for each layer, layers independent (`Kronecker`)"
FREE_VARIANCES = "as noisy_kfac, with free variances in the eigenbases of the factors (`Kronecker`)"
NEIGHBOURS = "a Gaussian in which neighbouring layers are correlated (`BlockTridiagonal`)"
SAMPLED_FISHER = "Fisher information, targets drawn from the model (`Fisher`)"
EVERY_FEW_STEPS = (
    "natural gradient with momentum; the curvature is estimated every `stats_every` steps and "
    "inverted every `inverse_every` steps"
)
MOMENTUM = {"momentum": "decay of the average of gradients, or Average(), Velocity() or None"}
# The methods whose curvature is the Fisher matrix, by single examples.
BY_FISHER: dict[str, Any] = {
    "course": TEMPERED,
    "needs": (Need.SINGLE_EXAMPLES, Need.DRAWS),
    "explained": MOMENTUM,
}


@dataclass(frozen=True, kw_only=True)
class NoisyOptions:
    """Options of the noisy natural gradients."""

    learning_rate: Rate = falling(0.05)
    momentum: float | Average | Velocity | None = 0.9
    rate: Rate = averaging(0.05, 0.002)
    initial_curvature: float | None = None
    draws: int = 1
    curvature: Curvature | None = None

    def parts(self, family: GaussianFamily, curvature: Curvature, **rule: Any) -> Parts:
        """All parts; `curvature` is the default, and `rule` are further options of the rule."""
        momentum = self.momentum
        if not isinstance(momentum, Average | Velocity | None):
            momentum = Average(momentum)
        natural = Natural(self.learning_rate, self.rate, momentum, prior_at_draws=True, **rule)
        return Parts.at_draws(family, Draws(self.draws), self.curvature or curvature, natural)


@dataclass(frozen=True, kw_only=True)
class FactorOptions(NoisyOptions):
    """Options of noisy natural gradients with matrices that are costly to invert."""

    damping: float = 0.0
    kl_clip: float = 1e-3
    stats_every: int = 10
    inverse_every: int = 100

    def fisher_parts(self, family: GaussianFamily) -> Parts:
        """All parts, with a sampled Fisher that is updated, and inverted, every few steps."""
        return self.parts(
            family,
            Fisher(),
            damping=self.damping,
            kl_clip=self.kl_clip,
            stats_every=self.stats_every,
            inverse_every=self.inverse_every,
        )


@dataclass(frozen=True, kw_only=True)
class LayerOptions(FactorOptions):
    """Options of noisy natural gradients with a pair of factors for each layer."""

    widest: int = 8192


@method(
    words=(
        DIAGONAL,
        AT_DRAWS,
        "square of the batch's summed gradient, per example (`SquaredGradient`)",
        "natural gradient with momentum, divided by the root of the averaged squares",
    ),
    source="Zhang et al. (2018), sec. 3.3, eq. 10 and algorithm 1",
    course=TEMPERED,
    needs=(Need.DRAWS,),
    defaults={"learning_rate": falling(0.03), "rate": 1e-3},
    explained={
        **MOMENTUM,
        "curvature": "which curvature is estimated; None is SquaredGradient(of_sums=True)",
    },
    represented_by="vogn",
)
def noisy_adam(options: NoisyOptions, *, damped_root: bool = False) -> Parts:
    """Noisy Adam: a diagonal Gaussian whose precision is the average of Adam's squared gradients.

    The mean's gradient is divided by `√f + γ`, or by `√(f + γ)` with `damped_root`; γ is the prior
    precision per example. Only the momentum is bias-corrected. The squares are those of gradients
    summed over a batch, divided by its size, so that the posterior does not depend on the batch
    size; `curvature=SquaredGradient()` squares mean gradients instead, as Adam does.
    """
    family = GaussianFamily(Diagonal(), options.initial_curvature)
    curvature = SquaredGradient(of_sums=True)
    return options.parts(family, curvature, square_root=True, damped_root=damped_root, epsilon=0.0)


@method(
    words=(PER_LAYER, AT_DRAWS, SAMPLED_FISHER, EVERY_FEW_STEPS),
    source="Zhang et al. (2018), sec. 3.4, eqs 11 and 12 and algorithm 2",
    **BY_FISHER,
)
def noisy_kfac(
    model: nn.Module, options: LayerOptions, *, prior: Prior | Posterior | None
) -> Parts:
    """Noisy K-FAC: a matrix Gaussian for each layer, from its inputs and its output gradients.

    For small nets `stats_every=1, inverse_every=1` costs little and learns faster.
    """
    return options.fisher_parts(_kronecker(model, Kronecker(widest=options.widest), options, prior))


@method(
    words=(FREE_VARIANCES, AT_DRAWS, SAMPLED_FISHER, EVERY_FEW_STEPS),
    source="Bae, Zhang & Grosse (2018); George et al. (2018) for the eigenbases",
    **BY_FISHER,
    limits="refused with several ranks of torch.distributed, whose eigenbases would differ",
    represented_by="noisy_kfac",
)
def noisy_ekfac(
    model: nn.Module, options: LayerOptions, *, prior: Prior | Posterior | None
) -> Parts:
    """Noisy EK-FAC: noisy K-FAC with the curvature's own diagonal in the factors' eigenbases."""
    structure = Kronecker(corrected=True, widest=options.widest)
    return options.fisher_parts(_kronecker(model, structure, options, prior))


@method(
    words=(NEIGHBOURS, AT_DRAWS, SAMPLED_FISHER, EVERY_FEW_STEPS),
    source="Zhang et al. (2018), sec. 3.5; Martens & Grosse (2015), sec. 4.3",
    **{**BY_FISHER, "needs": (Need.CHAIN, *BY_FISHER["needs"])},
    limits="recurrent and normalising layers are refused",
    represented_by="noisy_kfac",
)
def noisy_tridiagonal(options: LayerOptions) -> Parts:
    """Noisy K-FAC for chains of layers, with the weights of neighbouring layers correlated."""
    structure = BlockTridiagonal(options.widest)
    return options.fisher_parts(GaussianFamily(structure, options.initial_curvature))


@method(
    words=(FULL, AT_DRAWS, SAMPLED_FISHER, AVERAGED),
    source="Zhang et al. (2018), sec. 3.1, eq. 9",
    **BY_FISHER,
    limits="nets of more than `limit` weights are refused",
    defaults={"kl_clip": math.inf, "stats_every": 1, "inverse_every": 1},
    represented_by="noisy_kfac",
)
def noisy_full(options: FactorOptions, *, limit: int = 20_000) -> Parts:
    """Noisy natural gradient with a full covariance, for nets of some thousand weights."""
    return options.fisher_parts(GaussianFamily(Dense(limit), options.initial_curvature))


def _kronecker(
    model: nn.Module, structure: Kronecker, options: FactorOptions, prior: Prior | Posterior | None
) -> GaussianFamily:
    """A family that works in the factors' eigenbases if these are reused over several steps.

    On a GPU only EK-FAC does so: products with whole roots are fast there, but the eigenvectors of
    wide factors take seconds.
    """
    curvature = options.curvature or Fisher()
    on_gpu = any(value.is_cuda for value in model.parameters()) and not structure.corrected
    reused = options.inverse_every > 1 and curvature.takes_coordinates and not on_gpu
    # A prior other than N(0, I/δ) would change with the basis.
    rotated = reused and prior is None
    plain = GaussianFamily if structure.corrected else FactoredFamily
    family = RotatedFamily if rotated else plain
    return family(structure, options.initial_curvature)
