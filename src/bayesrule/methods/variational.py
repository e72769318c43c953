"""Methods that follow the gradient of the evidence lower bound, and `smooth` for their nets."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn
from torch.optim import Adam, Optimizer

from bayesrule.curvature import Curvature, ExpectedLoss, Pathwise, Price, SecondOrder
from bayesrule.expectations import AtMean, Draws, Expectation, Look
from bayesrule.methods._record import TEMPERED, Need, Parts, Rate, method
from bayesrule.methods._words import AT_MEAN
from bayesrule.posteriors import (
    Family,
    FanIn,
    KTiedFamily,
    MeanFieldFamily,
    PerGroup,
    PointEstimate,
)
from bayesrule.posteriors.factorised import SHARE
from bayesrule.posteriors.tied import Rank
from bayesrule.predicting.predict import Linearised
from bayesrule.rules import Elbo
from bayesrule.schedules import falling

OWN_STD = "independent weights, each with a standard deviation of its own (`MeanFieldFamily`)"
TIED_STD = "independent weights, standard deviations of low rank (`KTiedFamily`)"
AT_ANY_DRAWS = "at weight draws (`Draws`), at draws of outputs, or in closed form"
BY_PRICE = "gradient times noise of the draw, by Price's theorem (`Price`)"
SECOND_ORDER = "Fisher information, whose slope moves the mean too (`SecondOrder`)"
ELBO_GRADIENT = "gradient of the ELBO in means and standard deviations, by Adam"

# Activations whose second derivative is zero almost everywhere, so that it misses their bends.
PIECEWISE_LINEAR = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU),
    *(nn.Hardtanh, nn.Hardsigmoid, nn.Hardshrink, nn.Softshrink, nn.Threshold),
)


@dataclass(frozen=True, kw_only=True)
class ElboOptions:
    """Options of the methods that follow the gradient of the ELBO."""

    learning_rate: Rate = falling(0.01)
    scale_multiplier: float = 1.0
    optimiser: Callable[..., Optimizer] = Adam
    kl_weight: Rate = 1.0
    clip: float = math.inf
    keep_gradients: bool = False
    spread: float | FanIn = SHARE
    known: tuple[str, ...] = ()

    def belief(self, family: Family) -> Family:
        """The family, with the `known` weights as point estimates."""
        if not self.known:
            return family
        if "*" in self.known:
            raise ValueError(
                f"known={self.known!r} leaves no weight with a variance, so there is no belief to "
                "learn; name some weights only."
            )
        return PerGroup({"|".join(self.known): PointEstimate(with_prior=False), "*": family})

    def rule(self) -> Elbo:
        """Steps of one of torch's optimisers."""
        rates = self.learning_rate, self.scale_multiplier
        return Elbo(*rates, self.optimiser, self.kl_weight, self.clip, self.keep_gradients)

    def at_draws(self, family: Family, expectation: Expectation | None) -> Parts:
        """All parts of the methods that train at draws or by moments."""
        look = Look.WEIGHTS if expectation is None else expectation.look
        estimates: dict[Look, Curvature] = {Look.LAYERS: Pathwise(), Look.MOMENTS: ExpectedLoss()}
        curvature = estimates.get(look, Price())
        return Parts.at_draws(self.belief(family), expectation or Draws(1), curvature, self.rule())


@method(
    words=(OWN_STD, AT_ANY_DRAWS, BY_PRICE, ELBO_GRADIENT),
    source="Blundell et al. (2015), sec. 3.2; Swiatkowski et al. (2020), eqs 2 to 6",
    course=TEMPERED,
    needs=(Need.DRAWS,),
)
def mean_field(options: ElboOptions, *, expectation: Expectation | None = None) -> Parts:
    """Mean-field variational inference: independent Gaussians by the ELBO's gradient at draws."""
    return options.at_draws(MeanFieldFamily(options.spread), expectation)


@method(
    words=(TIED_STD, AT_ANY_DRAWS, BY_PRICE, ELBO_GRADIENT),
    source="Swiatkowski et al. (2020), sec. 3, eq. 8",
    course=TEMPERED,
    needs=(Need.DRAWS,),
    represented_by="mean_field",
)
def k_tied(
    options: ElboOptions, *, rank: Rank = 2, expectation: Expectation | None = None
) -> Parts:
    """The k-tied Normal: mean-field whose standard deviations are a matrix of low rank, `U Vᵀ`.

    About half the parameters of mean-field, and gradients with less noise.
    """
    return options.at_draws(KTiedFamily(rank, options.spread), expectation)


@method(
    words=(OWN_STD, AT_MEAN, SECOND_ORDER, ELBO_GRADIENT),
    source="Unlu & Aitchison (2021), sec. 4.2, eqs 29 and 30 (in eq. 30 the KL is misprinted)",
    course=TEMPERED,
    needs=(Need.SMOOTH_ACTIVATIONS,),
    limits="targets that are drawn bias the mean's step for classes, unless exact=True",
)
def variational_laplace(
    model: nn.Module,
    options: ElboOptions,
    *,
    exact: bool = False,
    difference: float | None = None,
    share: float = 1.0,
) -> Parts:
    """Variational Laplace: the ELBO to second order at the mean, without draws of weights.

    Predictions are linearised at the mean, which training moves to where the loss is flat; the
    paper predicts at the mean alone (`how=AtMean()`). Steps get cheaper with a `share` of the
    batch, such as 0.25, and on a GPU with a `difference`, such as 3e-4; see `SecondOrder`.
    """
    warn_if_piecewise_linear(model)
    belief = options.belief(MeanFieldFamily(options.spread))
    curvature = SecondOrder(exact, difference, share)
    return Parts(belief, AtMean(), curvature, options.rule(), Linearised())


def warn_if_piecewise_linear(model: nn.Module) -> None:
    """Warns about piecewise-linear activations, whose bends second derivatives do not see."""
    layers = [
        f"{name or 'the model'} ({type(layer).__name__})"
        for name, layer in model.named_modules()
        if isinstance(layer, PIECEWISE_LINEAR)
    ]
    if layers:
        more = f" and {len(layers) - 1} more" if len(layers) > 1 else ""
        warnings.warn(
            f"{layers[0]}{more} is piecewise linear: its second derivative is zero almost "
            "everywhere, so the curvature of the loss is not seen where it bends. Train "
            "bayesrule.smooth(model), the same module with softplus.",
            # Points at the line that calls the method, past the decorator's frames.
            stacklevel=4,
        )


def smooth(model: nn.Module, beta: float = 10.0) -> nn.Module:
    """A copy of the module with `softplus(βx)/β` in place of piecewise-linear activations.

    It has the same weights and names. At β = 1 the bend is as wide as the inputs of most units are
    spread, so small nets are nearly linear; at β = 10 they learn what they learn with ReLU. Leaky
    activations become softplus too. Functions that a module calls inside its own `forward`, such as
    `torch.relu(x)`, cannot be seen from outside and stay.

    >>> smooth(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))[1]
    Softplus(beta=10.0, threshold=20.0)
    """
    if not beta > 0:
        raise ValueError(f"beta must be positive, got {beta}.")
    if isinstance(model, PIECEWISE_LINEAR):
        return nn.Softplus(beta)
    changed = copy.deepcopy(model)
    for layer in list(changed.modules()):
        for name, child in layer.named_children():
            if isinstance(child, PIECEWISE_LINEAR):
                setattr(layer, name, nn.Softplus(beta))
    return changed
