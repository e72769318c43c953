"""A Gaussian process with a Gaussian site at each row: the conjugate computation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.families import Natural
from bayesrule.graphical._sites import Marginals
from bayesrule.graphical.kernels import Kernel

_LOG_2PI = math.log(2.0 * math.pi)


@dataclass(frozen=True)
class Process:
    """The posterior of a Gaussian process given a Gaussian site at each row.

    With sites of precisions W and `r = λ̃₁ − W c`, c the mean of the process: `B = I + √W K √W`,
    `a = r − √W B⁻¹ √W K r`, and f has the mean `c + K a` and the covariance `K − K √W B⁻¹ √W K`.
    Rasmussen & Williams (2006), sec. 3.4.3.
    """

    covariance: Tensor
    root: Tensor
    factor: Tensor
    dual: Tensor
    mean: float

    @classmethod
    def of(cls, covariance: Tensor, mean: float, sites: Natural, kernel: Kernel) -> Process:
        precision = -2.0 * sites[1]
        root, right = precision.sqrt(), sites[0] - precision * mean
        factor = _factor(root[:, None] * covariance * root, kernel)
        inner = torch.cholesky_solve((root * (covariance @ right))[:, None], factor)[:, 0]
        return cls(covariance, root, factor, right - root * inner, mean)

    def marginals(self) -> Marginals:
        """Marginals of f at the rows, and `KL(q ‖ p) = ½ (log|B| − tr W V + aᵀ K a)`."""
        spread = torch.linalg.solve_triangular(
            self.factor, self.root[:, None] * self.covariance, upper=False
        )
        variance = self.covariance.diagonal() - spread.square().sum(0)
        away = self.covariance @ self.dual
        trace = (self.root.square() * variance).sum()
        divergence = self.half_log_det() + 0.5 * (self.dual @ away - trace)
        return Marginals(self.mean + away, variance.clamp_min(1e-300), divergence)

    def slope(self) -> Tensor:
        """`½ (a aᵀ − (K + 1/W)⁻¹)`, the derivative of the log evidence in K at fixed sites.

        At the fixed point of the sites the bound has no slope in them, so this is its derivative
        too.
        """
        inverse = torch.cholesky_inverse(self.factor) * self.root * self.root[:, None]
        return 0.5 * (torch.outer(self.dual, self.dual) - inverse)

    def half_log_det(self) -> Tensor:
        return self.factor.diagonal().log().sum()

    def at(self, between: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and covariance at m new points of covariance `prior`, (m, m) or its diagonal.

        `between` (n, m) is the covariance of the rows and the new points before the sites.
        """
        white = torch.linalg.solve_triangular(
            self.factor, self.root[:, None] * between, upper=False
        )
        explained = white.T @ white if prior.ndim == 2 else white.square().sum(0)
        return self.mean + between.T @ self.dual, prior - explained


def _factor(matrix: Tensor, kernel: Kernel) -> Tensor:
    """The Cholesky factor of `I + M`, with the least jitter on M's diagonal that rounding needs."""
    eye = torch.eye(len(matrix), dtype=matrix.dtype)
    scale = float(matrix.detach().diagonal().abs().mean())
    for jitter in (0.0, 1e-12, 1e-10, 1e-8):
        factor, failed = torch.linalg.cholesky_ex(matrix + (1.0 + jitter * scale) * eye)
        if not failed:
            return factor
    raise ValueError(
        f"{kernel!r} gives covariances that are not positive definite for these rows: it is no "
        "kernel. Sums and products of RBF, Matern, Periodic and Linear always are."
    )


def evidence(process: Process, y: Tensor) -> Tensor:
    """`log N(y | c, K + 1/W)`."""
    scale = process.root.log().sum() - 0.5 * len(y) * _LOG_2PI
    # The dual weights of exact regression are (K + 1/W)⁻¹ (y − c).
    return scale - process.half_log_det() - 0.5 * (y - process.mean) @ process.dual
