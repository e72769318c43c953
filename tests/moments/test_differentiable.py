"""Gaussians under autograd: the same numbers, finite gradients, nothing lost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from bayesrule.moments import GaussianTensor, through


@pytest.mark.parametrize("function", [torch.relu, torch.tanh])
def test_large_tensors_have_the_same_numbers_as_without_autograd(function: Any) -> None:
    """Large tensors go in blocks and in place, but not where autograd follows."""
    m, s = torch.randn(400, 400), torch.rand(400, 400)
    plain = function(GaussianTensor(m, s))
    x = GaussianTensor(m.clone().requires_grad_(), s.clone().requires_grad_())
    followed = function(x)
    slopes = torch.autograd.grad(followed.centre.sum(), [x.centre, x.variance])
    assert_close(followed.centre.detach(), plain.centre, rtol=1e-14, atol=1e-14)
    assert_close(followed.variance.detach(), plain.variance, rtol=1e-12, atol=1e-14)
    # A row alone is too small for blocks.
    row = GaussianTensor(m[:1].clone().requires_grad_(), s[:1].clone().requires_grad_())
    alone = torch.autograd.grad(function(row).centre.sum(), [row.centre, row.variance])
    for whole, part in zip(slopes, alone, strict=True):
        assert_close(whole[:1], part)


@pytest.mark.parametrize("function", [F.relu, F.leaky_relu, F.hardtanh, F.elu, torch.tanh])
def test_units_that_are_known_or_far_out_have_finite_gradients(function: Any) -> None:
    m = torch.tensor([500.0, 10.0, -10.0, -500.0], dtype=torch.float32, requires_grad=True)
    for variance in (0.0, 1e-30, 1.0):
        s = torch.full_like(m, variance).requires_grad_()
        found = function(GaussianTensor(m, s))
        slopes = torch.autograd.grad((found.centre + found.variance).sum(), [m, s])
        exact = torch.func.grad(lambda z: function(z).sum())(m.detach())
        assert slopes[1].isfinite().all()
        assert_close(slopes[0], exact, rtol=1e-3, atol=1e-3)


def test_a_function_with_a_weight_of_its_own_passes_the_gradient_on() -> None:
    """The derivatives of others are found without a graph, which would not lead to the weight."""
    sure = torch.ones(()).requires_grad_()
    m, s = torch.randn(4, requires_grad=True), torch.rand(4, requires_grad=True)

    def total(sharp: Tensor) -> Tensor:
        found = through(GaussianTensor(m, s), lambda z: torch.tanh(sharp * z))
        return (found.centre + found.variance).sum()

    slopes = torch.autograd.grad(total(sure), [sure, m, s])
    plain = torch.autograd.grad(total(sure.detach()), [m, s])
    rise = (total(torch.tensor(1.0 + 1e-6)) - total(torch.tensor(1.0 - 1e-6))) / 2e-6
    assert_close(slopes[0], rise.detach(), rtol=1e-6, atol=1e-8)
    assert_close(slopes[1:], plain)


def test_what_is_detached_is_not_followed() -> None:
    x = GaussianTensor(torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True))
    cut = x.detach()
    assert isinstance(cut, GaussianTensor)
    assert not cut.centre.requires_grad
    assert not cut.variance.requires_grad
