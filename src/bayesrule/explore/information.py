"""How much a target teaches about the weights: once it is observed, or expected beforehand."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bayesrule.learner import Learner
from bayesrule.likelihoods._base import per_example
from bayesrule.likelihoods._uncertain import TARGET_VARIANCE, observed
from bayesrule.predicting.outputs import Outputs
from bayesrule.predicting.predict import How, as_tensor, believed_outputs, gaussian_draws
from bayesrule.tensors import seeds
from bayesrule.types import Params, State

_DRAWS = 1000


@torch.no_grad()
def information_gain(
    learner: Learner,
    state: State,
    x: Any,
    y: Any = None,
    how: How | None = None,
    *,
    seed: int = 0,
) -> Tensor:
    """The information that each target y gives about the weights by itself, in nats (n,).

    It is `KL(q(θ | y) ‖ q(θ))`, or without y the expectation of this, the mutual information of y
    and the weights. y depends on the weights only through the outputs f, so their distribution is
    all it takes. For real-valued targets with noise S and Gaussian outputs with covariance C:

    `½ [log |I + S⁻¹ C| − tr (C + S)⁻¹ C + eᵀ (C + S)⁻¹ C (C + S)⁻¹ e]`, `e = y − E f`,

    exact for a network that is linear in its weights, with any number of outputs; its expectation
    is `½ log |I + S⁻¹ C|`. If the prediction uses weight draws, C is their sample covariance. For
    other targets draws of f are weighted by `p(y | f)`; such a gain is at most the log of their
    number.

    `how` as in `br.predict`. Houthooft et al. (2016), eq. 5, use the gain as an exploration bonus.

    >>> from torch import nn
    >>> from bayesrule import GaussianLikelihood, ridge
    >>> learner = ridge(nn.Linear(1, 1), GaussianLikelihood(noise=1.0), num_data=2)
    >>> x = torch.tensor([[0.0], [3.0]])
    >>> [round(v, 3) for v in information_gain(learner, learner.init(), x).tolist()]
    [0.144, 0.733]
    """
    refuse_mean_only(how or learner.predictive, "how=Draws(32)")
    outputs = believed_outputs(learner, state, x, how, seed=seed).seen(state.likelihood)
    targets = None if y is None else as_tensor(y, state.posterior.device)
    likelihood = learner.likelihood
    if likelihood.distribution_class.gaussian and likelihood.num_outputs(1) == 1:
        return _of_numbers(learner, state, outputs, targets)
    are_draws = outputs.variance is None
    draws = outputs.values if are_draws else gaussian_outputs(outputs, _DRAWS, seed)
    if targets is None:
        return _expected(learner, state, draws, seed)
    log_probs = torch.stack([likelihood.log_prob(f, targets, state.likelihood) for f in draws])
    weights = log_probs.log_softmax(0)
    return (weights.exp() * (weights + math.log(len(draws)))).sum(0).clamp_min(0.0)


def gaussian_gain(spread: Tensor, noise: Tensor, error: Tensor | None = None) -> Tensor:
    """The gain (n,) from targets of noise variance `noise` (n, *) with Gaussian means.

    `spread` is the variance of the means (n, *), or a covariance (n, D, D). `error` is the target
    less its mean; without it the gain is expected.
    """
    if spread.shape == noise.shape:
        gain = torch.log1p(spread / noise)
        if error is not None:
            share = spread / (spread + noise)
            gain = gain - share + share * error.square() / (spread + noise)
        return 0.5 * per_example(gain)
    flat = noise.flatten(1)
    # (C + S)⁻¹ = R (R C R + I)⁻¹ R with R = S^{-½}.
    root = flat.rsqrt()
    scaled = root[:, :, None] * spread * root[:, None, :]
    total = scaled + torch.eye(flat.shape[1], dtype=flat.dtype, device=flat.device)
    factor = torch.linalg.cholesky(total)
    gain = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    if error is None:
        return 0.5 * gain
    trace = torch.cholesky_solve(scaled, factor).diagonal(dim1=-2, dim2=-1).sum(-1)
    pulled = torch.cholesky_solve((root * error.flatten(1)).unsqueeze(-1), factor)
    return 0.5 * (gain - trace + (pulled * (scaled @ pulled)).sum((1, 2)))


def refuse_mean_only(how: object, instead: str) -> None:
    """Refuses predictions with the mean of the weights alone."""
    if not getattr(how, "sees_spread", True):
        raise ValueError(
            "This learner predicts with the mean of its weights, without epistemic uncertainty, so "
            "no label is more informative than another. Use a method with a belief (vogn, laplace, "
            f"tagi, ...), predict with weight draws ({instead}), or take Random()."
        )


def _of_numbers(learner: Learner, state: State, outputs: Outputs, targets: Any) -> Tensor:
    mean, spread = _moments(outputs)
    noise = learner.likelihood.distribution(mean, state.likelihood).variance
    if targets is None:
        return gaussian_gain(spread, noise)
    y, target_state = observed(learner.likelihood.check(mean, targets), {})
    return gaussian_gain(spread, noise + target_state.get(TARGET_VARIANCE, 0.0), y - mean)


def _moments(outputs: Outputs) -> tuple[Tensor, Tensor]:
    """The mean (n, *) of the outputs, and their variance (n, *) or covariance (n, D, D)."""
    if outputs.variance is not None:
        return outputs.values, outputs.variance
    mean = outputs.values.mean(0)
    around = (outputs.values - mean).flatten(2)
    return mean, torch.einsum("kni,knj->nij", around, around) / len(around)


def gaussian_outputs(outputs: Outputs, num: int, seed: int, step: int = 0) -> Tensor:
    """Draws (num, n, *) of Gaussian outputs."""
    values, spread = outputs.values, outputs.variance
    assert spread is not None
    if outputs.joint:
        return gaussian_draws(values, spread, num, seed)
    white = values.new_empty(num, *values.shape)
    white.normal_(generator=seeds.generator(values.device, seed, step))
    return values + spread.sqrt() * white


def _expected(learner: Learner, state: State, draws: Tensor, seed: int) -> Tensor:
    """The mutual information of y and the outputs, (n,), from draws of the outputs."""
    likelihood, noise = learner.likelihood, state.likelihood
    targets = likelihood.distribution(draws, noise)
    if targets.class_numbers:
        p = targets.mean
        mean = p.mean(0)
        return (torch.xlogy(p, p).mean(0) - torch.xlogy(mean, mean)).sum(-1).clamp_min(0.0)
    generator = seeds.generator(draws.device, seed, 1)
    gains = [_drawn_gain(likelihood, noise, draws, k, generator) for k in range(len(draws))]
    return torch.stack(gains).mean(0).clamp_min(0.0)


def _drawn_gain(likelihood: Any, noise: Params, draws: Tensor, k: int, generator: Any) -> Tensor:
    """`log p(y | f_k) − log p(y)` for y drawn from p(y | f_k), (n,)."""
    y = likelihood.sample(draws[k], noise, generator)
    num, count = draws.shape[:2]
    repeated = y.repeat(num, *[1] * (y.ndim - 1))
    log_probs = likelihood.log_prob(draws.flatten(0, 1), repeated, noise).reshape(num, count)
    return log_probs[k] - log_probs.logsumexp(0) + math.log(num)
