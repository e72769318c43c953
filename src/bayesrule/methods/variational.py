"""Methods that follow the gradient of the evidence lower bound."""

from __future__ import annotations

from typing import Unpack

from torch import nn

from bayesrule.curvature import Curvature, ExpectedLoss, Pathwise, Price, SecondOrder
from bayesrule.expectations import AtMean, Draws, Expectation, Look
from bayesrule.learner import Learner
from bayesrule.likelihoods import Likelihood
from bayesrule.methods._options import ElboOptions, common
from bayesrule.methods._record import AT_MEAN, Need, method
from bayesrule.methods.smooth import warn_if_piecewise_linear
from bayesrule.posteriors import (
    Family,
    KTiedFamily,
    MeanFieldFamily,
    PerGroup,
    PointEstimate,
)
from bayesrule.posteriors.tied import Rank
from bayesrule.rules import Elbo

OWN_STD = "independent weights, each with a standard deviation of its own (`MeanFieldFamily`)"
AT_ANY_DRAWS = "at weight draws (`Draws`), at draws of outputs, or in closed form"
BY_PRICE = "gradient times noise of the draw, by Price's theorem (`Price`)"
ELBO_GRADIENT = "gradient of the ELBO in means and standard deviations, by Adam"


@method(
    belief=OWN_STD,
    expectation=AT_ANY_DRAWS,
    curvature=BY_PRICE,
    rule=ELBO_GRADIENT,
    source="Blundell et al. (2015), sec. 3.2; Swiatkowski et al. (2020), eqs 2 to 6",
    needs=(Need.DRAWS,),
)
def mean_field(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    expectation: Expectation | None = None,
    **options: Unpack[ElboOptions],
) -> Learner:
    """Mean-field variational inference: independent Gaussians by the ELBO's gradient at draws."""
    return Learner(
        model,
        likelihood,
        posterior=_family(MeanFieldFamily(options["spread"]), options["known"]),
        expectation=expectation or Draws(1),
        curvature=estimate(expectation),
        rule=_rule(options),
        predictive=Draws(32),
        **common(options),
    )


@method(
    belief="independent weights, standard deviations of low rank (`KTiedFamily`)",
    expectation=AT_ANY_DRAWS,
    curvature=BY_PRICE,
    rule=ELBO_GRADIENT,
    source="Swiatkowski et al. (2020), sec. 3, eq. 8",
    needs=(Need.DRAWS,),
)
def k_tied(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    rank: Rank = 2,
    expectation: Expectation | None = None,
    **options: Unpack[ElboOptions],
) -> Learner:
    """The k-tied Normal: mean-field whose standard deviations are a matrix of low rank, `U Vᵀ`.

    About half the parameters of mean-field, and gradients with less noise.
    """
    return Learner(
        model,
        likelihood,
        posterior=_family(KTiedFamily(rank, options["spread"]), options["known"]),
        expectation=expectation or Draws(1),
        curvature=estimate(expectation),
        rule=_rule(options),
        predictive=Draws(32),
        **common(options),
    )


@method(
    belief=OWN_STD,
    expectation=AT_MEAN,
    curvature="Fisher information, whose slope moves the mean too (`SecondOrder`)",
    rule=ELBO_GRADIENT,
    source="Unlu & Aitchison (2021), sec. 4.2, eqs 29 and 30 (in eq. 30 the KL is misprinted)",
    needs=(Need.SMOOTH_ACTIVATIONS,),
    limits="predicts with the mean alone; targets that are drawn bias the mean's step for classes, "
    "unless exact=True",
)
def variational_laplace(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    exact: bool = False,
    difference: float | None = None,
    share: float = 1.0,
    **options: Unpack[ElboOptions],
) -> Learner:
    """Variational Laplace: the ELBO to second order at the mean, without draws of weights.

    Predictions are at the mean, which has been moved to where the loss is flat. Steps get cheaper
    with a `share` of the batch, such as 0.25, and on a GPU by a `difference`, such as 3e-4; see
    `SecondOrder`.
    """
    warn_if_piecewise_linear(model)
    return Learner(
        model,
        likelihood,
        posterior=_family(MeanFieldFamily(options["spread"]), options["known"]),
        expectation=AtMean(),
        curvature=SecondOrder(exact, difference, share),
        rule=_rule(options),
        predictive=AtMean(),
        **common(options),
    )


def estimate(expectation: Expectation | None) -> Curvature:
    """How the loss's derivatives are estimated under an expectation."""
    look = Look.WEIGHTS if expectation is None else expectation.look
    estimates: dict[Look, Curvature] = {Look.LAYERS: Pathwise(), Look.MOMENTS: ExpectedLoss()}
    return estimates.get(look, Price())


def _family(family: Family, known: tuple[str, ...]) -> Family:
    """The family, with some weights as point estimates."""
    if not known:
        return family
    if "*" in known:
        raise ValueError(
            f"known={known!r} leaves no weight with a variance, so there is no belief to learn; "
            "name some weights only."
        )
    return PerGroup({"|".join(known): PointEstimate(with_prior=False), "*": family})


def _rule(options: ElboOptions) -> Elbo:
    """Steps of one of torch's optimisers."""
    return Elbo(
        options["learning_rate"],
        options["scale_multiplier"],
        options["optimiser"],
        options["kl_weight"],
        options["clip"],
        options["keep_gradients"],
    )
