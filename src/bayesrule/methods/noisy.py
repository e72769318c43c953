"""Noisy natural gradients: optimisers whose weight noise is the belief."""

from __future__ import annotations

import math
from typing import Any, Unpack

from torch import nn

from bayesrule.curvature import Curvature, Fisher, SquaredGradient
from bayesrule.expectations import Draws
from bayesrule.learner import Learner
from bayesrule.likelihoods import Likelihood
from bayesrule.matrices import BlockTridiagonal, Dense, Diagonal, Kronecker
from bayesrule.methods._options import FactorOptions, LayerOptions, Momentum, NoisyOptions, common
from bayesrule.methods._record import AT_DRAWS, DIAGONAL, SAMPLED_FISHER, Need, method
from bayesrule.posteriors import FactoredFamily, GaussianFamily, RotatedFamily
from bayesrule.rules import Average, Natural, Velocity

EVERY_FEW_STEPS = (
    "natural gradient with momentum; the curvature is estimated every `stats_every` steps and "
    "inverted every `inverse_every` steps"
)
MOMENTUM = {"momentum": "decay of the average of gradients, or Average(), Velocity() or None"}


@method(
    belief=DIAGONAL,
    expectation=AT_DRAWS,
    curvature="square of the batch's summed gradient, per example (`SquaredGradient`)",
    rule="natural gradient with momentum, divided by the root of the averaged squares",
    source="Zhang et al. (2018), sec. 3.3, eq. 10 and algorithm 1",
    needs=(Need.DRAWS,),
    defaults={"learning_rate": 0.03, "rate": 1e-3},
    explained={
        **MOMENTUM,
        "curvature": "which curvature is estimated; None is SquaredGradient(of_sums=True)",
    },
)
def noisy_adam(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    damped_root: bool = False,
    **options: Unpack[NoisyOptions],
) -> Learner:
    """Noisy Adam: a diagonal Gaussian whose precision is the average of Adam's squared gradients.

    The mean's gradient is divided by `√f + γ`, or by `√(f + γ)` with `damped_root`, γ the prior
    precision per example; only the momentum is without bias. Squares are those of the sum over a
    batch, per example, so that the belief does not depend on the size of batches;
    `curvature=SquaredGradient()` takes those of the mean, which Adam has.
    """
    rate, momentum = options["rate"], _average(options["momentum"])
    root: dict[str, Any] = {"square_root": True, "damped_root": damped_root, "epsilon": 0.0}
    return Learner(
        model,
        likelihood,
        posterior=GaussianFamily(Diagonal(), options["initial_curvature"]),
        expectation=Draws(options["draws"]),
        curvature=options["curvature"] or SquaredGradient(of_sums=True),
        rule=Natural(options["learning_rate"], rate, momentum, prior_at_draws=True, **root),
        predictive=Draws(32),
        **common(options),
    )


@method(
    belief="a matrix Gaussian for each layer, layers independent (`Kronecker`)",
    expectation=AT_DRAWS,
    curvature=SAMPLED_FISHER,
    rule=EVERY_FEW_STEPS,
    source="Zhang et al. (2018), sec. 3.4, eqs 11 and 12 and algorithm 2",
    needs=(Need.SINGLE_EXAMPLES, Need.DRAWS),
    explained=MOMENTUM,
)
def noisy_kfac(
    model: nn.Module, likelihood: Likelihood, **options: Unpack[LayerOptions]
) -> Learner:
    """Noisy K-FAC: a matrix Gaussian for each layer, from its inputs and its output gradients.

    For small nets `stats_every=1, inverse_every=1` costs little and learns faster.
    """
    family = _kronecker(model, Kronecker(widest=options["widest"]), options)
    return _learner(model, likelihood, family, options)


@method(
    belief="as noisy_kfac, with free variances in the eigenbases of the factors (`Kronecker`)",
    expectation=AT_DRAWS,
    curvature=SAMPLED_FISHER,
    rule=EVERY_FEW_STEPS,
    source="Bae, Zhang & Grosse (2018); George et al. (2018) for the eigenbases",
    needs=(Need.SINGLE_EXAMPLES, Need.DRAWS),
    limits="refused with several ranks of torch.distributed, whose eigenbases would differ",
    explained=MOMENTUM,
)
def noisy_ekfac(
    model: nn.Module, likelihood: Likelihood, **options: Unpack[LayerOptions]
) -> Learner:
    """Noisy EK-FAC: noisy K-FAC with the curvature's own diagonal in the factors' eigenbases."""
    structure = Kronecker(corrected=True, widest=options["widest"])
    return _learner(model, likelihood, _kronecker(model, structure, options), options)


@method(
    belief="a Gaussian in which neighbouring layers are correlated (`BlockTridiagonal`)",
    expectation=AT_DRAWS,
    curvature=SAMPLED_FISHER,
    rule=EVERY_FEW_STEPS,
    source="Zhang et al. (2018), sec. 3.5; Martens & Grosse (2015), sec. 4.3",
    needs=(Need.CHAIN, Need.SINGLE_EXAMPLES, Need.DRAWS),
    limits="recurrent and normalising layers are refused",
    explained=MOMENTUM,
)
def noisy_tridiagonal(
    model: nn.Module, likelihood: Likelihood, **options: Unpack[LayerOptions]
) -> Learner:
    """Noisy K-FAC for chains of layers, with the weights of neighbouring layers correlated."""
    family = GaussianFamily(BlockTridiagonal(options["widest"]), options["initial_curvature"])
    return _learner(model, likelihood, family, options)


@method(
    belief="full covariance (`Dense`)",
    expectation=AT_DRAWS,
    curvature=SAMPLED_FISHER,
    rule="natural gradient with momentum; the curvature is averaged over steps",
    source="Zhang et al. (2018), sec. 3.1, eq. 9",
    needs=(Need.SINGLE_EXAMPLES, Need.DRAWS),
    limits="nets of more than `limit` weights are refused",
    defaults={"kl_clip": math.inf, "stats_every": 1, "inverse_every": 1},
    explained=MOMENTUM,
)
def noisy_full(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    limit: int = 20_000,
    **options: Unpack[FactorOptions],
) -> Learner:
    """Noisy natural gradient with a full covariance, for nets of some thousand weights."""
    family = GaussianFamily(Dense(limit), options["initial_curvature"])
    return _learner(model, likelihood, family, options)


def _kronecker(model: nn.Module, structure: Kronecker, options: FactorOptions) -> GaussianFamily:
    """In the factors' eigenbases, where these are kept for a while and the curvature allows it.

    A GPU multiplies by whole roots in no time, and eigenvectors of wide factors take it seconds.
    """
    curvature: Curvature = options["curvature"] or Fisher()
    wide = any(value.is_cuda for value in model.parameters()) and not structure.corrected
    kept = options["inverse_every"] > 1 and curvature.takes_coordinates and not wide
    # Other priors than N(0, I/δ) look different in other bases.
    kept = kept and options.get("prior") is None
    plain = GaussianFamily if structure.corrected else FactoredFamily
    family = RotatedFamily if kept else plain
    return family(structure, options["initial_curvature"])


def _average(momentum: Momentum) -> Average | Velocity | None:
    """A number is the decay of an average."""
    return momentum if isinstance(momentum, Average | Velocity | None) else Average(momentum)


def _learner(
    model: nn.Module, likelihood: Likelihood, family: GaussianFamily, options: FactorOptions
) -> Learner:
    """What the methods with a sampled Fisher information share: all parts but the belief.

    The curvature may be a few steps old, and its inverse older.
    """
    rule = Natural(
        options["learning_rate"],
        options["rate"],
        _average(options["momentum"]),
        prior_at_draws=True,
        damping=options["damping"],
        kl_clip=options["kl_clip"],
        stats_every=options["stats_every"],
        inverse_every=options["inverse_every"],
    )
    return Learner(
        model,
        likelihood,
        posterior=family,
        expectation=Draws(options["draws"]),
        curvature=options["curvature"] or Fisher(),
        rule=rule,
        predictive=Draws(32),
        **common(options),
    )
