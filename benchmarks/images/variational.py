"""Methods at several temperatures on images: ELBO gradients, noisy natural gradients, points."""

from __future__ import annotations

import math
import time
from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Generator, Tensor

from bayesrule import schedules
from bayesrule.app.data.errors import nearest
from bayesrule.app.provenance import machine, versions
from bayesrule.curvature import Problem, SecondOrder
from bayesrule.execution.replayed import Replayed, replay_obstacle
from bayesrule.learner import Learner
from bayesrule.likelihoods import CategoricalLikelihood
from bayesrule.posteriors.factorised import Factorised, StdSlope
from bayesrule.predicting import metrics
from bayesrule.predicting.predict import How, predict
from bayesrule.tensors import vectors
from bayesrule.types import State
from benchmarks.images import binary_tasks, noisy_tasks, variational_tasks
from benchmarks.images.tagi import shifted_and_mirrored, split
from benchmarks.images.variational_tasks import Task
from benchmarks.precision import fast_math, half
from benchmarks.trials import each, enough, loaded, usable

Figures = dict[str, float]
HELD_OUT, MULTIPLIER = 5000, 10.0


TASKS = ChainMap(variational_tasks.TASKS, noisy_tasks.TASKS, binary_tasks.TASKS)
METHODS = {**variational_tasks.METHODS, **noisy_tasks.METHODS, **binary_tasks.METHODS}


@dataclass(frozen=True)
class Trial:
    """One method at one temperature, with multiples of the learning rates of scales and of all."""

    method: str
    temperature: float = 1.0
    scale_multiplier: float = MULTIPLIER
    rate_multiplier: float = 1.0

    def __str__(self) -> str:
        settings, words = METHODS[self.method].settings, [self.method]
        if "temperature" in settings:
            words.append(f"temperature {self.temperature:g}")
        if "scale_multiplier" in settings:
            words.append(f"scales × {self.scale_multiplier:g}")
        if self.rate_multiplier != 1.0:
            words.append(f"learning rate × {self.rate_multiplier:g}")
        return ", ".join(words)


def every_trial(
    methods: Sequence[str],
    temperatures: Sequence[float],
    multipliers: Sequence[float] = (MULTIPLIER,),
    rates: Sequence[float] = (1.0,),
    known: Sequence[str] = tuple(METHODS),
) -> list[Trial]:
    """Each method at all values of its settings.

    >>> len(every_trial(["map", "mean_field"], [1.0, 0.1], [3.0, 10.0]))
    6
    """
    for name in methods:
        if name not in known:
            raise ValueError(
                f"Unknown method {name!r}.{nearest(name, known)} Methods: {', '.join(known)}."
            )
    found = []
    for method in methods:
        had = METHODS[method].settings
        for temperature, multiplier, rate in product(temperatures, multipliers, rates):
            given = {"temperature": temperature, "scale_multiplier": multiplier}
            own = {name: value for name, value in given.items() if name in had}
            found.append(Trial(method, **own, rate_multiplier=rate))
    return list(dict.fromkeys(found))


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
    learner = _learner(task, trial, device, len(y), num * (len(y) // task.batch_size))
    state, generator = learner.init(seed), Generator(device).manual_seed(seed)
    step = learner.step if replay_obstacle(learner) else Replayed(learner).step
    history: list[Figures] = []
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
        kl = float(info.kl) / len(y)
        figures = {"epoch": epoch + 1, "loss": loss, "elbo": -loss - trial.temperature * kl}
        figures["kl"] = kl
        figures["seconds"] = time.perf_counter() - begun
        few = order[: 5 * task.batch_size]
        history.append({**figures, **_price(learner, state, images[few], y[few])})
        show(history[-1])
    return learner, state, history


def _learner(task: Task, trial: Trial, device: torch.device, num_data: int, steps: int) -> Learner:
    """The learner of a trial, with a new net."""
    model = task.model().to(device)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    method = METHODS[trial.method]
    options: dict[str, Any] = {
        "learning_rate": task.learning_rate,
        "prior_precision": task.prior_precision,
        "temperature": trial.temperature,
        **{name: getattr(trial, name) for name in method.settings},
        **method.options,
        **task.own.get(trial.method, {}),
    }
    rate = options["learning_rate"] * trial.rate_multiplier
    options["learning_rate"] = schedules.cosine(rate, steps, warmup=steps // 50)
    return method.make(model, CategoricalLikelihood(), num_data=num_data, **options)


def _price(learner: Learner, state: State, x: Tensor, y: Tensor, num: int = 5) -> Figures:
    """`½ Σ σ² F` per datum over some batches, which `info.loss`, taken at the mean, leaves out."""
    if not isinstance(learner.curvature, SecondOrder):
        return {}
    targets, draws = (Generator(x.device).manual_seed(state.step + k) for k in range(2))
    total = 0.0
    for part in zip(x.chunk(num), y.chunk(num), strict=True):
        buffers = {name: value.clone() for name, value in state.buffers.items()}
        given = learner.network, learner.likelihood, state.likelihood, buffers, *part
        problem = Problem(*given, targets, draws, weight=1.0 / len(y))
        local = learner.local(problem, state.posterior)
        assert isinstance(local.curvature, StdSlope)
        assert isinstance(state.posterior, Factorised)
        total += 0.5 * float(vectors.dot(local.curvature.values, state.posterior.std()))
    return {"price": total}


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


def facts(
    name: str,
    *,
    device: str = "cpu",
    epochs: int | None = None,
    num: int | None = None,
    held_out: int = HELD_OUT,
    seed: int = 0,
) -> dict[str, Any]:
    """What all trials of a run share."""
    task = TASKS[name]
    return {
        "task": name,
        "epochs": epochs or task.epochs,
        "learning_rate": task.learning_rate,
        "prior_precision": task.prior_precision,
        "own": task.own,
        "half": task.half,
        "batch_size": task.batch_size,
        "num": num,
        "held_out": held_out,
        "seed": seed,
        "device": device,
    }


def run(
    name: str,
    trials: Sequence[Trial],
    *,
    device: str = "cpu",
    epochs: int | None = None,
    num: int | None = None,
    held_out: int = HELD_OUT,
    seed: int = 0,
    jobs: int = 1,
    previous: dict[str, Any] | None = None,
    show: Callable[[str], None] = lambda line: None,
    keep: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Trains every trial on all but the last `held_out` training images; scores those and the test.

    The held-out images choose the temperature of a method: `chosen`. Trials in `previous`, an
    earlier result, are not repeated; if none is missing, it is returned unchanged. `jobs` of them
    run at a time, each in its own process.
    """
    results = list(previous["results"]) if previous else []
    done = {_trial_of(one) for one in results}
    missing = [trial for trial in trials if trial not in done]
    if previous and not missing:
        return previous
    usable(device)
    task = TASKS[name]
    loaded.cache_clear()
    _, y, _, _ = split(loaded(task.data), "cpu", held_out, num)
    enough(len(y), task.batch_size)
    result = {
        **facts(name, device=device, epochs=epochs, num=num, held_out=held_out, seed=seed),
        "title": task.title,
        "num_data": len(y),
        "published": {k: list(v) for k, v in task.published.items()},
        "source": task.source,
        "results": results,
        "versions": versions(),
        "machine": machine(),
        "precision": _precision(task, device),
    }
    settings: dict[str, Any] = {"device": device, "epochs": epochs, "num": num}
    settings |= {"held_out": held_out, "seed": seed}

    def work(numbered: tuple[int, Trial]) -> list[dict[str, Any]]:
        number, trial = numbered
        show(f"[{number}/{len(trials)}] {trial}")
        own = show if jobs == 1 else lambda line: show(f"{trial}: {line.strip()}")
        return _one(task, trial, **settings, show=own)

    numbered = list(enumerate(missing, len(trials) - len(missing) + 1))
    for found in each(work, numbered, jobs):
        results += found
        results.sort(key=lambda one: _place(_trial_of(one), trials))
        keep(result)
    return result


def _trial_of(one: dict[str, Any]) -> Trial:
    """The trial of a result."""
    return Trial(**{key: one[key] for key in Trial.__dataclass_fields__ if key in one})


def _place(trial: Trial, trials: Sequence[Trial]) -> int:
    """The sort key of a result: earlier trials that were not requested now come first."""
    return trials.index(trial) if trial in trials else -1


def _precision(task: Task, device: str) -> str:
    with fast_math(device) as precision:
        trains_half = task.half and device.startswith("cuda")
        return f"bfloat16, scored in {precision}" if trains_half else precision


def _one(
    task: Task,
    trial: Trial,
    *,
    device: str,
    epochs: int | None,
    num: int | None,
    held_out: int,
    seed: int,
    show: Callable[[str], None],
) -> list[dict[str, Any]]:
    """The results of a trial, one for each way of predicting."""
    images = loaded(task.data)
    x, y, *held = split(images, device, held_out, num)
    _, _, *test = split(images, device, 0, num)
    with fast_math(device):
        with half(device, task.half):
            learned = train(task, trial, (x, y), epochs=epochs, seed=seed, show=_epoch(show))
        return _scored(trial, *learned, {"held_out": held, "test": test}, show)


def _epoch(show: Callable[[str], None]) -> Callable[[Figures], None]:
    def line(figures: Figures) -> None:
        show(
            f"  epoch {figures['epoch']:.0f}: loss {figures['loss']:.4f} and KL "
            f"{figures['kl']:.4f} per image, {figures['seconds']:.1f} s"
        )

    return line


def _scored(
    trial: Trial,
    learner: Learner,
    state: State,
    history: list[Figures],
    parts: dict[str, Sequence[Tensor]],
    show: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Scores of a trial on the held-out and the test images."""
    found = []
    for way, how in METHODS[trial.method].ways.items():
        scored = {name: scores(learner, state, x, y, how) for name, (x, y) in parts.items()}
        found.append({**vars(trial), "way": way, **scored, "history": history})
        held = scored["held_out"]
        show(f"  {way}: NLL {held['nll']:.4f}, {held['accuracy']:.2f} % of held-out images")
    return found


def chosen(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By method and way of predicting, the trial of least NLL on the held-out images."""

    def nll(one: dict[str, Any]) -> float:
        value = float(one["held_out"]["nll"])
        return math.inf if math.isnan(value) else value

    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in results:
        rows.setdefault((one["method"], one["way"]), []).append(one)
    return [min(group, key=nll) for group in rows.values()]
