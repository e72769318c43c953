"""Models with hidden variables: passes over the data in which all nodes move by one update."""

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
from bayesrule.training.progress import Progress


class Local(NamedTuple):
    """What a batch says under the belief of the moment: messages to the nodes, and `Σ log Z_i`."""

    messages: Messages
    evidence: Tensor


class _End(NamedTuple):
    """Where one fit ended."""

    natural: dict[str, Natural]
    report: Report
    troubles: list[str]


@dataclass(eq=False, repr=False, kw_only=True)
class LatentModel(Model):
    """A model `p(x, z | θ)` with hidden z: q(z) first, with ρ = 1, then `λ ← (1 − ρ)λ + ρ λ̂`.

    `λ̂ = λ₀ + N/|B| Σ_{i∈B} λ̃_i`, with the prior's λ₀ and the message λ̃_i of row i, which is its
    expected statistics under q(z_i). The objective is `Σ log Z_i − KL(q(θ) ‖ p(θ))`: the ELBO, or
    for EM the log-likelihood. Khan & Rue (2023), secs 5.2 and 5.3.

    Data are anything with a length and rows to take by index: a tensor, documents, sequences.
    """

    inference: Inference = field(default_factory=EM)
    restarts: int = 1
    seed: int = 0
    _natural: dict[str, Natural] = field(init=False)

    def __post_init__(self) -> None:
        if self.restarts < 1:
            raise ValueError(f"restarts are 1 or more; got {self.restarts}.")

    @abstractmethod
    def _prior(self) -> Messages:
        """λ₀ of every node."""

    @abstractmethod
    def _see(self, natural: dict[str, Natural]) -> None:
        """Takes a belief over, and works out from it what `_local` needs."""

    @abstractmethod
    def _local(self, batch: Any) -> Local:
        """The best q(z) of a batch, as messages to the nodes."""

    @abstractmethod
    def _divergence(self) -> float:
        """`KL(q(θ) ‖ p(θ))`; nothing for EM, whose prior is flat."""

    def _troubles(self) -> list[str]:
        """What went wrong in the fit, in words with the way out."""
        return []

    def step(self, batch: Any, num_data: int, rate: float) -> Tensor:
        """One update from a batch of `num_data` rows, with ρ = `rate`; gives its `Σ log Z_i`."""
        found = self._local(batch)
        aim = added(self._prior(), found.messages, num_data / len(batch))
        self._see(moved(self._natural, aim, rate))
        return found.evidence

    def _climb(self, data: Any, starts: Iterator[Messages], progress: bool | None) -> None:
        """Fits from each start; keeps the largest objective among those without trouble."""
        ends = [self._climbed(data, start, progress) for start in starts]
        best = max(ends, key=lambda one: (not one.troubles, one.report.objective[-1]))
        self._see(best.natural)
        self.report_ = best.report
        for trouble in [*best.troubles, *self._unfinished(best.report)]:
            warnings.warn(trouble, FitWarning, stacklevel=3)

    def _climbed(self, data: Any, start: Messages, progress: bool | None) -> _End:
        self._see(added(self._prior(), start))
        report = self._passes(data, progress)
        return _End(self._natural, report, self._troubles())

    def _passes(self, data: Any, progress: bool | None) -> Report:
        how, seen = self.inference, list[float]()
        generator, count = torch.Generator().manual_seed(self.seed), 0
        with Progress(how.passes, 0, type(self).__name__, progress) as bar:
            for _ in range(how.passes):
                before = self._divergence() if how.batch_size is None else None
                evidence = 0.0
                for batch in batches(data, how.batch_size, generator):
                    evidence += float(self.step(batch, len(data), how.rate(count)))
                    count += 1
                seen.append(evidence - (self._divergence() if before is None else before))
                bar.advance()
                bar.note(objective=seen[-1])
                if why := _settled(seen, how.tol * getattr(data, "rows", len(data))):
                    return Report(tuple(seen), True, why)
        return Report(tuple(seen), False, f"all {how.passes} passes are used up")

    def _unfinished(self, report: Report) -> list[str]:
        """Batches are never quite done; whole passes without an end are worth a word."""
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
            f"{name}: natural parameters {', '.join(str(tuple(one.shape)) for one in parts)}"
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
    found: dict[str, list[Tensor]] = {}
    for name in sorted(
        tensors, key=lambda one: (one.rpartition("/")[0], int(one.rpartition("/")[2]))
    ):
        found.setdefault(name.rpartition("/")[0], []).append(tensors[name])
    return {name: tuple(parts) for name, parts in found.items()}


def _settled(seen: list[float], least: float) -> str:
    """Why a fit has converged, if it has."""
    if not math.isfinite(seen[-1]):
        raise FloatingPointError(
            f"The objective became {seen[-1]} in pass {len(seen)}. Columns of very different sizes "
            "do this: scale them to unit variance first."
        )
    if len(seen) < 2 or abs(seen[-1] - seen[-2]) > least:
        return ""
    return f"the last pass changed it by {abs(seen[-1] - seen[-2]):.2g}"
