"""The table of docs/choosing.md: what each method costs, keeps, covers, assumes and does not do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import bayesrule as br
from bayesrule.methods import METHODS, Need, Record, record
from bayesrule.tensors.tree import tensors
from bayesrule.training.models import mlp
from benchmarks.tables.calls import Result, call

_INPUTS, _CLASSES, _HIDDEN, _NUM = 20, 2, (30, 30), 64


def table(speed: Result, coverage: Result) -> str:
    """A row for each method."""
    dense, conv = (case["multiple_of_adam"] for case in speed["results"][:2])
    covered = {row["method"]: row for row in coverage["results"] if "failed" not in row}
    head = ["method", "its belief", "step, dense / conv net", "numbers kept per weight"]
    head += ["90 % hold, near / far", "needs, and does not do"]
    rows = [head, ["---"] * len(head)]
    for one in map(record, METHODS):
        cost = f"{_times(dense, one.name)} / {_times(conv, one.name)}"
        row = [f"`{one.name}`", one.belief, cost, _kept(one), _holds(covered.get(one.name))]
        rows.append([*row, _asks(one)])
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    return "\n".join([*lines, "", f"Steps: `{call(speed)}`. Intervals: `{call(coverage)}`."])


def _times(ratios: dict[str, float], name: str) -> str:
    return f"{ratios[name]:.1f}" if name in ratios else "–"


def _holds(row: dict[str, Any] | None) -> str:
    """The share of new targets in 90 % intervals, near the data and outside."""
    if row is None:
        return "–"
    return " / ".join(f"{100 * row[part]['90']:.0f}" for part in ("inside", "outside"))


def _asks(one: Record) -> str:
    return "; ".join(words for words in (", ".join(one.needs), one.limits) if words) or "–"


def _kept(one: Record) -> str:
    """The numbers per weight in a state after a step and in the finished posterior."""
    if Need.LINEAR_MODEL in one.needs or one.name == "newton":
        return "all pairs"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = mlp(_INPUTS, _CLASSES, hidden=_HIDDEN, activation=torch.nn.Softplus)
        batch = torch.randn(_NUM, _INPUTS), torch.arange(_NUM) % _CLASSES
    learner = one.build(net, br.CategoricalLikelihood(), num_data=_NUM)
    state, _ = learner.step(learner.init(), batch)
    kept = [sum(value.numel() for value in tensors(part).values()) for part in (state,)]
    finished = learner.finish(state, [batch])
    kept.append(sum(value.numel() for value in tensors(finished).values()))
    most = max(kept) / sum(weight.numel() for weight in net.parameters())
    return f"{most:,.1f}" if most < 100 else "all pairs"


PAGE: dict[str, tuple[list[str], Callable[..., str]]] = {
    "choosing": (["speed.json", "coverage.json"], table),
}
"""The tables between the page's markers, and the files they are made from."""
