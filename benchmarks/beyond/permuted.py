"""Permuted MNIST, task after task: how much binary weights remember of earlier tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

import bayesrule as br
from bayesrule.app.provenance import machine, versions
from bayesrule.learner import Learner
from bayesrule.schedules import falling
from bayesrule.tensors.network import forked_randomness
from bayesrule.types import State
from benchmarks.data import mnist
from benchmarks.images.binary_tasks import PAPER
from benchmarks.images.tagi import split
from benchmarks.precision import fast_math
from benchmarks.trials import loaded, usable

METHODS = ("bayesbinn", "bayesbinn without prior", "ste")


@dataclass(frozen=True)
class Setting:
    """What all methods share, the first learning rate of each, and a temperature.

    With draws as sharp as the paper's, gradients in natural parameters are so large that weights
    are as good as certain up to a `temperature` of about 1e6.

    `width` is that of the two hidden layers, `num` the number of training images. With `held_out`,
    that many training images replace the test images, for choosing settings.
    """

    tasks: int = 5
    epochs: int = 10
    width: int = 400
    num: int | None = None
    held_out: int = 0
    batch_size: int = 100
    device: str = "cpu"
    rate: float = 3e-2
    temperature: float = 1e5
    free_rate: float = 1e-3
    straight_rate: float = 1e-4


def net(width: int, seed: int = 0) -> nn.Sequential:
    """784-width-width-10 without biases.

    Layer norms have no parameters or statistics, so one task cannot spoil those of another.
    """
    with forked_randomness(torch.get_default_device(), seed):
        layers: list[nn.Module] = []
        for inputs, outputs in ((784, width), (width, width)):
            layers += [nn.Linear(inputs, outputs, bias=False)]
            layers += [nn.LayerNorm(outputs, elementwise_affine=False), nn.ReLU()]
        return nn.Sequential(*layers, Scaled(width, 10, bias=False))


class Scaled(nn.Linear):
    """A linear layer whose sums of ±1 weights are rescaled to logits."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2.0 / self.in_features**0.5)


def run(
    setting: Setting,
    *,
    methods: Sequence[str] = METHODS,
    seeds: Sequence[int] = (0, 1, 2),
    previous: dict[str, Any] | None = None,
    show: Callable[[str], None] = lambda line: None,
    keep: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Learns all tasks by each method and seed; trials in `previous` are not repeated."""
    results = list(previous["results"]) if previous else []
    done = {(one["method"], one["seed"]) for one in results}
    missing = [(m, s) for s in seeds for m in methods if (m, s) not in done]
    if previous and not missing:
        return previous
    usable(setting.device)
    result = {**facts(setting), "results": results, "versions": versions(), "machine": machine()}
    data = split(loaded(mnist), setting.device, setting.held_out, setting.num)
    for method, seed in missing:
        with fast_math(setting.device):
            found = _in_turn(setting, method, data, seed)
        results.append({"method": method, "seed": seed, "accuracy": found})
        shown = ", ".join(f"{100 * one:.2f}" for one in found[-1])
        show(f"{method}, seed {seed}: {shown} % of the tasks in turn, after the last")
        keep(result)
    return result


def facts(setting: Setting) -> dict[str, Any]:
    """What all trials of a run share."""
    return {"task": "permuted", **asdict(setting)}


def means(result: dict[str, Any]) -> dict[str, float]:
    """For each method, the mean accuracy over all tasks after the last one, over seeds."""
    found: dict[str, list[float]] = {}
    for one in result["results"]:
        last = one["accuracy"][-1]
        found.setdefault(one["method"], []).append(sum(last) / len(last))
    return {name: sum(each) / len(each) for name, each in found.items()}


def better(result: dict[str, Any]) -> bool:
    """Whether the posterior as the next prior remembers more than the others do."""
    found = means(result)
    return all(found[METHODS[0]] > value for name, value in found.items() if name != METHODS[0])


def _in_turn(setting: Setting, method: str, data: Sequence[Tensor], seed: int) -> list[list[float]]:
    """The accuracy on each of the tasks so far, after each task."""
    x, y, x_test, y_test = data
    orders = _orders(setting.tasks, x.device)
    state: State | None = None
    found = []
    for number, order in enumerate(orders):
        learner = _learner(setting, method, len(y), state, seed)
        batch = x.flatten(1)[:, order], y
        fitted = br.fit(
            learner,
            batch,
            epochs=setting.epochs,
            batch_size=setting.batch_size,
            state=state,
            seed=seed + number,
            progress=False,
            calibrate=False,
        )
        state = fitted.state
        found.append([_right(learner, state, x_test, y_test, o) for o in orders[: number + 1]])
    return found


def _orders(tasks: int, device: torch.device) -> list[Tensor]:
    """The order of pixels in each task; the first has the images as they are."""
    generator = Generator().manual_seed(0)
    orders = [torch.randperm(784, generator=generator) for _ in range(tasks - 1)]
    return [order.to(device) for order in (torch.arange(784), *orders)]


def _learner(
    setting: Setting, method: str, num_data: int, state: State | None, seed: int
) -> Learner:
    """The learner of the next task; for one method, the posterior so far is its prior."""
    parts = net(setting.width, seed).to(setting.device), br.CategoricalLikelihood()
    if method == "ste":
        return br.ste(*parts, num_data=num_data, learning_rate=falling(setting.straight_rate))
    carried = method == METHODS[0]
    rate = falling(setting.rate if carried else setting.free_rate)
    prior = state.posterior if carried and state is not None else None
    options = {**PAPER, "temperature": setting.temperature, "prior": prior}
    return br.bayesbinn(*parts, num_data=num_data, learning_rate=rate, **options)


def _right(learner: Learner, state: State, x: Tensor, y: Tensor, order: Tensor) -> float:
    p = br.predict(learner, state, x.flatten(1)[:, order], batch_size=2000)
    return float((p.labels == y).double().mean())
