"""Draws within the layers: outputs distributed as those of weight draws, on any module."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from exact import close, flat, generator, positive, randn, z_close
from torch import Tensor, nn

from bayesrule.curvature import Pathwise
from bayesrule.expectations import Flipout, Layerwise, LocalDraws
from bayesrule.expectations.layerwise import DrawnWeight, WeightSampler
from bayesrule.matrices import Dense, Diagonal, Isotropic
from bayesrule.posteriors import Gaussian, GaussianFamily, MeanFieldFamily, PointEstimate
from bayesrule.tensors.network import Network
from expectations.nets import Function, belief_of, each, net, problem_of

pytestmark = pytest.mark.usefixtures("double_precision")
both = pytest.mark.parametrize("how", [LocalDraws(), Flipout()], ids=["local", "flipout"])


LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(3, 2), (3,)),
    "no bias": (nn.Linear(3, 2, bias=False), (3,)),
    "1d": (nn.Conv1d(2, 2, 2, stride=2, padding=1), (2, 3)),
    "2d": (nn.Conv2d(4, 4, 2, groups=2, dilation=2, padding="same"), (4, 3, 3)),
    "3d": (nn.Conv3d(1, 2, 2), (1, 3, 2, 2)),
    "circular": (nn.Conv1d(1, 2, 2, padding=1, padding_mode="circular"), (1, 3)),
    "transposed 1d": (nn.ConvTranspose1d(2, 1, 2, stride=2), (2, 2)),
    "transposed 2d": (nn.ConvTranspose2d(2, 2, 2, output_padding=1, stride=2), (2, 2, 1)),
    "transposed 3d": (nn.ConvTranspose3d(1, 2, 2), (1, 2, 1, 1)),
    "steps": (nn.Linear(2, 2), (3, 2)),
}


@both
@pytest.mark.parametrize("name", LAYERS)
def test_outputs_have_the_moments_of_weight_draws(name: str, how: Layerwise) -> None:
    layer, shape = LAYERS[name]
    x, network = randn(1, *shape, seed=7), Network(layer.double())
    q = belief_of(problem_of(layer, x, x))
    jacobians = torch.autograd.functional.jacobian(
        lambda *values: network(dict(zip(q.mean, values, strict=True)), {}, x, training=False)[0],
        tuple(q.mean.values()),
    )
    ndim = network(q.mean, {}, x, training=False).ndim - 1
    slopes = torch.cat([j.flatten(ndim).flatten(0, ndim - 1) for j in jacobians], 1)
    wanted = (slopes * flat(q.std()).square()) @ slopes.mT
    together, products = x.expand(20, *shape), []
    source = generator(8)
    for _ in range(100):
        sampler = WeightSampler(how, source, 20)
        y = network(sampler.weights(q.mean, q.std()), {}, together, training=False)
        z = (y - network(q.mean, {}, together, training=False)).flatten(1)
        products.append(z.mT @ z / 20)
    found = torch.stack(products)
    if isinstance(how, LocalDraws) and not isinstance(layer, nn.Linear):
        found, wanted = found.diagonal(dim1=1, dim2=2), wanted.diagonal()
    z_close(found.flatten(1), wanted.flatten())


def test_flipout_gives_each_example_a_gaussian() -> None:
    weight, x = {"weight": torch.ones(1, 2)}, torch.ones(1, 2)
    network, source = Network(nn.Linear(2, 1, bias=False)), generator(3)
    outputs = [
        network(WeightSampler(Flipout(), source, 1).weights(weight, weight), {}, x, training=False)
        - 2.0
        for _ in range(2000)
    ]
    draws = torch.cat(outputs)
    z_close(draws, 0.0)
    z_close(draws.square(), 2.0)
    z_close(draws**4, 12.0)


def test_positions_of_a_convolution_go_together_in_flipout_but_not_in_local_draws() -> None:
    network, x = Network(nn.Conv1d(1, 1, 1, bias=False)), torch.ones(500, 1, 10)
    weight = {"weight": torch.ones(1, 1, 1)}
    spread = {}
    for how in (LocalDraws(), Flipout()):
        sampler = WeightSampler(how, generator(), 500)
        y = network(sampler.weights(weight, weight), {}, x, training=False)
        spread[type(how)] = y.var(2).mean()
    close(spread[LocalDraws], 1.0, 0.1)
    close(spread[Flipout], 0.0)


@both
def test_examples_are_uncorrelated(how: Layerwise) -> None:
    network, weight = Network(nn.Linear(2, 1)), {"weight": torch.ones(1, 2), "bias": torch.ones(1)}
    source, pairs = generator(3), []
    for _ in range(1000):
        sampler = WeightSampler(how, source, 2)
        y = network(sampler.weights(weight, weight), {}, torch.ones(2, 2), training=False) - 3.0
        pairs.append(y.prod())
    z_close(torch.stack(pairs), 0.0)


SHARED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "used twice": lambda m, x: torch.cat(
        [nn.functional.linear(x, m.weight, m.bias), nn.functional.linear(x, m.weight, m.bias)], 1
    ),
    "matmul": lambda m, x: x @ m.weight.T + m.bias,
    "transposed too": lambda m, x: nn.functional.linear(
        nn.functional.linear(x, m.weight), m.weight.mT
    ),
    "keywords of a batch of another length": lambda m, x: nn.functional.linear(
        input=x.reshape(-1, 1, 2)[:3], weight=m.weight, bias=m.bias
    ),
    "weight as the input": lambda m, x: nn.functional.linear(m.weight, x).mT + m.bias,
    "the shape of a weight, and a sum": lambda m, x: x.new_zeros(len(x), len(m.weight)) + m.bias,
}


@both
@pytest.mark.parametrize("name", SHARED)
def test_other_uses_get_one_draw_that_the_batch_shares(name: str, how: Layerwise) -> None:
    seen = []

    def call(module: Any, x: Tensor) -> Tensor:
        seen.append(SHARED[name](module, x))
        return seen[-1].mean() * x[:, :1]

    problem = problem_of(Function(call, (2, 2)), torch.ones(4, 2), torch.zeros(4, 1))
    (local,) = each(problem, belief_of(problem), how, Pathwise())
    close(seen[-1], seen[-1][:1].expand_as(seen[-1]))
    assert not torch.allclose(seen[-1], seen[0])  # the first pass is that at the mean
    if name == "used twice":
        one, two = seen[-1].tensor_split(2, 1)
        close(one, two)
    assert local.gradient["bias"].isfinite().all()


@both
def test_a_weight_that_is_suddenly_used_again_is_refused(how: Layerwise) -> None:
    def call(module: Any, x: Tensor) -> Tensor:
        once = nn.functional.linear(x, module.weight, module.bias)
        return nn.functional.linear(once, module.weight) if x[0, 0] > 0 else once

    problem = problem_of(Function(call, (2, 2)), -torch.ones(4, 2), torch.zeros(4, 2))
    q = belief_of(problem)
    each(problem, q, how, Pathwise())
    with pytest.raises(RuntimeError, match=r"'weight' is used several times.* Use Draws\(1\)"):
        each(dataclasses.replace(problem, x=torch.ones(4, 2)), q, how, Pathwise())


@both
def test_single_precision_in_channels_last_stays_so(how: Layerwise) -> None:
    last = torch.channels_last
    model = nn.Conv2d(3, 4, 3).float().to(memory_format=last)  # type: ignore[call-overload]
    x = randn(5, 3, 6, 6).float().contiguous(memory_format=last)
    network, spread = Network(model), Network(model).params()
    sampler = WeightSampler(how, generator(), 5)
    y = network(sampler.weights(network.params(), spread), {}, x, training=False)
    assert sampler.weights(spread, spread)["weight"].is_contiguous(memory_format=last)
    assert y.dtype == torch.float32
    assert y.is_contiguous(memory_format=last)


@both
def test_outside_of_training_the_weights_are_one_draw(how: Layerwise) -> None:
    problem, q = net("mlp", 5)
    (point,) = how.points(q, generator())
    x = torch.ones(5, 3)
    one, two = (problem.network(point.params, {}, x, training=False) for _ in range(2))
    close(one, two, 0.0)
    close(one, one[:1].expand_as(one))
    weight = point.params["0.weight"]
    assert isinstance(weight, DrawnWeight)
    assert weight.shape == (4, 3)
    assert "0.weight" in repr(weight)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="LocalDraws takes at least one draw, got 0"):
        LocalDraws(0)
    with pytest.raises(ValueError, match="Flipout takes at least one draw, got -1"):
        Flipout(-1)
    mean = {"w": torch.zeros(2)}
    for family in (MeanFieldFamily(), GaussianFamily(Diagonal())):
        assert Flipout().obstacle(family) is None
    assert Flipout().obstacle(PointEstimate()) is not None
    reason = Flipout().obstacle(GaussianFamily(Dense()))
    assert reason is not None
    assert re.search(
        r"independent Gaussian weights.* got GaussianFamily\(.*Dense.*; use Dr", reason
    )
    full = Gaussian(mean, Dense().project(positive(2), mean))
    with pytest.raises(
        TypeError, match=r"independent Gaussian weights, got <Gaussian.*; use Draws"
    ):
        next(Flipout().points(full, generator()))
    (point,) = LocalDraws().points(Gaussian(mean, Isotropic().identity(mean, 4.0)), generator())
    with (
        pytest.raises(RuntimeError, match="without asking for a draw"),
        torch._C.DisableTorchFunctionSubclass(),
    ):
        point.params["w"] + 1.0
