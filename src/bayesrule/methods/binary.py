"""Networks whose weights are +1 or −1."""

from __future__ import annotations

from typing import Unpack

from torch import nn

from bayesrule.curvature import NoCurvature, PerExample
from bayesrule.expectations import Draws
from bayesrule.learner import Learner
from bayesrule.likelihoods import Likelihood
from bayesrule.matrices import Diagonal
from bayesrule.methods._options import Common, Rate
from bayesrule.methods._record import AT_DRAWS, Need, method
from bayesrule.posteriors import BernoulliFamily, Family, GaussianFamily, PerGroup
from bayesrule.rules import Average, Natural


@method(
    belief="independent binary weights (`BernoulliFamily`); real ones by name (`Diagonal`)",
    expectation=AT_DRAWS,
    curvature="none; squares of single examples for real weights (`PerExample`)",
    rule="natural gradient with momentum, which moves the natural parameters",
    source="Meng, Bachmann & Khan (2020), algorithm 1; Khan & Rue (2023), sec. 4.5, eq. 52",
    needs=(Need.DRAWS,),
    limits="weights are ±1, so layers need a normalisation or a scale of their own; there is no "
    "prior precision",
    explained={
        "real": "pattern of the weights that are real numbers, such as '*.bias'; None: all binary",
        "sure": "size of the first natural parameters; 10 is nearly certain",
        "relaxation": "temperature of the smooth draws at which gradients are taken",
    },
)
def bayesbinn(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    learning_rate: Rate = 1e-3,
    momentum: float = 0.9,
    draws: int = 1,
    real: str | None = None,
    sure: float = 10.0,
    relaxation: float = 0.5,
    **settings: Unpack[Common],
) -> Learner:
    """BayesBiNN: binary weights, each with a probability learned by natural gradients."""
    family: Family = BernoulliFamily(sure, relaxation)
    if real is not None:
        family = PerGroup({real: GaussianFamily(Diagonal()), "*": family})
    return Learner(
        model,
        likelihood,
        posterior=family,
        expectation=Draws(draws),
        curvature=NoCurvature() if real is None else PerExample(),
        rule=Natural(learning_rate, learning_rate, Average(momentum)),
        predictive=Draws(32),
        **settings,
    )
