"""Attention of Gaussians: `softmax(q kᵀ / √d) v`, alone and inside `nn.MultiheadAttention`.

As everywhere, the elements of a tensor are taken as independent. So are queries, keys and values,
although they may come from one input, and so are the scores of a query and the values. Two
dependences are kept, which are exact and large: softmax ignores what is added to all scores of a
query, and its weights add up to one. So with `c = Σ_j p_j k_j` and the output `o = Σ_j p_j v_j` of
a query, p the mean weights and s the variances of the scores,

    score:   m_j = q·k_j,  s_j = Σ_d [σ_q² (k_j − c)² + (q² + σ_q²) σ_kj²],
    output:  o,  Var o = Σ_j [x_j (v_j − o)² + (p_j² + x_j) σ_vj²],

where `x_j = p_j² s_j`, but at most `p_j (1 − p_j)`, and the slopes are `∂o/∂z_j = p_j (v_j − o)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.softmax import log_normal_means
from bayesrule.moments.tensor import GaussianTensor, Innovation, NoRule, full_parts, rule, tape_of


def _over_features(x: Tensor, k: Tensor, c: Tensor, mask: Tensor | float = 1.0) -> Tensor:
    """`Σ_d x_ld (mask_ls k_sd − c_ld)²`, (..., L, S)."""
    xc = x * c
    crossed = 2.0 * mask * (xc @ k.mT)
    return mask * mask * (x @ k.square().mT) - crossed + (xc * c).sum(-1, keepdim=True)


def _over_keys(x: Tensor, k: Tensor, c: Tensor, mask: Tensor | float = 1.0) -> Tensor:
    """`Σ_s x_ls (mask_ls k_sd − c_ld)²`, (..., L, D)."""
    xm = x * mask
    return (xm * mask) @ k.square() - 2.0 * c * (xm @ k) + c.square() * x.sum(-1, keepdim=True)


def _scores(query: Any, key: Any, mask: Tensor | None, scale: float) -> Tensor:
    """`scale · q kᵀ + mask`, (..., L, S), without the variance that all scores of a query share."""
    (q, sq, nq), (k, sk, nk) = full_parts(query), full_parts(key)
    mean = scale * (q @ k.mT)
    mean = mean if mask is None else mean + mask
    if not isinstance(query, GaussianTensor) and not isinstance(key, GaussianTensor):
        return mean
    shared = mean.softmax(-1) @ k
    squared = q.square()
    # Rounding may make a difference of squares negative.
    spread = _over_features(sq, k, shared).clamp_min(0.0) + (squared + sq) @ sk.mT
    variance = spread * scale**2

    def to_sources(delta: Tensor, eta: Tensor) -> Sequence[Innovation | None]:
        delta, eta = delta * scale, eta * scale**2
        to_q = to_k = None
        if nq is not None:
            shift = delta.sum(-1, keepdim=True) * shared
            to_q = delta @ k - shift, _over_keys(eta, k, shared)
        if nk is not None:
            to_k = delta.mT @ q, eta.mT @ squared
        return to_q, to_k

    return tape_of(query, key).result("attention scores", mean, variance, (nq, nk), to_sources)


def _attended(scores: Any, value: Any, dropout: float) -> GaussianTensor:
    """`dropout(softmax(scores)) v`, (..., L, D)."""
    (m, s, ns), (v, sv, nv) = full_parts(scores), full_parts(value)
    tape = tape_of(scores, value)
    matched = isinstance(scores, GaussianTensor) and not tape.activations.by_tangent
    p = log_normal_means(m, s) if matched else m.softmax(-1)
    mask = F.dropout(torch.ones_like(p), dropout) if dropout > 0 else 1.0
    weights = p * mask
    mean = weights @ v
    x = torch.minimum(p.square() * s, p * (1.0 - p))
    spread = (weights.square() + x * (mask * mask)) @ sv
    variance = _over_keys(x, v, mean, mask).clamp_min(0.0) + spread

    def to_sources(delta: Tensor, eta: Tensor) -> Sequence[Innovation | None]:
        to_s = to_v = None
        if ns is not None:
            slopes = mask * (delta @ v.mT) - (delta * mean).sum(-1, keepdim=True)
            to_s = p * slopes, p.square() * _over_features(eta, v, mean, mask)
        if nv is not None:
            to_v = weights.mT @ delta, weights.square().mT @ eta
        return to_s, to_v

    return tape.result("attention", mean, variance, (ns, nv), to_sources)


def _additive(mask: Tensor | None, like: Any, *, excluded: bool) -> Tensor | None:
    """A mask as numbers to add; a boolean mask is true where keys are `excluded`, or included."""
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
    return _attended(_scores(query, key, mask, factor), value, dropout_p)


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

    With `need_weights` the weights are Gaussian probabilities (N, L, S), averaged over the heads as
    if those were independent.
    """
    if static_k is not None or static_v is not None:
        raise NoRule("No moment rule for attention with static_k or static_v.")
    if is_causal and attn_mask is None:
        raise ValueError("Attention with is_causal=True needs attn_mask, the causal mask.")
    batched, same = query.ndim == 3, query is key and key is value
    if not batched:
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    if same and not use_separate_proj_weight:
        q, k, v = F.linear(query, in_proj_weight, in_proj_bias).chunk(3, -1)
    else:
        separate = q_proj_weight, k_proj_weight, v_proj_weight
        weights = separate if use_separate_proj_weight else in_proj_weight.chunk(3)
        biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
        each = zip((query, key, value), weights, biases, strict=True)
        q, k, v = (F.linear(x, w, b) for x, w, b in each)
    size = q.shape[1]
    mask = _mask(attn_mask, key_padding_mask, q, num_heads)
    if bias_k is not None:
        k, v = (torch.cat([x, b.expand(1, size, -1)]) for x, b in ((k, bias_k), (v, bias_v)))
    if add_zero_attn:
        k, v = (torch.cat([x, x.new_zeros(1, *x.shape[1:])]) for x in (k, v))
    if mask is not None and k.shape[0] > mask.shape[-1]:
        mask = F.pad(mask, (0, k.shape[0] - mask.shape[-1]))
    q, k, v = (_heads(x, num_heads) for x in (q, k, v))
    scores = _scores(q, k, mask, 1.0 / math.sqrt(q.shape[-1]))
    heads = _attended(scores, v, dropout_p if training else 0.0)
    outputs = F.linear(heads.permute(2, 0, 1, 3).flatten(2), out_proj_weight, out_proj_bias)
    outputs = outputs if batched else outputs.squeeze(1)
    if not need_weights:
        return outputs, None
    probabilities = F.softmax(scores, dim=-1)
    probabilities = probabilities.mean(1) if average_attn_weights else probabilities
    return outputs, probabilities if batched else probabilities.squeeze(0)


def _heads(x: Any, num: int) -> Any:
    """(S, N, E) as (N, heads, S, E / heads)."""
    if x.shape[-1] % num:
        raise ValueError(f"{x.shape[-1]} features cannot be shared by {num} heads.")
    return x.unflatten(-1, (num, -1)).permute(1, 2, 0, 3)


def _mask(
    attn_mask: Tensor | None, padding: Tensor | None, like: Any, num_heads: int
) -> Tensor | None:
    """Both masks as numbers to add to scores (N, heads, L, S)."""
    scores, keys = (_additive(one, like, excluded=True) for one in (attn_mask, padding))
    if scores is not None and scores.ndim == 3:
        scores = scores.unflatten(0, (-1, num_heads))
    if keys is None or scores is None:
        return scores if keys is None else keys[:, None, None]
    return scores + keys[:, None, None]
