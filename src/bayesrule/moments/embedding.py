"""Embeddings: rows of a table of Gaussian weights."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.tensor import GaussianTensor, mapped, rule


@rule(F.embedding)
def embedding(
    input: Tensor,
    weight: GaussianTensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> GaussianTensor:
    """Row `input` of the table; innovations of the same row add up, the padding row has none."""
    if max_norm is not None or scale_grad_by_freq:
        raise ValueError(
            f"An embedding with max_norm={max_norm}, scale_grad_by_freq={scale_grad_by_freq} has "
            "no moment rule: both change what the weights learn. Leave them out."
        )
    rows = weight.centre.shape[0]
    padding = -1 if padding_idx is None else padding_idx % rows

    def back(t: Tensor) -> Tensor:
        return torch.ops.aten.embedding_dense_backward(t, input, rows, padding, False)

    mean, variance = F.embedding(input, weight.centre), F.embedding(input, weight.variance)
    return mapped("embedding", weight, mean, variance, back, back)
