"""What pytagi 0.2.1 computes, stored by `benchmarks/pytagi/reference.py`, from the same parameters.

pytagi works in float32 and this in float64, so that differences are its rounding. Its bounds on a
step differ from ours by design: here they are put on our unbounded step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.likelihoods import Likelihood
from bayesrule.moments import (
    Activations,
    GaussianTensor,
    Innovation,
    LocallyLinear,
    MomentMatched,
    Propagation,
    norm,
)
from bayesrule.moments.tensor import Tape
from bayesrule.tensors.network import Network
from bayesrule.types import Params

FILE = np.load(Path(__file__).parent / "data" / "pytagi.npz")
# pytagi takes the statistics of normalising layers as constants.
TANGENT = LocallyLinear(constant_statistics=True)
MATCHED = MomentMatched(constant_statistics=True)


def case(name: str) -> Params:
    """The arrays of one case."""
    prefix = f"{name}/"
    keys = [key for key in FILE.files if key.startswith(prefix)]
    return {k.removeprefix(prefix): torch.from_numpy(FILE[k]).double() for k in keys}


def moments(arrays: Params, when: str) -> tuple[Params, Params]:
    """Means and variances of the parameters before or after the step."""
    found: list[Params] = []
    for kind in ("mean", "variance"):
        ends = when + ".", "." + kind
        found.append(
            {
                key.removeprefix(ends[0]).removesuffix(ends[1]): value
                for key, value in arrays.items()
                if key.startswith(ends[0]) and key.endswith(ends[1])
            }
        )
    return found[0], found[1]


def near(found: Tensor, expected: Tensor, rtol: float = 1e-5, atol: float = 3e-7) -> None:
    """Equal to what float32 leaves of small differences of large numbers."""
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)


def pytagi_step(moved: Tensor, variance: Tensor, size: int) -> Tensor:
    """pytagi's bound on a change of a mean or a variance: a part of the standard deviation."""
    cap = 0.1 if size == 1 else 2.0 if size < 256 else 3.0
    bound = variance.sqrt() / cap
    return torch.minimum(torch.maximum(moved, -bound), bound)


def check_step(
    arrays: Params,
    network: Network,
    observe: Callable[[Tensor, Tensor], Innovation],
    activations: Activations = TANGENT,
) -> None:
    """The innovations of one batch lead to the parameters that pytagi has afterwards."""
    mean, variance = moments(arrays, "before")
    propagation, x = Propagation(network, activations), arrays["input"]
    with torch.no_grad():
        outputs = propagation.forward(mean, variance, network.buffers(), x, training=True)
        delta, eta = propagation.back(outputs, *observe(outputs.centre, outputs.variance))
    after_mean, after_variance = moments(arrays, "after")
    moved = 0
    for name, v in variance.items():
        new = mean[name] + pytagi_step(v * delta[name], v, len(x))
        near(new, after_mean[name])
        spread = v + pytagi_step(v * v * eta[name], v, len(x))
        near(torch.where(spread <= 0, 1e-5, spread), after_variance[name])
        moved += int(((new - mean[name]).abs() > 1e-4).sum())
    assert moved > 10, "the case says nothing"


def seen_by(likelihood: Likelihood, targets: Tensor) -> Callable[[Tensor, Tensor], Innovation]:
    """What a likelihood makes of targets."""

    def observe(mean: Tensor, variance: Tensor) -> Innovation:
        found = likelihood.condition(mean, variance, targets, likelihood.init(mean))
        return found.delta, found.eta

    return observe


def check_outputs(
    arrays: Params, network: Network, activations: Activations = TANGENT
) -> GaussianTensor:
    """The outputs before the step."""
    propagation = Propagation(network, activations, record=False)
    with torch.no_grad():
        outputs = propagation.forward(
            *moments(arrays, "before"), network.buffers(), arrays["input"], training=True
        )
    near(outputs.centre, arrays["output.mean"])
    near(outputs.variance, arrays["output.variance"])
    return outputs


def mlp(*sizes: int) -> nn.Sequential:
    """Dense layers with ReLU between them."""
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])


def cnn() -> nn.Sequential:
    """Padded and unpadded convolutions with average pooling."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(3, 4, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 2),
    )


def images(*layers: nn.Module, units: int) -> nn.Sequential:
    """One convolution, something, and one dense layer."""
    return nn.Sequential(nn.Conv2d(1, 3, 3), *layers, nn.Flatten(), nn.Linear(units, 2))


class ChannelNorm(nn.GroupNorm):
    """pytagi's layer norm of images: statistics of each example, a scale for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__(1, channels, eps=1e-4)


NETS: dict[str, tuple[nn.Module, Activations]] = {
    "mlp_relu_1": (mlp(4, 8, 8, 2), TANGENT),
    "mlp_outlier_1": (mlp(4, 8, 8, 2), TANGENT),
    "mlp_relu_16": (mlp(4, 8, 8, 2), TANGENT),
    "mlp_relu_256": (mlp(4, 8, 8, 2), TANGENT),
    "mlp_mixture_relu_16": (mlp(4, 8, 8, 2), MATCHED),
    "tiny_10": (mlp(13, 50, 1), TANGENT),
    "cnn_4": (cnn(), TANGENT),
    "max_pool_4": (images(nn.ReLU(), nn.MaxPool2d(2), units=27), TANGENT),
    "batch_norm_4": (images(nn.BatchNorm2d(3), nn.ReLU(), units=108), TANGENT),
    "layer_norm_6": (
        nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8, eps=1e-4), nn.ReLU(), nn.Linear(8, 2)),
        TANGENT,
    ),
    "layer_norm_images_4": (images(ChannelNorm(3), nn.ReLU(), units=108), TANGENT),
}


def pytagi_statistics(x: Tensor, s: Tensor, axes: Any) -> tuple[Tensor, Tensor, norm.Slopes]:
    """pytagi's `V = [Σ(μ − M)² + Σσ²]/(N − 1)`, where torch divides by N."""
    dims = list(axes)
    variance, mean = torch.var_mean(x, dims, keepdim=True)
    degrees = x.numel() / mean.numel() - 1
    return mean, variance + s.sum(dims, keepdim=True) / degrees, norm.Slopes(dims, 2)


@pytest.mark.parametrize("name", NETS)
def test_one_step_of_a_net(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm, "_statistics", pytagi_statistics)
    module, activations = NETS[name]
    arrays, network = case(name), Network(module.double())
    likelihood = br.GaussianLikelihood(noise=float(arrays["sigma_v"]))
    check_outputs(arrays, network, activations)
    check_step(arrays, network, seen_by(likelihood, arrays["target"]), activations)


def test_one_step_of_a_tree_of_ten_classes() -> None:
    arrays, network = case("hierarchical_10"), Network(mlp(4, 8, 11).double())
    likelihood = br.likelihoods.HierarchicalLikelihood(10, noise=float(arrays["sigma_v"]))
    check_outputs(arrays, network)
    check_step(arrays, network, seen_by(likelihood, arrays["labels"].long()))


def test_class_probabilities_of_a_tree() -> None:
    arrays = case("hierarchical_10")
    found = br.likelihoods.HierarchicalLikelihood(10).marginal(
        arrays["given.mean"], arrays["given.variance"], {}
    )
    expected = arrays["given.probability"]
    near(found.mean, expected / expected.sum(1, keepdim=True))


def test_one_step_behind_remax() -> None:
    arrays, network = case("remax_6"), Network(mlp(4, 8, 5).double())
    likelihood = br.likelihoods.RemaxLikelihood(noise=float(arrays["sigma_v"]))
    check_step(arrays, network, seen_by(likelihood, arrays["target"].argmax(1)))


def test_one_step_with_noise_that_depends_on_the_inputs() -> None:
    arrays, network = case("heteroscedastic_6"), Network(mlp(3, 8, 4).double())
    likelihood, by_turns = br.HeteroscedasticLikelihood(), torch.tensor([0, 2, 1, 3])

    def observe(mean: Tensor, variance: Tensor) -> Innovation:
        # pytagi has means and noises by turns, and carries the noise's innovations back with the
        # covariance s μ̃ in place of the slope μ̃.
        m, s = mean[:, by_turns], variance[:, by_turns]
        found = likelihood.condition(m, s, arrays["target"], {})
        factor = torch.cat([torch.ones(6, 2), s[:, 2:]], 1)
        return (found.delta * factor)[:, by_turns], (found.eta * factor**2)[:, by_turns]

    check_step(arrays, network, observe)


SLOPES: dict[str, tuple[Any, Activations]] = {
    "ReLU": (F.relu, TANGENT),
    "Sigmoid": (torch.sigmoid, TANGENT),
    "Tanh": (torch.tanh, TANGENT),
    "MixtureReLU": (F.relu, MATCHED),
    "MixtureTanh": (F.hardtanh, MATCHED),
    "MixtureSigmoid": (lambda x: F.hardtanh(x) * 0.5 + 0.5, MATCHED),
}


@pytest.mark.parametrize("name", SLOPES)
def test_activations(name: str) -> None:
    arrays, (function, choice) = case("activations"), SLOPES[name]
    tape = Tape(choice, record=True)
    x = tape.leaf(arrays["mean"], arrays["variance"])
    with torch.no_grad():
        found = function(x)
        tape.back(found, torch.ones(6, 5).double(), torch.ones(6, 5).double())
    # Both have floors of 1e-6, though not in the same places.
    near(found.centre, arrays[f"{name}.mean"], atol=2e-6)
    near(found.variance, arrays[f"{name}.variance"], atol=2e-6)
    assert x.node is not None
    assert x.node.delta is not None
    near(x.node.delta, arrays[f"{name}.jacobian"])
