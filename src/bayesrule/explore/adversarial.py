"""Images that a network takes for something else, found without gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrule.explore.glance import Bounds, Glance, learned, place, within
from bayesrule.learner import Learner
from bayesrule.moments import GaussianTensor
from bayesrule.predicting.predict import predict
from bayesrule.types import State


@dataclass(frozen=True, eq=False)
class Attack:
    """What became of n images.

    `images` (n, *) are the changed ones and `change` what was added; `target` (n,) is the class
    that was wanted and `labels` (n,) what the network now says; `iterations` (n,) counts the steps
    until it said so: none for an image that was taken for the target from the start, all of them
    where the attack failed.
    """

    images: Tensor
    change: Tensor
    target: Tensor
    labels: Tensor
    iterations: Tensor

    @property
    def success(self) -> Tensor:
        """Whether the network is deceived, (n,)."""
        return self.labels == self.target

    @property
    def rate(self) -> float:
        """The share of images that deceive the network."""
        return float(self.success.double().mean())

    @property
    def distance(self) -> Tensor:
        """The Euclidean length of the change, (n,)."""
        return self.change.flatten(1).norm(dim=1)

    @property
    def largest(self) -> Tensor:
        """The largest change of a pixel, (n,)."""
        return self.change.flatten(1).abs().amax(dim=1)


@torch.no_grad()
def attack(
    learner: Learner,
    state: State,
    x: Any,
    target_class: Any,
    *,
    variance: Any = 0.03**2,
    steps: int = 10,
    carry: bool = False,
    times: int = 10_000,
    reach: float = 30.0,
    only_inputs: bool = True,
    bounds: Bounds | None = None,
    batch_size: int = 256,
) -> Attack:
    """Changes images x (n, *) until the network takes them for another class.

    The images are believed to be `N(x, variance)` and are inferred, as in `infer_inputs`, from the
    class that they are to be taken for: one number or one for each image. An image is left alone
    as soon as `predict` gives that class. The class is a demand and not a datum, so the image alone
    is to blame: the class is taken as seen `times` times at once, which leaves little of the
    likelihood's noise, and only that part of the outputs' variance counts which the images make
    (with `only_inputs=False` the weights share the blame, and many more steps are needed). No pixel
    moves by more than `reach` standard deviations in a step; a shorter reach makes smaller changes
    in more steps. The variance starts again at each step, or is the posterior one with `carry`.
    `bounds` are the least and the largest value of a pixel; they and `variance` are in the units of
    training.

    >>> from torch import nn
    >>> from bayesrule import CategoricalLikelihood, tagi
    >>> model = nn.Linear(4, 3)
    >>> with torch.no_grad():
    ...     _ = model.weight.copy_(torch.eye(3, 4)), model.bias.zero_()
    >>> learner = tagi(model, CategoricalLikelihood(), num_data=1, gain=0.1)
    >>> found = attack(learner, learner.init(), torch.zeros(5, 4), 2, variance=1.0)
    >>> found.rate, found.labels
    (1.0, tensor([2, 2, 2, 2, 2]))
    """
    if not learner.likelihood.classification:
        raise TypeError(
            f"An attack needs classes, got {type(learner.likelihood).__name__}; for other outputs "
            "use infer_inputs."
        )
    if steps < 1 or times < 1:
        raise ValueError(f"steps and times are at least 1, got {steps} and {times}.")
    glance = Glance(learner, state)
    (centre,), _, prior = place((x,), variance, state)
    target = torch.as_tensor(target_class, device=centre.device)
    if target.ndim and target.shape != centre.shape[:1]:
        raise ValueError(f"There are {len(centre)} images but {len(target)} target classes.")
    target = target.expand(len(centre))
    plan = _Plan(steps, carry, times, reach, only_inputs, bounds)
    parts = [
        _batch(glance, centre[at], prior.variance[at], target[at], plan)
        for start in range(0, len(centre), batch_size)
        for at in [slice(start, start + batch_size)]
    ]
    images, labels, iterations = (torch.cat(part) for part in zip(*parts, strict=True))
    return Attack(images, images - centre, target, labels, iterations)


@dataclass(frozen=True)
class _Plan:
    """How an attack goes about it."""

    steps: int
    carry: bool
    times: int
    reach: float
    only_inputs: bool
    bounds: Bounds | None


def _batch(
    glance: Glance, x: Tensor, variance: Tensor, target: Tensor, plan: _Plan
) -> tuple[Tensor, Tensor, Tensor]:
    """Images, labels and iterations of one batch."""
    x, variance = x.clone(), variance.clone()
    labels, iterations = _labels(glance, x), torch.zeros_like(target)
    for _ in range(plan.steps):
        left = (labels != target).nonzero().squeeze(1)
        if not len(left):
            break
        way, outputs = glance.forward(GaussianTensor(x[left], variance[left]))
        own = _own(glance, outputs, x[left]) if plan.only_inputs else None
        glance.back(way, outputs, target[left], variance=own, times=plan.times)
        # Overshooting does no harm here, so the step is not held back as in infer_inputs.
        mean, spread = learned(way.inputs[0], reach=plan.reach)
        x[left] = within(mean, plan.bounds)
        if plan.carry:
            variance[left] = spread
        labels[left] = _labels(glance, x[left])
        iterations[left] += 1
    return x, labels, iterations


def _own(glance: Glance, outputs: GaussianTensor, x: Tensor) -> Tensor:
    """The variance of the outputs that the inputs make: all but what is left with sure inputs."""
    _, sure = glance.forward(x)
    return (outputs.variance - sure.variance).clamp_min(1e-6 * outputs.variance)


def _labels(glance: Glance, x: Tensor) -> Tensor:
    """What the network says of images that are known for sure."""
    return predict(glance.learner, glance.state, x).labels
