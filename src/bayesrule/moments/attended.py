"""The average that attention takes, `o_l = Σ_s p_ls v_s` with `p_l = softmax_s(z_ls)`.

`z_ls = q_l·k_s` are the scores of a query. Queries, keys and values are taken as independent, but
keys and values may come from weights that all tokens share (`projected.py`). Two laws hold exactly:
softmax ignores what is added to all scores of a query, and its weights add up to one. So keys are
seen from `c = Σ_s p_s k_s` and values from o. To first order, scores give an output the variance

    F = Σ_d (σ_qd² + α) M_d² + Σ_s p_s² κ_s (v_s − o)²,   M = Σ_s p_s (v_s − o)(k_s − c).

M is what a query does to all scores at once, and κ_s is the variance of a score that comes from its
key alone. Weights W of keys act on all scores through the tokens, as a query does through the keys,
and are counted so: `α Σ_d Var_p k_d` is the mean variance that W adds to scores.

However uncertain scores are, they only choose among values: the variance is at most
`V = Σ_s p_s (v_s − o)²`. The share of V that is reached is taken as `R = 1 − (1 + 2 F/V)^-½`, which
is nearly right for two keys, where o is a sigmoid. With A the variance of o for known p, and B that
of one value that is drawn by p, uncertain values add `(1 − R) A + R B`.

Variances are taken at the expected weights p. Means, and the slopes `p_s (v_s − o)` of scores and
p_s of values by which innovations return, are taken at weights that favour uncertain scores, from
which TAGI learns better, unless `Activations.expected_weights` is chosen.
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
"""The number of features of keys above which `Joint` looks at as many directions of them."""

_BLOCK = 64

_GROWTH = 0.25
"""By `1 + s/4` the variance s of a score counts for more, since `e^z` is log-normal: for many keys
that vary alone it would be s/2, and a sum that varies along with them takes part of it back."""


@lru_cache
def _directions(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Orthogonal directions (size, _MOST), long enough to keep squared lengths on average."""
    # By numpy: a traced or compiled step then finds numbers here, not operations.
    drawn = np.random.default_rng(0).standard_normal((size, _MOST))
    found = np.linalg.qr(drawn)[0] * math.sqrt(size / _MOST)
    return torch.tensor(found, dtype=dtype, device=device)


class Joint:
    """`M_lod = Σ_s w_ls v_so k_sd − o_lo c_ld`, and sums over its squares, in blocks of outputs o.

    `spread` are the variances of keys under the weights p, (..., L, D). Of keys with many features
    M holds some directions: `Σ_d M_lod²` is then right on average over directions, and is divided
    among the features as `spread` is.
    """

    def __init__(self, weights: Tensor, v: Tensor, o: Tensor, k: Tensor, p: Tensor) -> None:
        self.weights, self.v, self.o, self.k, self.c = weights, v, o, k, p @ k
        self.spread = _spread(p @ k.square(), self.c)
        self.many = k.shape[-1] > _MOST
        if self.many:
            seen = _directions(k.shape[-1], k.dtype, k.device)
            self.k, self.c = self.k @ seen, self.c @ seen

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
    """`E k² − (E k)²`, but at least what rounding errors leave of it: it is divided by."""
    limits = torch.finfo(mean.dtype)
    return torch.maximum(squares - mean.square(), limits.eps * squares).clamp_min(limits.tiny**0.5)


def over_keys(x: Tensor, k: Tensor, c: Tensor, mask: Tensor | float = 1.0) -> Tensor:
    """`Σ_s x_ls (mask_ls k_sd − c_ld)²`, (..., L, D)."""
    xm = x * mask
    return (xm * mask) @ k.square() - 2.0 * c * (xm @ k) + c.square() * x.sum(-1, keepdim=True)


class Scores:
    """`z = q kᵀ + mask`, (..., L, S), and their variances by what they come from.

    `variance` is without the part that all scores of a query share.
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
        """The expected weights."""
        if activations.by_tangent:
            return self.mean.softmax(-1)
        return tilted_means(self.mean, self.variance)

    def favoured(self) -> Tensor:
        """Weights that favour uncertain scores."""
        return log_normal_means(self.mean, self.by_query + self.squares @ self.sk.mT)

    def spread(self, joint: Joint, p: Tensor, kept: Tensor | float) -> Tensor:
        """F, the variance that scores add to outputs to first order, (..., L, D)."""
        mean = (p * self.together).sum(-1, keepdim=True)
        alpha = mean / joint.spread.sum(-1, keepdim=True)
        variance = joint.over_features(self.sq + alpha)
        if not isinstance(self.alone, Tensor):
            return variance
        own = self.alone * (1.0 + _GROWTH * (1.0 - 2.0 * p).square() * self.variance)
        return variance + over_keys(p.square() * own, joint.v, joint.o, kept).clamp_min(0.0)


def _variance(scores: Scores, values: Values, p: Tensor, kept: Tensor | float) -> Tensor:
    """`R V + (1 − R) A + R B`, (..., L, D), at the weights p of which `kept` is left."""
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
    if not any(isinstance(one, GaussianTensor) for one in (query, key, *values.sources)):
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
