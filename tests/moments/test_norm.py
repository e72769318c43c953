"""Normalising layers: what the equations say, element by element, and torch's own buffers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.testing import assert_close

from bayesrule import Conditioning, GaussianLikelihood, tagi
from bayesrule.moments import GaussianTensor, MomentMatched, Tape
from moments.linear_maps import learned, leaves
from moments.monte_carlo import check_moments

EPS = 1e-5


def statistics(x: Tensor, s: Tensor, axes: list[int]) -> tuple[Tensor, Tensor]:
    """`M = Σμ/N`, and the expectation `V = Σ(μ − M)²/N + (1 − 1/N) Σσ²/N` of torch's variance."""
    count = x[0].numel() * len(x) / x.sum(axes).numel()
    mean = x.sum(axes, keepdim=True) / count
    noise = s.sum(axes, keepdim=True) * (1 - 1 / count)
    return mean, ((x - mean).square().sum(axes, keepdim=True) + noise) / count


class Case:
    """A normalising layer, and the statistics that it takes."""

    def __init__(self, layer: nn.Module, shape: tuple[int, ...], axes: list[int]) -> None:
        self.layer, self.shape, self.axes = layer.double(), shape, axes

    def statistics(self, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        return statistics(x, s, self.axes)


class Groups(Case):
    def statistics(self, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        def grouped(t: Tensor) -> Tensor:
            return t.reshape(len(t), self.layer.num_groups, -1, *t.shape[2:])

        found = statistics(grouped(x), grouped(s), [2, 3, 4])
        return tuple(t.expand_as(grouped(x)).reshape_as(x) for t in found)  # type: ignore[return-value]


class MeanSquare(Case):
    def statistics(self, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros(()), (x.square() + s).mean(-1, keepdim=True)


CASES = {
    "batch norm of rows": Case(nn.BatchNorm1d(3), (5, 3), [0]),
    "batch norm of sequences": Case(nn.BatchNorm1d(2), (3, 2, 4), [0, 2]),
    "batch norm of images": Case(nn.BatchNorm2d(2), (3, 2, 2, 3), [0, 2, 3]),
    "batch norm of boxes": Case(nn.BatchNorm3d(2), (2, 2, 2, 1, 3), [0, 2, 3, 4]),
    "batch norm without buffers": Case(
        nn.BatchNorm2d(2, track_running_stats=False), (3, 2, 2, 3), [0, 2, 3]
    ),
    "layer norm": Case(nn.LayerNorm(4), (2, 3, 4), [2]),
    "layer norm over two axes": Case(nn.LayerNorm((3, 4)), (2, 3, 4), [1, 2]),
    "layer norm without bias": Case(nn.LayerNorm(4, bias=False), (2, 4), [1]),
    "instance norm": Case(nn.InstanceNorm2d(2, affine=True), (3, 2, 2, 3), [2, 3]),
    "group norm": Groups(nn.GroupNorm(2, 4), (2, 4, 2, 3), []),
    "RMS norm": MeanSquare(nn.RMSNorm(4, eps=EPS), (2, 3, 4), []),
    "batch norm without weights": Case(nn.BatchNorm1d(3, affine=False), (5, 3), [0]),
    "instance norm without weights": Case(nn.InstanceNorm1d(2), (3, 2, 4), [2]),
}


def spread_out(parameter: Tensor, case: Case) -> Tensor:
    """A weight of one number for each channel, or for each element, against the input."""
    if isinstance(case.layer, nn.LayerNorm | nn.RMSNorm):
        return parameter
    return parameter.reshape(1, -1, *[1] * (len(case.shape) - 2))


def weights(case: Case, tape: Tape, which: str) -> dict[str, Any]:
    """The layer's weights: Gaussian, plain, or half and half."""
    found: dict[str, Any] = {}
    for name, value in case.layer.named_parameters():
        mean, variance = torch.randn_like(value) + 1.0, torch.rand_like(value) + 0.1
        plain = which == "plain" or (which == "weight" and name == "bias")
        found[name] = mean if plain else tape.leaf(mean, variance)
    return found


def moments(x: Any) -> tuple[Tensor, Tensor]:
    if isinstance(x, GaussianTensor):
        return x.centre, x.variance
    return x, torch.zeros_like(x)


@pytest.mark.parametrize("name", CASES)
def test_innovations_come_back_through_the_statistics(name: str) -> None:
    """δ_in is `Jᵀ δ` with the whole Jacobian of the means, by autograd of the equations."""
    case = CASES[name]
    (x,) = leaves(case.shape)
    given = weights(case, x.tape, "plain")
    with torch.no_grad():
        result = functional_call(case.layer.train(), given, (x,))
        delta = torch.randn_like(result.centre)
        x.tape.back(result, delta, -delta.square())
    mean = x.centre.clone().requires_grad_()
    m, v = case.statistics(mean, x.variance)
    g, b = (spread_out(given[k], case) if k in given else None for k in ("weight", "bias"))
    outputs = (mean - m) * (v + EPS).rsqrt() * (1.0 if g is None else g) + (0.0 if b is None else b)
    (wanted,) = torch.autograd.grad((outputs * delta).sum(), mean)
    assert_close(learned(x)[0], wanted)


@pytest.mark.parametrize("which", ["all", "weight", "plain"])
@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_equations(name: str, which: str) -> None:
    """`m = r d γ̄ + β̄`, `s = r²[σ²(γ̄² + v_γ) + v_γ d²] + v_β`, and the way back."""
    case = CASES[name]
    (x,) = leaves(case.shape, constant_statistics=True)
    given = weights(case, x.tape, which)
    result = functional_call(case.layer.train(), given, (x,))
    m, v = case.statistics(x.centre, x.variance)
    r, d = (v + EPS).rsqrt(), x.centre - m
    one, zero = torch.ones(case.shape[1]), torch.zeros(case.shape[1])
    if isinstance(case.layer, nn.LayerNorm | nn.RMSNorm):
        one, zero = torch.ones(()), torch.zeros(())
    (g, vg), (b, vb) = moments(given.get("weight", one)), moments(given.get("bias", zero))
    g, vg, b, vb = (spread_out(t, case) for t in (g, vg, b, vb))
    assert_close(result.centre, r * d * g + b)
    assert_close(
        result.variance, r**2 * (x.variance * (g**2 + vg) + vg * d**2) + vb.expand(case.shape)
    )
    delta, eta = torch.randn(2, *case.shape)
    result.tape.back(result, delta, eta)
    assert_close(learned(x), (r * g * delta, (r * g) ** 2 * eta))
    if which != "plain" and "weight" in given:
        size, own = g.shape, given["weight"].shape
        first, second = r * d * delta, (r * d) ** 2 * eta
        expected = tuple(t.sum_to_size(size).reshape(own) for t in (first, second))
        assert_close(learned(given["weight"]), expected)
    if which == "all" and "bias" in given:
        size, own = b.shape, given["bias"].shape
        expected = tuple(t.sum_to_size(size).reshape(own) for t in (delta, eta))
        assert_close(learned(given["bias"]), expected)


@pytest.mark.parametrize("name", [name for name in CASES if "without weights" not in name])
@torch.no_grad()
def test_known_input(name: str) -> None:
    """A plain input and Gaussian weights."""
    case = CASES[name]
    tape = Tape(MomentMatched(), record=True)
    given, x = weights(case, tape, "all"), torch.randn(case.shape)
    result = functional_call(case.layer.train(), given, (x,))
    m, v = case.statistics(x, torch.zeros_like(x))
    unit = (v + EPS).rsqrt() * (x - m)
    vg = spread_out(given["weight"].variance, case)
    vb = spread_out(moments(given.get("bias", torch.zeros(())))[1], case)
    assert_close(result.variance, vg * unit**2 + vb)
    tape.back(result, torch.ones(case.shape), torch.ones(case.shape))
    assert learned(given["weight"])[0].shape == given["weight"].shape
    assert_close(learned(given["weight"])[0].sum(), unit.sum().expand(()))


def test_only_the_bias_is_uncertain() -> None:
    (bias,) = leaves((3,))
    x = torch.randn(4, 3)
    result = F.layer_norm(x, (3,), torch.ones(3), bias)
    assert_close(result.variance, bias.variance.expand(4, 3))
    result.tape.back(result, x, x)
    assert_close(learned(bias), (x.sum(0), x.sum(0)))


@pytest.mark.parametrize("momentum", [0.3, None])
@torch.no_grad()
def test_buffers_of_batch_norm(momentum: float | None) -> None:
    """Torch's averages of M and of V times N/(N − 1), one after another batch."""
    layer = nn.BatchNorm2d(2, momentum=momentum)
    mean, variance = torch.zeros(2), torch.ones(2)
    for number in range(1, 4):
        (x,) = leaves((3, 2, 2, 2), seed=number)
        layer(x)
        share = 1.0 / number if momentum is None else momentum
        m, v = statistics(x.centre, x.variance, [0, 2, 3])
        mean = (1 - share) * mean + share * m.flatten()
        variance = (1 - share) * variance + share * v.flatten() * 12 / 11
        assert_close(layer.running_mean, mean)
        assert_close(layer.running_var, variance)
        assert layer.num_batches_tracked == number


@torch.no_grad()
def test_buffers_as_torch_has_them() -> None:
    """With inputs that are known for sure, the buffers are torch's own."""
    ours, torchs = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    tape = Tape(MomentMatched(), record=False)
    for _ in range(2):
        x = torch.randn(4, 3, 2, 2)
        given = {"weight": tape.leaf(torch.ones(3), torch.ones(3))}
        functional_call(ours, given, (x,))
        torchs(x)
    assert_close(ours.state_dict(), torchs.state_dict())


@torch.no_grad()
def test_buffers_of_instance_norm() -> None:
    ours = nn.InstanceNorm1d(2, affine=True, track_running_stats=True)
    torchs = nn.InstanceNorm1d(2, affine=True, track_running_stats=True)
    tape = Tape(MomentMatched(), record=False)
    x = torch.randn(3, 2, 5)
    functional_call(ours, {"bias": tape.leaf(torch.ones(2), torch.ones(2))}, (x,))
    torchs(x)
    assert_close(ours.state_dict(), torchs.state_dict())


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(3), nn.InstanceNorm1d(3, affine=True, track_running_stats=True)]
)
@torch.no_grad()
def test_evaluation_is_an_affine_map(layer: nn.Module) -> None:
    """Running statistics, which stay as they are; by a million draws."""
    assert isinstance(layer.running_mean, Tensor)
    assert isinstance(layer.running_var, Tensor)
    layer.double().eval()
    layer.running_mean.copy_(torch.tensor([0.5, -1.0, 0.0]))
    layer.running_var.copy_(torch.tensor([2.0, 0.3, 1.0]))
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    x, g, b = (GaussianTensor(t.centre, t.variance) for t in leaves((1, 3, 1), (3,), (3,)))
    check_moments(lambda x, g, b: functional_call(layer, {"weight": g, "bias": b}, (x,)), [x, g, b])
    assert_close(layer.state_dict(), before)


@torch.no_grad()
def test_evaluation_with_the_batch_statistics_is_training() -> None:
    """V of training is kept for evaluation, but for torch's N/(N − 1); there it is a constant."""
    layer = nn.BatchNorm2d(3, momentum=1.0)
    (x,) = leaves((4, 3, 2, 2), constant_statistics=True)
    trained = layer(x)
    layer.running_var.mul_(15 / 16)
    evaluated = layer.eval()(x)
    assert_close(evaluated.centre, trained.centre)
    assert_close(evaluated.variance, trained.variance)


@torch.no_grad()
def test_one_value_is_too_few() -> None:
    (x,) = leaves((1, 3))
    with pytest.raises(ValueError, match="more than one value"):
        nn.BatchNorm1d(3)(x)


@torch.no_grad()
def test_far_from_zero() -> None:
    """The shift does not drown the spread."""
    (x,) = leaves((200, 2))
    far = x + 1e6
    layer = nn.BatchNorm1d(2)
    assert_close(layer(far).centre, layer(x).centre, rtol=1e-6, atol=1e-6)
    assert_close(layer(far).variance, layer(x).variance, rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_channels_last_stays() -> None:
    mean = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    tape = Tape(MomentMatched(), record=True)
    x, weight = tape.leaf(mean, mean.square()), tape.leaf(torch.ones(3), torch.ones(3))
    result = functional_call(nn.BatchNorm2d(3), {"weight": weight}, (x,))
    for one in (result.centre, result.variance):
        assert one.is_contiguous(memory_format=torch.channels_last)
    tape.back(result, result.centre, result.variance)
    for one in learned(x):
        assert one.is_contiguous(memory_format=torch.channels_last)


class Block(nn.Module):
    """Two convolutions, their norms and a skip connection, in place as people write it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.norms[0](self.first(x)))
        out = self.norms[1](self.second(out))
        out += x
        return self.relu(out)


def test_residual_network_learns() -> None:
    """An unmodified network of many kinds of layers, batch after batch."""
    net = nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2)),
        *(Block(4), nn.Dropout(0.1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(4)),
        nn.Linear(4, 2),
    )
    learner = tagi(
        net, GaussianLikelihood(noise=0.3), num_data=64, gain=0.3, rule=Conditioning(reach=0.5)
    )
    state = learner.init(seed=0)
    x = torch.randn(64, 1, 6, 6)
    y = 6.0 * torch.stack([x.mean((1, 2, 3)), x[:, 0, :3].mean((1, 2))], 1)
    losses = []
    for _ in range(25):
        state, info = learner.step(state, (x, y))
        losses.append(float(info.loss))
    assert losses[-1] < 0.7 * losses[0]
    assert int(state.buffers["4.norms.0.num_batches_tracked"]) == 25
    assert bool((state.buffers["4.norms.1.running_var"] != 1.0).all())


def test_stacked_networks() -> None:
    """Four networks at once, over the same known input."""
    x, mean, variance = torch.randn(5, 3), torch.randn(4, 3), torch.rand(4, 3)

    def run(m: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        tape = Tape(MomentMatched(), record=True)
        weight = tape.leaf(m, s)
        hidden = F.batch_norm(x, None, None, weight, weight, training=True)
        y = F.layer_norm(hidden, (3,), weight, None)
        tape.back(y, y.centre, -y.variance)
        return y.centre, y.variance, *learned(weight)

    with torch.no_grad():
        together = torch.func.vmap(run)(mean, variance)
        alone = [run(m, s) for m, s in zip(mean, variance, strict=True)]
    for number, found in enumerate(together):
        assert_close(found, torch.stack([one[number] for one in alone]))
