"""Gaussian inference of inputs and hidden units through a network whose weights stay fixed.

Goulet, Nguyen & Amiri (2021). `infer_inputs` infers which inputs would give a wanted output, and
`infer_hidden` what targets tell about hidden units.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from bayesrule.expectations import Look, Moments
from bayesrule.learner import Learner
from bayesrule.likelihoods._base import Marginal, per_example
from bayesrule.moments import GaussianTensor, Propagation, uncertain
from bayesrule.predicting.predict import as_inputs, independent_variances
from bayesrule.tensors.network import Inputs, num_examples, take
from bayesrule.types import Params, State

Bounds: TypeAlias = tuple[Any, Any]
"""The least and the largest value of an input: two numbers, or tensors that fit one example."""
# The least share of a variance that observations leave.
_LEAST_LEFT = 1e-6


@dataclass(frozen=True, eq=False)
class Inferred:
    """A Gaussian before and after an observation, all tensors of one shape (n, *)."""

    prior_mean: Tensor
    prior_variance: Tensor
    mean: Tensor
    variance: Tensor

    @property
    def std(self) -> Tensor:
        """The square root of the variance."""
        return self.variance.sqrt()


class FixedNetwork:
    """A trained network with fixed weights: Gaussian outputs forward, innovations (δ, η) back.

    After `back`, `posterior_moments` gives any quantity of the forward pass conditioned on y.
    """

    def __init__(self, learner: Learner, state: State, how: Moments | None = None) -> None:
        self.learner, self.state = learner, state
        usual = learner.predictive
        chosen = usual if getattr(usual, "look", None) is Look.MOMENTS else Moments()
        self.how = cast(Moments, (how or cast(Moments, chosen)).as_learned(learner.expectation))
        self._variance = independent_variances(state)

    @torch.no_grad()
    def forward(self, x: Inputs) -> tuple[Propagation, GaussianTensor]:
        """The recorded pass and the outputs at x."""
        propagation = Propagation(self.learner.network, self.how.carried)
        variance, tape = self._variance, propagation.tape
        # Gaussian, but not recorded: `back` skips the weights, which halves its cost.
        weights: Params = {
            name: GaussianTensor(mean, variance[name], tape) if name in variance else mean
            for name, mean in self.state.posterior.mean.items()
        }
        buffers = dict(self.state.buffers)
        return propagation, propagation.forward(weights, {}, buffers, x, training=False)

    def marginal(self, outputs: GaussianTensor) -> Marginal:
        """p(y) with the Gaussian outputs integrated out."""
        likelihood = self.learner.likelihood
        return likelihood.marginal(outputs.centre, outputs.variance, self.state.likelihood)

    @torch.no_grad()
    def back(
        self, outputs: GaussianTensor, y: Tensor, variance: Tensor | None = None, *, times: int = 1
    ) -> Tensor:
        """Propagates the innovations by targets y back from the outputs; returns `log p(y)`, (n,).

        `variance` is the part of the outputs' variance that y informs, by default all of it. y
        counts as observed `times` times, which reduces the noise: first once, then twice at once,
        four times and so on. For k equal observations at once
        `δ_k = k δ / (1 − (k − 1) s η)` and `η_k = k η / (1 − (k − 1) s η)`, exact where
        observations are Gaussian.
        """
        s = outputs.variance if variance is None else variance
        delta, eta = torch.zeros_like(s), torch.zeros_like(s)
        observed, log_probs = 0, []
        while observed < times:
            k = min(observed + 1, times - observed)
            # The share s⁺ / s of the variance that remains after the observations so far. Rounding
            # may take all of it where an output follows from another.
            share = (1.0 + s * eta).clamp_min(_LEAST_LEFT)
            conditioned = self.learner.likelihood.condition(
                outputs.centre + s * delta, s * share, y, self.state.likelihood
            )
            scale = k / (1.0 - (k - 1) * s * share * conditioned.eta)
            delta = delta + share * scale * conditioned.delta
            eta = eta + share.square() * scale * conditioned.eta
            log_probs.append(conditioned.log_prob)
            observed += k
        outputs.tape.back(outputs, delta, eta)
        return log_probs[0]


def posterior_moments(
    x: GaussianTensor, *, reach: float = 10.0, most: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Mean `m + s δ` and variance `s + s² η` of a quantity, after `back`.

    Outputs are taken as independent, so together they may move a quantity too far. The step of an
    example is therefore shortened to `reach` standard deviations of any element, and to the share
    `most` (n,) of its length; a millionth of the variance always stays.
    """
    mean, variance = x.centre, x.variance
    if x.node is None or x.node.delta is None or x.node.eta is None:
        return mean, variance
    std = variance.sqrt()
    step = std * x.node.delta
    longest = step.abs().flatten(1).amax(1) if step.ndim > 1 else step.abs()
    share = reach / longest.clamp_min(reach)
    share = share if most is None else torch.minimum(share, most)
    wide = share.reshape(-1, *[1] * (step.ndim - 1))
    return mean + std * step * wide, variance * (1.0 + variance * x.node.eta).clamp_min(_LEAST_LEFT)


def input_posterior_moments(x: GaussianTensor, outputs: GaussianTensor) -> tuple[Tensor, Tensor]:
    """`posterior_moments` of inputs, with steps that do not move the outputs beyond their target.

    Outputs of variance S are to move by `S δ`. But `J s Jᵀ`, the part of their variance that the
    inputs cause, may exceed S, because S treats hidden units as independent although one input
    drives them all. The step of an example is therefore scaled by `δᵀ S δ / δᵀ J s Jᵀ δ` if that is
    below one.
    """
    if x.node is None or x.node.delta is None:
        return x.centre, x.variance
    assert outputs.node is not None
    assert outputs.node.delta is not None
    wanted = per_example(outputs.variance * outputs.node.delta.square())
    implied = per_example(x.variance * x.node.delta.square())
    tiny = torch.finfo(implied.dtype).tiny
    return posterior_moments(x, most=(wanted / implied.clamp_min(tiny)).clamp_max(1.0))


def input_prior(
    x: Any, variance: Any, state: State
) -> tuple[tuple[Tensor, ...], int, GaussianTensor]:
    """All inputs as tensors, the index of the uncertain one, and its Gaussian prior."""
    inputs = list(x) if isinstance(x, tuple) else [x]
    uncertain_ones = [i for i, part in enumerate(inputs) if isinstance(part, GaussianTensor)]
    if not uncertain_ones and variance is not None and len(inputs) == 1:
        uncertain_ones = [0]
    elif variance is not None or len(uncertain_ones) != 1:
        raise ValueError(
            "There must be one input to infer: a tensor with its `variance`, or one made by "
            f"uncertain(mean, variance). Got {len(inputs)} inputs, {len(uncertain_ones)} of them "
            f"uncertain, and {'no ' if variance is None else 'a '}variance."
        )
    index = uncertain_ones[0]
    if isinstance(inputs[index], GaussianTensor):
        inputs[index], variance = inputs[index].centre, inputs[index].variance
    tensors: tuple[Any, ...] = tuple(as_inputs(part, state) for part in inputs)
    if not tensors[index].is_floating_point():
        got = tensors[index].dtype
        raise TypeError(f"Inputs to be inferred are floating-point numbers, got {got}.")
    return tensors, index, uncertain(tensors[index], variance)


def clamp(x: Tensor, bounds: Bounds | None) -> Tensor:
    """x clipped to the bounds."""
    if bounds is None:
        return x
    low, high = (torch.as_tensor(b, dtype=x.dtype, device=x.device) for b in bounds)
    if not (low < high).all():
        raise ValueError(f"bounds are (least, largest), got {bounds}.")
    return torch.minimum(torch.maximum(x, low), high)


@dataclass(frozen=True, eq=False)
class InferredInputs(Inferred):
    """Inputs before and after inference, and the outputs at each step.

    `output_mean` and `output_variance` (steps, n, *) are the outputs before each step, and
    `log_prob` (steps, n) is `log p(y)` of the wanted outputs there.
    """

    output_mean: Tensor
    output_variance: Tensor
    log_prob: Tensor


@torch.no_grad()
def infer_inputs(
    learner: Learner,
    state: State,
    x: Any,
    y: Any,
    *,
    variance: Any = None,
    steps: int = 1,
    carry: bool = True,
    bounds: Bounds | None = None,
    how: Moments | None = None,
    batch_size: int = 1024,
) -> InferredInputs:
    """Infers the inputs (n, *) that would give a wanted output y: `x̄ + s δ` and `s + s² η`.

    The prior of the inputs is `N(x, variance)`, or x is made by `uncertain`; of several inputs,
    given as a tuple, the uncertain one is inferred. With more `steps` each posterior is the next
    prior; without `carry` only its mean is, and the variance starts again, so that the inputs may
    move further. Each step keeps the inputs within `bounds`, and moves the outputs no further than
    to y.

    >>> from torch import nn
    >>> from bayesrule import GaussianLikelihood, tagi
    >>> model = nn.Linear(1, 1)
    >>> with torch.no_grad():
    ...     _ = model.weight.fill_(2.0), model.bias.zero_()
    >>> learner = tagi(model, GaussianLikelihood(noise=0.1), num_data=1, gain=1e-3)
    >>> x, y = torch.zeros(1, 1), torch.ones(1)
    >>> inferred = infer_inputs(learner, learner.init(), x, y, variance=1)
    >>> inferred.mean, inferred.variance
    (tensor([[0.4988]]), tensor([[0.0025]]))
    """
    if steps < 1:
        raise ValueError(f"steps is at least 1, got {steps}.")
    network = FixedNetwork(learner, state, how)
    inputs, index, prior = input_prior(x, variance, state)
    targets, size = torch.as_tensor(y, device=prior.centre.device), num_examples(inputs)
    if len(targets) != size:
        raise ValueError(f"There are {size} inputs but {len(targets)} wanted outputs.")

    def infer(rows: slice) -> tuple[Tensor, ...]:
        mean, variance = prior.centre[rows], prior.variance[rows]
        batch, outputs_by_step = take(inputs, rows), []
        for _ in range(steps):
            uncertain = GaussianTensor(mean, variance)
            network_inputs = (*batch[:index], uncertain, *batch[index + 1 :])
            propagation, outputs = network.forward(network_inputs)
            log_prob = network.back(outputs, targets[rows])
            moved, posterior = input_posterior_moments(propagation.inputs[index], outputs)
            mean, variance = clamp(moved, bounds), posterior if carry else variance
            outputs_by_step.append((outputs.centre, outputs.variance, log_prob))
        return mean, posterior, *(torch.stack(kind) for kind in zip(*outputs_by_step, strict=True))

    batches = [infer(slice(i, i + batch_size)) for i in range(0, size, batch_size)]
    columns = list(zip(*batches, strict=True))
    mean, spread = (torch.cat(column) for column in columns[:2])
    by_step = (torch.cat(column, dim=1) for column in columns[2:])
    return InferredInputs(prior.centre, prior.variance, mean, spread, *by_step)


@torch.no_grad()
def infer_hidden(
    learner: Learner,
    state: State,
    x: Any,
    y: Any,
    names: Sequence[str] | None = None,
    *,
    how: Moments | None = None,
) -> dict[str, Inferred]:
    """Infers the outputs of submodules from targets y at inputs x (n, *), by submodule name.

    `names` are those of `model.named_modules()`; without them, all submodules whose output is one
    Gaussian tensor. The prior of a hidden unit is the network's prediction of it, the posterior is
    conditioned on y. The weights stay fixed; inputs may be plain or `uncertain`.

    >>> from torch import nn
    >>> from bayesrule import GaussianLikelihood, tagi
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> learner = tagi(model, GaussianLikelihood(noise=0.1), num_data=1)
    >>> units = infer_hidden(learner, learner.init(), torch.ones(5, 2), torch.ones(5, 1))
    >>> {name: tuple(unit.mean.shape) for name, unit in units.items()}
    {'0': (5, 3), '1': (5, 3), '2': (5, 1)}
    """
    network = FixedNetwork(learner, state, how)
    inputs: tuple[Any, ...] = tuple(
        input_prior(part, None, state)[2]
        if isinstance(part, GaussianTensor)
        else as_inputs(part, state)
        for part in (x if isinstance(x, tuple) else (x,))
    )
    modules = _submodules(learner.model, names)
    recorded: dict[str, list[Any]] = {name: [] for name in modules}
    with ExitStack() as hooks:
        for name, module in modules.items():
            hooks.enter_context(module.register_forward_hook(partial(_keep, recorded[name])))
        propagation, outputs = network.forward(inputs)
    network.back(outputs, torch.as_tensor(y, device=outputs.device))
    inferred = {}
    for name, units in recorded.items():
        if len(units) == 1 and isinstance(units[0], GaussianTensor):
            unit = propagation.whole(units[0])
            inferred[name] = Inferred(unit.centre, unit.variance, *posterior_moments(unit))
        elif names is not None:
            kinds = ", ".join(type(unit).__name__ for unit in units) or "nothing"
            raise ValueError(
                f"Hidden units are those of a submodule that is called once and returns one "
                f"Gaussian tensor; {name!r} ({type(modules[name]).__name__}) returned {kinds}."
            )
    return inferred


def _submodules(model: nn.Module, names: Sequence[str] | None) -> dict[str, nn.Module]:
    modules = {name: module for name, module in model.named_modules() if name}
    wanted = [names] if isinstance(names, str) else modules if names is None else names
    for name in wanted:
        if name not in modules:
            raise ValueError(f"The model has no submodule {name!r}; it has {', '.join(modules)}.")
    return {name: modules[name] for name in wanted}


def _keep(outputs: list[Any], module: nn.Module, args: Any, output: Any) -> None:
    outputs.append(output)
