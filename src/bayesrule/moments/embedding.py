"""Embeddings: rows of a table of Gaussian weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.tensor import GaussianTensor, mapped, rule


@rule(F.embedding)
def embedding(
    input: Tensor, weight: GaussianTensor, padding_idx: int | None = None, **options: Any
) -> GaussianTensor:
    """Row `input` of the table; innovations of the same row add up, the padding row has none."""
    max_norm, by_frequency = options.get("max_norm"), options.get("scale_grad_by_freq", False)
    if max_norm is not None or by_frequency:
        raise ValueError(
            f"An embedding with max_norm={max_norm}, scale_grad_by_freq={by_frequency} has no "
            "moment rule: both change what the weights learn. Leave them out."
        )
    rows = weight.centre.shape[0]
    padding = -1 if padding_idx is None else padding_idx % rows

    def back(t: Tensor) -> Tensor:
        return torch.ops.aten.embedding_dense_backward(t, input, rows, padding, False)

    mean, variance = F.embedding(input, weight.centre), F.embedding(input, weight.variance)
    return mapped("embedding", weight, mean, variance, back, back)
