"""Mixtures of Gaussians by EM, variational Bayes and SVI."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Generator, Tensor

from bayesrule.families import Dirichlet, Natural, NormalWishart
from bayesrule.graphical import gaussians, starting, tables
from bayesrule.graphical._base import Messages, added
from bayesrule.graphical.gaussians import Gaussians, Students
from bayesrule.graphical.latent import LatentModel, Local, natural_of
from bayesrule.graphical.rows import Rows
from bayesrule.tensors.unfit import whole_number


@dataclass(eq=False, repr=False, kw_only=True)
class GaussianMixture(LatentModel):
    """`p(x) = Σ_k π_k N(x | m_k, Λ_k⁻¹)`, with full covariances; Khan & Rue (2023), sec. 5.

    `q(θ) = Dirichlet(π) Π_k NormalWishart(m_k, Λ_k)`. `inference=EM()` has a flat prior and takes
    messages at the mode, `VB()` has the prior of scikit-learn's BayesianGaussianMixture and takes
    them in expectation, `SVI()` does so on batches. Row x sends `r_k (x, −½, −½ x xᵀ, ½)` to
    component k, and r_k to its weight.

    Learned: `weights_` (K,), `means_` (K, d), `covariances_` (K, d, d), `report_`.

    >>> x = torch.cat([torch.zeros(20, 1), torch.ones(20, 1)]) + 0.01 * torch.randn(40, 1)
    >>> GaussianMixture(components=2).fit(x).weights_
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """

    components: int
    reg_covar: float = 1e-6
    weight_concentration_prior: float | None = None
    mean_precision_prior: float = 1.0
    degrees_of_freedom_prior: float | None = None
    _shift: Tensor = field(init=False)
    _spread: Tensor = field(init=False)
    _log_weights: Tensor = field(init=False)
    _gaussians: Gaussians = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("components", self.components)
        if not self.reg_covar >= 0.0:
            raise ValueError(f"reg_covar is a variance of 0 or more; got {self.reg_covar}.")

    def fit(self, x: Any, *, responsibilities: Any = None, progress: bool | None = None) -> Self:
        """Learns from rows (n, d); starts at k-means, or at shares responsibilities (n, K)."""
        data = Rows.of(tables.matrix(x, rows=max(self.components, 2)))
        self._shift, self._spread = data.shift, data.covariance()
        shares = None if responsibilities is None else self._shares_of(responsibilities, data)
        self._climb(data, self._starts(data, shares), progress)
        return self

    def _starts(self, data: Rows, responsibilities: Tensor | None) -> Iterator[Messages]:
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self.restarts if responsibilities is None else 1):
            total: Messages = {}
            for rows, shares in self._with_shares(data, responsibilities, generator):
                messages = self._said(rows, shares)
                total = added(total, messages) if total else messages
            yield total

    def _with_shares(
        self, data: Rows, responsibilities: Tensor | None, generator: Generator
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows with their responsibilities, chunk by chunk."""
        size = gaussians.chunk(self.components, data.columns)
        if responsibilities is not None:
            yield from zip(data.split(size), responsibilities.split(size), strict=True)
            return
        sample = data[torch.randperm(len(data), generator=generator)[: starting.MOST_ROWS]]
        centres = starting.k_means(sample.centred(), self.components, generator)
        for rows in data.split(size):
            yield rows, starting.nearest(rows, centres)

    def _shares_of(self, responsibilities: Any, data: Rows) -> Tensor:
        shares = tables.matrix(responsibilities, "responsibilities", rows=len(data)).to(data.shift)
        if shares.shape != (len(data), self.components) or bool((shares < 0).any()):
            raise ValueError(
                f"responsibilities are numbers of 0 or more, {(len(data), self.components)}; got "
                f"{tuple(shares.shape)}, the least of them {float(shares.min()):.3g}."
            )
        return shares

    def _said(self, x: Tensor, shares: Tensor) -> Messages:
        messages = gaussians.said(x, shares, self.reg_covar)
        return {"weights": (shares.sum(0),), "components": messages}

    def _prior(self) -> Messages:
        """Flat for EM; else `Dirichlet(1/K)` and a normal-Wishart with the data's covariance."""
        k, like = self.components, self._spread
        if self.inference.at_mode:
            components = gaussians.flat(like, k)
            return {"weights": (2.0 * components[3],), "components": components}
        concentration = self.weight_concentration_prior
        level = 1.0 / k if concentration is None else concentration
        weights = Dirichlet.make(like.new_full((k,), level))
        components = gaussians.vague(
            like, k, self.mean_precision_prior, self.degrees_of_freedom_prior
        )
        return {"weights": weights.natural, "components": components}

    def _see(self, natural: dict[str, Natural]) -> None:
        self._natural = natural
        self._gaussians = Gaussians.of(natural["components"], self.inference.at_mode)
        (counts,) = natural["weights"]
        mode = (counts / counts.sum()).log() if self.inference.at_mode else None
        self._log_weights = Dirichlet((counts,)).expectation[0] if mode is None else mode

    def _local(self, batch: Rows) -> Local:
        """Messages by responsibilities `r_k ∝ exp(E_q[log π_k + log N(x | m_k, Λ_k⁻¹)])`."""
        total: Messages = {}
        evidence = self._shift.new_zeros(())
        for rows in self._chunks(batch):
            joint = self._joint(rows)
            norm = joint.logsumexp(1, keepdim=True)
            messages = self._said(rows, (joint - norm).exp_())
            total = added(total, messages) if total else messages
            evidence = evidence + norm.sum()
        return Local(total, evidence)

    def _joint(self, x: Tensor) -> Tensor:
        return self._log_weights + self._gaussians.log_prob(x)

    def _divergence(self) -> float:
        if self.inference.at_mode:
            return 0.0
        prior, belief = self._prior(), self._natural
        weights = Dirichlet(belief["weights"]).kl(Dirichlet(prior["weights"]))
        parts = NormalWishart(belief["components"]).kl(NormalWishart(prior["components"]))
        return float(weights + parts.sum())

    def _troubles(self) -> list[str]:
        flat = (self._spread.diagonal() <= self.reg_covar).nonzero()[:, 0].tolist()
        if flat:
            return [f"Column {flat[0]} does not vary beyond reg_covar: scale it, or leave it out."]
        if not self.inference.at_mode:
            return []
        components = self._natural["components"]
        return [*gaussians.collapsed(components, self._gaussians, self.reg_covar, "Component")]

    @property
    def weights_(self) -> Tensor:
        """Weights of the components, (K,); for VB their means."""
        self._need_fit()
        (counts,) = self._natural["weights"]
        shares = counts if self.inference.at_mode else counts + 1.0
        return shares / shares.sum()

    @property
    def means_(self) -> Tensor:
        """Means of the components, (K, d)."""
        self._need_fit()
        return self._gaussians.mean + self._shift

    @property
    def covariances_(self) -> Tensor:
        """Covariances of the components, (K, d, d); for VB inverse expected precisions."""
        self._need_fit()
        return self._gaussians.covariance

    def predict_proba(self, x: Any) -> Tensor:
        """The probability of each component for each row, (n, K)."""
        return torch.cat([self._joint(rows).softmax(1) for rows in self._centred_chunks(x)])

    def predict(self, x: Any) -> Tensor:
        """The most probable component of each row, (n,)."""
        return torch.cat([self._joint(rows).argmax(1) for rows in self._centred_chunks(x)])

    def log_prob(self, x: Any) -> Tensor:
        """`log p(x)` of each row, (n,); for VB θ is integrated out, each component a Student t."""
        logs, parts = self.weights_.log(), self._predictive
        return torch.cat(
            [(logs + parts.log_prob(rows)).logsumexp(1) for rows in self._centred_chunks(x)]
        )

    def score(self, x: Any) -> float:
        """The mean of `log_prob`."""
        return float(self.log_prob(x).mean())

    def sample(self, num: int = 1, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Rows (num, d) of the predictive distribution, and their components (num,)."""
        generator = torch.Generator().manual_seed(seed)
        shares = self.weights_.cpu()
        which = torch.multinomial(shares, num, replacement=True, generator=generator)
        return self._predictive.cpu().sample(which, generator) + self._shift.cpu(), which

    @property
    def _predictive(self) -> Gaussians | Students:
        if self.inference.at_mode:
            return self._gaussians
        return Students(NormalWishart(self._natural["components"]))

    def _centred_chunks(self, x: Any) -> Iterator[Tensor]:
        self._need_fit()
        table = tables.matrix(x, columns=len(self._shift)).to(self._shift.device)
        return self._chunks(Rows(table, self._shift))

    def _chunks(self, data: Rows) -> Iterator[Tensor]:
        return data.split(gaussians.chunk(self.components, data.columns))

    def _learned(self) -> dict[str, Tensor]:
        return {**super()._learned(), "shift": self._shift, "spread": self._spread}

    def _adopt(self, tensors: dict[str, Tensor]) -> None:
        self._shift, self._spread = tensors.pop("shift"), tensors.pop("spread")
        self._see(natural_of(tensors))

    def _summary_lines(self) -> list[str]:
        shares, means = self.weights_, self.means_
        order = shares.argsort(descending=True).tolist()
        rows = [f"{float(shares[k]):6.1%} at {tables.brief(means[k])}" for k in order[:8]]
        return [*rows, *([f"… {len(order) - 8} more"] if len(order) > 8 else [])]
