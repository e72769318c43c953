"""What a hidden state emits: numbers or symbols, each of which may be missing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Generator, Tensor

from bayesrule.families import Dirichlet, Natural, NormalWishart
from bayesrule.graphical import gaps, gaussians, starting, tables
from bayesrule.graphical.gaussians import Gaussians
from bayesrule.graphical.rows import Rows

Seen = TypeVar("Seen")


class Emissions(ABC, Generic[Seen]):
    """The contract: K nodes of one family, one for each state, which explain rows.

    `facts` are tensors about the table that a prior needs; the model keeps them and passes them
    back. `Seen` is what rows need of a belief over nodes, in expectation or at its mode.
    """

    @abstractmethod
    def table(self, x: Any, facts: dict[str, Tensor] | None) -> Tensor:
        """Rows as a tensor (n, *), checked against the facts of a fitted model."""

    @abstractmethod
    def facts(self, x: Tensor) -> dict[str, Tensor]:
        """What the model keeps about the table that it is fitted to."""

    @abstractmethod
    def start(self, x: Tensor, states: int, generator: Generator) -> Tensor:
        """The first guess of which state emits which row: shares (n, K)."""

    @abstractmethod
    def prior(self, facts: dict[str, Tensor], states: int, at_mode: bool) -> Natural:
        """λ₀ of the nodes; flat at the mode."""

    @abstractmethod
    def seen(self, natural: Natural, at_mode: bool) -> Seen:
        """What rows need of a belief, in expectation or at its mode."""

    @abstractmethod
    def plain(self, seen: Seen) -> Seen:
        """The same as normalised distributions, for predictions."""

    @abstractmethod
    def log_prob(self, seen: Seen, x: Tensor) -> Tensor:
        """`E_q[log p(x | k)]`, (n, K); 0 for what is missing."""

    @abstractmethod
    def said(self, seen: Seen, x: Tensor, shares: Tensor) -> Natural:
        """The messages of rows (n, *) to the nodes, weighted by `shares` (n, K)."""

    @abstractmethod
    def kl(self, natural: Natural, prior: Natural) -> Tensor:
        """The KL divergence of a belief from its prior."""

    def troubles(self, natural: Natural, seen: Seen) -> list[str]:
        """Problems of a fit at the mode, each with a way out."""
        return []

    @abstractmethod
    def sample(self, seen: Seen, which: Tensor, generator: Generator) -> Tensor:
        """One row from each state in `which` (n,)."""

    @abstractmethod
    def words(self, seen: Seen, state: int, facts: dict[str, Tensor]) -> str:
        """A state in a few words."""


@dataclass(frozen=True)
class GaussianEmissions(Emissions[Gaussians]):
    """Rows of numbers (n, d), Gaussian in each state with a full covariance; NaN is missing.

    `reg_covar` is the variance of an error in each row, which keeps covariances from collapsing.
    The prior of VB has the mean and the covariance of all rows, as that of `GaussianMixture`.
    """

    reg_covar: float = 1e-6

    def table(self, x: Any, facts: dict[str, Tensor] | None) -> Tensor:
        if facts is None:
            return tables.matrix(x, rows=2, missing=True)
        shift = facts["shift"]
        return tables.matrix(x, columns=len(shift), missing=True).to(shift) - shift

    def facts(self, x: Tensor) -> dict[str, Tensor]:
        empty = x.isnan().all(0)
        if bool(empty.any()):
            raise ValueError(f"Column {int(empty.nonzero()[0])} of x holds no number at all.")
        shift = x.nanmean(0)
        whole = Rows(torch.where(x.isnan(), shift, x), shift)
        return {"shift": shift, "spread": whole.covariance().to(shift)}

    def start(self, x: Tensor, states: int, generator: Generator) -> Tensor:
        whole = x.nan_to_num(0.0)
        return starting.nearest(whole, starting.k_means(whole, states, generator))

    def prior(self, facts: dict[str, Tensor], states: int, at_mode: bool) -> Natural:
        spread = facts["spread"]
        return gaussians.flat(spread, states) if at_mode else gaussians.vague(spread, states)

    def seen(self, natural: Natural, at_mode: bool) -> Gaussians:
        return Gaussians.of(natural, at_mode)

    def plain(self, seen: Gaussians) -> Gaussians:
        return seen.normalised

    def log_prob(self, seen: Gaussians, x: Tensor) -> Tensor:
        return gaps.log_prob(seen, x)

    def said(self, seen: Gaussians, x: Tensor, shares: Tensor) -> Natural:
        return gaps.said(seen, x, shares, self.reg_covar)

    def kl(self, natural: Natural, prior: Natural) -> Tensor:
        return NormalWishart(natural).kl(NormalWishart(prior)).sum()

    def troubles(self, natural: Natural, seen: Gaussians) -> list[str]:
        return [*gaussians.collapsed(natural, seen, self.reg_covar, "State")]

    def sample(self, seen: Gaussians, which: Tensor, generator: Generator) -> Tensor:
        return seen.sample(which, generator)

    def words(self, seen: Gaussians, state: int, facts: dict[str, Tensor]) -> str:
        std = seen.covariance[state].diagonal().sqrt()
        return f"{tables.brief(seen.mean[state] + facts['shift'])} ± {tables.brief(std)}"


@dataclass(frozen=True)
class CategoricalEmissions(Emissions[Tensor]):
    """One of V symbols, whole numbers from 0, in each row (n,) or (n, 1); NaN is missing.

    `symbols` is V; None takes what the table shows. The prior of VB is `Dirichlet(concentration)`.
    """

    symbols: int | None = None
    concentration: float = 1.0

    def table(self, x: Any, facts: dict[str, Tensor] | None) -> Tensor:
        rows = tables.matrix(tables.column(x), missing=True, columns=1)[:, 0]
        most = self.symbols if facts is None else len(facts["symbols"])
        wrong = (rows != rows.round()) & ~rows.isnan() | (rows < 0)
        wrong = wrong if most is None else wrong | (rows >= most)
        if bool(wrong.any()):
            row, upper = int(wrong.nonzero()[0]), "" if most is None else f" below {most}"
            raise ValueError(
                f"Symbols are whole numbers from 0{upper}; row {row} is {float(rows[row]):g}."
            )
        return rows

    def facts(self, x: Tensor) -> dict[str, Tensor]:
        if bool(x.isnan().all()):
            raise ValueError("x holds no symbol at all.")
        num = int(x.nan_to_num(0.0).max()) + 1 if self.symbols is None else self.symbols
        return {"symbols": x.new_zeros(num)}

    def start(self, x: Tensor, states: int, generator: Generator) -> Tensor:
        """Random shares of each symbol in the states: symbols have no distances to cluster by."""
        num = int(x.nan_to_num(0.0).max()) + 1
        shares = Dirichlet.make(x.new_ones(states)).sample(num, generator)
        of_rows = shares[x.nan_to_num(0.0).long()]
        return torch.where(x.isnan().unsqueeze(1), 1.0 / states, of_rows)

    def prior(self, facts: dict[str, Tensor], states: int, at_mode: bool) -> Natural:
        like = facts["symbols"].expand(states, -1)
        tiny = 10.0 * torch.finfo(like.dtype).eps
        return (torch.full_like(like, tiny if at_mode else self.concentration - 1.0),)

    def seen(self, natural: Natural, at_mode: bool) -> Tensor:
        return expected_log(natural[0], at_mode)

    def plain(self, seen: Tensor) -> Tensor:
        return seen.log_softmax(-1)

    def log_prob(self, seen: Tensor, x: Tensor) -> Tensor:
        log_probs = seen.T[x.nan_to_num(0.0).long()]
        return torch.where(x.isnan().unsqueeze(1), 0.0, log_probs)

    def said(self, seen: Tensor, x: Tensor, shares: Tensor) -> Natural:
        there = ~x.isnan()
        total = torch.zeros_like(seen.T).index_add_(0, x[there].long(), shares[there])
        return (total.T,)

    def kl(self, natural: Natural, prior: Natural) -> Tensor:
        return Dirichlet(natural).kl(Dirichlet(prior)).sum()

    def sample(self, seen: Tensor, which: Tensor, generator: Generator) -> Tensor:
        return torch.multinomial(seen.exp()[which], 1, generator=generator)[:, 0].to(seen.dtype)

    def words(self, seen: Tensor, state: int, facts: dict[str, Tensor]) -> str:
        shares = seen[state].softmax(0)
        likely = shares.argsort(descending=True)[:6].tolist()
        return ", ".join(f"{symbol} ({float(shares[symbol]):.0%})" for symbol in likely)


def expected_log(counts: Tensor, at_mode: bool) -> Tensor:
    """`E_q[log p]` of a Dirichlet with λ = `counts`, (*, K), or log p at its mode."""
    if at_mode:
        return (counts / counts.sum(-1, keepdim=True)).log()
    return Dirichlet((counts,)).expectation[0]
