"""Posteriors by the ELBO's gradient on images: Variational Laplace, mean-field, k-tied, MAP."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor, nn

from bayesrule import metrics, schedules
from bayesrule.bench.images import shifted_and_mirrored, split
from bayesrule.bench.models import preact_resnet18
from bayesrule.bench.precision import fast_math
from bayesrule.curvature import NoCurvature
from bayesrule.data import cifar10, fashion_mnist
from bayesrule.data.images import Images
from bayesrule.expectations import AtMean, Draws
from bayesrule.learner import Learner
from bayesrule.likelihoods import CategoricalLikelihood
from bayesrule.matrices import Isotropic
from bayesrule.methods import mean_field, variational_laplace
from bayesrule.posteriors import GaussianFamily
from bayesrule.predict import How, predict
from bayesrule.provenance import machine, versions
from bayesrule.replayed import Replayed
from bayesrule.rules import Elbo
from bayesrule.types import State

Figures = dict[str, float]


def point(
    model: nn.Module, likelihood: CategoricalLikelihood, *, learning_rate: Any, **settings: Any
) -> Learner:
    """The most probable weights by the same rule: a belief without variance."""
    settings.pop("scale_multiplier", None)
    return Learner(
        model,
        likelihood,
        posterior=GaussianFamily(Isotropic()),
        expectation=AtMean(),
        curvature=NoCurvature(),
        rule=Elbo(learning_rate),
        **settings,
    )


METHODS: dict[str, Callable[..., Learner]] = {
    "map": point,
    "mean_field": mean_field,
    "variational_laplace": variational_laplace,
}
WAYS: dict[str, dict[str, How]] = {
    "map": {"mean": AtMean()},
    "mean_field": {"mean": AtMean(), "10 draws": Draws(10)},
    "variational_laplace": {"mean": AtMean()},
}


# Second derivatives of batch norm are slow on a GPU.
EXTRA: dict[str, dict[str, Any]] = {"variational_laplace": {"difference": 3e-4}}


@dataclass(frozen=True)
class Task:
    """A net on a set of images, and how every method is trained on it.

    `published` has the paper's figures by method and way of predicting: NLL, accuracy in percent
    and calibration error.
    """

    title: str
    data: Callable[[], Images]
    model: Callable[[], nn.Module]
    epochs: int
    learning_rate: float
    prior_precision: float
    batch_size: int = 128
    augmented: bool = True
    published: dict[str, tuple[float, float, float]] = field(default_factory=dict)


TASKS = {
    "fashion-preact": Task(
        "Fashion-MNIST, PreactResNet-18 with softplus",
        fashion_mnist,
        lambda: preact_resnet18(channels=1),
        epochs=30,
        learning_rate=1e-3,
        prior_precision=100.0,
        published={
            "variational_laplace, mean": (0.16, 94.6, 0.010),
            "mean_field, mean": (0.23, 94.0, 0.034),
            "mean_field, 10 draws": (0.29, 93.6, 0.016),
            "map, mean": (0.29, 93.6, 0.096),
        },
    ),
    "cifar10-preact": Task(
        "CIFAR-10, PreactResNet-18 with softplus",
        cifar10,
        preact_resnet18,
        epochs=50,
        learning_rate=1e-3,
        prior_precision=100.0,
        published={
            "variational_laplace, mean": (0.23, 92.4, 0.017),
            "mean_field, mean": (0.37, 91.1, 0.053),
            "mean_field, 10 draws": (0.35, 90.2, 0.044),
            "map, mean": (0.43, 90.8, 0.058),
        },
    ),
}


@dataclass(frozen=True)
class Trial:
    """One method at one temperature."""

    method: str
    temperature: float = 1.0
    scale_multiplier: float = 10.0


def train(
    task: Task,
    trial: Trial,
    data: Sequence[Tensor],
    *,
    epochs: int | None = None,
    seed: int = 0,
    show: Callable[[Figures], None] = lambda figures: None,
) -> tuple[Learner, State, list[Figures]]:
    """Trains one method; the loss and the ELBO, per datum, after each epoch."""
    x, y = data
    device, num = x.device, epochs or task.epochs
    model = task.model().to(device)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    steps = num * (len(y) // task.batch_size)
    learner = METHODS[trial.method](
        model,
        CategoricalLikelihood(),
        num_data=len(y),
        learning_rate=schedules.cosine(task.learning_rate, steps, warmup=steps // 50),
        scale_multiplier=trial.scale_multiplier,
        **EXTRA.get(trial.method, {}),
        prior_precision=task.prior_precision,
        temperature=trial.temperature,
    )
    state, generator = learner.init(seed), Generator(device).manual_seed(seed)
    step, history = Replayed(learner).step, []
    for epoch in range(num):
        begun, total = time.perf_counter(), torch.zeros((), device=device)
        images = shifted_and_mirrored(x, generator) if task.augmented else x
        order = torch.randperm(len(y), generator=generator, device=device)
        batches = order.split(task.batch_size)[: len(y) // task.batch_size]
        for rows in batches:
            given = images[rows].contiguous(memory_format=torch.channels_last)
            state, info = step(state, (given, y[rows]), donate=True)
            total += info.loss
        loss = float(total) / len(batches) / len(y)
        figures = {"epoch": epoch + 1, "loss": loss, "elbo": float(info.elbo) / len(y)}
        history.append({**figures, "seconds": time.perf_counter() - begun})
        show(history[-1])
    return learner, state, history


def scores(
    learner: Learner, state: State, x: Tensor, y: Tensor, how: How, seed: int = 0
) -> Figures:
    """NLL, accuracy in percent and calibration error."""
    parts = [
        predict(learner, state, x[rows], how, seed=seed)
        for rows in torch.arange(len(y), device=x.device).split(2000)
    ]
    probs = torch.cat([part.probs for part in parts])
    log_prob = torch.cat([p.log_prob(t) for p, t in zip(parts, y.split(2000), strict=True)])
    return {
        "nll": -float(log_prob.mean()),
        "accuracy": 100.0 * float((probs.argmax(-1) == y).double().mean()),
        "ece": float(metrics.ece(probs, y)),
    }


def run(
    name: str,
    trials: Sequence[Trial],
    *,
    device: str = "cpu",
    epochs: int | None = None,
    num: int | None = None,
    held_out: int = 5000,
    seed: int = 0,
    show: Callable[[str], None] = lambda line: None,
    keep: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Trains every trial on all but the last `held_out` training images; scores those and the test.

    The temperature of a method is to be chosen by what it does on the held-out images.
    """
    task = TASKS[name]
    x, y, x_held, y_held = split(task.data(), device, held_out, num)
    _, _, x_test, y_test = split(task.data(), device, 0, num)
    results: list[dict[str, Any]] = []
    result = {
        "task": name,
        "title": task.title,
        "epochs": epochs or task.epochs,
        "learning_rate": task.learning_rate,
        "prior_precision": task.prior_precision,
        "batch_size": task.batch_size,
        "num_data": len(y),
        "held_out": held_out,
        "seed": seed,
        "device": device,
        "published": {k: list(v) for k, v in task.published.items()},
        "results": results,
        "versions": versions(),
        "machine": machine(),
    }
    with fast_math(device) as precision:
        result["precision"] = precision
        for trial in trials:
            show(f"{trial.method}, temperature {trial.temperature:g}")
            learner, state, history = train(task, trial, (x, y), epochs=epochs, seed=seed)
            for way, how in WAYS[trial.method].items():
                found = {
                    **vars(trial),
                    "way": way,
                    "held_out": scores(learner, state, x_held, y_held, how),
                    "test": scores(learner, state, x_test, y_test, how),
                    "history": history,
                }
                results.append(found)
                show(f"  {way}: {found['held_out']}")
            keep(result)
    return result
