"""Laplace approximations, of all weights or of the last layer alone."""

from __future__ import annotations

from torch import nn
from torch.nn.parameter import is_lazy

from bayesrule.curvature import GGN, Curvature, NoCurvature
from bayesrule.expectations import AtMean
from bayesrule.matrices import Dense, Diagonal, Structure
from bayesrule.methods._record import Need, Parts, Rate, method
from bayesrule.methods._words import AT_MEAN, GAUSS_NEWTON
from bayesrule.methods.points import OF_SIZE, adam_steps
from bayesrule.posteriors import Family, GaussianFamily, PerGroup, PointEstimate, Posterior, Prior
from bayesrule.predicting.predict import Linearised
from bayesrule.rules import Natural
from bayesrule.schedules import falling

# Up to this many weights, a full covariance takes less time than training.
_FULL = 1000


@method(
    words=(
        "full covariance of few weights or of the last layer (`Dense`), or any structure over all",
        AT_MEAN,
        GAUSS_NEWTON,
        "Adam to the most probable weights, then one natural-gradient step over all data; online "
        "natural-gradient steps all along",
    ),
    source="Khan & Rue (2023), sec. 4.4, online eq. 44; prior of largest evidence: MacKay (1992), "
    "eq. 4.9",
    needs=(Need.SINGLE_EXAMPLES,),
    limits="there is no uncertainty before the end of training, except online",
    explained={
        "curvature": "which curvature is computed; None is GGN()",
        "learning_rate": f"{OF_SIZE}; online from 0.003",
        "prior_precision": "δ of the prior N(0, I/δ); None trains with 1, and the final posterior "
        "may get another one (empirical_prior)",
    },
)
def laplace(
    model: nn.Module,
    *,
    structure: Structure | None = None,
    curvature: Curvature | None = None,
    last_layer: bool | None = None,
    empirical_prior: bool | None = None,
    online: bool = False,
    learning_rate: Rate | None = None,
    prior: Prior | Posterior | None,
    prior_precision: float | None,
) -> Parts:
    """Laplace: the curvature at the most probable weights, after training or averaged on the way.

    Without a structure, a net of up to 1,000 weights has a full covariance. In larger nets the last
    layer has one, and all other weights are fixed. Online, all weights have a diagonal one. The
    prior is added to the curvature exactly, so Kronecker() means Kronecker(exact=True), except
    online.
    """
    final = curvature or GGN()
    unspecified = prior is None and prior_precision is None
    return Parts(
        posterior=_family(model, structure, last_layer, online),
        expectation=AtMean(),
        curvature=final if online else NoCurvature(),
        rule=_online(learning_rate) if online else adam_steps(model, learning_rate),
        predictive=Linearised(),
        final_curvature=None if online else final,
        empirical_prior=unspecified if empirical_prior is None else empirical_prior,
    )


def _online(learning_rate: Rate | None) -> Natural:
    return Natural(falling(3e-3) if learning_rate is None else learning_rate, 0.01)


def _family(
    model: nn.Module, structure: Structure | None, last_layer: bool | None, online: bool
) -> Family:
    """The posterior family: by default a full covariance, of all weights or of the last layer."""
    if structure is not None and not online:
        structure = structure.exactly_damped()
    if online and last_layer:
        raise ValueError(
            "Online Laplace moves the weights along the belief, so a belief over the last layer "
            "would leave all others where they start; use last_layer=False or online=False."
        )
    if online or last_layer is False or (last_layer is None and structure is not None):
        return GaussianFamily(structure or Diagonal())
    # Lazy parameters have no shape yet; `Network` refuses them later, by name.
    params = [value for value in model.parameters() if not is_lazy(value)]
    size = sum(value.numel() for value in params if value.requires_grad)
    if last_layer is None and size <= _FULL:
        return GaussianFamily(Dense())
    last, names = GaussianFamily(structure or Dense()), last_layer_names(model)
    if len(names) == len([v for v in model.parameters() if v.requires_grad]):
        return last
    return PerGroup({"|".join(names): last, "*": PointEstimate()})


def last_layer_names(model: nn.Module) -> tuple[str, ...]:
    """The trainable parameters of the last module that owns any.

    >>> last_layer_names(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
    ('2.weight', '2.bias')
    """
    last: tuple[str, ...] = ()
    for prefix, module in model.named_modules():
        parameters = module.named_parameters(prefix, recurse=False)
        last = tuple(name for name, value in parameters if value.requires_grad) or last
    if not last:
        raise ValueError("The model has no trainable parameters, so it has no last layer.")
    return last
