"""TAGI on images: the papers' nets, accuracy after each epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from bayesrule.app.provenance import machine, versions
from bayesrule.execution.compiled import Compiled
from bayesrule.learner import Learner
from bayesrule.likelihoods import OneHotLikelihood
from bayesrule.methods import tagi
from bayesrule.predicting import metrics
from bayesrule.predicting.predict import predict
from bayesrule.rules import Conditioning
from bayesrule.training.models import mlp
from bayesrule.training.net import renew_averages
from bayesrule.types import State
from benchmarks.data import cifar10, fashion_mnist, mnist
from benchmarks.data.images import Images
from benchmarks.models import fan_in_normal, lenet, resnet18
from benchmarks.precision import fast_math


@dataclass(frozen=True)
class Task:
    """A net on a set of images, with its training settings.

    `published` is the published error in percent, if there is one.
    """

    title: str
    data: Callable[[], Images]
    model: Callable[[], nn.Module]
    batch_size: int
    epochs: int
    gain: float
    noise: float
    reach: float
    augmented: bool
    published: float | None


def _fnn() -> nn.Module:
    return nn.Sequential(nn.Flatten(), mlp(784, 10, (256, 256)))


def _color_cnn() -> nn.Module:
    return lenet(channels=3, size=32)


TASKS = {
    "mnist-fnn": Task("MNIST, 784-256-256-10", mnist, _fnn, 16, 3, 1.0, 0.1, 0.5, False, None),
    "mnist-cnn": Task("MNIST, 32c5-64c5-fc256", mnist, lenet, 64, 5, 1.0, 0.1, 0.1, False, 0.85),
    "fashion-cnn": Task(
        "Fashion-MNIST, 32c5-64c5-fc256", fashion_mnist, lenet, 64, 10, 1.0, 0.1, 0.1, False, None
    ),
    "cifar10-cnn": Task(
        "CIFAR-10, 32c5-64c5-fc256", cifar10, _color_cnn, 64, 5, 1.0, 0.1, 0.1, False, None
    ),
    "cifar10-resnet18": Task(
        "CIFAR-10, ResNet-18", cifar10, resnet18, 128, 50, 0.3, 0.1, 0.1, True, 13.8
    ),
}


def run(
    name: str,
    *,
    device: str = "cpu",
    epochs: int | None = None,
    seed: int = 0,
    fused: bool | None = None,
    every: int = 1,
    held_out: int = 0,
    num: int | None = None,
    show: Callable[[dict[str, float]], None] = lambda figures: None,
) -> tuple[dict[str, Any], Learner, State]:
    """Trains a task: its figures by epoch, the learner and the state.

    With `held_out`, that many of the last training images replace the test images, for choosing
    settings. `num` is the number of training images. `fused` compiles the step on a CPU, too.
    """
    with fast_math(device) as precision:
        result, learner, state = _run(name, device, epochs, seed, fused, every, held_out, num, show)
    return {**result, "precision": precision}, learner, state


def _run(
    name: str,
    device: str,
    epochs: int | None,
    seed: int,
    fused: bool | None,
    every: int,
    held_out: int,
    num: int | None,
    show: Callable[[dict[str, float]], None],
) -> tuple[dict[str, Any], Learner, State]:
    task = TASKS[name]
    x, y, x_test, y_test = split(task.data(), device, held_out, num)
    model = fan_in_normal(task.model(), seed).to(device)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    likelihood = OneHotLikelihood(task.noise)
    rule = Conditioning(reach=task.reach)
    learner = tagi(model, likelihood, num_data=len(y), gain=task.gain, rule=rule)
    state, generator = learner.init(seed), Generator(device).manual_seed(seed)
    compiled = fused if fused is not None else device.startswith("cuda")
    step = Compiled(learner).step if compiled else learner.step
    history: list[dict[str, float]] = []
    for epoch in range(epochs or task.epochs):
        begun = time.perf_counter()
        images = shifted_and_mirrored(x, generator) if task.augmented else x
        for batch in _batches(images, y, task.batch_size, generator):
            state, info = step(state, batch, donate=True)
        loss = float(info.loss)  # waits for the device, so that the time is that of the epoch
        figures = {"epoch": epoch + 1, "loss": loss, "seconds": time.perf_counter() - begun}
        if (epoch + 1) % every == 0 or epoch + 1 == (epochs or task.epochs):
            settled = renew_averages(
                learner, state, _batches(images, y, task.batch_size, generator)
            )
            figures |= scores(learner, settled, x_test, y_test)
        history.append(figures)
        show(figures)
    settings = {k: v for k, v in asdict(task).items() if not callable(v)}
    result = {
        "task": name,
        **settings,
        "seed": seed,
        "device": device,
        "test": "held-out training images" if held_out else "test images",
        "history": history,
        "versions": versions(),
        "machine": machine(),
    }
    return result, learner, settled


def scores(learner: Learner, state: State, x: Tensor, y: Tensor) -> dict[str, float]:
    """Error in percent, negative log-likelihood and calibration error."""
    found = predict(learner, state, x, batch_size=1000)
    return {
        "error": 100.0 * float((found.labels != y).double().mean()),
        "nll": -float(found.log_prob(y).mean()),
        "ece": float(metrics.ece(found.probs, y)),
    }


def shifted_and_mirrored(x: Tensor, generator: Generator, reach: int = 4) -> Tensor:
    """Images (n, c, h, w) moved by up to `reach` pixels, half of them mirrored."""
    n, _, height, width = x.shape
    padded = functional.pad(x, (reach,) * 4)
    options: dict[str, Any] = {"generator": generator, "device": x.device}
    down, right = (torch.randint(0, 2 * reach + 1, (n, 1), **options) for _ in range(2))
    mirrored = torch.rand(n, 1, **options) < 0.5
    rows = torch.arange(height, device=x.device) + down
    columns = torch.arange(width, device=x.device)
    columns = torch.where(mirrored, columns.flip(0), columns) + right
    picked = padded.gather(2, rows[:, None, :, None].expand(-1, x.shape[1], -1, padded.shape[3]))
    return picked.gather(3, columns[:, None, None, :].expand(-1, x.shape[1], height, -1))


def _batches(x: Tensor, y: Tensor, size: int, generator: Generator) -> Iterator[Any]:
    """Full batches in random order; the rest waits for another epoch."""
    order = torch.randperm(len(y), generator=generator, device=y.device)
    for rows in order.split(size):
        if len(rows) == size:
            yield x[rows].contiguous(memory_format=torch.channels_last), y[rows]


def split(data: Images, device: str, held_out: int, num: int | None) -> tuple[Tensor, ...]:
    """Training and test images and their classes; see `run` for `held_out` and `num`."""
    found = data.standardised()
    x, y, x_test, y_test = (
        part.to(device) for part in (found.x_train, found.y_train, found.x_test, found.y_test)
    )
    if held_out:
        x, y, x_test, y_test = x[:-held_out], y[:-held_out], x[-held_out:], y[-held_out:]
    return x[:num], y[:num], x_test, y_test
