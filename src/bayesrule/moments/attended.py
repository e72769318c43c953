"""Moments of attention outputs, `o_l = Σ_s p_ls v_s` with `p_l = softmax_s(z_ls)`.

`z_ls = q_l·k_s` are the scores of query l. Queries, keys and values are taken as independent, but
keys and values may be projected by weights that all tokens share (`projected.py`). Softmax does not
change when a constant is added to all scores of a query, and its weights add up to one. So keys are
measured from `c = Σ_s p_s k_s` and values from o. To first order, uncertain scores give an output
the variance

    F = Σ_d (σ_qd² + α) M_d² + Σ_s p_s² κ_s (v_s − o)²,   M = Σ_s p_s (v_s − o)(k_s − c).

M is the effect of the query on all scores at once; κ_s is the variance that key s alone gives its
score. The key projection W acts on all scores through the tokens, as a query does through the keys.
It enters through α: `α Σ_d Var_p k_d` is the mean variance that W adds to scores.

However uncertain scores are, they only choose among values, so this variance is at most
`V = Σ_s p_s (v_s − o)²`. The share of V that it reaches is approximated by
`R = 1 − (1 + 2 F/V)^-½`, which is nearly right for two keys, where o is a sigmoid. Uncertain values
add `(1 − R) A + R B`: A is the variance of o for known p, B that of one value drawn with
probabilities p.

Variances are computed at the expected weights p. Means, and the slopes `p_s (v_s − o)` of scores
and p_s of values that carry innovations back, are computed at weights that favour uncertain scores,
because TAGI learns better from them; `Activations.expected_weights` uses p here too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.projected import Keys, Values, over_features
from bayesrule.moments.quadrature import positive
from bayesrule.moments.softmax import log_normal_means, tilted_means
from bayesrule.moments.tensor import (
    Activations,
    GaussianTensor,
    Innovation,
    full_parts,
    parts,
    tape_of,
)

_MOST = 16
"""With more key features than this, `Joint` projects them onto this many directions."""

_BLOCK = 64

_GROWTH = 0.25
"""A score's variance s counts `1 + s/4` times, since `e^z` is log-normal: with many independent
keys the factor would be `1 + s/2`, but the normaliser varies too and takes part of it back."""


@lru_cache
def _directions(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Orthogonal directions (size, _MOST), long enough to keep squared lengths on average."""
    # With numpy, so that a traced or compiled step contains numbers here, not operations.
    drawn = np.random.default_rng(0).standard_normal((size, _MOST))
    directions = np.linalg.qr(drawn)[0] * math.sqrt(size / _MOST)
    return torch.tensor(directions, dtype=dtype, device=device)


class Joint:
    """`M_lod = Σ_s w_ls v_so k_sd − o_lo c_ld`, and sums over its squares, in blocks of outputs o.

    `spread` holds the variances of keys under the weights p, (..., L, D). For keys with many
    features, M is computed along a few random directions. `Σ_d M_lod²` is then right on average
    over directions, and is divided among the features in proportion to `spread`.
    """

    def __init__(self, weights: Tensor, v: Tensor, o: Tensor, k: Tensor, p: Tensor) -> None:
        self.weights, self.v, self.o, self.k, self.c = weights, v, o, k, p @ k
        self.spread = _spread(p @ k.square(), self.c)
        self.many = k.shape[-1] > _MOST
        if self.many:
            directions = _directions(k.shape[-1], k.dtype, k.device)
            self.k, self.c = self.k @ directions, self.c @ directions

    def _squares(self) -> Iterator[Tensor]:
        """Blocks of `M²`, (..., L, block, D)."""
        for v, o in zip(self.v.split(_BLOCK, -1), self.o.split(_BLOCK, -1), strict=True):
            pairs = (v.unsqueeze(-1) * self.k.unsqueeze(-2)).flatten(-2)
            m = (self.weights @ pairs).unflatten(-1, (v.shape[-1], -1))
            yield torch.addcmul(m, o.unsqueeze(-1), self.c.unsqueeze(-2), value=-1.0).square()

    def _shares(self) -> Tensor:
        return self.spread / self.spread.sum(-1, keepdim=True)

    def over_features(self, x: Tensor) -> Tensor:
        """`Σ_d M_lod² x_ld`."""
        if self.many:
            mean = (x * self._shares()).sum(-1, keepdim=True)
            return torch.cat([m.sum(-1) for m in self._squares()], -1) * mean
        return torch.cat([(m @ x.unsqueeze(-1)).squeeze(-1) for m in self._squares()], -1)

    def over_outputs(self, x: Tensor) -> Tensor:
        """`Σ_o M_lod² x_lo`."""
        blocks = zip(self._squares(), x.split(_BLOCK, -1), strict=True)
        total = torch.stack([(part.unsqueeze(-2) @ m).squeeze(-2) for m, part in blocks]).sum(0)
        return total.sum(-1, keepdim=True) * self._shares() if self.many else total


def _spread(squares: Tensor, mean: Tensor) -> Tensor:
    """`E k² − (E k)²`, kept above its rounding error because it is divided by."""
    limits = torch.finfo(mean.dtype)
    return torch.maximum(squares - mean.square(), limits.eps * squares).clamp_min(limits.tiny**0.5)


def over_keys(x: Tensor, k: Tensor, c: Tensor, mask: Tensor | float = 1.0) -> Tensor:
    """`Σ_s x_ls (mask_ls k_sd − c_ld)²`, (..., L, D)."""
    xm = x * mask
    return (xm * mask) @ k.square() - 2.0 * c * (xm @ k) + c.square() * x.sum(-1, keepdim=True)


class Scores:
    """Scores `z = q kᵀ + mask`, (..., L, S), and the variances that each source gives them.

    `variance` leaves out the part that all scores of a query share.
    """

    def __init__(self, query: Any, key: Any, keys: Keys, mask: Tensor | None, scale: float) -> None:
        (q, sq, _), (self.k, self.sk, _) = full_parts(query), full_parts(key)
        self.q, self.sq = q * scale, sq * scale**2
        product = self.q @ self.k.mT
        self.mean = product if mask is None else product + mask
        self.squares = self.q.square() + self.sq
        p = self.mean.softmax(-1)
        # Rounding may make a difference of squares negative.
        self.by_query = over_features(self.sq, self.k, p @ self.k).clamp_min(0.0)
        self.alone, self.together = keys.alone(self.squares), keys.together(self.squares, p)
        self.variance = self.by_query + self.alone + self.together

    def expected(self, activations: Activations) -> Tensor:
        """The expected attention weights."""
        if activations.by_tangent:
            return self.mean.softmax(-1)
        return tilted_means(self.mean, self.variance)

    def favoured(self) -> Tensor:
        """Attention weights that favour uncertain scores."""
        return log_normal_means(self.mean, self.by_query + self.squares @ self.sk.mT)

    def spread(self, joint: Joint, p: Tensor, kept: Tensor | float) -> Tensor:
        """F, the variance of outputs from uncertain scores to first order, (..., L, D)."""
        mean = (p * self.together).sum(-1, keepdim=True)
        alpha = mean / joint.spread.sum(-1, keepdim=True)
        variance = joint.over_features(self.sq + alpha)
        if not isinstance(self.alone, Tensor):
            return variance
        alone = self.alone * (1.0 + _GROWTH * (1.0 - 2.0 * p).square() * self.variance)
        return variance + over_keys(p.square() * alone, joint.v, joint.o, kept).clamp_min(0.0)


def _variance(scores: Scores, values: Values, p: Tensor, kept: Tensor | float) -> Tensor:
    """`R V + (1 − R) A + R B`, (..., L, D), at weights p with the dropout mask `kept`."""
    v, weights, drawn = values.mean, p * kept, p * kept * kept
    o = weights @ v
    most = (drawn @ v.square() - o.square()).clamp_min(0.0)
    first = scores.spread(Joint(weights, v, o, scores.k, p), p, kept)
    reached = most * (1.0 - (1.0 + 2.0 * first / positive(most)).rsqrt())
    share = reached.sum(-1, keepdim=True) / positive(most.sum(-1, keepdim=True))
    return reached + torch.lerp(values.averaged(weights), drawn @ values.variance, share)


def attended(
    query: Any,
    key: Any,
    keys: Keys,
    values: Values,
    mask: Tensor | None,
    scale: float,
    dropout: float,
) -> Any:
    """`dropout(softmax(scale · q kᵀ + mask)) v`, (..., L, D); plain if nothing is Gaussian."""
    if not any(isinstance(x, GaussianTensor) for x in (query, key, *values.sources)):
        return F.scaled_dot_product_attention(query, key, values.mean, mask, dropout, scale=scale)
    tape = tape_of(query, key, *values.sources)
    scores, v = Scores(query, key, keys, mask, scale), values.mean
    p = expected = scores.expected(tape.activations)
    if not tape.activations.by_tangent and not tape.activations.expected_weights:
        p = scores.favoured()
    kept = F.dropout(torch.ones_like(p), dropout) if dropout > 0 else 1.0
    weights = p * kept
    mean, variance = weights @ v, _variance(scores, values, expected, kept)
    nodes = [parts(source)[2] for source in (query, key, *values.sources)]

    def to_sources(delta: Tensor, eta: Tensor) -> Sequence[Innovation | None]:
        to_q = to_k = None
        slopes = p * (kept * (delta @ v.mT) - (delta * mean).sum(-1, keepdim=True))
        if nodes[0] is not None:
            joint = Joint(weights, v, mean, scores.k, p)
            to_q = scale * (slopes @ scores.k), scale**2 * joint.over_outputs(eta)
        if nodes[1] is not None:
            spread = p.square() * over_features(eta, v, mean, kept)
            to_k = slopes.mT @ scores.q, spread.mT @ scores.q.square()
        return [to_q, to_k, *values.back(weights, delta, eta)]

    return tape.result("attention", mean, variance, nodes, to_sources)
