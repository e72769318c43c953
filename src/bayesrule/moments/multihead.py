"""`nn.MultiheadAttention`: projections, attention in each head, and one more projection."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.attention import additive, attend
from bayesrule.moments.tensor import GaussianTensor, NoRule, rule


@rule(F.multi_head_attention_forward)
def multi_head_attention_forward(
    query: Any,
    key: Any,
    value: Any,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Any,
    out_proj_bias: Any,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Any = None,
    k_proj_weight: Any = None,
    v_proj_weight: Any = None,
    static_k: Any = None,
    static_v: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[GaussianTensor, GaussianTensor | None]:
    """Attention of queries (L, N, E) or (L, E) to keys and values (S, N, *).

    With `need_weights` the weights are Gaussian probabilities (N, L, S), averaged over the heads as
    if those were independent.
    """
    if static_k is not None or static_v is not None:
        raise NoRule("No moment rule for attention with static_k or static_v.")
    if is_causal and attn_mask is None:
        raise ValueError("Attention with is_causal=True needs attn_mask, the causal mask.")
    batched = query.ndim == 3
    if not batched:
        query, key, value = _stacked(query, key, value)
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    separate = q_proj_weight, k_proj_weight, v_proj_weight
    weights = separate if use_separate_proj_weight else in_proj_weight
    q, k, v = _projected(query, key, value, weights, in_proj_bias)
    size = q.shape[1]
    mask = _mask(attn_mask, key_padding_mask, q, num_heads)
    if bias_k is not None:
        k, v = (torch.cat([x, b.expand(1, size, -1)]) for x, b in ((k, bias_k), (v, bias_v)))
    if add_zero_attn:
        k, v = (torch.cat([x, x.new_zeros(1, *x.shape[1:])]) for x in (k, v))
    if mask is not None and k.shape[0] > mask.shape[-1]:
        mask = F.pad(mask, (0, k.shape[0] - mask.shape[-1]))
    q, k, v = (_heads(x, num_heads) for x in (q, k, v))
    dropout = dropout_p if training else 0.0
    heads, scores = attend(q, k, v, mask, dropout, 1.0 / math.sqrt(q.shape[-1]))
    outputs = F.linear(heads.permute(2, 0, 1, 3).flatten(2), out_proj_weight, out_proj_bias)
    probabilities = _probabilities(scores, average_attn_weights) if need_weights else None
    if batched:
        return outputs, probabilities  # type: ignore[return-value]
    return outputs.squeeze(1), None if probabilities is None else probabilities.squeeze(0)  # type: ignore[return-value]


def _stacked(query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
    """As a batch of one; a tensor that is query, key and value at once stays one tensor."""
    if query is key and key is value:
        return (query.unsqueeze(1),) * 3
    return query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)


def _projected(query: Any, key: Any, value: Any, weights: Any, bias: Any) -> tuple[Any, Any, Any]:
    """`x wᵀ + b` of each, with one packed matrix or with three."""
    if not isinstance(weights, tuple) and query is key and key is value:
        return F.linear(query, weights, bias).chunk(3, -1)  # type: ignore[return-value]
    each = weights if isinstance(weights, tuple) else weights.chunk(3)
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    three = zip((query, key, value), each, biases, strict=True)
    return tuple(F.linear(x, w, b) for x, w, b in three)  # type: ignore[return-value]


def _heads(x: Any, num: int) -> Any:
    """(S, N, E) as (N, heads, S, E / heads)."""
    if x.shape[-1] % num:
        raise ValueError(f"{x.shape[-1]} features cannot be shared by {num} heads.")
    return x.unflatten(-1, (num, -1)).permute(1, 2, 0, 3)


def _mask(
    attn_mask: Tensor | None, padding: Tensor | None, like: Any, num_heads: int
) -> Tensor | None:
    """Both masks as numbers to add to scores (N, heads, L, S)."""
    scores, keys = (additive(one, like, excluded=True) for one in (attn_mask, padding))
    if scores is not None and scores.ndim == 3:
        scores = scores.unflatten(0, (-1, num_heads))
    if keys is None or scores is None:
        return scores if keys is None else keys[:, None, None]
    return scores + keys[:, None, None]


def _probabilities(scores: Any, average: bool) -> Any:
    weights = F.softmax(scores, dim=-1)
    return weights.mean(1) if average else weights
