"""The cost of a step, relative to torch.optim.Adam's on the same net in the same run."""

from __future__ import annotations

import copy
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from bayesrule.app.data.errors import nearest
from bayesrule.app.provenance import machine, versions
from bayesrule.execution.memory import keep_memory
from bayesrule.execution.replayed import Replayed, replay_obstacle
from bayesrule.learner import Learner
from bayesrule.likelihoods import CategoricalLikelihood
from bayesrule.methods import find
from bayesrule.rules import Natural, Rule
from bayesrule.tensors.network import forked_randomness
from bayesrule.training.models import mlp
from benchmarks.images import variational_tasks
from benchmarks.models import benchmark_mlp, preact_resnet18, resnet18
from benchmarks.precision import fast_math
from benchmarks.speed.graphs import Step, graphed
from benchmarks.trials import usable

METHODS = ("map", "ogn", "ivon", "vogn", "mean_field", "k_tied", "noisy_adam", "noisy_kfac")


@dataclass(frozen=True)
class Case:
    """A net and a batch to time steps on.

    `methods` are timed by default, with `options` by method; a `large` net is left out on a CPU.
    """

    name: str
    title: str
    model: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    steps: int
    methods: tuple[str, ...] = METHODS
    large: bool = False
    options: Mapping[str, dict[str, Any]] = field(default_factory=dict)


def _softplus_mlp() -> nn.Module:
    return mlp(784, 10, hidden=(400, 400), activation=nn.Softplus)


CASES = {
    "mlp": Case("mlp", "MLP 784-400-400-10, batch 128", benchmark_mlp, (128, 784), 20),
    "cnn": Case(
        "cnn", "ResNet-18 layout, width 16, batch 32", lambda: resnet18(16), (32, 3, 32, 32), 2
    ),
    # Variational Laplace differentiates twice, so it needs smooth activations.
    "softplus": Case(
        *("softplus", "MLP 784-400-400-10, softplus, batch 128", _softplus_mlp, (128, 784), 20),
        methods=("map", "mean_field", "variational_laplace"),
    ),
    "resnet18": Case(
        *("resnet18", "ResNet-18, batch 128", resnet18, (128, 3, 32, 32), 10),
        large=True,
    ),
    "preact18": Case(
        *("preact18", "PreactResNet-18, softplus, batch 128", preact_resnet18),
        *((128, 3, 32, 32), 10),
        methods=("map", "mean_field", "variational_laplace"),
        large=True,
        options={"variational_laplace": variational_tasks.METHODS["variational_laplace"].options},
    ),
}


class Timed(NamedTuple):
    """Seconds for a step of each contender in each round, and how they were measured.

    `missing` says why a contender did not run; `replayed` names those with CUDA graphs.
    """

    seconds: dict[str, list[float]]
    missing: dict[str, str]
    precision: str
    replayed: list[str]


def default_cases(device: str) -> list[str]:
    """The default cases: all nets on a GPU, those that are not large on a CPU."""
    return [name for name, case in CASES.items() if device.startswith("cuda") or not case.large]


def check(cases: Sequence[str], methods: Sequence[str] | None, device: str) -> None:
    """Refuses unknown names before the first step is timed."""
    for name in cases:
        if name not in CASES:
            raise ValueError(
                f"Unknown case {name!r}.{nearest(name, CASES)} Cases: {', '.join(CASES)}."
            )
    for name in methods or ():
        find(name)
    usable(device)


def run(
    cases: Sequence[str],
    methods: Sequence[str] | None = None,
    *,
    rounds: int = 15,
    processes: int = 1,
    device: str = "cpu",
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Times all contenders in turn, round after round; a ratio is taken within each round.

    The memory layout of a process slows some steps down for its whole life. With several
    `processes`, one after another, medians are over the rounds of all of them.
    Without `methods`, those of each case. On a GPU the images are channels last and products in
    TF32; Adam's step is a CUDA graph, and so are those of all methods that can be replayed.
    """
    check(cases, methods, device)
    found = []
    for name in cases:
        times: dict[str, list[float]] = {}
        for number in range(processes):
            again = f" ({number + 1} of {processes} processes)" if processes > 1 else ""
            named = ["adam (torch)", *(methods or CASES[name].methods)]
            progress(f"{CASES[name].title}: {', '.join(named)}{again}")
            given = name, methods, rounds, device, seed
            timed = _timed(*given) if processes == 1 else _apart(*given)
            for contender, values in timed.seconds.items():
                times.setdefault(contender, []).extend(values)
        facts = {"case": name, "title": CASES[name].title, "missing": timed.missing}
        found.append({**facts, "replayed": timed.replayed, **_summary(times)})
    return {
        "benchmark": "speed",
        "rounds": rounds,
        "processes": processes,
        "device": device,
        "precision": timed.precision,
        "seed": seed,
        "results": found,
        "versions": versions(),
        "machine": machine(),
    }


def in_words(result: Mapping[str, Any]) -> str:
    """How often a step was timed.

    >>> in_words({"rounds": 7, "processes": 5})
    '7 rounds in each of 5 processes'
    """
    num = result.get("processes", 1)
    return f"{result['rounds']} rounds" + (f" in each of {num} processes" if num > 1 else "")


def _timed(name: str, methods: Sequence[str] | None, rounds: int, device: str, seed: int) -> Timed:
    """Times all contenders of a case."""
    with fast_math(device) as precision:
        case, place = CASES[name], torch.device(device)
        contenders, missing = _contenders(case, methods or case.methods, place, seed)
        seconds = _interleaved(contenders, case.steps, rounds, place)
        replayed = [name for name, one in contenders.items() if getattr(one, "replayed", False)]
        return Timed(seconds, missing, precision, replayed)


def _apart(*given: Any) -> Timed:
    """Like `_timed`, in a separate process."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=keep_memory) as process:
        return process.submit(_timed, *given).result()


def _contenders(
    case: Case, methods: Sequence[str], device: torch.device, seed: int
) -> tuple[dict[str, Step], dict[str, str]]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(case.inputs, generator=generator).to(device)
    y = torch.randint(0, 10, case.inputs[:1], generator=generator).to(device)
    with forked_randomness(torch.device("cpu"), seed):
        model = case.model().to(device)
    if x.is_cuda and x.ndim == 4:
        x = x.contiguous(memory_format=torch.channels_last)
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    steps: dict[str, Step] = {"adam (torch)": _torch_adam(copy.deepcopy(model), x, y)}
    missing: dict[str, str] = {}
    for name in methods:
        try:
            steps[name] = _learner(name, copy.deepcopy(model), x, y, case.options.get(name, {}))
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
    optimizer = torch.optim.Adam(model.parameters(), capturable=x.is_cuda)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return graphed(step) if x.is_cuda else step


class _learner:
    """The steps of a learner, replayed on a GPU if possible.

    `cycle` is the number of steps after which all kinds have occurred; `replayed` says whether they
    are CUDA graphs.
    """

    def __init__(
        self, method: str, model: nn.Module, x: Tensor, y: Tensor, options: dict[str, Any]
    ) -> None:
        learner = find(method)(model, CategoricalLikelihood(), num_data=60_000, **options)
        taking = stepper(learner, on_gpu=x.is_cuda)
        self._step, self.replayed = taking.step, isinstance(taking, Replayed)
        self._state, self._batch = learner.init(), (x, y)
        self.cycle = cycle(learner.rule)

    def __call__(self) -> None:
        self._state, _ = self._step(self._state, self._batch, donate=True)


def stepper(learner: Learner, *, on_gpu: bool) -> Learner | Replayed:
    """The object that takes a learner's steps: on a GPU, CUDA graphs if they can be replayed."""
    return Replayed(learner) if on_gpu and replay_obstacle(learner) is None else learner


def cycle(rule: Rule) -> int:
    """The number of steps after which all kinds of steps of a rule have occurred."""
    return math.lcm(rule.stats_every, rule.inverse_every) if isinstance(rule, Natural) else 1


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
    """Seconds for a step of each contender in each round; the first two rounds only warm up.

    A round has a fixed number of steps, or a whole cycle of a contender whose steps differ.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(rounds + 2):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            one = contenders[name]
            num = max(steps, getattr(one, "cycle", 1))
            _wait(device)
            begun = time.perf_counter()
            for _ in range(num):
                one()
            _wait(device)
            if number >= 2:
                times[name].append((time.perf_counter() - begun) / num)
    return times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _summary(times: dict[str, list[float]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "milliseconds": {k: 1e3 * statistics.median(v) for k, v in times.items()},
        "multiple_of_adam": _ratios(times, "adam (torch)"),
    }
    if "map" in times:
        found["multiple_of_map"] = _ratios(times, "map")
    return found


def _ratios(times: dict[str, list[float]], base: str) -> dict[str, float]:
    """Medians over rounds of the ratio to a base in the same round."""
    return {
        name: statistics.median(a / b for a, b in zip(values, times[base], strict=True))
        for name, values in times.items()
    }
