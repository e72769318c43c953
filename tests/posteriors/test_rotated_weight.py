"""Weights known in other bases: the same outputs and gradients as the weights themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from exact import TableRows, close, randn
from torch import Tensor, nn
from torch.nn import functional

from bayesrule.curvature import Problem
from bayesrule.curvature._base import plain_gradient
from bayesrule.curvature.rows import Recording
from bayesrule.likelihoods import GaussianLikelihood
from bayesrule.matrices import Kronecker
from bayesrule.matrices.kronecker import KroneckerMatrix
from bayesrule.posteriors import Point
from bayesrule.posteriors.rotated import RotatedPoint, RotatedWeight, turned
from bayesrule.tensors.network import Network

pytestmark = pytest.mark.usefixtures("double_precision")


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0].flatten(1)


class _Tied(nn.Module):
    """A weight that is used as it is, backwards, and a bias that is used alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(functional.linear(x, self.layer.weight)) + 2.0 * self.layer.bias
        return hidden @ self.layer.weight


class _Shared(nn.Module):
    """Two layers with one bias: only the first knows it as its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.bias = self.first.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


class _Added(nn.Module):
    """A layer without a bias that is used with one from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.shift = nn.Linear(9, 8, bias=False), nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.layer.weight, self.shift)


NETS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "few inputs": (lambda: nn.Sequential(nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 7)), (2, 9)),
    "many inputs": (lambda: nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)), (40, 2)),
    "no bias": (lambda: nn.Linear(9, 8, bias=False), (2, 9)),
    "positions": (lambda: nn.Sequential(nn.Linear(12, 9), nn.Flatten()), (2, 2, 12)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 2, bias=False), nn.GroupNorm(1, 3), nn.Flatten()),
        (3, 2, 3, 3),
    ),
    "attention": (_Attention, (2, 3, 4)),
    "tied": (_Tied, (3, 3)),
    "shared bias": (_Shared, (1, 3)),
    "bias from elsewhere": (_Added, (2, 9)),
}


def _problem(module: nn.Module, x: Tensor) -> Problem:
    network = Network(module)
    outputs = module(x)
    likelihood, y = GaussianLikelihood(noise=0.5), randn(*outputs.shape, seed=3)
    noise, source = likelihood.init(x), torch.Generator()
    return Problem(network, likelihood, noise, {}, x, y, source, weight=2.0)


def _rotation(problem: Problem) -> KroneckerMatrix:
    """Bases of some curvature."""
    params = problem.network.params()
    structure = Kronecker().for_model(problem.network.model)
    found = structure.contract(TableRows.random(params, 1, 3, seed=9)).damped(1.0)
    return found.spectral()


@pytest.fixture(params=NETS)
def problem(request: pytest.FixtureRequest) -> Problem:
    """A problem for each net."""
    make, shape = NETS[request.param]
    torch.manual_seed(0)
    return _problem(make(), randn(*shape, seed=1))


def test_gradients_are_those_of_the_weights_themselves(problem: Problem) -> None:
    params, rotation = problem.network.params(), _rotation(problem)
    loss, gradient, outputs = plain_gradient(
        problem, RotatedPoint(rotation.into_bases(params), rotation)
    )
    wanted = plain_gradient(problem, Point(params))
    close(loss, wanted[0])
    close(outputs, wanted[2])
    for name, value in rotation.into_bases(wanted[1]).items():
        close(gradient[name], value)


def test_rows_are_those_of_the_weights_themselves(problem: Problem) -> None:
    params, rotation = problem.network.params(), _rotation(problem)
    recording = Recording(problem, RotatedPoint(rotation.into_bases(params), rotation))
    plain = Recording(problem, Point(params))
    vectors = randn(2, *plain.outputs.shape, seed=5)
    close(recording.outputs, plain.outputs)
    for name, value in rotation.into_bases(plain.gradient(vectors[0])).items():
        close(recording.gradient(vectors[0])[name], value)
    rows, _ = recording.backward(vectors, gradient=False)
    wanted, _ = plain.backward(vectors, gradient=False)
    for name, value in wanted.per_example().items():
        close(rows.per_example()[name], value)


def _weights(inputs: int, bias: bool = True) -> tuple[nn.Linear, dict[str, Tensor], Tensor]:
    module, x = nn.Linear(9, 8, bias=bias), randn(inputs, 9)
    rotation = _rotation(_problem(module, x))
    leaves = rotation.into_bases({k: v.detach() for k, v in module.named_parameters()})
    return module, turned(rotation, {k: v.requires_grad_() for k, v in leaves.items()}), x


@pytest.mark.parametrize("bias", [True, False])
def test_one_input_or_none_keeps_its_shape(bias: bool) -> None:
    module, weights, x = _weights(2, bias)
    given = weights["weight"], weights.get("bias")
    close(functional.linear(x[0], *given), module(x[0]))
    assert functional.linear(x[:0], *given).shape == (0, 8)


@pytest.mark.parametrize(("inputs", "cheap"), [(2, True), (200, False)])
def test_the_weight_is_worked_out_only_for_many_inputs(inputs: int, cheap: bool) -> None:
    module, weights, x = _weights(inputs)
    close(functional.linear(x, weights["weight"], weights["bias"]), module(x))
    weight = weights["weight"]
    assert isinstance(weight, RotatedWeight)
    assert ("whole" not in vars(weight.layer)) == cheap


def test_facts_are_told_without_the_weight() -> None:
    module, weights, _ = _weights(2)
    weight = weights["weight"]
    assert isinstance(weight, RotatedWeight)
    assert weight.shape == module.weight.shape
    assert (weight.dtype, weight.ndim, len(weight)) == (torch.float64, 2, 8)
    assert weight.requires_grad
    assert "whole" not in vars(weight.layer)
    assert repr(weight) == "RotatedWeight('weight', shape=(8, 9))"
    close(weight.detach() + 0.0, module.weight.detach())


class _Product(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight.mT

    @staticmethod
    def setup_context(context: Any, inputs: Any, output: Any) -> None:
        context.save_for_backward(*inputs)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = context.saved_tensors
        return gradient @ weight, gradient.mT @ x


class _Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return _Product.apply(x, self.layer.weight) + self.layer.bias


def test_a_gradient_that_would_be_lost_is_refused() -> None:
    problem = _problem(_Own(), randn(4, 3))
    rotation = _rotation(problem)
    point = RotatedPoint(rotation.into_bases(problem.network.params()), rotation)
    message = r"'layer\.weight' is only used where .* torch\.autograd\.Function that"
    with pytest.raises(ValueError, match=message):
        plain_gradient(problem, point)
    with pytest.raises(ValueError, match=message):
        Recording(problem, point)
