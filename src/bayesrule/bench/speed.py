"""What a step costs, as a multiple of torch.optim.Adam's on the same net in the same run."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bayesrule.bench.models import benchmark_mlp, resnet18
from bayesrule.data.errors import nearest
from bayesrule.likelihoods import CategoricalLikelihood
from bayesrule.methods import find
from bayesrule.network import forked_randomness
from bayesrule.provenance import machine, versions

Step = Callable[[], object]

METHODS = ("map", "ogn", "ivon", "vogn")


@dataclass(frozen=True)
class Case:
    """A net and a batch to time steps on."""

    name: str
    title: str
    model: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    steps: int


CASES = {
    "mlp": Case("mlp", "MLP 784-400-400-10, batch 128", benchmark_mlp, (128, 784), 20),
    "cnn": Case(
        "cnn", "ResNet-18 layout, width 16, batch 32", lambda: resnet18(16), (32, 3, 32, 32), 2
    ),
}


def check(cases: Sequence[str], methods: Sequence[str], device: str) -> None:
    """Refuses what there is not, before the first step is timed."""
    for name in cases:
        if name not in CASES:
            raise ValueError(
                f"Unknown case {name!r}.{nearest(name, CASES)} Cases: {', '.join(CASES)}."
            )
    for name in methods:
        find(name)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as problem:
        reason = str(problem).partition("\n")[0]
        raise ValueError(f"The device {device!r} cannot be used here: {reason}") from problem


def run(
    cases: Sequence[str],
    methods: Sequence[str],
    *,
    rounds: int = 15,
    device: str = "cpu",
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Times all contenders in turn, round after round; a ratio is taken within each round."""
    check(cases, methods, device)
    found = []
    for name in cases:
        case = CASES[name]
        contenders, missing = _contenders(case, methods, torch.device(device), seed)
        progress(f"{case.title}: {', '.join(contenders)}")
        times = _interleaved(contenders, case.steps, rounds, torch.device(device))
        found.append({"case": name, "title": case.title, "missing": missing, **_summary(times)})
    return {
        "benchmark": "speed",
        "rounds": rounds,
        "device": device,
        "seed": seed,
        "results": found,
        "versions": versions(),
        "machine": machine(),
    }


def _contenders(
    case: Case, methods: Sequence[str], device: torch.device, seed: int
) -> tuple[dict[str, Step], dict[str, str]]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(case.inputs, generator=generator).to(device)
    y = torch.randint(0, 10, case.inputs[:1], generator=generator).to(device)
    with forked_randomness(torch.device("cpu"), seed):
        model = case.model().to(device)
    steps: dict[str, Step] = {"adam (torch)": _torch_adam(copy.deepcopy(model), x, y)}
    missing: dict[str, str] = {}
    for name in methods:
        try:
            steps[name] = _learner(name, copy.deepcopy(model), x, y)
        except ValueError as problem:  # the method does not fit this net, such as a full matrix
            missing[name] = str(problem)
    for name, make in (("ivon-opt", _ivon_opt), ("backpack", _backpack)):
        try:
            steps[name] = make(copy.deepcopy(model), x, y)
            steps[name]()
        except Exception as problem:
            steps.pop(name, None)
            missing[name] = f"{type(problem).__name__}: {problem}"
    return steps, missing


def _torch_adam(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


class _learner:
    """Steps of a learner of ours."""

    def __init__(self, method: str, model: nn.Module, x: Tensor, y: Tensor) -> None:
        self._learner = find(method)(model, CategoricalLikelihood(), num_data=60_000)
        self._state, self._batch = self._learner.init(), (x, y)

    def __call__(self) -> None:
        self._state, _ = self._learner.step(self._state, self._batch, donate=True)


def _ivon_opt(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    import ivon

    optimizer = ivon.IVON(model.parameters(), lr=0.1, ess=60_000)

    def step() -> None:
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def _backpack(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    from backpack import backpack, extend
    from backpack.extensions import SumGradSquared

    extended = extend(model, use_converter=not isinstance(model[0], nn.Linear))  # type: ignore[index]
    loss = extend(nn.CrossEntropyLoss())
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        with backpack(SumGradSquared()):
            loss(extended(x), y).backward()
        optimizer.step()

    return step


def _interleaved(
    contenders: dict[str, Step], steps: int, rounds: int, device: torch.device
) -> dict[str, list[float]]:
    """Seconds for a step of each contender in each round; the first two rounds only warm up."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(rounds + 2):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            _wait(device)
            begun = time.perf_counter()
            for _ in range(steps):
                contenders[name]()
            _wait(device)
            if number >= 2:
                times[name].append((time.perf_counter() - begun) / steps)
    return times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _summary(times: dict[str, list[float]]) -> dict[str, Any]:
    base = times["adam (torch)"]
    return {
        "milliseconds": {k: 1e3 * statistics.median(v) for k, v in times.items()},
        "multiple_of_adam": {
            name: statistics.median(a / b for a, b in zip(values, base, strict=True))
            for name, values in times.items()
        },
    }
