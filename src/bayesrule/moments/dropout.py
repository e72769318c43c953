"""Dropout of Gaussians: a mask is drawn, and is then a known linear map."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.tensor import GaussianTensor, Innovation, rule


def _masked(x: GaussianTensor, factor: Tensor, shift: Tensor | float = 0.0) -> GaussianTensor:
    """`c x + b` with a known c for each element or each channel."""
    square = factor.square()

    def to_sources(delta: Tensor, eta: Tensor) -> tuple[Innovation]:
        return ((delta * factor, eta * square),)

    mean = x.centre * factor + shift
    return x.tape.result("dropout", mean, x.variance * square, (x.node,), to_sources)


def _whole(x: Tensor) -> Tensor:
    return torch.ones_like(x)


def _channels(num: int) -> Callable[[Tensor], Tensor]:
    """One number for each channel of examples with `num` more axes."""
    return lambda x: x.new_ones(x.shape[: x.ndim - num] + (1,) * num)


def _features(x: Tensor) -> Tensor:
    """One number for each example and channel."""
    return x.new_ones(x.shape[:2] + (1,) * (x.ndim - 2))


def _dropped(ones: Callable[[Tensor], Tensor]) -> Callable[..., GaussianTensor]:
    def apply(
        input: GaussianTensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> GaussianTensor:
        return _masked(input, F.dropout(ones(input.centre), p)) if training else input

    return apply


rule(F.dropout, torch.dropout)(_dropped(_whole))
rule(F.dropout1d)(_dropped(_channels(1)))
rule(F.dropout2d)(_dropped(_features))
rule(F.dropout3d)(_dropped(_channels(3)))

_SATURATION = -1.7580993408473766
"""What SELU units saturate at, `−λα`; Klambauer et al. (2017)."""


def _alpha(ones: Callable[[Tensor], Tensor]) -> Callable[..., GaussianTensor]:
    """Dropout that sets units of SELU networks to what they saturate at, keeping mean and variance.

    `y = a [mask x + (1 − mask − p) α']` with `a = [(1 − p)(1 + p α'²)]^-½`.
    """

    def apply(
        input: GaussianTensor, p: float = 0.5, training: bool = False, inplace: bool = False
    ) -> GaussianTensor:
        if not training or p == 0:
            return input
        if not 0 <= p < 1:
            raise ValueError(f"Dropout of Gaussians takes a probability 0 ≤ p < 1, got {p}.")
        scale = ((1.0 - p) * (1.0 + p * _SATURATION**2)) ** -0.5
        mask = ones(input.centre).bernoulli_(1.0 - p)
        return _masked(input, mask * scale, (1.0 - p - mask) * (scale * _SATURATION))

    return apply


rule(F.alpha_dropout, torch.alpha_dropout)(_alpha(_whole))
rule(F.feature_alpha_dropout, torch.feature_alpha_dropout)(_alpha(_features))
