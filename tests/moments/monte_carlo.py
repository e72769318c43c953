"""What a moment rule says, held against a million draws of its inputs.

x = GaussianTensor(mean, variance)
check_moments(torch.tanh, [x])                       # exact rules: within five standard errors
check_moments(F.silu, [x], LocallyLinear(), rtol=0.1)  # approximate ones: a stated tolerance
check_moments(torch.mul, [x, y], only=("mean",))     # a part of it
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrule.moments import Activations, GaussianTensor, MomentMatched, Tape

Function = Callable[..., Any]
MATCHED = MomentMatched()


@dataclass(frozen=True)
class Moments:
    """Mean and variance of f(inputs), and the slope for each Gaussian input.

    `slopes[k]` is `cov(f, x_k) / Var x_k`, of the shape of f followed by the shape of x_k: what
    carries δ from f to x_k. `squares[k]` is the same for η.
    """

    mean: Tensor
    variance: Tensor
    slopes: tuple[Tensor, ...]
    squares: tuple[Tensor, ...]


def by_rule(
    function: Function, inputs: Sequence[Tensor], activations: Activations = MATCHED
) -> Moments:
    """What the rules say, with slopes read off the way back, one unit innovation at a time."""
    outputs, _ = _run(function, inputs, activations)
    found = [_pulled(function, inputs, activations, unit) for unit in _units(outputs.centre)]
    slopes, squares = zip(*found, strict=True)
    shape = outputs.centre.shape
    return Moments(outputs.centre, outputs.variance, _rows(slopes, shape), _rows(squares, shape))


def by_draws(
    function: Function, inputs: Sequence[Tensor], num: int = 1_000_000, seed: int = 0
) -> tuple[Moments, Moments]:
    """The moments of `num` draws, in float64, and the standard errors of all of them."""
    drawn = list(_drawn(inputs, num, seed))
    # Copies: a function may work in place.
    axes = tuple(0 if isinstance(x, GaussianTensor) else None for x in inputs)
    results = torch.func.vmap(function, in_dims=axes)(*(x.clone() for x in drawn))
    shape, results = results.shape[1:], results.reshape(num, -1)
    mean = results.mean(0)
    away = results - mean
    variance, variance_error = _average(away.square())
    slopes, errors = [], []
    for x, values in zip(inputs, drawn, strict=True):
        if isinstance(x, GaussianTensor):
            pair = _covariance(away, (values - x.centre).reshape(num, -1))
            scaled = [(part / x.variance.flatten()).reshape(*shape, *x.shape) for part in pair]
            slopes.append(scaled[0])
            errors.append(scaled[1])
    error = variance.sqrt() / math.sqrt(num)
    squares = tuple(slope.square() for slope in slopes)
    return (
        Moments(mean.reshape(shape), variance.reshape(shape), tuple(slopes), squares),
        Moments(error.reshape(shape), variance_error.reshape(shape), tuple(errors), squares),
    )


def check_moments(
    function: Function,
    inputs: Sequence[Tensor],
    activations: Activations = MATCHED,
    *,
    z: float = 5.0,
    rtol: float = 0.0,
    atol: float = 2e-6,
    num: int = 1_000_000,
    seed: int = 0,
    only: Sequence[str] = ("mean", "variance", "slopes", "squares"),
) -> None:
    """The rules agree with draws, within `z` standard errors + `rtol` × size + `atol`.

    `squares` is held against the squares of the rules' own slopes: η returns by J² where δ returns
    by J, which is right for a single rule but not for an input that is used twice. `atol` leaves
    room for the floors of variances.
    """
    rule = by_rule(function, inputs, activations)
    truth, error = by_draws(function, inputs, num, seed)
    if "mean" in only:
        _near("mean", rule.mean, truth.mean, z * error.mean, rtol, atol)
    if "variance" in only:
        _near("variance", rule.variance, truth.variance, z * error.variance, rtol, atol)
    pairs = zip(rule.slopes, rule.squares, truth.slopes, error.slopes, strict=True)
    for number, (slope, square, true, off) in enumerate(pairs):
        if "slopes" in only:
            _near(f"slope of input {number}", slope, true, z * off, rtol, atol)
        if "squares" in only:
            _near(f"square of input {number}", square, slope.square(), 0.0, 1e-5, 1e-12)


def _near(
    name: str, actual: Tensor, expected: Tensor, room: Tensor | float, rtol: float, atol: float
) -> None:
    off = (actual.to(expected.dtype) - expected).abs()
    allowed = room + rtol * expected.abs() + atol
    # Not `off > allowed`: a NaN is far from everything.
    assert bool((off <= allowed).all()), (
        f"{name}: the rule says {actual.tolist()}, the draws {expected.tolist()}, "
        f"{float((off / allowed).nan_to_num(math.inf).max()):.1f} times what is allowed"
    )


def _run(
    function: Function, inputs: Sequence[Tensor], activations: Activations
) -> tuple[GaussianTensor, list[GaussianTensor]]:
    """A pass of its own: its outputs, and the leaves that its inputs became."""
    tape = Tape(activations, record=True)
    placed = [
        tape.leaf(x.centre, x.variance) if isinstance(x, GaussianTensor) else x for x in inputs
    ]
    with torch.no_grad():
        outputs = function(*placed)
    assert isinstance(outputs, GaussianTensor)
    return outputs, [x for x in placed if isinstance(x, GaussianTensor)]


def _pulled(
    function: Function, inputs: Sequence[Tensor], activations: Activations, unit: Tensor
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    outputs, leaves = _run(function, inputs, activations)
    outputs.tape.back(outputs, unit, unit)
    found: tuple[list[Tensor], list[Tensor]] = ([], [])
    for leaf in leaves:
        assert leaf.node is not None
        for values, value in zip(found, (leaf.node.delta, leaf.node.eta), strict=True):
            values.append(torch.zeros_like(leaf.centre) if value is None else value)
    return tuple(found[0]), tuple(found[1])


def _units(like: Tensor) -> Iterator[Tensor]:
    for index in range(like.numel()):
        unit = torch.zeros_like(like, memory_format=torch.contiguous_format)
        unit.view(-1)[index] = 1.0
        yield unit


def _rows(found: Sequence[tuple[Tensor, ...]], shape: torch.Size) -> tuple[Tensor, ...]:
    """From one tuple for each output to one matrix for each input."""
    return tuple(
        torch.stack(rows).reshape(*shape, *rows[0].shape) for rows in zip(*found, strict=True)
    )


def _drawn(inputs: Sequence[Tensor], num: int, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for x in inputs:
        if isinstance(x, GaussianTensor):
            mean, std = x.centre.double(), x.variance.double().sqrt()
            noise = torch.randn(num, *x.shape, dtype=torch.float64, generator=generator)
            yield mean + std * noise
        else:
            yield x.double() if x.is_floating_point() else x


def _average(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over the draws and its standard error."""
    return values.mean(0), values.std(0) / math.sqrt(len(values))


def _covariance(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Covariances (outputs, inputs) of centred draws, and their standard errors."""
    num = len(left)
    covariance = left.mT @ right / num
    second = left.square().mT @ right.square() / num
    return covariance, ((second - covariance.square()).clamp_min(0.0) / num).sqrt()
