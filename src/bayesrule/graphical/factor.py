"""A few hidden factors behind many columns: factor analysis and probabilistic PCA by EM."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from bayesrule.families import Natural
from bayesrule.graphical import tables
from bayesrule.graphical._base import Messages
from bayesrule.graphical.inference import EM, Inference
from bayesrule.graphical.latent import LatentModel, Local, natural_of
from bayesrule.tensors.unfit import whole_number

_LOG_2PI = math.log(2.0 * math.pi)
# The least noise of a column, as a share of its variance.
_FLOOR = 1e-8


class Moments(NamedTuple):
    """The sufficient statistics of centred rows: their number and `Σ x xᵀ` (d, d)."""

    rows: int
    squares: Tensor

    def __len__(self) -> int:
        return self.rows


class Factors(NamedTuple):
    """`x = W z + ε`, `z ~ N(0, I)`, `ε ~ N(0, diag ψ)`, with W (d, k) and ψ (d,).

    `gain = G Wᵀ Ψ⁻¹` and `spread = G = (I + Wᵀ Ψ⁻¹ W)⁻¹` are those of `q(z | x) = N(gain x, G)`.
    """

    loadings: Tensor
    noise: Tensor
    gain: Tensor
    spread: Tensor

    @classmethod
    def of(cls, loadings: Tensor, noise: Tensor) -> Factors:
        scaled = loadings / noise.unsqueeze(1)
        eye = torch.eye(loadings.shape[1], dtype=loadings.dtype, device=loadings.device)
        factor = torch.linalg.cholesky(eye + loadings.T @ scaled)
        spread = torch.cholesky_inverse(factor)
        return cls(loadings, noise, spread @ scaled.T, spread)

    @property
    def log_det(self) -> Tensor:
        """`log |W Wᵀ + Ψ|`."""
        return self.noise.log().sum() - torch.linalg.slogdet(self.spread).logabsdet

    def log_prob(self, x: Tensor) -> Tensor:
        """`log p(x)` of centred rows, (n,)."""
        hidden = x @ self.gain.T
        residual = (x - hidden @ self.loadings.T).square() / self.noise
        squares = residual.sum(1) + hidden.square().sum(1)
        return -0.5 * (x.shape[1] * _LOG_2PI + self.log_det + squares)

    def total_log_prob(self, rows: int, squares: Tensor) -> Tensor:
        """The sum of `log_prob` over rows, from their `Σ x xᵀ`."""
        cross = squares @ self.gain.T
        hidden = self.gain @ cross
        explained = self.loadings * (2.0 * cross - self.loadings @ hidden)
        residual = (squares.diagonal() - explained.sum(1)) / self.noise
        size = rows * (len(self.noise) * _LOG_2PI + self.log_det)
        return -0.5 * (size + residual.sum() + hidden.trace())


@dataclass(eq=False, repr=False, kw_only=True)
class FactorAnalysis(LatentModel):
    """`x ~ N(W z + m, diag ψ)` with k hidden `z ~ N(0, I)`, by EM; Khan & Rue (2023), sec. 5.2.

    Row x sends the message `(x E[z]ᵀ, −½ E[z zᵀ], −½ x², ½)` for the statistics
    `(Ψ⁻¹W, Wᵀ Ψ⁻¹ W, Ψ⁻¹, log |Ψ⁻¹|)`; W and ψ are the mode of all messages. `inference` is `EM()`
    or, on batches, `OnlineEM()`. Rubin & Thayer (1982).

    Learned: `mean_` (d,), `components_` (k, d), which is Wᵀ, `noise_variance_` (d,), `report_`.
    """

    components: int
    inference: Inference = field(default_factory=lambda: EM(passes=5000, tol=1e-9))
    mean_: Tensor = field(init=False)
    _variances: Tensor = field(init=False)
    _factors: Factors = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("components", self.components)
        if not self.inference.at_mode:
            raise ValueError(
                f"{type(self).__name__} is fitted by EM() or, on batches, by OnlineEM(); got "
                f"{self.inference}: no conjugate prior gives both W and z in closed form."
            )

    def fit(self, x: Any, *, components: Any = None, progress: bool | None = None) -> Self:
        """Learns from rows (n, d); starts at random loadings, or at `components` (k, d)."""
        x = tables.matrix(x, rows=2)
        if x.shape[1] < self.components:
            raise ValueError(
                f"{self.components} components need as many columns; got {x.shape[1]}."
            )
        self.mean_ = x.mean(0)
        x = x - self.mean_
        self._variances = _positive(x.square().mean(0))
        whole = self.inference.batch_size is None
        data = Moments(len(x), x.T @ x) if whole else x
        self._climb(data, self._starts(components), progress)
        return self

    def _starts(self, components: Any) -> Iterator[Messages]:
        """Loadings and noise that share each column's variance, as messages of one row."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = len(self._variances), self.components
        for _ in range(self.restarts if components is None else 1):
            drawn = torch.randn(shape, generator=generator, dtype=self._variances.dtype)
            drawn = drawn * (0.5 * self._variances / self.components).sqrt().cpu().unsqueeze(1)
            loadings = (
                drawn if components is None else torch.as_tensor(components, dtype=drawn.dtype).T
            )
            if loadings.shape != shape:
                raise ValueError(f"components are {shape[::-1]}; got {tuple(loadings.T.shape)}.")
            yield self._about(loadings.to(self._variances), 0.5 * self._variances)

    def _about(self, loadings: Tensor, noise: Tensor) -> Messages:
        """The messages whose mode is W and ψ."""
        eye = torch.eye(self.components, dtype=noise.dtype, device=noise.device)
        squares = noise + loadings.square().sum(1)
        return {"factors": (loadings, -0.5 * eye, -0.5 * squares, noise.new_tensor(0.5))}

    def _prior(self) -> Messages:
        loadings = self._variances.new_zeros(len(self._variances), self.components)
        like = self._about(loadings, self._variances)["factors"]
        return {"factors": tuple(torch.zeros_like(part) for part in like)}

    def _see(self, natural: dict[str, Natural]) -> None:
        self._natural = natural
        first, second, squares, half = natural["factors"]
        loadings = torch.linalg.solve(-2.0 * second, first.T).T
        residual = (-2.0 * squares - (loadings * first).sum(1)) / (2.0 * half)
        # Parameter expansion: with z ~ N(0, R), R is the mean square of z, and its root is absorbed
        # into W. Same fixed points, fewer passes (PPCA most); Liu, Rubin & Wu (1998), sec. 5.
        loadings = loadings @ torch.linalg.cholesky(-second / half)
        noise = self._noise(residual).maximum(_FLOOR * self._variances)
        self._factors = Factors.of(loadings, noise)

    def _noise(self, residual: Tensor) -> Tensor:
        """ψ from the variance of each column that W does not explain."""
        return residual

    def _local(self, batch: Moments | Tensor) -> Local:
        """`q(z)` of all rows, as second moments."""
        rows, squares = batch if isinstance(batch, Moments) else (len(batch), batch.T @ batch)
        factors = self._factors
        cross = squares @ factors.gain.T
        second = rows * factors.spread + factors.gain @ cross
        messages = (cross, -0.5 * second, -0.5 * squares.diagonal(), squares.new_tensor(0.5 * rows))
        return Local({"factors": messages}, factors.total_log_prob(rows, squares))

    def _divergence(self) -> float:
        return 0.0

    def _troubles(self) -> list[str]:
        low = self._factors.noise <= 2.0 * _FLOOR * self._variances
        return [
            f"Column {int(column)} is left without noise: the components explain it exactly (a "
            "Heywood case). Take fewer components, or drop columns that others determine."
            for column in low.nonzero()[:1, 0]
        ]

    @property
    def components_(self) -> Tensor:
        """Wᵀ, (k, d), rotated so that its rows are orthogonal given the noise, largest first."""
        self._need_fit()
        scale = self._factors.noise.sqrt().unsqueeze(1)
        u, s, _ = torch.linalg.svd(self._factors.loadings / scale, full_matrices=False)
        turned = scale * u * s
        signs = turned.gather(0, turned.abs().argmax(0, keepdim=True)).sign()
        return (turned * signs).T

    @property
    def noise_variance_(self) -> Tensor:
        """ψ, (d,)."""
        self._need_fit()
        return self._factors.noise

    def get_covariance(self) -> Tensor:
        """`W Wᵀ + Ψ`, (d, d)."""
        self._need_fit()
        return self._factors.loadings @ self._factors.loadings.T + self._factors.noise.diag()

    def transform(self, x: Any) -> Tensor:
        """The expected factors `E[z | x]` of each row, (n, k)."""
        rows, rotated = self._rows(x), Factors.of(self.components_.T, self._factors.noise)
        return rows @ rotated.gain.T

    def inverse_transform(self, z: Any) -> Tensor:
        """Rows `W z + m` (n, d) from factors z (n, k)."""
        return (
            tables.matrix(z, "z", columns=self.components).to(self.mean_) @ self.components_
            + self.mean_
        )

    def predict(self, x: Any) -> Tensor:
        """Each row without its noise, `E[W z + m | x]`, (n, d)."""
        return self.inverse_transform(self.transform(x))

    def log_prob(self, x: Any) -> Tensor:
        """`log p(x)` of each row, (n,)."""
        return self._factors.log_prob(self._rows(x))

    def score(self, x: Any) -> float:
        """The mean of `log_prob`."""
        return float(self.log_prob(x).mean())

    def sample(self, num: int = 1, seed: int = 0) -> Tensor:
        """Rows (num, d)."""
        self._need_fit()
        generator = torch.Generator().manual_seed(seed)
        d, k = self._factors.loadings.shape
        noise = torch.randn(num, d + k, generator=generator, dtype=torch.float64).to(self.mean_)
        unexplained = noise[:, k:] * self._factors.noise.sqrt()
        return self.mean_ + noise[:, :k] @ self._factors.loadings.T + unexplained

    def _rows(self, x: Any) -> Tensor:
        self._need_fit()
        return tables.matrix(x, columns=len(self.mean_)).to(self.mean_) - self.mean_

    def _learned(self) -> dict[str, Tensor]:
        return {**super()._learned(), "mean": self.mean_, "variances": self._variances}

    def _adopt(self, tensors: dict[str, Tensor]) -> None:
        self.mean_, self._variances = tensors.pop("mean"), tensors.pop("variances")
        self._see(natural_of(tensors))

    def _summary_lines(self) -> list[str]:
        total = self.get_covariance().diagonal().sum()
        shares = (self.components_.square().sum(1) / total).tolist()
        shown = [
            f"component {k}: {share:.1%} of the variance" for k, share in enumerate(shares[:8])
        ]
        return [*shown, f"noise: {float(self._factors.noise.sum() / total):.1%}"]


@dataclass(eq=False, repr=False, kw_only=True)
class PPCA(FactorAnalysis):
    """Probabilistic PCA: factor analysis with the same noise σ² in all columns, by EM.

    The maximum of its likelihood is known in closed form: W spans the first k eigenvectors of the
    covariance, and σ² is the mean of the other eigenvalues. Tipping & Bishop (1999), eqs 7 and 8.

    Learned: as `FactorAnalysis`, with one number `noise_variance_`.
    """

    def _noise(self, residual: Tensor) -> Tensor:
        return residual.mean().expand_as(residual)

    @property
    def noise_variance_(self) -> Tensor:
        """σ², ()."""
        self._need_fit()
        return self._factors.noise[0]


def _positive(variances: Tensor) -> Tensor:
    """The variances of columns, with a small floor for constant ones."""
    least = 1e-12 * variances.max().clamp_min(1e-12)
    return variances.maximum(least)
