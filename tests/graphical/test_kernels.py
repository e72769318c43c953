"""Kernels against those of scikit-learn, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from exact import close, randn
from sklearn.gaussian_process import kernels as theirs
from torch import Tensor

from bayesrule.graphical.kernels import RBF, Kernel, Linear, Matern, Periodic

LENGTHS = [0.7, 1.9]
PAIRS = [
    (RBF(2.0, 0.7), 2.0 * theirs.RBF(0.7)),
    (RBF(2.0, LENGTHS), 2.0 * theirs.RBF(LENGTHS)),
    *[(Matern(0.5, LENGTHS, nu), 0.5 * theirs.Matern(LENGTHS, nu=nu)) for nu in (0.5, 1.5, 2.5)],
    (Linear(0.3), 0.3 * theirs.DotProduct(sigma_0=0.0)),
    (
        RBF(2.0, 0.7) + Matern(0.5, 1.2) * Linear(0.3),
        2.0 * theirs.RBF(0.7) + 0.5 * theirs.Matern(1.2, nu=2.5) * 0.3 * theirs.DotProduct(0.0),
    ),
]


@pytest.mark.parametrize(("ours", "other"), PAIRS, ids=lambda k: repr(k)[:40])
def test_kernels_are_those_of_scikit_learn(ours: Kernel, other: Any) -> None:
    x, z = randn(7, 2), randn(5, 2, seed=1)
    close(ours.covariance(x, z), torch.as_tensor(other(x.numpy(), z.numpy())), 1e-12)
    close(ours.diagonal(x), ours.covariance(x, x).diagonal(), 1e-12)


def test_the_periodic_kernel_is_that_of_scikit_learn() -> None:
    x, z = randn(7, 1), randn(5, 1, seed=1)
    found = Periodic(1.5, 0.8, 2.0).covariance(x, z)
    other = theirs.ExpSineSquared(0.8, 2.0)(x.numpy(), z.numpy())
    close(found, torch.as_tensor(1.5 * np.asarray(other)), 1e-12)


@pytest.mark.parametrize("kernel", [pair[0] for pair in PAIRS], ids=lambda k: repr(k)[:40])
def test_gradients_are_finite_where_points_coincide(kernel: Kernel) -> None:
    x = randn(4, 2)[[0, 0, 1, 2]]
    logs = {k: v.log().requires_grad_() for k, v in kernel.parameters.items()}
    total = kernel.replaced({k: v.exp() for k, v in logs.items()}).covariance(x, x).sum()
    assert all(g.isfinite().all() for g in torch.autograd.grad(total, list(logs.values())))


def test_parameters_can_be_taken_out_and_put_back() -> None:
    kernel = RBF() + Matern(smoothness=0.5) * Linear()
    names = ["0.variance", "0.length", "1.0.variance", "1.0.length", "1.1.variance"]
    assert list(kernel.parameters) == names
    again = kernel.replaced({name: torch.tensor(float(k + 1)) for k, name in enumerate(names)})
    assert repr(again) == (
        "(RBF(variance=1, length=2) + (Matern(variance=3, length=4, smoothness=0.5) * "
        "Linear(variance=5)))"
    )


def test_a_kernel_of_ones_own_needs_a_covariance_only() -> None:
    class Brownian(Kernel):
        def covariance(self, x: Tensor, z: Tensor) -> Tensor:
            return torch.minimum(x, z.T)

    close(Brownian().diagonal(torch.tensor([[1.0], [3.0]])), torch.tensor([1.0, 3.0]))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: RBF(variance=-1.0), "RBF: variance must be positive"),
        (lambda: RBF(length=[1.0, 0.0]), r"RBF: length must be positive .* each column"),
        (lambda: Matern(length=float("nan")), "Matern: length must be positive"),
        (lambda: Matern(smoothness=2.0), "Matern: smoothness is 0.5, 1.5 or 2.5; got 2.0"),
        (lambda: Periodic(period=0.0), "Periodic: period must be positive"),
    ],
)
def test_parameters_that_cannot_be_are_refused_by_name(build: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build()


def test_lengths_are_one_or_one_for_each_column() -> None:
    with pytest.raises(ValueError, match="RBF has 3 lengths for 2 columns"):
        RBF(length=torch.ones(3)).covariance(randn(2, 2), randn(2, 2))


def test_only_kernels_add_up() -> None:
    with pytest.raises(TypeError, match=r"Kernels go together with kernels, got 1\.0"):
        RBF() + 1.0  # type: ignore[operator]
