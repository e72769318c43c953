"""Mixtures of Gaussians by EM, variational Bayes and SVI."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from bayesrule.families import Dirichlet, Natural, NormalWishart
from bayesrule.graphical import gaussians, starting, tables
from bayesrule.graphical._base import Messages, added
from bayesrule.graphical.gaussians import Gaussians, Students
from bayesrule.graphical.latent import LatentModel, Local, natural_of


@dataclass(eq=False, repr=False, kw_only=True)
class GaussianMixture(LatentModel):
    """`p(x) = Σ_k π_k N(x | m_k, Λ_k⁻¹)`, with full covariances; Khan & Rue (2023), sec. 5.

    `q(θ) = Dirichlet(π) Π_k NormalWishart(m_k, Λ_k)`. `inference=EM()` has a flat prior and takes
    messages at the mode, `VB()` has the prior of scikit-learn's BayesianGaussianMixture and takes
    them in expectation, `SVI()` does that on batches. Row x says `r_k (x, −½, −½ x xᵀ, ½)` to
    component k, and r_k to its weight.

    Learned: `weights_` (K,), `means_` (K, d), `covariances_` (K, d, d), `report_`.

    >>> x = torch.cat([torch.zeros(20, 1), torch.ones(20, 1)]) + 0.01 * torch.randn(40, 1)
    >>> GaussianMixture(components=2).fit(x).weights_
    tensor([0.5000, 0.5000])
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
        if self.components < 1:
            raise ValueError(f"A mixture has 1 or more components; got {self.components}.")
        if not self.reg_covar >= 0.0:
            raise ValueError(f"reg_covar is a variance of 0 or more; got {self.reg_covar}.")

    def fit(self, x: Any, *, responsibilities: Any = None, progress: bool | None = None) -> Self:
        """Learns from rows (n, d); it begins at k-means, or at given responsibilities (n, K)."""
        x = tables.matrix(x, rows=max(self.components, 2))
        self._shift = x.mean(0)
        x = x - self._shift
        self._spread = gaussians.covariance(x)
        given = None if responsibilities is None else self._shares_of(responsibilities, x)
        self._climb(x, self._starts(x, given), progress)
        return self

    def _starts(self, x: Tensor, given: Tensor | None) -> Iterator[Messages]:
        if given is not None:
            yield self._said(x, given)
            return
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self.restarts):
            centres = starting.k_means(x, self.components, generator)
            total: Messages | None = None
            for rows in gaussians.chunks(x, self.components):
                new = self._said(rows, starting.nearest(rows, centres))
                total = new if total is None else added(total, new)
            assert total is not None
            yield total

    def _shares_of(self, given: Any, x: Tensor) -> Tensor:
        found = tables.matrix(given, "responsibilities", rows=len(x)).to(x)
        if found.shape != (len(x), self.components) or bool((found < 0).any()):
            raise ValueError(
                f"responsibilities are numbers of 0 or more, {(len(x), self.components)}; got "
                f"{tuple(found.shape)}, the least of them {float(found.min()):.3g}."
            )
        return found

    def _said(self, x: Tensor, shares: Tensor) -> Messages:
        told = gaussians.said(x, shares, self.reg_covar)
        return {"weights": (shares.sum(0),), "components": told}

    def _prior(self) -> Messages:
        """Flat for EM; else `Dirichlet(1/K)` and a normal-Wishart with the data's covariance."""
        k, like = self.components, self._spread
        if self.inference.at_mode:
            told = gaussians.flat(like, k)
            return {"weights": (2.0 * told[3],), "components": told}
        concentration = self.weight_concentration_prior
        level = 1.0 / k if concentration is None else concentration
        weights = Dirichlet.make(like.new_full((k,), level))
        told = gaussians.vague(like, k, self.mean_precision_prior, self.degrees_of_freedom_prior)
        return {"weights": weights.natural, "components": told}

    def _see(self, natural: dict[str, Natural]) -> None:
        self._natural = natural
        self._gaussians = Gaussians.of(natural["components"], self.inference.at_mode)
        (counts,) = natural["weights"]
        mode = (counts / counts.sum()).log() if self.inference.at_mode else None
        self._log_weights = Dirichlet((counts,)).expectation[0] if mode is None else mode

    def _local(self, batch: Tensor) -> Local:
        """Responsibilities `r_k ∝ exp(E_q[log π_k + log N(x | m_k, Λ_k⁻¹)])`, and what they say."""
        total: Messages = {}
        evidence = batch.new_zeros(())
        for rows in gaussians.chunks(batch, self.components):
            joint = self._joint(rows)
            norm = joint.logsumexp(1, keepdim=True)
            new = self._said(rows, (joint - norm).exp_())
            total = added(total, new) if total else new
            evidence = evidence + norm.sum()
        return Local(total, evidence)

    def _joint(self, x: Tensor) -> Tensor:
        return self._log_weights + self._gaussians.log_prob(x)

    def _divergence(self) -> float:
        if self.inference.at_mode:
            return 0.0
        prior, own = self._prior(), self._natural
        weights = Dirichlet(own["weights"]).kl(Dirichlet(prior["weights"]))
        parts = NormalWishart(own["components"]).kl(NormalWishart(prior["components"]))
        return float(weights + parts.sum())

    def _troubles(self) -> list[str]:
        flat = (self._spread.diagonal() <= self.reg_covar).nonzero()[:, 0].tolist()
        if flat:
            return [f"Column {flat[0]} does not vary beyond reg_covar: scale it, or leave it out."]
        return [*self._collapsed()] if self.inference.at_mode else []

    def _collapsed(self) -> Iterator[str]:
        """Components of EM that hold on to too few rows to have a covariance."""
        (counts,) = self._natural["weights"]
        least = torch.linalg.eigvalsh(self._gaussians.covariance)[:, 0]
        for k, (count, variance) in enumerate(zip(counts.tolist(), least.tolist(), strict=True)):
            if count < 1.0 or variance < 2.0 * self.reg_covar:
                yield (
                    f"Component {k} has collapsed: it holds {count:.3g} rows, and its least "
                    f"variance is {variance:.3g}. Take fewer components, a larger reg_covar, or "
                    "inference=VB(), whose prior keeps covariances."
                )

    @property
    def weights_(self) -> Tensor:
        """Of the components, (K,); for VB their means."""
        self._need_fit()
        (counts,) = self._natural["weights"]
        shares = counts if self.inference.at_mode else counts + 1.0
        return shares / shares.sum()

    @property
    def means_(self) -> Tensor:
        """(K, d)."""
        self._need_fit()
        return self._gaussians.mean + self._shift

    @property
    def covariances_(self) -> Tensor:
        """(K, d, d); for VB the inverse of the expected precision."""
        self._need_fit()
        return self._gaussians.covariance

    def predict_proba(self, x: Any) -> Tensor:
        """The probability of each component for each row, (n, K)."""
        return self._joint(self._rows(x)).softmax(1)

    def predict(self, x: Any) -> Tensor:
        """The likeliest component of each row, (n,)."""
        return self._joint(self._rows(x)).argmax(1)

    def log_prob(self, x: Any) -> Tensor:
        """`log p(x)` of each row, (n,); for VB θ is integrated out, each component a Student t."""
        parts = self._predictive.log_prob(self._rows(x))
        return (self.weights_.log() + parts).logsumexp(1)

    def score(self, x: Any) -> float:
        """The mean of `log_prob`."""
        return float(self.log_prob(x).mean())

    def sample(self, num: int = 1, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Rows (num, d) as the model predicts them, and the component of each (num,)."""
        generator = torch.Generator().manual_seed(seed)
        shares = self.weights_.cpu()
        which = torch.multinomial(shares, num, replacement=True, generator=generator)
        return self._predictive.cpu().sample(which, generator) + self._shift.cpu(), which

    @property
    def _predictive(self) -> Gaussians | Students:
        if self.inference.at_mode:
            return self._gaussians
        return Students(NormalWishart(self._natural["components"]))

    def _rows(self, x: Any) -> Tensor:
        self._need_fit()
        return tables.matrix(x, columns=len(self._shift)).to(self._shift) - self._shift

    def _learned(self) -> dict[str, Tensor]:
        return {**super()._learned(), "shift": self._shift, "spread": self._spread}

    def _adopt(self, tensors: dict[str, Tensor]) -> None:
        self._shift, self._spread = tensors.pop("shift"), tensors.pop("spread")
        self._see(natural_of(tensors))

    def _words(self) -> list[str]:
        shares, means = self.weights_, self.means_
        order = shares.argsort(descending=True).tolist()
        rows = [f"{float(shares[k]):6.1%} at {tables.brief(means[k])}" for k in order[:8]]
        return [*rows, *([f"… {len(order) - 8} more"] if len(order) > 8 else [])]
