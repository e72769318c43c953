"""Adversarial images found by inference: how many deceive a network trained by TAGI?

    python benchmarks/adversarial.py [--task mnist-cnn] [--device cpu] [--out FILE.json]

A network is trained as `python -m benchmarks images` trains it, or read from a file that `--save`
wrote (`--state`). Then test images, standardised as in training, are changed in that standardised space,
where `variance` is 0.03² for digits and 0.1² for CIFAR-10, in at most 10 and 50 iterations, until
the network takes them for another class, drawn at random. Success is that `predict` gives that
class. The first variant is `attack` as it is; the others say what its choices are worth.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bayesrule as br
from bayesrule.app.provenance import machine, versions
from bayesrule.likelihoods import OneHotLikelihood
from bayesrule.training import checkpoint
from benchmarks import images
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
    task: str, device: str, epochs: int | None, num: int | None, state: Path | None
) -> tuple[br.Learner, br.State]:
    """A network and what it has learned, now or before."""
    if state is None:
        _, learner, found = images.run(
            task, device=device, epochs=epochs, num=num, show=lambda figures: print(figures)
        )
        return learner, found
    chosen = images.TASKS[task]
    model = fan_in_normal(chosen.model()).to(device)
    likelihood = OneHotLikelihood(chosen.noise)
    learner = br.tagi(model, likelihood, num_data=60_000, gain=chosen.gain)
    return learner, checkpoint.load(state, learner.init())[0]


def test_images(task: str, first: int, num: int, device: str) -> tuple[Tensor, Tensor]:
    """Some test images, standardised, and their classes."""
    data, rows = images.TASKS[task].data().standardised(), slice(first, first + num)
    return data.x_test[rows].to(device), data.y_test[rows].to(device)


def other_classes(y: Tensor, num_classes: int = 10, seed: int = 0) -> Tensor:
    """For each class another one, drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    shift = torch.randint(1, num_classes, y.shape, generator=generator)
    return (y + shift.to(y.device)) % num_classes


def figures(
    learner: br.Learner, state: br.State, x: Tensor, target: Tensor, **options: Any
) -> dict[str, float | None]:
    """What became of an attack; means are over the images that deceive."""
    begun = time.perf_counter()
    found = br.attack(learner, state, x, target, **options)

    def mean(values: Tensor) -> float | None:
        return float(values[found.success].double().mean()) if found.success.any() else None

    return {
        "success": found.rate,
        "mean_iterations": mean(found.iterations),
        "mean_distance": mean(found.distance),
        "mean_largest": mean(found.largest),
        "seconds": time.perf_counter() - begun,
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--task", choices=list(images.TASKS), default="mnist-cnn")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--train", type=int, help="how many images to train on; all if not said")
    parser.add_argument("--num", type=int, default=1000, help="how many test images to attack")
    parser.add_argument("--first", type=int, default=0, help="the first test image to attack")
    parser.add_argument("--short", action="store_true", help="the first variant alone")
    parser.add_argument("--state", type=Path, help="a trained state instead of training")
    parser.add_argument("--save", type=Path, help="where to write the trained state")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> int:
    """Trains or reads a network, attacks it in several ways and writes what was found."""
    options = _options()
    learner, state = trained(
        options.task, options.device, options.epochs, options.train, options.state
    )
    if options.save:
        checkpoint.save(options.save, state)
    x, y = test_images(options.task, options.first, options.num, options.device)
    error = images.scores(learner, state, x, y)["error"]
    target, limits = other_classes(y), reach(options.task)
    results = {}
    for name, variant in list(VARIANTS.items())[: 1 if options.short else None]:
        results[name] = figures(learner, state, x, target, **limits, **variant)
        print(name, results[name], flush=True)
    result = {
        "benchmark": "adversarial",
        "task": options.task,
        "epochs": options.epochs,
        "first_image": options.first,
        "num_images": options.num,
        "error_before": error,
        **limits,
        "bar": BAR,
        "results": results,
        "versions": versions(),
        "machine": machine(),
        "command": " ".join(["python", "benchmarks/adversarial.py", *sys.argv[1:]]),
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")
    success = results["as it is"]["success"]
    assert success is not None
    return int(success < BAR)


if __name__ == "__main__":
    sys.exit(main())
