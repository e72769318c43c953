"""Adversarial images found by inference: how many deceive a network trained by TAGI?

A network is trained as `python -m benchmarks images` trains it, or read from a file that `--save`
wrote (`--state`). Then test images, standardised as in training, are changed in that standardised
space, where `variance` is 0.03² for digits and 0.1² for CIFAR-10, in at most 10 and 50 iterations,
until the network takes them for another class, drawn at random. An attack succeeds if `predict`
gives that class. The first variant is `attack` at its defaults; the others show what its choices
are worth.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bayesrule as br
from bayesrule.app.provenance import machine, versions
from bayesrule.likelihoods import OneHotLikelihood
from bayesrule.training import checkpoint
from benchmarks.images import tagi
from benchmarks.models import fan_in_normal

BAR = 0.99
VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "variance carried on": {"carry": True},
    "reach of 10 standard deviations": {"reach": 10.0},
    "class seen 1,000 times": {"times": 1000},
    "class seen 100 times": {"times": 100},
    "class seen once": {"times": 1},
    "weights share the blame": {"only_inputs": False},
    "weights share the blame, class seen once": {"only_inputs": False, "times": 1},
}


def reach(task: str) -> dict[str, Any]:
    """Prior variance of a pixel and number of iterations."""
    small = not task.startswith("cifar")
    return {"variance": 0.03**2 if small else 0.1**2, "steps": 10 if small else 50}


def trained(
    task: str,
    *,
    device: str = "cpu",
    epochs: int | None = None,
    num: int | None = None,
    state: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[br.Learner, br.types.State]:
    """A network and its trained state, from training or from a file."""
    if state is None:
        _, learner, found = tagi.run(
            task, device=device, epochs=epochs, num=num, show=lambda each: progress(str(each))
        )
        return learner, found
    chosen = tagi.TASKS[task]
    model = fan_in_normal(chosen.model()).to(device)
    likelihood = OneHotLikelihood(chosen.noise)
    learner = br.tagi(model, likelihood, num_data=60_000, gain=chosen.gain)
    return learner, checkpoint.load(state, learner.init())[0]


def test_images(task: str, first: int, num: int, device: str) -> tuple[Tensor, Tensor]:
    """Some test images, standardised, and their classes."""
    data, rows = tagi.TASKS[task].data().standardised(), slice(first, first + num)
    return data.x_test[rows].to(device), data.y_test[rows].to(device)


def other_classes(y: Tensor, num_classes: int = 10, seed: int = 0) -> Tensor:
    """For each class another one, drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    shift = torch.randint(1, num_classes, y.shape, generator=generator)
    return (y + shift.to(y.device)) % num_classes


def figures(
    learner: br.Learner, state: br.types.State, x: Tensor, target: Tensor, **options: Any
) -> dict[str, float | None]:
    """The outcome of an attack; means are over the images that deceive the network."""
    begun = time.perf_counter()
    found = br.explore.attack(learner, state, x, target, **options)

    def mean(values: Tensor) -> float | None:
        return float(values[found.success].double().mean()) if found.success.any() else None

    return {
        "success": found.rate,
        "mean_iterations": mean(found.iterations),
        "mean_distance": mean(found.distance),
        "mean_largest": mean(found.largest),
        "seconds": time.perf_counter() - begun,
    }


def run(
    task: str,
    learner: br.Learner,
    state: br.types.State,
    *,
    first: int = 0,
    num: int = 1000,
    variants: Sequence[str] = tuple(VARIANTS),
    device: str = "cpu",
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Attacks a trained network on some test images, in several ways."""
    x, y = test_images(task, first, num, device)
    target, limits = other_classes(y), reach(task)
    results = {}
    for name in variants:
        results[name] = figures(learner, state, x, target, **limits, **VARIANTS[name])
        progress(f"{name}: {results[name]}")
    return {
        "benchmark": "adversarial",
        "task": task,
        "first_image": first,
        "num_images": num,
        "error_before": tagi.scores(learner, state, x, y)["error"],
        **limits,
        "bar": BAR,
        "results": results,
        "versions": versions(),
        "machine": machine(),
    }
