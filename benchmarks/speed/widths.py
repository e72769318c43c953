"""The time of a step and the memory of its state, by the width of the layers.

Nets of two square layers, width-width-width with ReLU, batch 128, Gaussian targets. A method that
estimates the curvature in every 10th step and inverts it in every 100th has three kinds of steps;
each kind is timed separately (medians) and the mean is that of a whole cycle, 90, 9 and 1 of them.
The bytes of the state are those of all its tensors after a step, without temporaries.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.app.provenance import machine, versions
from bayesrule.methods import find
from bayesrule.tensors import tree
from bayesrule.tensors.network import forked_randomness
from benchmarks.pictures.panels import Line, panel, sheet

WIDTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
METHODS = ("map", "mean_field", "noisy_adam", "noisy_kfac", "noisy_ekfac", "noisy_full")
BATCH = 128
MOST, SECONDS = 50, 3.0  # the most steps of a kind, and the time after which none starts


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of step: the number of one such step, and its share of all steps."""

    name: str
    number: int
    share: float


def kinds(learner: br.Learner) -> list[Kind]:
    """The kinds of a learner's steps."""
    stats, inverse = (getattr(learner.rule, f"{k}_every", 1) for k in ("stats", "inverse"))
    if inverse % stats:
        raise ValueError(f"inverse_every={inverse} is no multiple of stats_every={stats}.")
    if inverse == 1:
        return [Kind("ordinary", 1, 1.0)]
    found = [
        Kind("refresh", inverse, 1.0 / inverse),
        Kind("statistics", stats, 1.0 / stats - 1.0 / inverse),
        Kind("ordinary", 1, 1.0 - 1.0 / stats),
    ]
    return [kind for kind in found if kind.share > 0]


def network(width: int) -> nn.Module:
    """Two square layers."""
    with forked_randomness(torch.device("cpu"), 0):
        return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))


def state_bytes(state: br.types.State) -> int:
    """The memory of a state's tensors; shared memory counts once."""
    tensors = [value for _, value in tree.leaves(state) if isinstance(value, Tensor)]
    stores = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(stores.values())


def timed(
    learner: br.Learner, state: br.types.State, batch: br.types.Batch, kind: Kind
) -> tuple[list[float], br.types.State]:
    """Milliseconds of some steps of one kind, and the state after them."""
    times: list[float] = []
    while len(times) < MOST and (not times or sum(times) < 1e3 * SECONDS):
        state = dataclasses.replace(state, step=kind.number)
        begun = time.perf_counter()
        state, _ = learner.step(state, batch, donate=True)
        times.append(1e3 * (time.perf_counter() - begun))
    return times, state


def trial(method: str, width: int) -> dict[str, Any]:
    """The cost of one method at one width, or why it is refused there."""
    generator = torch.Generator().manual_seed(0)
    batch = tuple(torch.randn(BATCH, width, generator=generator) for _ in range(2))
    model = network(width)
    head = {
        "method": method,
        "width": width,
        "weights": sum(value.numel() for value in model.parameters()),
    }
    try:
        learner = find(method)(model, br.GaussianLikelihood(noise=1.0), num_data=60_000)
    except ValueError as refusal:
        return {**head, "refused": str(refusal)}
    # The first step estimates and inverts the curvature, so nothing is the identity afterwards.
    state, _ = learner.step(learner.init(), (batch[0], batch[1]))
    found, mean = {}, 0.0
    for kind in kinds(learner):
        times, state = timed(learner, state, (batch[0], batch[1]), kind)
        found[kind.name] = {
            "milliseconds": statistics.median(times),
            "steps": len(times),
            "share": kind.share,
        }
        mean += kind.share * statistics.median(times)
    return {
        **head,
        "mean_milliseconds": mean,
        "kinds": found,
        "state_bytes": state_bytes(state),
    }


def picture(results: Sequence[dict[str, Any]]) -> str:
    """Left the mean step, right the state, each against the width."""
    run = [one for one in results if "refused" not in one]
    names = list(dict.fromkeys(one["method"] for one in run))
    widths = sorted({one["width"] for one in run})

    def lines(key: str, unit: float) -> list[Line]:
        own = {name: [one for one in run if one["method"] == name] for name in names}
        return [
            Line(name, [one["width"] for one in mine], [one[key] / unit for one in mine])
            for name, mine in own.items()
        ]

    axes: dict[str, Any] = {"log": True, "doublings": widths}
    step = panel("A mean step", lines("mean_milliseconds", 1.0), "width", "ms", **axes)
    state = panel("The state", lines("state_bytes", 1e6), "width", "MB", **axes)
    return sheet([step, state])


def run(
    widths: Sequence[int],
    methods: Sequence[str],
    *,
    keep: Callable[[dict[str, Any]], None] = lambda _: None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Times all methods at all widths; `keep` gets the result so far after each."""
    result: dict[str, Any] = {
        "benchmark": "widths",
        "net": "width-width-width, ReLU",
        "batch": BATCH,
        "results": [],
        "versions": versions(),
        "machine": machine(),
    }
    for width, method in itertools.product(widths, methods):
        one = trial(method, width)
        result["results"].append(one)
        progress(f"{width:5} {method:12} {line(one)}")
        keep(result)  # the widest layers take minutes
        gc.collect()
    return result


def line(one: dict[str, Any]) -> str:
    """The result of a trial, in words.

    >>> line({"mean_milliseconds": 1.5})
    '1.50 ms'
    """
    return str(one.get("refused") or f"{one['mean_milliseconds']:.2f} ms")
