"""Methods in closed form: no gradients, no learning rate."""

from __future__ import annotations

from bayesrule.curvature import Innovations
from bayesrule.expectations import Moments
from bayesrule.likelihoods import Likelihood
from bayesrule.methods._record import Course, Need, Parts, method
from bayesrule.methods._words import DIAGONAL
from bayesrule.moments import Activations, MomentMatched
from bayesrule.posteriors import FanIn, GaussianFamily
from bayesrule.rules import Conditioning

CLOSED_FORM = "means and variances in closed form (`Moments`)"
INNOVATIONS = "innovations of the observed outputs, carried back (`Innovations`)"
CONDITIONING = "conditioning on each batch in closed form: no gradients, no learning rate"
# The prior guess of the noise of standardised targets is √0.1. A net that is conditioned too often
# on few data learns their noise, so the shortest training is short.
FROM_SHORT = Course(3, 400, (200, 1000, 4000), noise={"shape": 1.0, "rate": 0.1})
# A label says little about logits, so most of the initial spread remains after all the data and
# hides the signal in a deep net (`Activations.width`).
WIDTH_OF_LOGITS = 0.1


@method(
    words=(DIAGONAL, CLOSED_FORM, INNOVATIONS, CONDITIONING),
    source="Goulet, Nguyen & Amiri (2021), eqs 2 to 5 (moments) and 17 (conditioning)",
    needs=(Need.MOMENT_RULES,),
    course=FROM_SHORT,
    limits="the likelihood needs a closed form for Gaussian outputs; there is no learning rate and "
    "no momentum",
    without_effect=("prior_precision",),
    explained={"prior_precision": "δ of the prior in info.kl alone; gain sets the actual prior"},
)
def tagi(
    *,
    likelihood: Likelihood,
    gain: float | FanIn = 1.0,
    activations: Activations | None = None,
    rule: Conditioning | None = None,
) -> Parts:
    """Tractable approximate Gaussian inference: closed form, no gradients, no learning rate.

    The initial posterior has the module's own weights as means and `gain / √fan_in` as standard
    deviations. For outputs that are logits, `activations` have `width=0.1` by default: a tenth of
    the standard deviations is propagated.
    """
    width = WIDTH_OF_LOGITS if getattr(likelihood, "probit_marginal", False) else 1.0
    moments = Moments(activations or MomentMatched(width=width))
    spread = gain if isinstance(gain, FanIn) else FanIn(gain, gain, gain)
    family = GaussianFamily(spread=spread)
    return Parts(family, moments, Innovations(), rule or Conditioning(), predictive=moments)
