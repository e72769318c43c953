"""Maximising the evidence over positive parameters, by L-BFGS on their logarithms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.training.progress import Progress

EXACT = "exact: conjugate Bayes in one step"


def show(bar: Progress, evidence: float) -> None:
    """Advances a progress bar by an evaluation of the evidence."""
    bar.advance()
    bar.note(evidence=evidence)


@dataclass(frozen=True)
class Climbed:
    """The best parameters, the objective of each pass, and why the search ended."""

    parameters: dict[str, Tensor]
    trace: tuple[float, ...]
    converged: bool
    why: str


def climbed(
    objective: Callable[[dict[str, Tensor]], Tensor], start: Mapping[str, Tensor],
    learned: set[str], *, passes: int, tell: Callable[[float], None], far: float = 1e4,
) -> Climbed:  # fmt: skip
    """Maximises the objective over the parameters that are `learned`; the others stay.

    No parameter moves by more than a factor `far` from its start, because there may be no maximum:
    the evidence of targets without noise has none.
    """
    reach = math.log(far)
    if not learned:
        with torch.no_grad():
            value = float(objective(dict(start)))
        return Climbed(dict(start), (value,), True, EXACT)
    free = {k: torch.zeros_like(v).requires_grad_() for k, v in start.items() if k in learned}
    trace: list[float] = []

    def parameters() -> dict[str, Tensor]:
        moves = {k: torch.exp(reach * torch.tanh(v / reach)) for k, v in free.items()}
        return {k: v * moves[k] if k in free else v for k, v in start.items()}

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = -objective(parameters())
        loss.backward()
        trace.append(-float(loss.detach()))
        tell(trace[-1])
        return loss

    optimiser = torch.optim.LBFGS(
        list(free.values()), max_iter=passes, max_eval=2 * passes, tolerance_grad=1e-4,
        tolerance_change=1e-6, history_size=10, line_search_fn="strong_wolfe",
    )  # fmt: skip
    optimiser.step(closure)
    done = int(optimiser.state[next(iter(free.values()))]["n_iter"]) < passes
    why = "the evidence rises no more" if done else f"stopped after {passes} passes"
    with torch.no_grad():
        best = parameters()
        trace.append(float(objective(best)))
    return Climbed(best, tuple(trace), done, why)
