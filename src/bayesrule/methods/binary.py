"""Networks whose weights are +1 or −1."""

from __future__ import annotations

from bayesrule.curvature import NoCurvature, PerExample
from bayesrule.expectations import Draws
from bayesrule.matrices import Diagonal
from bayesrule.methods._options import Parts, Rate
from bayesrule.methods._record import AT_DRAWS, Need, method
from bayesrule.posteriors import BernoulliFamily, Family, GaussianFamily, PerGroup
from bayesrule.rules import Average, Natural


@method(
    words=(
        "independent binary weights (`BernoulliFamily`); real ones by name (`Diagonal`)",
        AT_DRAWS,
        "none (`NoCurvature`); squares of single examples for real weights (`PerExample`)",
        "natural gradient with momentum, which moves the natural parameters",
    ),
    source="Meng, Bachmann & Khan (2020), algorithm 1; Khan & Rue (2023), sec. 4.5, eq. 53",
    needs=(Need.DRAWS,),
    limits="weights are ±1, so layers need a normalisation or a scale of their own; there is no "
    "prior precision",
    lacks=("prior_precision",),
    explained={
        "real": "pattern of the weights that are real numbers, such as '*.bias'; None: all binary",
        "sure": "size of the first natural parameters; 10 is nearly certain",
        "relaxation": "temperature of the smooth draws at which gradients are taken",
    },
)
def bayesbinn(
    *,
    learning_rate: Rate = 1e-3,
    momentum: float = 0.9,
    draws: int = 1,
    real: str | None = None,
    sure: float = 1.0,
    relaxation: float = 1.0,
) -> Parts:
    """BayesBiNN: binary weights, each with a probability learned by natural gradients."""
    family: Family = BernoulliFamily(sure, relaxation)
    if real is not None:
        family = PerGroup({real: GaussianFamily(Diagonal()), "*": family})
    return Parts(
        posterior=family,
        expectation=Draws(draws),
        curvature=NoCurvature() if real is None else PerExample(),
        rule=Natural(learning_rate, learning_rate, Average(momentum)),
        predictive=Draws(32),
    )
