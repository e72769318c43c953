"""Queries, keys and values for the tests of attention."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesrule.moments import GaussianTensor

from .nets import randn

QUERY, KEY, VALUE = (randn(2, *s, seed=i).double() for i, s in enumerate([(3, 4), (5, 4), (5, 3)]))


def gaussian(mean: Tensor, variance: float = 0.02) -> GaussianTensor:
    return GaussianTensor(mean, torch.full_like(mean, variance))
