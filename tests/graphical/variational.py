"""The largest bound over all Gaussians, by brute force: what the learning rule has to find."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from bayesrule.moments.quadrature import evenly

POINTS, WEIGHTS = torch.tensor(evenly(241, 10.0), dtype=torch.float64).T


def expectation(log_prob: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor) -> Tensor:
    """`Σ_i E[log p(y_i | f_i)]` by 241 values for each datum."""
    outputs = mean + variance.sqrt() * POINTS[:, None]
    return (WEIGHTS @ log_prob(outputs)).sum()


def bound(
    m: Tensor, root: Tensor, design: Tensor, prior: Tensor, log_prob: Callable[[Tensor], Tensor]
) -> Tensor:
    """The ELBO of N(m, root rootᵀ) for outputs `design w` and the prior N(0, prior)."""
    cover = root @ root.T
    fit = expectation(log_prob, design @ m, ((design @ cover) * design).sum(1))
    p = torch.distributions.MultivariateNormal(torch.zeros_like(m), prior)
    q = torch.distributions.MultivariateNormal(m, scale_tril=root)
    return fit - torch.distributions.kl_divergence(q, p)


def best(
    design: Tensor, prior: Tensor, log_prob: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor, float]:
    """Mean, covariance and value of the largest bound, by BFGS over m and a Cholesky factor."""
    size = len(prior)
    lower = torch.tril_indices(size, size)

    def unpacked(flat: Tensor) -> tuple[Tensor, Tensor]:
        root = torch.zeros(size, size, dtype=torch.float64)
        root = root.index_put((lower[0], lower[1]), flat[size:])
        return flat[:size], root.tril(-1) + root.diagonal().exp().diag()

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        at = torch.as_tensor(flat).requires_grad_()
        value = -bound(*unpacked(at), design, prior, log_prob)
        return float(value.detach()), torch.autograd.grad(value, at)[0].numpy()

    start = np.zeros(size + len(lower[0]))
    found = minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 5000})
    m, root = unpacked(torch.as_tensor(found.x))
    return m, root @ root.T, -float(found.fun)
