"""Models with hidden variables: all nodes move by one update in each pass over the data."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from bayesrule.families import Natural
from bayesrule.graphical._base import FitWarning, Messages, Model, Report, added, moved
from bayesrule.graphical.inference import EM, Inference
from bayesrule.tensors.unfit import whole_number
from bayesrule.training.progress import Progress


class Local(NamedTuple):
    """The result of a batch under the present belief: messages to the nodes, and `Σ log Z_i`."""

    messages: Messages
    evidence: Tensor


class _End(NamedTuple):
    """The result of a fit from one start."""

    natural: dict[str, Natural]
    report: Report
    troubles: list[str]


@dataclass(eq=False, repr=False, kw_only=True)
class LatentModel(Model):
    """A model `p(x, z | θ)` with hidden z: q(z) first, with ρ = 1, then `λ ← (1 − ρ)λ + ρ λ̂`.

    `λ̂ = λ₀ + N/|B| Σ_{i∈B} λ̃_i`, with the prior's λ₀ and the message λ̃_i of row i, which is its
    expected statistics under q(z_i). The objective is `Σ log Z_i − KL(q(θ) ‖ p(θ))`: the ELBO, or
    for EM the log-likelihood. Khan & Rue (2023), secs 5.2 and 5.3.

    Data are anything with a length and indexable rows: a tensor, documents, sequences.
    """

    inference: Inference = field(default_factory=EM)
    restarts: int = 1
    seed: int = 0
    _natural: dict[str, Natural] = field(init=False)

    def __post_init__(self) -> None:
        whole_number("restarts", self.restarts)

    @abstractmethod
    def _prior(self) -> Messages:
        """λ₀ of every node."""

    @abstractmethod
    def _see(self, natural: dict[str, Natural]) -> None:
        """Sets the belief, and computes from it what `_local` needs."""

    @abstractmethod
    def _local(self, batch: Any) -> Local:
        """The optimal q(z) of a batch, as messages to the nodes."""

    @abstractmethod
    def _divergence(self) -> float:
        """`KL(q(θ) ‖ p(θ))`; 0 for EM, whose prior is flat."""

    def _troubles(self) -> list[str]:
        """Problems of the fit, each with a way out."""
        return []

    def step(self, batch: Any, num_data: int, rate: float) -> Tensor:
        """One update with ρ = `rate` from a batch of `num_data` rows; returns its `Σ log Z_i`."""
        messages, evidence = self._local(batch)
        target = added(self._prior(), messages, num_data / len(batch))
        self._see(moved(self._natural, target, rate))
        return evidence

    def _climb(self, data: Any, starts: Iterator[Messages], progress: bool | None) -> None:
        """Fits from each start; keeps the largest objective, of fits without troubles if any."""
        ends = [self._climbed(data, start, progress) for start in starts]
        best = max(ends, key=lambda end: (not end.troubles, end.report.objective[-1]))
        self._see(best.natural)
        self.report_ = best.report
        for trouble in [*best.troubles, *self._unfinished(best.report)]:
            warnings.warn(trouble, FitWarning, stacklevel=3)

    def _climbed(self, data: Any, start: Messages, progress: bool | None) -> _End:
        self._see(added(self._prior(), start))
        report = self._passes(data, progress)
        return _End(self._natural, report, self._troubles())

    def _passes(self, data: Any, progress: bool | None) -> Report:
        inference, objective = self.inference, list[float]()
        generator, count = torch.Generator().manual_seed(self.seed), 0
        with Progress(inference.passes, 0, type(self).__name__, progress) as bar:
            for _ in range(inference.passes):
                divergence = self._divergence() if inference.batch_size is None else None
                evidence = 0.0
                for batch in batches(data, inference.batch_size, generator):
                    evidence += float(self.step(batch, len(data), inference.rate(count)))
                    count += 1
                if divergence is None:
                    divergence = self._divergence()
                objective.append(evidence - divergence)
                bar.advance()
                bar.note(objective=objective[-1])
                if why := _settled(objective, inference.tol * getattr(data, "rows", len(data))):
                    return Report(tuple(objective), True, why)
        return Report(tuple(objective), False, f"all {inference.passes} passes are used up")

    def _unfinished(self, report: Report) -> list[str]:
        """A warning for full passes that have not converged; on batches they never quite do."""
        if report.converged or report.passes < 2 or self.inference.batch_size is not None:
            return []
        change = report.objective[-1] - report.objective[-2]
        return [
            f"The fit has not converged in {report.passes} passes: the last one changed the "
            f"objective by {change:.3g}. Give more passes or a larger tol."
        ]

    def _learned(self) -> dict[str, Tensor]:
        self._need_fit()
        return {
            f"{name}/{number}": value
            for name, parts in self._natural.items()
            for number, value in enumerate(parts)
        }

    def _adopt(self, tensors: dict[str, Tensor]) -> None:
        self._see(natural_of(tensors))

    def _summary_lines(self) -> list[str]:
        return [
            f"{name}: natural parameters {', '.join(str(tuple(part.shape)) for part in parts)}"
            for name, parts in self._natural.items()
        ]


def batches(data: Any, size: int | None, generator: Generator) -> Iterator[Any]:
    """All of the data at once, or batches of it in a random order."""
    if size is None or size >= len(data):
        yield data
        return
    for rows in torch.randperm(len(data), generator=generator).split(size):
        yield data[rows]


def natural_of(tensors: dict[str, Tensor]) -> dict[str, Natural]:
    """Natural parameters by node, from tensors named `node/number`."""
    numbered: dict[str, dict[int, Tensor]] = {}
    for name, tensor in sorted(tensors.items()):
        node, _, number = name.rpartition("/")
        numbered.setdefault(node, {})[int(number)] = tensor
    return {node: tuple(parts[k] for k in sorted(parts)) for node, parts in numbered.items()}


def _settled(objective: list[float], least: float) -> str:
    """Why a fit has converged, or nothing if it has not."""
    if not math.isfinite(objective[-1]):
        raise FloatingPointError(
            f"The objective became {objective[-1]} in pass {len(objective)}. Columns of very "
            "different sizes do this: scale them to unit variance first."
        )
    if len(objective) < 2 or abs(objective[-1] - objective[-2]) > least:
        return ""
    return f"the last pass changed it by {abs(objective[-1] - objective[-2]):.2g}"
