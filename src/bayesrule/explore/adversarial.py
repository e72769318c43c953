"""Small changes of images that make a network predict another class, without gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrule.explore.inference import Bounds, FixedNetwork, clamp, input_prior, posterior_moments
from bayesrule.learner import Learner
from bayesrule.moments import GaussianTensor
from bayesrule.predicting.predict import predict
from bayesrule.types import State

Step = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Attack:
    """The result of an attack on n images.

    `images` (n, *) are the changed images and `change` what was added; `target` (n,) is the wanted
    class and `labels` (n,) the class that the network now predicts; `iterations` (n,) counts the
    steps until it predicted the target: 0 if it did from the start, all steps if it never did.
    """

    images: Tensor
    change: Tensor
    target: Tensor
    labels: Tensor
    iterations: Tensor

    @property
    def success(self) -> Tensor:
        """Whether the network predicts the target, (n,)."""
        return self.labels == self.target

    @property
    def rate(self) -> float:
        """The share of images for which the attack succeeded."""
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
    """Changes images x (n, *) until the network predicts another class for them.

    The images have the prior `N(x, variance)` and are inferred, as in `infer_inputs`, from the
    wanted class: one number, or one for each image. An image is finished as soon as `predict` gives
    that class.

    - `times`: the class counts as observed so many times, which removes most of the likelihood's
      noise.
    - `only_inputs`: the class explains only that part of the outputs' variance that the images
      cause. With False also the part that the weights cause; many more steps are needed then.
    - `reach`: no pixel moves by more standard deviations in a step; a smaller reach makes smaller
      changes in more steps.
    - `carry`: the posterior variance of a step is the prior variance of the next; without it each
      step starts again from `variance`.
    - `bounds`: the least and the largest value of a pixel, in the units of training, as `variance`.

    >>> from torch import nn
    >>> from bayesrule import CategoricalLikelihood, tagi
    >>> model = nn.Linear(4, 3)
    >>> with torch.no_grad():
    ...     _ = model.weight.copy_(torch.eye(3, 4)), model.bias.zero_()
    >>> learner = tagi(model, CategoricalLikelihood(), num_data=1, gain=0.1)
    >>> result = attack(learner, learner.init(), torch.zeros(5, 4), 2, variance=1.0)
    >>> result.rate, result.labels
    (1.0, tensor([2, 2, 2, 2, 2]))
    """
    if not learner.likelihood.classification:
        raise TypeError(
            f"An attack needs classes, got {type(learner.likelihood).__name__}; for other outputs "
            "use infer_inputs."
        )
    if steps < 1 or times < 1:
        raise ValueError(f"steps and times are at least 1, got {steps} and {times}.")
    network = FixedNetwork(learner, state)
    (centre,), _, prior = input_prior((x,), variance, state)
    target = torch.as_tensor(target_class, device=centre.device)
    if target.ndim and target.shape != centre.shape[:1]:
        raise ValueError(f"There are {len(centre)} images but {len(target)} target classes.")
    target = target.expand(len(centre))

    def step(images: Tensor, variance: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        propagation, outputs = network.forward(GaussianTensor(images, variance))
        explained = outputs.variance
        if only_inputs:
            _, fixed = network.forward(images)
            explained = (explained - fixed.variance).clamp_min(1e-6 * explained)
        network.back(outputs, classes, explained, times=times)
        # Overshooting does no harm here, so the step is not shortened as in infer_inputs.
        mean, posterior = posterior_moments(propagation.inputs[0], reach=reach)
        return clamp(mean, bounds), posterior if carry else variance

    parts = []
    for start in range(0, len(centre), batch_size):
        rows = slice(start, start + batch_size)
        batch = centre[rows].clone(), prior.variance[rows].clone(), target[rows]
        parts.append(_attack_batch(network, *batch, step, steps))
    images, labels, iterations = (torch.cat(part) for part in zip(*parts, strict=True))
    return Attack(images, images - centre, target, labels, iterations)


def _attack_batch(
    network: FixedNetwork, x: Tensor, variance: Tensor, target: Tensor, step: Step, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Images, labels and iterations of one batch; x and variance are changed in place."""
    labels = predict(network.learner, network.state, x).labels
    iterations = torch.zeros_like(target)
    for _ in range(steps):
        left = (labels != target).nonzero().squeeze(1)
        if not len(left):
            break
        x[left], variance[left] = step(x[left], variance[left], target[left])
        labels[left] = predict(network.learner, network.state, x[left]).labels
        iterations[left] += 1
    return x, labels, iterations
