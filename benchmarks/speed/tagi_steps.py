"""The cost of a TAGI step, relative to SGD's on the same net in the same run."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bayesrule.app.data.errors import nearest
from bayesrule.app.provenance import machine, versions
from bayesrule.execution.compiled import Compiled
from bayesrule.execution.memory import ENVIRONMENT
from bayesrule.execution.stacked.stack import Stacked
from bayesrule.likelihoods import GaussianLikelihood, OneHotLikelihood
from bayesrule.methods import tagi
from bayesrule.training.models import mlp
from benchmarks.models import lenet_valid, resnet18
from benchmarks.precision import fast_math
from benchmarks.speed.graphs import Step, graphed

STACK = 20
# The script that times pytagi, run by an interpreter that has it.
PYTAGI = Path(__file__).parents[1] / "pytagi" / "speed.py"


@dataclass(frozen=True)
class Case:
    """A net and a batch to time steps on; `stacked` adds that many nets at once."""

    title: str
    model: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    classes: int | None
    steps: int
    stacked: bool = False


CASES = {
    "mlp": Case(
        "MLP 784-256-256-10, batch 256", lambda: mlp(784, 10, (256, 256)), (256, 784), 10, 10
    ),
    "cnn": Case("CNN 32c5-64c5-fc256, batch 64", lenet_valid, (64, 1, 28, 28), 10, 2),
    "tiny": Case("13-50-1, batch 10", lambda: mlp(13, 1, (50,)), (10, 13), None, 100, stacked=True),
    "resnet18": Case("ResNet-18, batch 512", resnet18, (512, 3, 32, 32), 10, 10),
}


def check(cases: Sequence[str]) -> None:
    """Refuses unknown names before the first step is timed."""
    for name in cases:
        if name not in CASES:
            raise ValueError(
                f"Unknown case {name!r}.{nearest(name, CASES)} Cases: {', '.join(CASES)}."
            )


def run(
    cases: Sequence[str],
    *,
    rounds: int = 15,
    device: str = "cpu",
    pytagi: str | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Times every case on one thread, its steps in turn; medians and their ratios.

    `pytagi` is a Python interpreter that has pytagi, which is timed after the rest.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with fast_math(device) as precision:
            results = [_case(name, rounds, device, progress) for name in cases]
        other = _pytagi(pytagi) if pytagi else {}
    finally:
        torch.set_num_threads(before)
    for result in results:
        own = other.get(str(result["case"]))
        if own:
            result["pytagi_samples_per_second"] = own
            result["times_pytagi"] = {
                name: rate / own for name, rate in result["samples_per_second"].items()
            }
    about = {"versions": versions(), "machine": machine(), "device": device, "precision": precision}
    return {"results": results, **about}


def _case(name: str, rounds: int, device: str, progress: Callable[[str], None]) -> dict[str, Any]:
    case = CASES[name]
    progress(case.title)
    steps = _steps(case, device)
    seconds: dict[str, list[float]] = {one: [] for one in steps}
    for step in steps.values():
        for _ in range(3):
            step()
    for _ in range(rounds):
        for one, step in steps.items():
            _wait(device)
            begun = time.perf_counter()
            for _ in range(case.steps):
                step()
            _wait(device)
            seconds[one].append((time.perf_counter() - begun) / case.steps)
    middle = {one: statistics.median(times) for one, times in seconds.items()}
    size = {one: case.inputs[0] * (STACK if "at once" in one else 1) for one in steps}
    return {
        "case": name,
        "title": case.title,
        "rounds": rounds,
        "milliseconds": {one: 1e3 * value for one, value in middle.items()},
        "samples_per_second": {one: size[one] / value for one, value in middle.items()},
        "multiple_of_sgd": {
            one: statistics.median(a / b for a, b in zip(times, seconds["sgd"], strict=True))
            for one, times in seconds.items()
            if "at once" not in one
        },
    }


def _steps(case: Case, device: str) -> dict[str, Step]:
    torch.manual_seed(0)
    x = torch.randn(case.inputs, device=device)
    if x.ndim == 4:
        x = x.contiguous(memory_format=torch.channels_last) if x.is_cuda else x
    if case.classes is None:
        y = torch.randn(len(x), 1, device=device)
    else:
        y = torch.randint(0, case.classes, (len(x),), device=device)
    steps = {
        "sgd": _sgd(case, x, y),
        "tagi": _tagi(case, x, y, compiled=False),
        "tagi, compiled": _tagi(case, x, y, compiled=True),
    }
    if case.stacked:
        steps[f"tagi, {STACK} nets at once"] = _stacked(case, x, y, compiled=False)
        steps[f"tagi, {STACK} nets at once, compiled"] = _stacked(case, x, y, compiled=True)
    return steps


def _net(case: Case, x: Tensor) -> nn.Module:
    model = case.model().to(x.device)
    if not x.is_cuda:
        return model
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _sgd(case: Case, x: Tensor, y: Tensor) -> Step:
    model = _net(case, x)
    optimiser = torch.optim.SGD(model.parameters(), 1e-3)
    loss = functional.mse_loss if case.classes is None else functional.cross_entropy

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        loss(model(x), y).backward()
        optimiser.step()

    return graphed(step) if x.is_cuda else step


def _tagi(case: Case, x: Tensor, y: Tensor, *, compiled: bool) -> Step:
    likelihood = GaussianLikelihood(noise=0.1) if case.classes is None else OneHotLikelihood()
    learner = tagi(_net(case, x), likelihood, num_data=60_000, gain=0.1)
    advance = Compiled(learner).step if compiled else learner.step
    state = [learner.init()]

    def step() -> None:
        state[0], _ = advance(state[0], (x, y), donate=True)

    return step


def _stacked(case: Case, x: Tensor, y: Tensor, *, compiled: bool) -> Step:
    learner = tagi(_net(case, x), GaussianLikelihood(noise=0.1), num_data=60_000, gain=0.1)
    stack = Stacked(learner, STACK)
    advance = Compiled(stack).step if compiled else stack.step
    state = [stack.init(range(STACK))]
    batch = tuple(part.expand(STACK, *part.shape).contiguous() for part in (x, y))

    def step() -> None:
        state[0], _ = advance(state[0], batch, donate=True)  # type: ignore[arg-type]

    return step


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _pytagi(interpreter: str) -> dict[str, float]:
    """Samples per second of pytagi by case, from `benchmarks/pytagi/speed.py`."""
    environment = {**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [interpreter, str(PYTAGI)], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ValueError(f"{interpreter} {PYTAGI} failed: {done.stderr.strip()[-300:]}")
    found = json.loads(done.stdout)["results"]
    return {one["case"]: one["samples_per_second"] for one in found}
