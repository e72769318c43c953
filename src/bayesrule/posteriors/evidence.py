"""The evidence of a Laplace approximation, and the prior precision that makes it largest."""

from __future__ import annotations

import math

from bayesrule.matrices import Matrix
from bayesrule.posteriors.prior import GaussianPrior, Prior
from bayesrule.tensors import vectors
from bayesrule.types import Params

_LEAST, _MOST = 1e-6, 1e8


def prior_of_largest_evidence(start: Prior, curvature: Matrix, mean: Params) -> Prior:
    """`N(0, I/δ)` with the δ of largest evidence, searched from a prior of the same form."""
    precision = start.diagonal({})
    assert isinstance(precision, float)
    return GaussianPrior(prior_precision(curvature, mean, start=precision))


def log_evidence(curvature: Matrix, mean: Params, prior_precision: float) -> float:
    """`½ [d log δ − δ‖m‖² − log|F + δI|]`: the part of the log evidence that depends on the prior.

    Only the weights that the curvature covers count.
    """
    uncertain = {name: mean[name] for name in curvature.diagonal()}
    quadratic = float(vectors.dot(uncertain, uncertain))
    logdet = float(curvature.damped(prior_precision).logdet())
    size = vectors.numel(uncertain)
    return 0.5 * (size * math.log(prior_precision) - prior_precision * quadratic - logdet)


def prior_precision(
    curvature: Matrix, mean: Params, start: float = 1.0, steps: int = 20, tolerance: float = 1e-3
) -> float:
    """The δ of largest evidence, by `δ ← γ / ‖m‖²` with `γ = d − δ tr (F + δI)⁻¹`.

    γ is the number of directions that the data determine; MacKay (1992), eq. 4.9.
    """
    uncertain = {name: mean[name] for name in curvature.diagonal()}
    quadratic = max(float(vectors.dot(uncertain, uncertain)), 1e-12)
    size, precision = vectors.numel(uncertain), max(start, _LEAST)
    for _ in range(steps):
        spread = float(vectors.total(curvature.damped(precision).inverse_diagonal()))
        new = min(max((size - precision * spread) / quadratic, _LEAST), _MOST)
        if abs(math.log(new / precision)) < tolerance:
            return new
        precision = new
    return precision
