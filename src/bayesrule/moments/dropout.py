"""Dropout of Gaussians: once its mask is drawn, it is a linear map."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.tensor import GaussianTensor, mapped, rule


def _masked(x: GaussianTensor, factor: Tensor, shift: Tensor | float = 0.0) -> GaussianTensor:
    """`c x + b` with fixed numbers c for each element or each channel."""
    square = factor.square()
    mean, variance = x.centre * factor + shift, x.variance * square
    return mapped("dropout", x, mean, variance, lambda t: t * factor, lambda t: t * square)


def _channels(num: int) -> Callable[[Tensor], Tensor]:
    """Ones for each channel of examples with `num` more axes."""
    return lambda x: x.new_ones(x.shape[: x.ndim - num] + (1,) * num)


def _features(x: Tensor) -> Tensor:
    """Ones for each example and channel."""
    return x.new_ones(x.shape[:2] + (1,) * (x.ndim - 2))


def _dropped(ones: Callable[[Tensor], Tensor]) -> Callable[..., GaussianTensor]:
    """The rule of dropout; `ones` has an element for each number of the mask."""

    def apply(
        input: GaussianTensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> GaussianTensor:
        return _masked(input, F.dropout(ones(input.centre), p)) if training else input

    return apply


rule(F.dropout, torch.dropout)(_dropped(torch.ones_like))
rule(F.dropout1d)(_dropped(_channels(1)))
rule(F.dropout2d)(_dropped(_features))
rule(F.dropout3d)(_dropped(_channels(3)))

_SATURATION = -1.7580993408473766
"""The lower limit of SELU units, `−λα`; Klambauer et al. (2017)."""


def _alpha(ones: Callable[[Tensor], Tensor]) -> Callable[..., GaussianTensor]:
    """Dropout for SELU networks: units are set to their lower limit; mean and variance are kept.

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


rule(F.alpha_dropout, torch.alpha_dropout)(_alpha(torch.ones_like))
rule(F.feature_alpha_dropout, torch.feature_alpha_dropout)(_alpha(_features))
