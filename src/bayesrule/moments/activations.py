"""Elementwise functions of Gaussians: by their tangent at the mean, or by their moments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments import closed_forms
from bayesrule.moments.closed_forms import matched_relu, tangent_relu
from bayesrule.moments.quadrature import (
    Scalar,
    Triple,
    differentiated,
    in_blocks,
    quadrature,
    tangent,
)
from bayesrule.moments.shape import both
from bayesrule.moments.tensor import GaussianTensor, Innovation, NoRule, rule


def elementwise(
    name: str, x: GaussianTensor, mean: Tensor, variance: Tensor, slope: Tensor
) -> GaussianTensor:
    """An elementwise function of x, given its moments and `slope = cov(φ(z), z) / Var z`."""

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

    `LocallyLinear` takes its value and derivative at the mean. `MomentMatched` takes mean, variance
    and slope from `closed(mean, variance)`, or by Gauss-Hermite quadrature with `num` nodes, which
    is accurate if the function is smooth over half a standard deviation.

    >>> x = GaussianTensor(torch.tensor([0.5, 1.0]), torch.tensor([1.0, 0.5]))
    >>> through(x, torch.sin).centre  # e^{−s/2} sin m
    tensor([0.2908, 0.6553])
    """
    m, s = x.centre, x.variance
    name = getattr(getattr(function, "func", function), "__name__", "function")
    if x.tape.activations.by_tangent:
        value, slope = tangent(function, m)
        return elementwise(name, x, value, slope.square() * s, slope)
    matched = closed or partial(quadrature, function, num=num)
    return elementwise(name, x, *in_blocks(matched, m, s, num=3))


@rule(F.relu, torch.relu, Tensor.relu)
def relu(input: GaussianTensor, inplace: bool = False) -> GaussianTensor:
    m, s = input.centre, input.variance
    if input.tape.activations.by_tangent:
        return elementwise("relu", input, *tangent_relu(m, s))
    return elementwise("relu", input, *in_blocks(matched_relu, m, s, num=3, writes=True))


def _scalar(
    function: Scalar, closed: Callable[..., Triple] | None = None, *, num: int = 20, **options: Any
) -> Callable[..., GaussianTensor]:
    """The rule of an elementwise function; `options` are its options and defaults, in order.

    `closed` takes them by the same names. Torch's `inplace` may follow them; it has no effect,
    because Gaussian tensors never change.
    """

    def apply(input: GaussianTensor, *args: Any, inplace: bool = False, **kwargs: Any) -> Any:
        chosen = options | dict(zip(options, args, strict=False)) | kwargs
        exact = None if closed is None else partial(closed, **chosen)
        return through(input, partial(function, **chosen), exact, num=num)

    return apply


hardtanh = _scalar(F.hardtanh, closed_forms.matched_hardtanh, min_val=-1.0, max_val=1.0)
rule(F.hardtanh)(hardtanh)
rule(F.relu6)(lambda input, inplace=False: hardtanh(input, 0.0, 6.0))
rule(F.leaky_relu)(_scalar(F.leaky_relu, closed_forms.matched_leaky_relu, negative_slope=0.01))
rule(F.elu)(_scalar(F.elu, closed_forms.matched_elu, alpha=1.0))
rule(F.celu, torch.celu)(_scalar(F.celu, closed_forms.matched_celu, alpha=1.0))
# Klambauer et al. (2017): an ELU, scaled.
_selu = partial(closed_forms.matched_elu, alpha=1.6732632423543772, scale=1.0507009873554805)
rule(F.selu, torch.selu)(_scalar(F.selu, _selu))
rule(F.gelu)(_scalar(F.gelu, approximate="none"))
rule(F.softplus)(_scalar(F.softplus, beta=1.0, threshold=20.0))
rule(F.silu)(_scalar(F.silu))
rule(F.mish)(_scalar(F.mish))
rule(F.logsigmoid)(_scalar(F.logsigmoid))
rule(*both("sigmoid"), torch.special.expit)(_scalar(torch.sigmoid))
rule(*both("tanh"))(_scalar(torch.tanh, num=32))  # the steepest of them
_absolute = partial(closed_forms.matched_leaky_relu, negative_slope=-1.0)
rule(*both("abs"), *both("absolute"), Tensor.__abs__)(_scalar(torch.abs, _absolute))
for _name in ("exp", "log", "square", "sin", "cos"):
    rule(*both(_name))(_scalar(getattr(torch, _name), getattr(closed_forms, f"matched_{_name}")))


@rule(F.hardsigmoid)
def hardsigmoid(input: GaussianTensor, inplace: bool = False) -> GaussianTensor:
    """`½ + z/6` between 0 and 1."""
    # Torch's function cannot be differentiated twice.
    twice = differentiated(input.centre, input.variance)
    function = (lambda z: F.relu6(z + 3.0) / 6.0) if twice else F.hardsigmoid
    return through(input, function, closed_forms.matched_hardsigmoid)


@rule(torch.pow, Tensor.pow, Tensor.__pow__)
def power(input: GaussianTensor, exponent: float) -> GaussianTensor:
    """Exact for positive integer powers; for others z is taken as positive and log-normal."""
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
