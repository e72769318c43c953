"""The value of a policy from logs of another: what it would have earned."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Value:
    """An estimate of the mean reward of a policy, and its standard error."""

    value: float
    error: float


def inverse_propensity(
    rewards: Tensor, propensities: Tensor, probabilities: Tensor, *, normalised: bool = False
) -> Value:
    """The mean of `r π(a | x) / p` over logged rewards r, all (n,); unbiased.

    `propensities` p are the probabilities with which the logged actions were taken, and
    `probabilities` π those with which the policy would take the same actions. If `normalised` it is
    divided by the mean weight, for less variance and a little bias; Swaminathan & Joachims (2015).

    >>> import torch
    >>> rewards = torch.tensor([1.0, 0.0, 1.0, 0.0])
    >>> inverse_propensity(rewards, torch.full((4,), 0.5), torch.tensor([1.0, 0, 1, 0])).value
    1.0
    """
    weights = _weights(propensities, probabilities)
    if not normalised:
        return _mean(weights * rewards)
    share = weights / weights.mean()
    value = float((share * rewards).mean())
    return Value(value, _mean(share * (rewards - value)).error)


def doubly_robust(
    rewards: Tensor, actions: Tensor, propensities: Tensor, policy: Tensor, predicted: Tensor
) -> Value:
    """The mean of `Σ_a π(a | x) r̂(x, a) + (r − r̂(x, a)) π(a | x) / p`; Dudík et al. (2011), eq. 1.

    `policy` (n, A) are the policy's probabilities and `predicted` (n, A) rewards that a model
    predicts for all actions. It is unbiased where the propensities are right or the model is.
    """
    chosen = actions.long().unsqueeze(1)
    weights = _weights(propensities, policy.gather(1, chosen).squeeze(1))
    left = rewards - predicted.gather(1, chosen).squeeze(1)
    return _mean((policy * predicted).sum(1) + weights * left)


def _weights(propensities: Tensor, probabilities: Tensor) -> Tensor:
    if not ((propensities > 0) & (propensities <= 1)).all():
        raise ValueError(
            "Propensities are the probabilities with which logged actions were taken, above 0 and "
            f"at most 1, got {float(propensities.min())} to {float(propensities.max())}."
        )
    return probabilities / propensities


def _mean(values: Tensor) -> Value:
    return Value(float(values.mean()), float(values.std() / len(values) ** 0.5))
