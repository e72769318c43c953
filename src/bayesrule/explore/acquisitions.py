"""What to have labelled next: how much each unlabelled input would tell."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from bayesrule.expectations import AtMean, Draws
from bayesrule.learner import Learner
from bayesrule.likelihoods._base import per_example
from bayesrule.predicting.predict import How, Linearised, as_inputs, outputs_at, predict
from bayesrule.predicting.prediction import Prediction
from bayesrule.tensors import seeds
from bayesrule.tensors.network import Inputs, num_examples, take
from bayesrule.types import State

# Numbers that are held at once for pairs of pool and target inputs.
_ROOM = 4_000_000
_BATCH = 4096


class Criterion(ABC):
    """Scores unlabelled inputs; the one with the largest score is labelled next."""

    @abstractmethod
    def scores(
        self, learner: Learner, state: State, x_pool: Inputs, generator: Generator
    ) -> Tensor:
        """How much the label of each input of x_pool (n, *) is worth, (n,)."""

    def placed(self, place: Callable[[Inputs], Inputs]) -> Criterion:
        """The same criterion where the learner sees inputs as `place` gives them."""
        return self


@dataclass(frozen=True)
class Random(Criterion):
    """Any input is as good as another: what the other criteria are to be held against."""

    def scores(
        self, learner: Learner, state: State, x_pool: Inputs, generator: Generator
    ) -> Tensor:
        return torch.rand(num_examples(x_pool), generator=generator, device=generator.device)


@dataclass(frozen=True)
class LargestVariance(Criterion):
    """The epistemic variance of y, summed over outputs or classes.

    With the same noise everywhere this orders inputs as the information about the weights does;
    MacKay (1992). `how` is that of `br.predict`.
    """

    how: How | None = None

    def scores(
        self, learner: Learner, state: State, x_pool: Inputs, generator: Generator
    ) -> Tensor:
        return per_example(_believed(learner, state, x_pool, self.how, generator).epistemic)


@dataclass(frozen=True)
class BALD(Criterion):
    """The information that y would give about the weights, in nats; Houlsby et al. (2011).

    Classes: `H[E p] − E H[p]`. Numbers: `½ Σ log(1 + epistemic / aleatoric)` over the outputs,
    which is exact for one Gaussian output under Gaussian noise. `how` is that of `br.predict`;
    where it is closed-form (`Linearised`, `Moments`), classes are to second order.
    """

    how: How | None = None

    def scores(
        self, learner: Learner, state: State, x_pool: Inputs, generator: Generator
    ) -> Tensor:
        found = _believed(learner, state, x_pool, self.how, generator)
        if found.classification:
            return found.mutual_information
        return 0.5 * per_example(torch.log1p(found.epistemic / found.aleatoric))


@dataclass(frozen=True, eq=False)
class EPIG(Criterion):
    """The information that y would give about y* at other inputs, `E_x* I(y; y*)`, in nats.

    Unlike BALD it asks what helps to predict at the `targets` x* (m, *), without which the pool
    stands for them; at most `num_targets` of them are drawn each time. It is taken from `draws` of
    the outputs under the same weights: of `f(m) + J (θ − m)` if `linearised`, else of `f(θ)`, by
    default as the learner predicts. Classes: from the joint probabilities `E[p p*ᵀ]`. Numbers:
    `−½ Σ log(1 − ρ²)` over the outputs, ρ the predictive correlation of y and y*.
    Bickford Smith et al. (2023).
    """

    targets: Inputs | None = None
    num_targets: int = 100
    draws: int = 128
    linearised: bool | None = None

    def __post_init__(self) -> None:
        if self.num_targets < 1 or self.draws < 2:
            raise ValueError(
                "EPIG takes at least 1 target and 2 draws, got "
                f"num_targets={self.num_targets} and draws={self.draws}."
            )
        if not isinstance(self.targets, Tensor | tuple | None):
            raise TypeError(
                "targets of EPIG are inputs as a tensor, or a tuple of them, got "
                f"{type(self.targets).__name__}; use torch.as_tensor."
            )

    def placed(self, place: Callable[[Inputs], Inputs]) -> EPIG:
        return self if self.targets is None else replace(self, targets=place(self.targets))

    def scores(
        self, learner: Learner, state: State, x_pool: Inputs, generator: Generator
    ) -> Tensor:
        targets, seed = self._some(x_pool, generator), _seed(generator)
        way = self._linearised(learner)

        def drawn(x: Inputs) -> tuple[Tensor, Tensor]:
            outputs = joint_outputs(learner, state, x, self.draws, linearised=way, seed=seed)
            return _conditional(learner, state, outputs)

        (here, noise), (there, noise_there) = drawn(x_pool), drawn(targets)
        if learner.likelihood.classification:
            return class_information(_classes(learner, here), _classes(learner, there))
        return gaussian_information(here, noise, there, noise_there)

    def _linearised(self, learner: Learner) -> bool:
        if self.linearised is not None:
            return self.linearised
        _refuse_no_belief(learner.predictive, "linearised=False")
        return isinstance(learner.predictive, Linearised)

    def _some(self, x_pool: Inputs, generator: Generator) -> Inputs:
        known = x_pool if self.targets is None else self.targets
        order = torch.randperm(num_examples(known), generator=generator, device=generator.device)
        like = known if isinstance(known, Tensor) else known[0]
        return take(known, order[: self.num_targets].to(like.device))


def class_information(p: Tensor, q: Tensor) -> Tensor:
    """The mean over m of `I(y; y*)` from class probabilities p (K, n, C) and q (K, m, D), (n,)."""
    means = q.mean(0)
    joint_rows = q.flatten(1) / len(q)
    parts = []
    for rows in _pieces(p.shape[1], means.numel() * p.shape[2]):
        own = p[:, rows]
        joint = (own.flatten(1).mT @ joint_rows).reshape(*own.shape[1:], *means.shape)
        apart = own.mean(0)[..., None, None] * means
        gain = torch.xlogy(joint, joint) - torch.xlogy(joint, apart)
        parts.append(gain.sum((1, 3)).mean(1))
    return torch.cat(parts).clamp_min(0.0)  # draws that agree may round below 0


def gaussian_information(f: Tensor, noise: Tensor, g: Tensor, noise_there: Tensor) -> Tensor:
    """The mean over m of `−½ Σ_d log(1 − ρ²)`, (n,).

    From means f (K, n, D) and g (K, m, D) of y given the weights, and the noise variances (n, D)
    and (m, D).
    """
    f, g = f - f.mean(0), g - g.mean(0)
    own, other = f.square().mean(0) + noise, g.square().mean(0) + noise_there
    parts = []
    for rows in _pieces(f.shape[1], other.numel()):
        shared = torch.einsum("knd,kmd->nmd", f[:, rows], g) / len(f)
        share = shared.square() / (own[rows, None] * other)
        most = 1.0 - torch.finfo(share.dtype).eps
        parts.append(-0.5 * torch.log1p(-share.clamp_max(most)).sum(-1).mean(-1))
    return torch.cat(parts)


def joint_outputs(
    learner: Learner, state: State, x: Inputs, num: int, *, linearised: bool, seed: int
) -> Tensor:
    """Draws of the outputs (K, n, *); one seed gives all inputs the same weights."""
    x = as_inputs(x, state)
    if not linearised:
        return outputs_at(learner, state, x, Draws(num), seed=seed)
    parts = [take(x, slice(i, i + _BATCH)) for i in range(0, num_examples(x), _BATCH)]
    return torch.cat([_linearised_draws(learner, state, part, num, seed) for part in parts], 1)


@torch.enable_grad()
def _linearised_draws(learner: Learner, state: State, x: Inputs, num: int, seed: int) -> Tensor:
    """`f(m) + J (θ − m)`, (K, n, *), with `J δ = ∂(δᵀ Jᵀ u)/∂u`: one graph for all draws."""
    mean = {name: value.detach().requires_grad_() for name, value in state.posterior.mean.items()}
    outputs = learner.network(mean, dict(state.buffers), x, training=False)
    dual = torch.zeros_like(outputs, requires_grad=True)
    given = list(mean.values())
    slopes = torch.autograd.grad(outputs, given, dual, create_graph=True, allow_unused=True)
    used = {name: slope for name, slope in zip(mean, slopes, strict=True) if slope is not None}
    generator = seeds.generator(outputs.device, seed, 0)
    drawn: list[Tensor] = []
    for _ in range(num):
        offset = state.posterior.offset(generator)
        along = [offset[name] for name in used]
        drawn += torch.autograd.grad(list(used.values()), dual, along, retain_graph=True)
    return outputs.detach() + torch.stack(drawn)


def _conditional(learner: Learner, state: State, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """The mean (K, n, D) of y given each draw, and its expected variance (n, D)."""
    found = [learner.likelihood.moments(f, state.likelihood) for f in outputs]
    means = torch.stack([mean for mean, _ in found])
    variance = torch.stack([spread for _, spread in found]).mean(0)
    return means.reshape(*outputs.shape[:2], -1), variance.reshape(outputs.shape[1], -1)


def _classes(learner: Learner, means: Tensor) -> Tensor:
    """Probabilities (K, n, C); two columns for a yes-or-no target."""
    if learner.likelihood.distribution_class.class_numbers:
        return means
    if means.shape[-1] > 1:
        raise TypeError(
            "EPIG is for one choice for each input, got "
            f"{means.shape[-1]} yes-or-no targets; LargestVariance() takes them together."
        )
    return torch.cat([1.0 - means, means], dim=-1)


def _pieces(num: int, each: int) -> Iterator[slice]:
    """So many rows at a time that there is room for `each` numbers for every one."""
    step = max(1, _ROOM // each)
    for start in range(0, num, step):
        yield slice(start, start + step)


def _believed(
    learner: Learner, state: State, x: Inputs, how: How | None, generator: Generator
) -> Prediction:
    _refuse_no_belief(how or learner.predictive, "how=Draws(32)")
    return predict(learner, state, x, how, seed=_seed(generator))


def _refuse_no_belief(how: object, instead: str) -> None:
    if isinstance(how, AtMean):
        raise ValueError(
            "This learner predicts at the mean of its weights, where it is sure of everything, so "
            "no label would tell more than another. Use a method with a belief (vogn, laplace, "
            f"tagi, ...), have weights drawn ({instead}), or take Random()."
        )


def _seed(generator: Generator) -> int:
    return int(torch.randint(2**31, (), generator=generator, device=generator.device))
