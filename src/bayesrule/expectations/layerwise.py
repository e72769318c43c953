"""Monte Carlo within the layers: weights, or outputs, are drawn for each example."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from bayesrule.expectations._base import Expectation, Look
from bayesrule.posteriors import Family, Point, Posterior
from bayesrule.tensors import randomness
from bayesrule.tensors.stand_in import WeightStandIn, plain
from bayesrule.types import Params

# The number of spatial dimensions of each function; in none does a weight enter one output twice.
_CONVOLUTIONS: dict[Any, int] = {
    torch.conv1d: 1,
    torch.conv2d: 2,
    torch.conv3d: 3,
    torch.conv_transpose1d: 1,
    torch.conv_transpose2d: 2,
    torch.conv_transpose3d: 3,
}
_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


@dataclass(frozen=True)
class LayerCall:
    """A linear layer or a convolution that is about to be applied to a batch x.

    `apply(x, weight, bias)` runs the layer. `mean` and `spread` are the means and standard
    deviations of weight and bias; that of the bias is None if it has no variance. `channels` is the
    axis of features.
    """

    apply: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    x: Tensor
    mean: tuple[Tensor, Tensor | None]
    spread: tuple[Tensor, Tensor | None]
    channels: int
    generator: Generator


@dataclass(frozen=True)
class LayerPoint(Point):
    """Weights that are drawn when a layer uses them; their means are the coordinates."""

    std: Params
    how: Layerwise
    generator: Generator

    def weights(self, coordinates: Params) -> Params:
        return WeightSampler(self.how, self.generator).weights(coordinates, self.std)

    @cached_property
    def params(self) -> Params:
        """The weights; each is drawn once, however often it is used."""
        return self.weights(self.coordinates)


@dataclass(frozen=True)
class Layerwise(Expectation):
    """`num` forward passes in which linear layers and convolutions draw for every example.

    Everything else gets one draw that all examples share, as with `Draws`: other uses of a weight
    (embeddings, recurrent cells, scales of normalising layers, arithmetic), a weight that is used
    several times (tied), a layer whose input is not as long as the batch, and prediction. The
    weights must be independent, and the curvature is `Pathwise()`.

    If the loss is a sum over examples, its expectation is the same as with `Draws`. Batch norm in
    training mode couples the examples: it takes its statistics over examples with different
    weights, which changes the expected loss.
    """

    num: int = 1

    random = True
    look = Look.LAYERS
    shares_steps: ClassVar[bool] = False
    """Whether the steps of a sequence (n, steps, features) can share the draw of their example."""

    def __post_init__(self) -> None:
        if self.num < 1:
            raise ValueError(f"{type(self).__name__} takes at least one draw, got {self.num}.")

    def takes(self, function: Any, x: Tensor) -> bool:
        """Whether the layer can draw for each example along the first axis of x."""
        dims = _CONVOLUTIONS.get(function, 0)
        return x.ndim == dims + 2 or (self.shares_steps and not dims and x.ndim > 2)

    @abstractmethod
    def outputs(self, call: LayerCall) -> Tensor:
        """The outputs of the layer, with weights that are drawn here."""

    def obstacle(self, family: Family) -> str | None:
        if family.independent and family.spreads:
            return None
        return (
            f"{type(self).__name__}() takes independent Gaussian weights, such as "
            f"MeanFieldFamily() or GaussianFamily(Diagonal()), got {family!r}; use Draws(1)"
        )

    def points(
        self, posterior: Posterior, generator: Generator, *, tracked: bool = True
    ) -> Iterator[Point]:
        if not posterior.independent:
            raise TypeError(
                f"{type(self).__name__}() takes independent Gaussian weights, got {posterior!r}; "
                "use Draws(1)."
            )
        std = posterior.std()
        for _ in range(self.num):
            yield LayerPoint(posterior.mean, std, self, generator)


@dataclass(frozen=True)
class LocalDraws(Layerwise):
    """Draws of outputs instead of weights: the local reparameterisation.

    `y ~ N(x Mᵀ + b, x² (σ²)ᵀ + σ_b²)` for each example x; Kingma, Salimans & Welling (2015), eq. 6.
    For linear layers on (n, features) this is exact, and the gradient has the least noise.

    The outputs of a convolution are drawn independently at each position, although all positions
    share the kernel. Each output alone has the right distribution, but not all of them jointly: the
    bound is that of a posterior with one kernel per position. `Flipout()` keeps them correlated.
    """

    def outputs(self, call: LayerCall) -> Tensor:
        mean = call.apply(call.x, *call.mean)
        weight_std, bias_std = call.spread
        bias_variance = None if bias_std is None else bias_std.square()
        variance = call.apply(call.x.square(), weight_std.square(), bias_variance)
        # The slope of √ is infinite at zero, but inputs of zero must have no gradient.
        std = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
        return torch.addcmul(mean, std, _normal_like(mean, call.generator))


@dataclass(frozen=True)
class Flipout(Layerwise):
    """One draw of the weights, with random sign changes for each example.

    `y = x Mᵀ + b + ((x ∘ s) ΔWᵀ + Δb) ∘ r` with s and r of ±1 for each example and feature (channel
    of a convolution), while the batch shares ΔW and Δb; Wen et al. (2018), eq. 4. Each example has
    the distribution of a weight draw, `ΔW ∘ r sᵀ`, at all its positions and steps; two examples are
    uncorrelated.
    """

    shares_steps = True

    def outputs(self, call: LayerCall) -> Tensor:
        mean = call.apply(call.x, *call.mean)
        offsets = (
            None if std is None else std * _normal_like(std, call.generator) for std in call.spread
        )
        signed = call.x * _signs(call.x, call)
        offset = call.apply(signed, *offsets)  # type: ignore[arg-type]
        return torch.addcmul(mean, offset, _signs(mean, call))


@dataclass(eq=False)
class WeightSampler:
    """Draws the weights of one forward pass when its layers use them, and keeps the draws.

    `examples` is the size of the batch; without it every weight is drawn once for all examples. The
    weights named in `shared` always are. Without a generator nothing is drawn: the weights are
    their means, and `uses` counts how often each is used.
    """

    how: Layerwise
    generator: Generator | None
    examples: int | None = None
    shared: Collection[str] = ()
    uses: Counter[str] = field(default_factory=Counter, init=False)
    _drawn: Params = field(default_factory=dict, init=False)

    def weights(self, mean: Params, std: Params) -> Params:
        """The weights to run the network with; those without a deviation stay plain tensors."""
        return {k: DrawnWeight(k, v, std[k], self) if k in std else v for k, v in mean.items()}

    def shared_draw(self, weight: DrawnWeight) -> Tensor:
        """The draw of a weight that all examples share."""
        self.uses[weight.label] += 1
        if self.generator is None:
            return weight.centre
        if weight.label not in self._drawn:
            self._refuse_second_use(weight)
            # A module may read its weight without gradients first and use it with them later.
            with torch.enable_grad():
                noise = _normal_like(weight.centre, self.generator)
                self._drawn[weight.label] = torch.addcmul(weight.centre, weight.spread, noise)
        return self._drawn[weight.label]

    def draws_per_example(self, function: Any, x: Tensor, weight: DrawnWeight) -> bool:
        """Whether a layer draws for each example of its input x."""
        by_example = self.examples == len(x) and self.how.takes(function, x)
        return by_example and weight.label not in self.shared

    def mean_and_spread(self, weight: Any) -> tuple[Any, Tensor | None]:
        """Mean and standard deviation; a shared or plain weight has a value and no deviation."""
        if not isinstance(weight, DrawnWeight) or weight.label in self.shared:
            return plain(weight), None
        self.uses[weight.label] += 1
        self._refuse_second_use(weight)
        return weight.centre, weight.spread

    def _refuse_second_use(self, weight: DrawnWeight) -> None:
        if self.uses[weight.label] > 1:
            raise RuntimeError(
                f"The weight {weight.label!r} is used several times in this pass but was not in "
                f"the first one, and {type(self.how).__name__}() must know beforehand. "
                f"{weight.alternative}"
            )


class DrawnWeight(WeightStandIn):
    """An uncertain weight of a network, with mean `centre` and standard deviation `spread`.

    Layers that can draw for each example do; any other torch function gets the one draw that all
    examples of the pass share.
    """

    centre: Tensor
    spread: Tensor
    sampler: WeightSampler

    @staticmethod
    def __new__(
        cls, label: str, centre: Tensor, spread: Tensor, sampler: WeightSampler
    ) -> DrawnWeight:
        tensor = Tensor._make_wrapper_subclass(
            cls,
            centre.shape,
            strides=centre.stride(),
            dtype=centre.dtype,
            device=centre.device,
            requires_grad=centre.requires_grad,
        )
        tensor.label, tensor.centre, tensor.spread = label, centre, spread
        tensor.sampler = sampler
        return tensor

    def materialised(self) -> Tensor:
        return self.sampler.shared_draw(self)

    @property
    def alternative(self) -> str:
        family = f"PerGroup({{{self.label!r}: PointEstimate(), '*': MeanFieldFamily()}})"
        return f"Use Draws(1), or hold the weight as known: {family}."

    @classmethod
    def bypassed(cls, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        raise RuntimeError(
            f"{function} takes a weight as it is, without asking for a draw of it. Use Draws(1)."
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"DrawnWeight({self.label!r}, centre={self.centre!r}, spread={self.spread!r})"


def _linear_layer(
    function: Any, input: Any, weight: Any, bias: Any = None, *options: Any, **named: Any
) -> Tensor:
    """A linear layer or a convolution whose weight or bias is uncertain."""

    def apply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return function(x, weight, bias, *options, **named)

    x = plain(input)
    sampler = weight.sampler if isinstance(weight, DrawnWeight) else None
    if sampler is None or not sampler.draws_per_example(function, x, weight):
        return apply(x, plain(weight), plain(bias))
    assert sampler.generator is not None
    pairs = (sampler.mean_and_spread(part) for part in (weight, bias))
    means, stds = zip(*pairs, strict=True)
    channels = -1 if function is F.linear else 1
    return sampler.how.outputs(LayerCall(apply, x, means, stds, channels, sampler.generator))


def _recurrent_layer(function: Any, *args: Any, **kwargs: Any) -> Any:
    # A draw never lies in the one block of memory that recurrent layers want their weights in.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous")
        return DrawnWeight.unhandled(function, args, kwargs)


DrawnWeight.handlers = {
    **{layer: partial(_linear_layer, layer) for layer in (F.linear, *_CONVOLUTIONS)},
    **{layer: partial(_recurrent_layer, layer) for layer in _RECURRENT},
}


def _normal_like(x: Tensor, generator: Generator) -> Tensor:
    """Standard normal numbers with the memory layout of x."""
    flat = randomness.normal(x.numel(), generator, dtype=x.dtype, device=x.device)
    return flat.as_strided(x.shape, torch.empty_like(x).stride())


def _signs(x: Tensor, call: LayerCall) -> Tensor:
    """±1 for each example and channel of x, the same at all its positions."""
    shape = [1] * x.ndim
    shape[0], shape[call.channels] = x.shape[0], x.shape[call.channels]
    coins = torch.randint(2, shape, dtype=torch.int8, device=x.device, generator=call.generator)
    return coins.mul_(2).sub_(1).to(x.dtype)
