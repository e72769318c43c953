"""The cost of predictions by weight draws: several in one pass, or one after another.

One draw after another is plain PyTorch: `torch.func.functional_call` of the module with each draw,
on chunks of rows. The outputs of both are compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

import bayesrule as br
from bayesrule.app.data.errors import nearest
from bayesrule.app.provenance import machine, versions
from bayesrule.predicting.at_weights import outputs_at
from bayesrule.tensors import seeds
from bayesrule.tensors.network import forked_randomness
from bayesrule.training.models import mlp
from benchmarks.models import benchmark_mlp, lenet, resnet18
from benchmarks.precision import fast_math

ROWS_AT_A_TIME = 4096


class Case(NamedTuple):
    """A net, the shape of its inputs, and the number of draws; a `large` one needs a GPU."""

    title: str
    model: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    draws: int = 100
    large: bool = False


def _small() -> nn.Module:
    return mlp(13, 1, hidden=(50,))


CASES = {
    "small": Case("13-50-1, 100 rows", _small, (100, 13)),
    "few": Case("MLP 784-400-400-10, 10 rows", benchmark_mlp, (10, 784)),
    "mlp": Case("MLP 784-400-400-10, 10,000 rows", benchmark_mlp, (10_000, 784)),
    "lenet": Case("LeNet, 100 images", lenet, (100, 1, 28, 28), large=True),
    "resnet18": Case("ResNet-18, 1,000 images", resnet18, (1000, 3, 32, 32), large=True),
}
METHODS = ("vogn", "mean_field", "noisy_kfac")


def default_cases(device: str) -> list[str]:
    """The default cases: all on a GPU, those that are not large on a CPU."""
    return [name for name, case in CASES.items() if device.startswith("cuda") or not case.large]


def check(cases: Sequence[str]) -> None:
    """Refuses unknown cases."""
    for name in cases:
        if name not in CASES:
            raise ValueError(
                f"Unknown case {name!r}.{nearest(name, CASES)} Cases: {', '.join(CASES)}."
            )


def one_by_one(learner: br.Learner, state: br.types.State, x: Tensor, draws: int) -> Tensor:
    """The outputs (K, n, *) of torch's own calls of the module with the same draws."""
    generator = seeds.generator(x.device, 0, 0)
    model, found = learner.model.eval(), []
    with torch.no_grad():
        for _ in range(draws):
            weights = {**state.buffers, **state.posterior.untracked(generator).plain}
            parts = [functional_call(model, weights, (part,)) for part in x.split(ROWS_AT_A_TIME)]
            found.append(torch.cat(parts))
    return torch.stack(found)


def _seconds(work: Callable[[], Tensor], device: torch.device) -> tuple[float, Tensor]:
    begun = time.perf_counter()
    found = work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun, found


def result(name: str, method: str, rounds: int, device: torch.device) -> dict[str, Any]:
    """Both ways in turn; the first round only warms up."""
    case = CASES[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(case.inputs, generator=generator).to(device)
    with forked_randomness(torch.device("cpu"), 0):
        model = case.model().to(device)
    learner = getattr(br, method)(model, br.CategoricalLikelihood(), num_data=60_000)
    state = learner.init()
    ways: dict[str, Callable[[], Tensor]] = {
        "one_by_one": lambda: one_by_one(learner, state, x, case.draws),
        "outputs_at": lambda: outputs_at(learner, state, x, br.Draws(case.draws)),
        "predict": lambda: br.predict(learner, state, x, br.Draws(case.draws)).mean,
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    outputs: dict[str, Tensor] = {}
    for number in range(rounds + 1):
        for way, work in ways.items():
            took, outputs[way] = _seconds(work, device)
            if number:
                times[way].append(took)
    plain, ours = outputs["one_by_one"], outputs["outputs_at"]
    pairs = zip(times["one_by_one"], times["outputs_at"], strict=True)
    return {
        "case": name,
        "title": case.title,
        "method": method,
        "draws": case.draws,
        "milliseconds": {way: 1e3 * statistics.median(each) for way, each in times.items()},
        "times_faster": statistics.median(plain / ours for plain, ours in pairs),
        "error": float((ours - plain).abs().max() / plain.abs().max()),
    }


def run(cases: Sequence[str], methods: Sequence[str], rounds: int, device: str) -> dict[str, Any]:
    """Times the predictions of all methods on all cases."""
    with fast_math(device) as precision:
        found = [
            result(name, method, rounds, torch.device(device))
            for name in cases
            for method in methods
        ]
    return {
        "benchmark": "predictions",
        "rounds": rounds,
        "precision": precision,
        "device": device,
        "results": found,
        "versions": versions(),
        "machine": machine(),
    }
