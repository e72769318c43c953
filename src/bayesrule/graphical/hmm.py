"""Hidden Markov models by EM, variational Bayes and SVI, with missing values."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from bayesrule.families import Dirichlet, Natural
from bayesrule.graphical import chains, gaps
from bayesrule.graphical._base import Messages
from bayesrule.graphical.chains import Chain
from bayesrule.graphical.emissions import Emissions, GaussianEmissions, expected_log
from bayesrule.graphical.gaussians import Gaussians
from bayesrule.graphical.latent import LatentModel, Local, natural_of
from bayesrule.graphical.sequences import Sequences, lengths_of
from bayesrule.tensors.unfit import whole_number


@dataclass(eq=False, repr=False, kw_only=True)
class HMM(LatentModel):
    """`p(x, z) = π(z_1) Π_t A(z_{t−1}, z_t) Π_t p(x_t | z_t)`; Khan & Rue (2023), sec. 5.

    The beliefs about π and the rows of A are Dirichlets; `emissions` brings its own nodes. q(z) is
    a chain, whose expected counts come from the forward-backward algorithm in log space and are the
    messages. `inference` is `EM()`, `VB()`, or `SVI()` on batches of sequences. NaN is missing.

    Learned: `startprob_` (K,), `transmat_` (K, K), `report_`; of Gaussians `means_` (K, d) and
    `covars_` (K, d, d), of symbols `emissionprob_` (K, V).

    >>> x = torch.tensor([0.0, 0.1, -0.1, 5.0, 5.1, 4.9] * 5)[:, None]
    >>> HMM(states=2).fit(x).predict(x[:6]).diff().tolist()
    [0, 0, 1, 0, 0]
    """

    states: int
    emissions: Emissions[Any] = field(default_factory=GaussianEmissions)
    concentration: float = 1.0
    _facts: dict[str, Tensor] = field(init=False)
    _chain: tuple[Tensor, Tensor] = field(init=False)
    _seen: Any = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("states", self.states)

    def fit(
        self,
        x: Any,
        lengths: Sequence[int] | None = None,
        *,
        responsibilities: Any = None,
        progress: bool | None = None,
    ) -> Self:
        """Learns from one sequence (T, d), a list of sequences, or one table and their lengths.

        Starts at k-means, or at given responsibilities of the states for each step, (T, K).
        """
        rows, lengths = lengths_of(x, lengths)
        # Chains are many small steps, which a CPU runs faster than a GPU.
        table = self.emissions.table(rows, None).cpu()
        self._facts = self.emissions.facts(table)
        data = Sequences.of(self.emissions.table(table, self._facts), lengths)
        if len(data.x) < self.states:
            raise ValueError(f"{self.states} states need as many steps; got {len(data.x)}.")
        self._climb(data, self._starts(data, responsibilities), progress)
        return self

    def _starts(self, data: Sequences, responsibilities: Any) -> Iterator[Messages]:
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self.restarts if responsibilities is None else 1):
            shares = responsibilities
            if shares is None:
                shares = self.emissions.start(data.x, self.states, generator)
            yield self._first(data, torch.as_tensor(shares).to(data.x))

    def _first(self, data: Sequences, shares: Tensor) -> Messages:
        """Messages of the first shares, with neighbouring states taken as independent."""
        if shares.shape != (len(data.x), self.states):
            raise ValueError(
                f"responsibilities are {(len(data.x), self.states)}; got {tuple(shares.shape)}."
            )
        inner = ~data.begins[1:]
        pairs = shares[:-1][inner].T @ shares[1:][inner]
        complete = torch.isfinite(data.x).reshape(len(data.x), -1).all(1)
        natural = self.emissions.prior(self._facts, self.states, self.inference.at_mode)
        blank = self.emissions.seen(natural, self.inference.at_mode)
        rows = complete if bool(complete.any()) else torch.ones_like(complete)
        # EM never moves a probability away from zero.
        return {
            "initial": (shares[data.begins].sum(0) + 1.0 / self.states,),
            "transitions": (pairs + 1.0 / self.states,),
            "emissions": self.emissions.said(blank, data.x[rows], shares[rows]),
        }

    def _prior(self) -> Messages:
        natural = self.emissions.prior(self._facts, self.states, self.inference.at_mode)
        tiny = 10.0 * torch.finfo(natural[0].dtype).eps
        level = tiny if self.inference.at_mode else self.concentration - 1.0
        initial = natural[0].new_full((self.states,), level)
        rows = initial.expand(self.states, -1)
        return {"initial": (initial,), "transitions": (rows,), "emissions": natural}

    def _see(self, natural: dict[str, Natural]) -> None:
        at_mode = self.inference.at_mode
        self._natural = natural
        self._chain = (
            expected_log(natural["initial"][0], at_mode),
            expected_log(natural["transitions"][0], at_mode),
        )
        self._seen = self.emissions.seen(natural["emissions"], at_mode)

    def _local(self, batch: Sequences) -> Local:
        """Messages and log evidence of q(z), the chain of each sequence."""
        chain = chains.smoothed(self._chain_of(batch))
        messages: dict[str, Natural] = {
            "initial": (chain.firsts,),
            "transitions": (chain.pairs,),
            "emissions": self.emissions.said(self._seen, batch.x, chain.states),
        }
        return Local(messages, chain.evidence)

    def _chain_of(self, data: Sequences) -> Chain:
        log_probs = self.emissions.log_prob(self._seen, data.x)
        return Chain(*self._chain, log_probs, data.begins)

    def _divergence(self) -> float:
        if self.inference.at_mode:
            return 0.0
        prior, belief = self._prior(), self._natural
        total = self.emissions.kl(belief["emissions"], prior["emissions"])
        for name in ("initial", "transitions"):
            total = total + Dirichlet(belief[name]).kl(Dirichlet(prior[name])).sum()
        return float(total)

    def _troubles(self) -> list[str]:
        if not self.inference.at_mode:
            return []
        return self.emissions.troubles(self._natural["emissions"], self._seen)

    @property
    def startprob_(self) -> Tensor:
        """Probabilities of the first state, (K,); for VB their mean."""
        return self._shares("initial")

    @property
    def transmat_(self) -> Tensor:
        """Probabilities of moves from state i (row) to j (column), (K, K); for VB their mean."""
        return self._shares("transitions")

    def _shares(self, name: str) -> Tensor:
        self._need_fit()
        (counts,) = self._natural[name]
        counts = counts if self.inference.at_mode else counts + 1.0
        return counts / counts.sum(-1, keepdim=True)

    @property
    def means_(self) -> Tensor:
        """Means of Gaussian emissions, (K, d)."""
        return self._of_gaussians().mean + self._facts["shift"]

    @property
    def covars_(self) -> Tensor:
        """Covariances of Gaussian emissions, (K, d, d); for VB inverse expected precisions."""
        return self._of_gaussians().covariance

    @property
    def emissionprob_(self) -> Tensor:
        """Probabilities of symbols, (K, V); for VB their mean."""
        self._need_fit()
        if not isinstance(self._seen, Tensor):
            raise AttributeError("emissionprob_ is for CategoricalEmissions; see means_, covars_.")
        return self._shares("emissions")

    def _of_gaussians(self) -> Gaussians:
        self._need_fit()
        if not isinstance(self._seen, Gaussians):
            raise AttributeError("means_ and covars_ are for GaussianEmissions; see emissionprob_.")
        return self._seen

    def predict_proba(self, x: Any, lengths: Sequence[int] | None = None) -> Tensor:
        """The probability of each state in each step, given all steps, (T, K)."""
        return chains.smoothed(self._chain_of(self._data(x, lengths))).states

    def predict(self, x: Any, lengths: Sequence[int] | None = None) -> Tensor:
        """The most probable path of states, (T,)."""
        return chains.best_path(self._chain_of(self._data(x, lengths)))

    def log_prob(self, x: Any, lengths: Sequence[int] | None = None) -> Tensor:
        """`log p(x)` of each sequence, (S,); for VB at the means of π, A and precisions."""
        data = self._data(x, lengths)
        log_probs = self.emissions.log_prob(self.emissions.plain(self._seen), data.x)
        chain = Chain(self.startprob_.log(), self.transmat_.log(), log_probs, data.begins)
        ends = chains.up_to(chain)[data.ends]
        return ends.diff(prepend=ends.new_zeros(1))

    def score(self, x: Any, lengths: Sequence[int] | None = None) -> float:
        """The sum of `log_prob`."""
        return float(self.log_prob(x, lengths).sum())

    def impute(self, x: Any, lengths: Sequence[int] | None = None) -> Tensor:
        """The table with missing values replaced by their means, (T, d); Gaussians only."""
        data, seen = self._data(x, lengths), self._of_gaussians()
        shares = chains.smoothed(self._chain_of(data)).states
        return gaps.filled(seen, data.x, shares) + self._facts["shift"]

    def sample(self, num: int = 1, seed: int = 0) -> tuple[Tensor, Tensor]:
        """One sequence of `num` steps, (num, *), and its states (num,)."""
        generator = torch.Generator().manual_seed(seed)
        edges = self.transmat_.cumsum(1).tolist()
        row, path = self.startprob_.cumsum(0).tolist(), list[int]()
        for chance in torch.rand(num, generator=generator, dtype=torch.float64).tolist():
            path.append(min(bisect.bisect(row, chance), self.states - 1))
            row = edges[path[-1]]
        which = torch.tensor(path)
        drawn = self.emissions.sample(self.emissions.plain(self._seen), which, generator)
        return drawn + self._facts.get("shift", 0.0), which

    def _data(self, x: Any, lengths: Sequence[int] | None) -> Sequences:
        self._need_fit()
        rows, lengths = lengths_of(x, lengths)
        return Sequences.of(self.emissions.table(rows, self._facts), lengths)

    def _learned(self) -> dict[str, Tensor]:
        return {**super()._learned(), **{f"facts.{k}": v for k, v in self._facts.items()}}

    def _adopt(self, tensors: dict[str, Tensor]) -> None:
        facts = [name for name in tensors if name.startswith("facts.")]
        self._facts = {name.removeprefix("facts."): tensors.pop(name) for name in facts}
        self._see(natural_of(tensors))

    def _summary_lines(self) -> list[str]:
        stay = self.transmat_.diagonal().tolist()
        return [
            f"state {k}: {self.emissions.words(self._seen, k, self._facts)}, stays {share:.1%}"
            for k, share in enumerate(stay[:8])
        ]
