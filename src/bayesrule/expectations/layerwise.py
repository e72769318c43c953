"""Monte Carlo in the layers: every example sees weights, or sums of them, drawn for itself."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from bayesrule.expectations._base import Expectation, Look
from bayesrule.posteriors import Family, Point, Posterior
from bayesrule.tensors import randomness
from bayesrule.types import Params

# Each is linear in a weight that enters any one output once; they take (input, weight, bias, ...).
_CONVOLUTIONS: dict[Any, int] = {
    torch.conv1d: 1,
    torch.conv2d: 2,
    torch.conv3d: 3,
    torch.conv_transpose1d: 1,
    torch.conv_transpose2d: 2,
    torch.conv_transpose3d: 3,
}
_LAYERS = {F.linear, *_CONVOLUTIONS}
_RECURRENT = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}
_ARGUMENTS = ("input", "weight", "bias")


@dataclass(frozen=True)
class Layer:
    """A linear layer or a convolution that is about to be applied to a batch x.

    `apply(x, weight, bias)` is the layer; spreads are standard deviations, None where a weight or a
    bias is known. `channels` is the axis of the features.
    """

    apply: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    x: Tensor
    mean: tuple[Tensor, Tensor | None]
    spread: tuple[Tensor, Tensor | None]
    channels: int
    generator: Generator


@dataclass(frozen=True)
class LayerPoint(Point):
    """Weights that are drawn when a layer uses them; the coordinates are their means."""

    std: Params
    how: Layerwise
    generator: Generator

    def weights(self, coordinates: Params) -> Params:
        return Pass(self.how, self.generator).weights(coordinates, self.std)


@dataclass(frozen=True)
class Layerwise(Expectation):
    """`num` passes in each of which linear layers and convolutions draw for every example.

    One draw that the batch shares, as with `Draws`, is what all else gets: other uses of a weight
    (embeddings, recurrent cells, scales of normalising layers, arithmetic), a weight that is used
    several times (tied), a layer whose input is not as long as the batch, and prediction. The
    belief's weights must be independent, and the curvature is `Pathwise()`.

    The expectation is then that of `Draws` if the loss is a sum over examples. Batch norm in
    training mode couples them: its statistics are then those of examples with weights of their own,
    not of one shared draw, and so is the expected loss.
    """

    num: int = 1

    random = True
    look = Look.LAYERS

    def __post_init__(self) -> None:
        if self.num < 1:
            raise ValueError(f"{type(self).__name__} takes at least one draw, got {self.num}.")

    @abstractmethod
    def takes(self, function: Any, x: Tensor) -> bool:
        """Whether the layer can draw for each of the examples along the first axis of x."""

    @abstractmethod
    def outputs(self, layer: Layer) -> Tensor:
        """The outputs, with weights that are drawn on the way."""

    def obstacle(self, family: Family) -> str | None:
        if family.independent:
            return None
        return (
            f"{type(self).__name__}() takes independent Gaussian weights, such as "
            f"MeanFieldFamily() or GaussianFamily(Diagonal()), got {family!r}; use Draws(1)"
        )

    def points(
        self, posterior: Posterior, generator: Generator, *, tracked: bool = True
    ) -> Iterator[Point]:
        std = posterior.std()
        for _ in range(self.num):
            yield LayerPoint(posterior.mean, std, self, generator)


@dataclass(frozen=True)
class LocalDraws(Layerwise):
    """Draws of outputs instead of weights: the local reparameterisation.

    `y ~ N(x Mᵀ + b, x² (σ²)ᵀ + σ_b²)` for each example x; Kingma, Salimans & Welling (2015), eq. 6.
    For linear layers on (n, features) that is exact, and of least noise.

    The outputs of a convolution are drawn independently at each position, although all positions
    share the kernel: each of them has the right distribution, but not all together, so the bound is
    that of a belief with one kernel per position. `Flipout()` keeps them together.
    """

    def takes(self, function: Any, x: Tensor) -> bool:
        # The steps of a sequence (n, steps, features) share a weight, too; a shared draw is exact.
        return x.ndim == _CONVOLUTIONS.get(function, 0) + 2

    def outputs(self, layer: Layer) -> Tensor:
        mean = layer.apply(layer.x, *layer.mean)
        spread, shift = layer.spread
        variance = layer.apply(
            layer.x.square(), spread.square(), None if shift is None else shift.square()
        )
        # The root has no slope at zero: an input of zeros is to have no say, not an infinite one.
        std = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
        return torch.addcmul(mean, std, _normal_like(mean, layer.generator))


@dataclass(frozen=True)
class Flipout(Layerwise):
    """One draw of the weights whose sign is changed at random for each example.

    `y = x Mᵀ + b + ((x ∘ s) ΔWᵀ + Δb) ∘ r` with s and r of ±1 for each example and feature (channel
    of a convolution), ΔW and Δb shared by the batch; Wen et al. (2018), eq. 4. Each example has the
    distribution of a weight draw, `ΔW ∘ r sᵀ`, at all its positions and steps; two examples are
    uncorrelated.
    """

    def takes(self, function: Any, x: Tensor) -> bool:
        dims = _CONVOLUTIONS.get(function)
        return x.ndim >= 2 if dims is None else x.ndim == dims + 2

    def outputs(self, layer: Layer) -> Tensor:
        mean = layer.apply(layer.x, *layer.mean)
        offsets = (
            None if s is None else s * _normal_like(s, layer.generator) for s in layer.spread
        )
        signed = layer.x * _signs(layer.x, layer)
        moved = layer.apply(signed, *offsets)  # type: ignore[arg-type]
        return torch.addcmul(mean, moved, _signs(mean, layer))


class Pass:
    """One way of a batch through a network: how its layers draw, and what was drawn so far.

    Without `examples` every weight is drawn whole; `shared` names those that are in any case.
    Without a generator nothing is drawn: the weights are their means, and `uses` counts.
    """

    def __init__(
        self,
        how: Layerwise,
        generator: Generator | None,
        examples: int | None = None,
        shared: Collection[str] = (),
    ) -> None:
        self.how, self.generator, self.examples, self.shared = how, generator, examples, shared
        self.uses: Counter[str] = Counter()
        self._drawn: Params = {}

    def weights(self, mean: Params, std: Params) -> Params:
        """What to put in the network's places; weights without a spread stay as they are."""
        return {k: DrawnWeight(k, v, std[k], self) if k in std else v for k, v in mean.items()}

    def whole(self, weight: DrawnWeight) -> Tensor:
        """The draw of a weight that all examples share."""
        self.uses[weight.label] += 1
        if self.generator is None:
            return weight.centre
        if weight.label not in self._drawn:
            self._refuse_again(weight.label)
            # A module may look at its weight without gradients first and use it with them later.
            with torch.enable_grad():
                noise = _normal_like(weight.centre, self.generator)
                self._drawn[weight.label] = torch.addcmul(weight.centre, weight.spread, noise)
        return self._drawn[weight.label]

    def draws(self, function: Any, x: Tensor, weight: DrawnWeight) -> bool:
        """Whether a layer is to draw for each example of x."""
        apart = self.examples == len(x) and self.how.takes(function, x)
        return apart and weight.label not in self.shared

    def split(self, value: Any) -> tuple[Any, Tensor | None]:
        """Mean and spread of a weight; one that is drawn whole, or known, has no spread."""
        if not isinstance(value, DrawnWeight) or value.label in self.shared:
            return _plain(value), None
        self.uses[value.label] += 1
        self._refuse_again(value.label)
        return value.centre, value.spread

    def _refuse_again(self, name: str) -> None:
        if self.uses[name] > 1:
            raise RuntimeError(
                f"The weight {name!r} is used several times in this pass but was not in the first "
                f"one, and {type(self.how).__name__}() must know beforehand. Use Draws(1), or hold "
                f"the weight as known: PerGroup({{{name!r}: PointEstimate(), '*': MeanFieldFamily()}})."
            )


class DrawnWeight(Tensor):
    """A weight that is not known, on its way through a network: `centre` ± `spread`.

    Layers that can draw for each example do; every other torch function gets the draw that belongs
    to the pass.
    """

    label: str
    centre: Tensor
    spread: Tensor
    way: Pass

    @staticmethod
    def __new__(cls, label: str, centre: Tensor, spread: Tensor, way: Pass) -> DrawnWeight:
        tensor = Tensor._make_wrapper_subclass(
            cls,
            centre.shape,
            strides=centre.stride(),
            dtype=centre.dtype,
            device=centre.device,
            requires_grad=centre.requires_grad,
        )
        tensor.label, tensor.centre, tensor.spread, tensor.way = label, centre, spread, way
        return tensor

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if function in FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **named)
        if function in _LAYERS:
            return _apply(function, args, named)
        with _quiet() if function in _RECURRENT else nullcontext():
            return function(*_plain(args), **{name: _plain(value) for name, value in named.items()})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        function: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        # Reached only by calls that torch makes behind the back of __torch_function__.
        raise RuntimeError(
            f"{function} takes a weight as it is, without asking for a draw of it. Use Draws(1)."
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"DrawnWeight({self.label!r}, centre={self.centre!r}, spread={self.spread!r})"


# What can be asked of a weight without looking at its values.
FACTS = {
    getattr(Tensor, name).__get__
    for name in ("shape", "dtype", "device", "ndim", "is_cuda", "is_cpu", "is_mps", "is_nested",
                 "is_sparse", "is_quantized", "layout", "requires_grad", "is_leaf")
} | {
    Tensor.size, Tensor.dim, Tensor.ndimension, Tensor.numel, Tensor.nelement, Tensor.__len__,
    Tensor.is_floating_point, Tensor.is_complex, Tensor.stride, Tensor.is_contiguous,
    Tensor.element_size, Tensor.get_device, torch.numel, torch.is_floating_point, torch.is_complex,
}  # fmt: skip


def _apply(function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
    """A linear layer or a convolution with a weight or a bias that is not known."""
    given = dict(zip(_ARGUMENTS, args, strict=False))
    given |= {name: named.pop(name) for name in _ARGUMENTS if name in named}
    x, weight, bias = (given.get(name) for name in _ARGUMENTS)
    x, rest = _plain(x), args[len(_ARGUMENTS) :]

    def apply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return function(x, weight, bias, *rest, **named)

    if not isinstance(weight, DrawnWeight) or not weight.way.draws(function, x, weight):
        return apply(x, _plain(weight), _plain(bias))
    way = weight.way
    assert way.generator is not None
    (mean, spread), (shift, wobble) = way.split(weight), way.split(bias)
    assert spread is not None
    channels = -1 if function is F.linear else 1
    layer = Layer(apply, x, (mean, shift), (spread, wobble), channels, way.generator)
    return way.how.outputs(layer)


@contextmanager
def _quiet() -> Iterator[None]:
    # A draw is never in the one piece of memory in which recurrent layers want their weights.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous")
        yield


def _plain(value: Any) -> Any:
    """The same with draws in the places of weights that are not known."""
    if isinstance(value, DrawnWeight):
        return value.way.whole(value)
    if type(value) in (tuple, list):
        return type(value)(_plain(one) for one in value)
    return value


def _normal_like(x: Tensor, generator: Generator) -> Tensor:
    """Standard normal numbers, laid out in memory as x is."""
    flat = randomness.normal(x.numel(), generator, dtype=x.dtype, device=x.device)
    return flat.as_strided(x.shape, torch.empty_like(x).stride())


def _signs(x: Tensor, layer: Layer) -> Tensor:
    """±1 for each example and channel of x, the same at all its positions."""
    shape = [1] * x.ndim
    shape[0], shape[layer.channels] = x.shape[0], x.shape[layer.channels]
    coins = torch.randint(2, shape, dtype=torch.int8, device=x.device, generator=layer.generator)
    return coins.mul_(2).sub_(1).to(x.dtype)
