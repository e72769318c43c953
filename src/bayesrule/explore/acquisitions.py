"""Which input to label next: how informative the label of each unlabelled input would be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from bayesrule.expectations import Draws
from bayesrule.explore.information import gaussian_gain, refuse_mean_only
from bayesrule.learner import Learner
from bayesrule.likelihoods._base import per_example
from bayesrule.predicting.at_weights import outputs_at, pieces
from bayesrule.predicting.predict import How, as_inputs, predict
from bayesrule.predicting.prediction import Prediction
from bayesrule.tensors import seeds
from bayesrule.tensors.inputs import Inputs, num_examples, parts, take
from bayesrule.tensors.network import as_leaves
from bayesrule.types import State

# The most numbers to hold at once for pairs of pool and target inputs.
_ROOM = 4_000_000
_BATCH = 4096


class Criterion(ABC):
    """Scores unlabelled inputs; the input with the largest score is labelled next."""

    @abstractmethod
    def scores(self, learner: Learner, state: State, x: Inputs, generator: Generator) -> Tensor:
        """How informative the label of each unlabelled input of x (n, *) would be, (n,)."""

    def standardised(self, standardise: Callable[[Inputs], Inputs]) -> Criterion:
        """The same criterion for a learner of standardised inputs."""
        return self


@dataclass(frozen=True)
class Random(Criterion):
    """Inputs in random order: the baseline for the other criteria."""

    def scores(self, learner: Learner, state: State, x: Inputs, generator: Generator) -> Tensor:
        return torch.rand(num_examples(x), generator=generator, device=generator.device)


@dataclass(frozen=True)
class LargestVariance(Criterion):
    """The epistemic variance of y, summed over outputs or classes.

    If the noise is the same everywhere, it ranks inputs as the information about the weights does;
    MacKay (1992). `how` as in `br.predict`.
    """

    how: How | None = None

    def scores(self, learner: Learner, state: State, x: Inputs, generator: Generator) -> Tensor:
        return per_example(_prediction(learner, state, x, self.how, generator).epistemic)


@dataclass(frozen=True)
class BALD(Criterion):
    """The information that y would give about the weights, in nats; Houlsby et al. (2011).

    Classes: `H[E p] − E H[p]`. Numbers: `½ Σ log(1 + epistemic / aleatoric)` over the outputs,
    which is exact for one Gaussian output under Gaussian noise. `how` as in `br.predict`.
    """

    how: How | None = None

    def scores(self, learner: Learner, state: State, x: Inputs, generator: Generator) -> Tensor:
        prediction = _prediction(learner, state, x, self.how, generator)
        if prediction.classification:
            return prediction.mutual_information
        return gaussian_gain(prediction.epistemic, prediction.aleatoric)


@dataclass(frozen=True, eq=False)
class EPIG(Criterion):
    """The information that y would give about y* at other inputs, `E_x* I(y; y*)`, in nats.

    Unlike BALD it measures what helps to predict at the `targets` x* (m, *), by default the pool;
    at most `num_targets` of them are drawn each time. It is estimated from joint `draws` of the
    outputs at all inputs: of `f(m) + J (θ − m)` if `linearised`, else of `f(θ)`; by default as the
    learner predicts. Classes: from the joint probabilities `E[p p*ᵀ]`. Numbers:
    `−½ Σ log(1 − ρ²)` over the outputs, ρ the predictive correlation of y and y*.
    Bickford Smith et al. (2023).
    """

    targets: Inputs | None = None
    num_targets: int = 100
    draws: int = 128
    linearised: bool | None = None

    def __post_init__(self) -> None:
        if self.num_targets < 1 or self.draws < 2:
            got = f"num_targets={self.num_targets} and draws={self.draws}"
            raise ValueError(f"EPIG takes at least 1 target and 2 draws, got {got}.")
        if not isinstance(self.targets, Tensor | tuple | dict | None):
            got = type(self.targets).__name__
            raise TypeError(f"EPIG takes tensors as targets, got {got}; use torch.as_tensor.")

    def standardised(self, standardise: Callable[[Inputs], Inputs]) -> EPIG:
        return self if self.targets is None else replace(self, targets=standardise(self.targets))

    def scores(self, learner: Learner, state: State, x: Inputs, generator: Generator) -> Tensor:
        targets = x if self.targets is None else self.targets
        order = torch.randperm(num_examples(targets), generator=generator, device=generator.device)
        rows = order[: self.num_targets].to(parts(targets)[0].device)
        targets, seed = take(targets, rows), _seed(generator)
        linear = self.linearised
        if linear is None:
            refuse_mean_only(learner.predictive, "linearised=False")
            linear = getattr(learner.predictive, "linearised", False)

        def conditional(x: Inputs) -> tuple[Tensor, Tensor]:
            outputs = joint_outputs(learner, state, x, self.draws, linearised=linear, seed=seed)
            return _conditional(learner, state, outputs)

        (means, noise), (target_means, target_noise) = conditional(x), conditional(targets)
        if learner.likelihood.classification:
            return class_information(means, target_means)
        return gaussian_information(means, noise, target_means, target_noise)


def class_information(p: Tensor, q: Tensor) -> Tensor:
    """The mean over m of `I(y; y*)` from class probabilities p (K, n, C) and q (K, m, D), (n,)."""
    means = q.mean(0)
    joint_rows = q.flatten(1) / len(q)
    gains = []
    for chunk in p.split(_rows_at_once(means.numel() * p.shape[2]), dim=1):
        joint = (chunk.flatten(1).mT @ joint_rows).reshape(*chunk.shape[1:], *means.shape)
        independent = chunk.mean(0)[..., None, None] * means
        gain = torch.xlogy(joint, joint) - torch.xlogy(joint, independent)
        gains.append(gain.sum((1, 3)).mean(1))
    return torch.cat(gains).clamp_min(0.0)  # rounding may give small negative values


def gaussian_information(f: Tensor, noise: Tensor, g: Tensor, target_noise: Tensor) -> Tensor:
    """The mean over m of `−½ Σ_d log(1 − ρ²)`, (n,).

    ρ follows from means f (K, n, D) and g (K, m, D) of y given the weights, and from the noise
    variances (n, D) and (m, D).
    """
    f, g = f - f.mean(0), g - g.mean(0)
    variance, target_variance = f.square().mean(0) + noise, g.square().mean(0) + target_noise
    gains = []
    size = _rows_at_once(target_variance.numel())
    for chunk, total in zip(f.split(size, dim=1), variance.split(size), strict=True):
        covariance = torch.einsum("knd,kmd->nmd", chunk, g) / len(f)
        squared_correlation = covariance.square() / (total[:, None] * target_variance)
        most = 1.0 - torch.finfo(covariance.dtype).eps
        gains.append(-0.5 * torch.log1p(-squared_correlation.clamp_max(most)).sum(-1).mean(-1))
    return torch.cat(gains)


def joint_outputs(
    learner: Learner, state: State, x: Inputs, num: int, *, linearised: bool, seed: int
) -> Tensor:
    """Draws of the outputs (K, n, *), at the same weights for all inputs of one seed."""
    x = as_inputs(x, state)
    if not linearised:
        return outputs_at(learner, state, x, Draws(num), seed=seed)
    parts = [_linearised_draws(learner, state, part, num, seed) for part in pieces(x, _BATCH)]
    return torch.cat(parts, 1)


@torch.enable_grad()
def _linearised_draws(learner: Learner, state: State, x: Inputs, num: int, seed: int) -> Tensor:
    """`f(m) + J (θ − m)`, (K, n, *), by `J δ = ∂(δᵀ Jᵀ u)/∂u`: one graph serves all draws."""
    mean = as_leaves(state.posterior.mean)
    outputs = learner.network(mean, dict(state.buffers), x, training=False)
    dual = torch.zeros_like(outputs, requires_grad=True)
    weights = list(mean.values())
    slopes = torch.autograd.grad(outputs, weights, dual, create_graph=True, allow_unused=True)
    used = {name: slope for name, slope in zip(mean, slopes, strict=True) if slope is not None}
    generator = seeds.generator(outputs.device, seed, 0)
    changes: list[Tensor] = []
    for _ in range(num):
        drawn = state.posterior.sample(generator)
        along = [drawn[name] - mean[name].detach() for name in used]
        changes += torch.autograd.grad(list(used.values()), dual, along, retain_graph=True)
    return outputs.detach() + torch.stack(changes)


def _conditional(learner: Learner, state: State, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """The mean (K, n, D) of y given each draw, and the expected variance of y (n, D).

    For classes the means are the class probabilities, in two columns for a yes-or-no target.
    """
    targets = learner.likelihood.distribution(outputs, state.likelihood)
    draws, num = outputs.shape[:2]
    means = targets.mean.reshape(draws, num, -1)
    variance = targets.variance.mean(0).reshape(num, -1)
    if not targets.classification or targets.class_numbers:
        return means, variance
    if means.shape[-1] > 1:
        got = f"{means.shape[-1]} yes-or-no targets"
        raise TypeError(f"EPIG is for one choice for each input, got {got}; use LargestVariance().")
    return torch.cat([1.0 - means, means], dim=-1), variance


def _rows_at_once(numbers: int) -> int:
    """How many rows to hold at once, at so many `numbers` for each."""
    return max(1, _ROOM // numbers)


def _prediction(
    learner: Learner, state: State, x: Inputs, how: How | None, generator: Generator
) -> Prediction:
    refuse_mean_only(how or learner.predictive, "how=Draws(32)")
    return predict(learner, state, x, how, seed=_seed(generator))


def _seed(generator: Generator) -> int:
    return int(torch.randint(2**31, (), generator=generator, device=generator.device))
