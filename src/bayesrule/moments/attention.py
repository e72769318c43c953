"""The rules for attention: `softmax(q kᵀ / √d) v`, alone and inside `nn.MultiheadAttention`.

`attended.py` derives the moments. Queries, keys and values are taken as independent, although they
may come from one input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.attended import attended, over_keys
from bayesrule.moments.projected import Keys, Projected, Rows, over_features, split_heads
from bayesrule.moments.tensor import (
    GaussianTensor,
    Innovation,
    NoRule,
    full_parts,
    parts,
    rule,
    tape_of,
)


def _scores(query: Any, key: Any, mask: Tensor | None, scale: float) -> Tensor:
    """`scale · q kᵀ + mask`, (..., L, S); leaves out variance that a query's scores share."""
    (q, sq, nq), (k, sk, nk) = full_parts(query), full_parts(key)
    mean = scale * (q @ k.mT)
    mean = mean if mask is None else mean + mask
    if not isinstance(query, GaussianTensor) and not isinstance(key, GaussianTensor):
        return mean
    shared = mean.softmax(-1) @ k
    squared = q.square()
    # Rounding may make a difference of squares negative.
    spread = over_features(sq, k, shared).clamp_min(0.0) + (squared + sq) @ sk.mT
    variance = spread * scale**2

    def to_sources(delta: Tensor, eta: Tensor) -> Sequence[Innovation | None]:
        delta, eta = delta * scale, eta * scale**2
        to_q = to_k = None
        if nq is not None:
            shift = delta.sum(-1, keepdim=True) * shared
            to_q = delta @ k - shift, over_keys(eta, k, shared)
        if nk is not None:
            to_k = delta.mT @ q, eta.mT @ squared
        return to_q, to_k

    return tape_of(query, key).result("attention scores", mean, variance, (nq, nk), to_sources)


def _additive(mask: Tensor | None, like: Any, *, excluded: bool) -> Tensor | None:
    """A mask to add to scores; a boolean mask is true where keys are `excluded`, or included."""
    if isinstance(mask, GaussianTensor):
        raise NoRule("An attention mask must be a plain tensor, got a GaussianTensor.")
    if mask is None or mask.dtype != torch.bool:
        return mask
    out = mask if excluded else ~mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(out, -math.inf)


@rule(F.scaled_dot_product_attention)
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> GaussianTensor:
    """`softmax(scale · q kᵀ + mask) v`, q (..., L, E), k (..., S, E), v (..., S, D)."""
    if is_causal and attn_mask is not None:
        raise ValueError("Give attn_mask or is_causal=True, not both.")
    if is_causal:  # each query sees the keys up to its own position
        size = query.shape[-2], key.shape[-2]
        attn_mask = torch.ones(size, dtype=torch.bool, device=query.device).tril()
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(groups, -3) for x in (key, value))
    batch = torch.broadcast_shapes(*(x.shape[:-2] for x in (query, key, value)))
    query, key, value = (
        x if x.shape[:-2] == batch else x.expand(*batch, *x.shape[-2:]) for x in (query, key, value)
    )
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    mask = _additive(attn_mask, query, excluded=False)
    keys, values = Keys(parts(key)[1]), Rows(value)
    return attended(query, key, keys, values, mask, factor, dropout_p)


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
) -> tuple[Any, Any]:
    """Attention of queries (L, N, E) or (L, E) to keys and values (S, N, *).

    With `need_weights`, also returns the attention weights as Gaussians (N, L, S), averaged over
    heads that are taken as independent.
    """
    if static_k is not None or static_v is not None:
        raise NoRule("No moment rule for attention with static_k or static_v.")
    if is_causal and attn_mask is None:
        raise ValueError("Attention with is_causal=True needs attn_mask, the causal mask.")
    batched = query.ndim == 3
    if not batched:
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    separate = q_proj_weight, k_proj_weight, v_proj_weight
    weights = separate if use_separate_proj_weight else in_proj_weight.chunk(3)
    biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    on_q, on_k, on_v = zip((query, key, value), weights, biases, strict=True)
    q, k = _projected(*on_q, num_heads), _projected(*on_k, num_heads)
    mask = _mask(attn_mask, key_padding_mask, q, num_heads)
    scale, dropout = 1.0 / math.sqrt(q.shape[-1]), dropout_p if training else 0.0
    if bias_k is None and not add_zero_attn:
        keys, values = Keys.projected(*on_k[:2], num_heads), Projected(*on_v, num_heads)
        heads = attended(q, k, keys, values, mask, scale, dropout)
    else:
        k, v = _extended(k, _projected(*on_v, num_heads), bias_k, bias_v, add_zero_attn)
        mask = None if mask is None else F.pad(mask, (0, k.shape[-2] - mask.shape[-1]))
        heads = attended(q, k, Keys(parts(k)[1]), Rows(v), mask, scale, dropout)
    outputs = F.linear(heads.permute(2, 0, 1, 3).flatten(2), out_proj_weight, out_proj_bias)
    outputs = outputs if batched else outputs.squeeze(1)
    if not need_weights:
        return outputs, None
    probabilities = F.softmax(_scores(q, k, mask, scale), dim=-1)
    probabilities = probabilities.mean(1) if average_attn_weights else probabilities
    return outputs, probabilities if batched else probabilities.squeeze(0)


def _projected(x: Any, weight: Any, bias: Any, heads: int) -> Any:
    """`W x + b`, (S, N, *) to (N, heads, S, D)."""
    return split_heads(F.linear(x, weight, bias), heads)


def _extended(k: Any, v: Any, bias_k: Any, bias_v: Any, zeros: bool) -> tuple[Any, Any]:
    """Keys and values (N, heads, S, D), each with a learned row and a row of zeros added."""
    if bias_k is not None:
        size, heads = k.shape[0], k.shape[1]
        more = (split_heads(b.expand(1, size, -1), heads) for b in (bias_k, bias_v))
        k, v = (torch.cat([x, row], -2) for x, row in zip((k, v), more, strict=True))
    if zeros:
        k, v = (torch.cat([x, x.new_zeros(*x.shape[:2], 1, x.shape[-1])], -2) for x in (k, v))
    return k, v


def _mask(
    attn_mask: Tensor | None, padding: Tensor | None, like: Any, num_heads: int
) -> Tensor | None:
    """Both masks as numbers to add to scores (N, heads, L, S)."""
    scores, keys = (_additive(mask, like, excluded=True) for mask in (attn_mask, padding))
    if scores is not None and scores.ndim == 3:
        scores = scores.unflatten(0, (-1, num_heads))
    if keys is None or scores is None:
        return scores if keys is None else keys[:, None, None]
    return scores + keys[:, None, None]
