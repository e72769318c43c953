"""Methods whose posteriors are mixtures: several modes, or units that are dropped."""

from __future__ import annotations

from torch import nn

from bayesrule.curvature import GGN, Curvature, SquaredGradient
from bayesrule.expectations import Draws, Masks
from bayesrule.methods._record import Need, Parts, Rate, method
from bayesrule.methods._words import AT_DRAWS, GAUSS_NEWTON
from bayesrule.posteriors import MixtureFamily, SpikeSlabFamily
from bayesrule.rules import Average, HeavyBall, Natural
from bayesrule.schedules import averaging, falling


@method(
    words=(
        "mixture of Gaussians, each with independent weights (`MixtureFamily`)",
        AT_DRAWS,
        GAUSS_NEWTON,
        "natural gradient of each component, the entropy of the whole mixture included; the "
        "averaged curvature is retracted, so that precisions stay positive",
    ),
    source="Khan & Rue (2023), sec. 3.2, eqs 28 to 30; Lin, Khan & Schmidt (2019), theorem 3",
    needs=(Need.SINGLE_EXAMPLES, Need.DRAWS),
    limits="the mean of several modes fits worse than each of them, so it predicts at draws",
    represented_by="vogn",
    explained={
        "components": "number of Gaussians in the mixture",
        "spread": "standard deviation of their initial means about the module's own weights",
        "learning_rate": "step size of the means and of the log mixture weights, a number or a "
        "schedule",
    },
)
def mixture(
    *,
    components: int = 3,
    spread: float = 0.3,
    learning_rate: Rate = falling(0.1),
    rate: Rate = averaging(0.02, 1e-3),
    draws: int = 4,
    kl_clip: float = 0.1,
    initial_curvature: float | None = None,
) -> Parts:
    """Mixture of Gaussians: a posterior with several modes, found in one run."""
    rule = Natural(learning_rate, rate, retract=True, kl_clip=kl_clip)
    family = MixtureFamily(components, spread, initial_curvature)
    return Parts.at_draws(family, Draws(draws), GGN(), rule)


@method(
    words=(
        "Gaussian weights of units that are kept or dropped (`SpikeSlabFamily`)",
        "at the mean with units dropped (`Masks`)",
        "square of the batch's mean gradient (`SquaredGradient`), or another one",
        "natural gradient: Adam's, plain gradients without a curvature, or Newton's with one of "
        "single examples",
    ),
    source="Khan & Rue (2023), sec. 4.3, eqs 41 to 43; Srivastava et al. (2014); Gal & Ghahramani "
    "(2016) (predictions by masks)",
    needs=(Need.DRAWS,),
    limits="how often units are dropped is not learned; its only uncertainty is about units",
    represented_by="mean_field",
    explained={
        "drop": "probability that a unit is dropped",
        "inputs": "whether inputs of the network are dropped, too",
        "draws": "number of masks per step",
        "curvature": "None is SquaredGradient(), for Adam's steps; NoCurvature() gives steps of "
        "gradient descent; GGN(), PerExample() or Hessian() give Newton's",
    },
)
def dropout(
    *,
    model: nn.Module,
    drop: float = 0.1,
    inputs: bool = False,
    learning_rate: Rate = falling(3e-3),
    momentum: float = 0.9,
    rate: Rate = 1e-3,
    curvature: Curvature | None = None,
    draws: int = 1,
) -> Parts:
    """Dropout: units are dropped at random, in training and in predictions (MC dropout)."""
    family = SpikeSlabFamily(1.0 - drop, () if inputs else _first_layer(model))
    curvature = SquaredGradient() if curvature is None else curvature
    rule = _steps(curvature, learning_rate, rate, momentum)
    return Parts(family, Masks(draws), curvature, rule, Masks(32))


def _first_layer(model: nn.Module) -> tuple[str, ...]:
    """The name of the first weight matrix, whose columns belong to the network's inputs."""
    names = [name for name, value in model.named_parameters() if value.ndim > 1]
    return tuple(names[:1]) if len(names) > 1 else ()


def _steps(curvature: Curvature, learning_rate: Rate, rate: Rate, momentum: float) -> Natural:
    """The natural gradient for a curvature: gradient descent, Adam or Newton's method."""
    if not curvature.gives_curvature:
        return Natural(learning_rate, momentum=HeavyBall(momentum), fixed_precision=True)
    average = Average(momentum)
    if isinstance(curvature, SquaredGradient):
        return Natural(learning_rate, rate, average, square_root=True, debias=True)
    return Natural(learning_rate, rate, average, retract=curvature.may_be_negative)
