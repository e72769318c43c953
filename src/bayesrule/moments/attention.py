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

from bayesrule.moments.choices import LocallyLinear
from bayesrule.moments.softmax import softmax_moments
from bayesrule.moments.tensor import GaussianTensor, Innovation, NoRule, full_parts, rule, tape_of


def _over_features(x: Tensor, k: Tensor, c: Tensor) -> Tensor:
    """`Σ_d x_ld (k_sd − c_ld)²`, (..., L, S)."""
    xc = x * c
    return x @ k.square().mT - 2.0 * (xc @ k.mT) + (xc * c).sum(-1, keepdim=True)


def _over_keys(x: Tensor, k: Tensor, c: Tensor) -> Tensor:
    """`Σ_s x_ls (k_sd − c_ld)²`, (..., L, D)."""
    return x @ k.square() - 2.0 * c * (x @ k) + c.square() * x.sum(-1, keepdim=True)


def _scores(query: Any, key: Any, mask: Tensor | None, scale: float) -> GaussianTensor:
    """`scale · q kᵀ + mask`, (..., L, S), without the variance that all scores of a query share."""
    (q, sq, nq), (k, sk, nk) = full_parts(query), full_parts(key)
    mean = scale * (q @ k.mT)
    mean = mean if mask is None else mean + mask
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
    matched = isinstance(scores, GaussianTensor) and not isinstance(tape.activations, LocallyLinear)
    p = softmax_moments(m, s)[0] if matched else m.softmax(-1)
    kept = F.dropout(torch.ones_like(p), dropout) if dropout > 0 else torch.ones_like(p)
    weights = p * kept
    mean = weights @ v
    x = torch.minimum(p.square() * s, p * (1.0 - p))
    squares = v.square()

    def away(t: Tensor) -> Tensor:
        """`Σ_j t_j (kept_j v_j − o)²`."""
        tk = t * kept
        crossed = 2.0 * mean * (tk @ v)
        return (tk * kept) @ squares - crossed + mean.square() * t.sum(-1, keepdim=True)

    spread = (weights.square() + x * kept.square()) @ sv
    variance = away(x).clamp_min(0.0) + spread

    def to_sources(delta: Tensor, eta: Tensor) -> Sequence[Innovation | None]:
        to_s = to_v = None
        if ns is not None:
            d, e = delta * mean, eta * mean
            slopes = kept * (delta @ v.mT) - d.sum(-1, keepdim=True)
            crossed = 2.0 * kept * (e @ v.mT)
            bends = kept.square() * (eta @ squares.mT) - crossed + (e * mean).sum(-1, keepdim=True)
            to_s = p * slopes, p.square() * bends
        if nv is not None:
            to_v = weights.mT @ delta, weights.square().mT @ eta
        return to_s, to_v

    return tape.result("attention", mean, variance, (ns, nv), to_sources)


def additive(mask: Tensor | None, like: Any, *, excluded: bool) -> Tensor | None:
    """A mask as numbers to add; a boolean mask is true where keys are `excluded`, or included."""
    if isinstance(mask, GaussianTensor):
        raise NoRule("An attention mask must be a plain tensor, got a GaussianTensor.")
    if mask is None or mask.dtype != torch.bool:
        return mask
    out = mask if excluded else ~mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(out, -math.inf)


def attend(
    query: Any, key: Any, value: Any, mask: Tensor | None, dropout: float, scale: float
) -> tuple[GaussianTensor, Any]:
    """Outputs (..., L, D) and scores (..., L, S) of queries, keys and values of equal batches."""
    if isinstance(query, GaussianTensor) or isinstance(key, GaussianTensor):
        scores: Any = _scores(query, key, mask, scale)
    else:
        scores = scale * (query @ key.mT)
        scores = scores if mask is None else scores + mask
    return _attended(scores, value, dropout), scores


def _causal(query: Any, key: Any) -> Tensor:
    """The mask that lets each query see the keys up to its own position."""
    size = query.shape[-2], key.shape[-2]
    return torch.ones(size, dtype=torch.bool, device=query.device).tril()


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
    mask = _causal(query, key) if is_causal else attn_mask
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(groups, -3) for x in (key, value))
    batch = torch.broadcast_shapes(*(x.shape[:-2] for x in (query, key, value)))
    query, key, value = (
        x if x.shape[:-2] == batch else x.expand(*batch, *x.shape[-2:]) for x in (query, key, value)
    )
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    return attend(query, key, value, additive(mask, query, excluded=False), dropout_p, factor)[0]
