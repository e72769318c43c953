"""Natural-gradient methods with second-order information, averaged over steps or in full steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from bayesrule.curvature import GGN, Hessian, PerExample, Price
from bayesrule.expectations import AtMean, Draws
from bayesrule.matrices import Dense, Diagonal
from bayesrule.methods._record import WARM, Course, Need, Parts, Rate, method
from bayesrule.methods._words import AT_DRAWS, AT_MEAN, AVERAGED, DIAGONAL, FULL, GAUSS_NEWTON
from bayesrule.posteriors import GaussianFamily
from bayesrule.predicting.predict import Linearised
from bayesrule.rules import Average, Natural
from bayesrule.schedules import averaging, falling

SQUARES_OF_EXAMPLES = "squared gradients of single examples (`PerExample`)"
FULL_STEPS = "natural gradient in full steps, ρ = 1"
EXACT_STEP = f"{FULL_STEPS}: one step on all data is the exact posterior"
# Each step sees all data, so the noise needs no averaging over batches.
ALL_AT_ONCE = Course(30, 30, (30,), repeats=0, whole=True, noise={"averaging": 1.0}, members=1)


@method(
    words=(FULL, AT_MEAN, "exact Hessian (`Hessian`)", FULL_STEPS),
    source="Khan & Rue (2023), sec. 1.3.2, eqs 8 and 12",
    needs=(Need.LINEAR_MODEL,),
    course=ALL_AT_ONCE,
    # Full steps can overshoot on classes; half steps do not and end as well.
    training_options=lambda num_data, num_steps: {"learning_rate": 0.5},
    limits="a Hessian that is not positive definite is refused, so the loss has to be convex",
    represented_by="ridge",
)
def newton(*, learning_rate: Rate = 1.0, rate: Rate = 1.0) -> Parts:
    """Newton's method: a full Gaussian at its mean with the exact Hessian, for convex problems."""
    rule = Natural(learning_rate, rate)
    return Parts(GaussianFamily(Dense()), AtMean(), Hessian(), rule, Linearised())


@method(
    words=(FULL, AT_MEAN, GAUSS_NEWTON, EXACT_STEP),
    source="Khan & Rue (2023), sec. 1.3.3, eq. 14",
    needs=(Need.LINEAR_MODEL, Need.REAL_TARGETS, Need.SINGLE_EXAMPLES),
    course=ALL_AT_ONCE,
    limits="for classes, newton is its counterpart",
)
def ridge(*, learning_rate: Rate = 1.0, rate: Rate = 1.0) -> Parts:
    """Ridge regression: for a linear model, one step on all data is the exact posterior."""
    rule = Natural(learning_rate, rate)
    return Parts(GaussianFamily(Dense()), AtMean(), GGN(), rule, Linearised())


# The averaged curvature forgets early estimates fast and later ones slowly.
FORGETTING = averaging(0.02, 1e-3)
# The relative variance that an average of noisy curvature estimates may have.
CURVATURE_NOISE = 0.2


@dataclass(frozen=True, kw_only=True)
class OnlineOptions:
    """Options of the methods that average a diagonal curvature over steps."""

    learning_rate: Rate = falling(0.2)
    momentum: float = 0.9
    rate: Rate | None = FORGETTING
    initial_curvature: float | None = None
    kl_clip: float = 0.005

    def belief(self) -> GaussianFamily:
        """Independent weights."""
        return GaussianFamily(Diagonal(), self.initial_curvature)

    def rule(self, **more: Any) -> Natural:
        """Natural gradients with momentum; `more` are further options of the rule."""
        rate, momentum = self.rate or FORGETTING, Average(self.momentum)
        return Natural(self.learning_rate, rate, momentum, kl_clip=self.kl_clip, **more)


@method(
    words=(DIAGONAL, AT_MEAN, SQUARES_OF_EXAMPLES, AVERAGED),
    source="Khan & Rue (2023), sec. 4.4, eqs 44 and 45",
    course=WARM,
    needs=(Need.SINGLE_EXAMPLES,),
    represented_by="vogn",
)
def ogn(options: OnlineOptions) -> Parts:
    """Online Gauss-Newton: a diagonal Gaussian at its mean, squares of single examples."""
    parts = options.belief(), AtMean(), PerExample(), options.rule(), Linearised()
    return Parts(*parts, warm_start=True)


@method(
    words=(DIAGONAL, AT_DRAWS, SQUARES_OF_EXAMPLES, AVERAGED),
    source="Khan & Rue (2023), sec. 4.4, eqs 45 and 46",
    course=WARM,
    needs=(Need.SINGLE_EXAMPLES, Need.DRAWS),
)
def vogn(options: OnlineOptions, *, draws: int = 1) -> Parts:
    """Variational online Gauss-Newton: OGN with the loss taken at weight draws."""
    parts = options.belief(), Draws(draws), PerExample(), options.rule()
    return Parts.at_draws(*parts, warm_start=True)


@method(
    words=(
        DIAGONAL,
        AT_DRAWS,
        "gradient times offset of the draw, by Price's theorem (`Price`)",
        "natural gradient with momentum; the averaged curvature is retracted, so that the "
        "precision stays positive",
    ),
    source="Shen et al. (2024), algorithm 1; Khan & Rue (2023), eq. 11 (Price); Lin, Schmidt & "
    "Khan (2020), eq. 17 (retraction)",
    course=WARM,
    needs=(Need.DRAWS,),
    defaults={"rate": None},
    explained={
        "clip": "largest entry of the preconditioned gradient",
        "rate": "weight of the newest estimate in the averaged curvature, a number or a schedule; "
        "None chooses the largest that the noise of single estimates allows",
    },
)
def ivon(options: OnlineOptions, *, draws: int = 1, clip: float = math.inf) -> Parts:
    """Improved variational online Newton: Price's curvature, kept positive by retraction."""
    noise = CURVATURE_NOISE if options.rate is None else math.inf
    rule = options.rule(retract=True, clip=clip, curvature_noise=noise)
    return Parts.at_draws(options.belief(), Draws(draws), Price(), rule, warm_start=True)
