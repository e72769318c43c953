"""Per-example gradients of known layers from their inputs and the gradients of their outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn import functional

from bayesrule.curvature.layers._base import Layer
from bayesrule.curvature.layers.convolution import convolution
from bayesrule.curvature.layers.linear import LinearLayer, embedding, linear
from bayesrule.curvature.layers.norm import ChannelNormLayer, batch_norm, group_norm, layer_norm

LAYERS: dict[Callable[..., Any], Callable[..., Layer | None]] = {
    functional.linear: linear,
    functional.conv1d: convolution,
    functional.conv2d: convolution,
    functional.batch_norm: batch_norm,
    functional.layer_norm: layer_norm,
    functional.group_norm: group_norm,
    functional.embedding: embedding,
}
"""Functions whose calls are recorded; parameters that are used elsewhere go through vmap."""

__all__ = ["LAYERS", "ChannelNormLayer", "Layer", "LinearLayer"]
