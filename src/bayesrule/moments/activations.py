"""Scalar functions of Gaussians: locally linear, or by their exact moments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments import closed_forms
from bayesrule.moments.blocks import differentiated, in_blocks
from bayesrule.moments.choices import LocallyLinear
from bayesrule.moments.closed_forms import matched_relu
from bayesrule.moments.quadrature import Scalar, Triple, quadrature, tangent_moments
from bayesrule.moments.shape import both
from bayesrule.moments.tensor import GaussianTensor, Innovation, NoRule, rule


def elementwise(
    name: str, x: GaussianTensor, mean: Tensor, variance: Tensor, slope: Tensor
) -> GaussianTensor:
    """A scalar function of x from its moments; `slope = cov(φ(z), z) / Var z`."""

    def to_sources(delta: Tensor, eta: Tensor) -> tuple[Innovation]:
        first, second = in_blocks(_to_input, slope, delta, eta, num=2, writes=True)
        return ((first, second),)

    return x.tape.result(name, mean, variance, (x.node,), to_sources)


def _to_input(
    slope: Tensor, delta: Tensor, eta: Tensor, out: Sequence[Tensor | None] = (None, None)
) -> Innovation:
    """`J δ` and `J² η`."""
    return torch.mul(slope, delta, out=out[0]), torch.mul(slope * slope, eta, out=out[1])


def through(
    x: GaussianTensor,
    function: Scalar,
    closed: Callable[[Tensor, Tensor], Triple] | None = None,
    *,
    num: int = 20,
) -> GaussianTensor:
    """Any elementwise function of x.

    Locally linear: value and derivative at the mean. Moment-matched: mean, variance and slope from
    `closed(mean, variance)`, or by Gauss-Hermite quadrature with `num` values of the function,
    which is accurate if the function is smooth over half a standard deviation.

    >>> x = GaussianTensor(torch.tensor([0.5, 1.0]), torch.tensor([1.0, 0.5]))
    >>> through(x, torch.sin).centre  # e^{−s/2} sin m
    tensor([0.2908, 0.6553])
    """
    m, s = x.centre, x.variance
    name = getattr(getattr(function, "func", function), "__name__", "function")
    if isinstance(x.tape.activations, LocallyLinear):
        return elementwise(name, x, *tangent_moments(function, m, s))
    matched = closed or partial(quadrature, function, num=num)
    return elementwise(name, x, *in_blocks(matched, m, s, num=3))


@rule(F.relu, torch.relu, Tensor.relu)
def relu(input: GaussianTensor, inplace: bool = False) -> GaussianTensor:
    m, s = input.centre, input.variance
    if isinstance(input.tape.activations, LocallyLinear):
        slope = (m > 0).to(m.dtype)
        return elementwise("relu", input, m * slope, s * slope, slope)
    return elementwise("relu", input, *in_blocks(matched_relu, m, s, num=3, writes=True))


@rule(F.leaky_relu)
def leaky_relu(
    input: GaussianTensor, negative_slope: float = 0.01, inplace: bool = False
) -> GaussianTensor:
    return through(
        input,
        partial(F.leaky_relu, negative_slope=negative_slope),
        partial(closed_forms.matched_leaky_relu, slope=negative_slope),
    )


@rule(*both("abs"), *both("absolute"), Tensor.__abs__)
def absolute(input: GaussianTensor) -> GaussianTensor:
    return through(input, torch.abs, partial(closed_forms.matched_leaky_relu, slope=-1.0))


@rule(F.hardtanh)
def hardtanh(
    input: GaussianTensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> GaussianTensor:
    return through(
        input,
        partial(F.hardtanh, min_val=min_val, max_val=max_val),
        partial(closed_forms.matched_hardtanh, low=min_val, high=max_val),
    )


@rule(F.relu6)
def relu6(input: GaussianTensor, inplace: bool = False) -> GaussianTensor:
    return hardtanh(input, 0.0, 6.0)


@rule(F.hardsigmoid)
def hardsigmoid(input: GaussianTensor, inplace: bool = False) -> GaussianTensor:
    """`½ + z/6` between 0 and 1: a sixth of z cut off at ±3."""

    def closed(m: Tensor, s: Tensor) -> Triple:
        mean, variance, slope = closed_forms.matched_hardtanh(m, s, -3.0, 3.0)
        return 0.5 + mean / 6.0, variance / 36.0, slope / 6.0

    if not differentiated(input.centre, input.variance):
        return through(input, F.hardsigmoid, closed)
    # Torch's function cannot be differentiated twice.
    return through(input, lambda z: F.relu6(z + 3.0) / 6.0, closed)


@rule(F.elu)
def elu(input: GaussianTensor, alpha: float = 1.0, inplace: bool = False) -> GaussianTensor:
    return through(
        input, partial(F.elu, alpha=alpha), partial(closed_forms.matched_elu, alpha=alpha)
    )


@rule(F.celu, torch.celu)
def celu(input: GaussianTensor, alpha: float = 1.0, inplace: bool = False) -> GaussianTensor:
    """`α ELU(z/α)`."""

    def closed(m: Tensor, s: Tensor) -> Triple:
        mean, variance, slope = closed_forms.matched_elu(m / alpha, s / alpha**2)
        return alpha * mean, alpha**2 * variance, slope

    return through(input, partial(F.celu, alpha=alpha), closed)


@rule(F.gelu)
def gelu(input: GaussianTensor, approximate: str = "none") -> GaussianTensor:
    return through(input, partial(F.gelu, approximate=approximate))


@rule(F.softplus)
def softplus(input: GaussianTensor, beta: float = 1.0, threshold: float = 20.0) -> GaussianTensor:
    return through(input, partial(F.softplus, beta=beta, threshold=threshold))


def _without_options(
    function: Scalar, closed: Callable[[Tensor, Tensor], Triple] | None = None, *, num: int = 20
) -> Callable[..., GaussianTensor]:
    """The rule of a function without options; Gaussians are never changed in place."""
    return lambda input, inplace=False: through(input, function, closed, num=num)


rule(*both("sigmoid"), torch.special.expit)(_without_options(torch.sigmoid))
rule(*both("tanh"))(_without_options(torch.tanh, num=32))  # the steepest of them
rule(F.logsigmoid)(_without_options(F.logsigmoid))
rule(F.silu)(_without_options(F.silu))
rule(F.mish)(_without_options(F.mish))
# Klambauer et al. (2017): an ELU, scaled.
_SELU = {"alpha": 1.6732632423543772, "scale": 1.0507009873554805}
rule(F.selu, torch.selu)(_without_options(F.selu, partial(closed_forms.matched_elu, **_SELU)))
for _name in ("exp", "log", "square", "sin", "cos"):
    _closed = getattr(closed_forms, f"matched_{_name}")
    rule(*both(_name))(_without_options(getattr(torch, _name), _closed))


@rule(torch.pow, Tensor.pow, Tensor.__pow__)
def power(input: GaussianTensor, exponent: float) -> GaussianTensor:
    """Whole positive powers are exact; for others z is taken as positive and log-normal."""
    if not isinstance(input, GaussianTensor) or not isinstance(exponent, int | float):
        raise NoRule(
            "No moment rule for 'pow' with an exponent that is a tensor; take a number, or write "
            "exp(exponent * log(x))."
        )
    function = partial(torch.pow, exponent=exponent)
    if exponent == 2:
        return through(input, torch.square, closed_forms.matched_square)
    # A power p and its square are integrated exactly by p + 1 nodes.
    if exponent > 0 and math.floor(exponent) == exponent and exponent < 20:
        return through(input, function)
    return through(input, function, partial(closed_forms.matched_power, power=float(exponent)))
