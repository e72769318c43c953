"""Per-example squares of convolutions on a GPU: the kernel's correctness and cost.

Each shape is compared with single gradients in float64. The layers of ResNet-18 at batch 128
are timed by the kernel with several tiles, by products of a batch (`bmm`) and beside the weight's
own gradient; steps of `vogn` and `ogn` with the kernel and without, beside a step of Adam.
Everything timed is replayed as a CUDA graph.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bayesrule.app.provenance import machine, versions
from bayesrule.curvature.layers.convolution import ConvLayer
from benchmarks.precision import fast_math
from benchmarks.speed import steps
from benchmarks.speed.graphs import graphed

BAR = 1e-3
BATCH = 128
CHOICE = sys.modules[ConvLayer.__module__]


class Shape(NamedTuple):
    """A convolution: channels, sizes of its inputs and its kernel."""

    channels: int
    out: int
    size: tuple[int, ...]
    kernel: tuple[int, ...] = (3, 3)
    stride: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)

    def words(self) -> str:
        """The shape on a line."""
        size, kernel = ("×".join(map(str, part)) for part in (self.size, self.kernel))
        return f"{self.channels}→{self.out}, {size}, kernel {kernel}, stride {self.stride[0]}"


NONE, TWICE = (0, 0), (2, 2)
# The layers of ResNet-18 for images of 32×32, and how many there are of each.
LAYERS = {
    Shape(3, 64, (32, 32)): 1,
    Shape(64, 64, (32, 32)): 4,
    Shape(64, 128, (32, 32), stride=TWICE): 1,
    Shape(128, 128, (16, 16)): 3,
    Shape(64, 128, (32, 32), (1, 1), TWICE, NONE): 1,
    Shape(128, 256, (16, 16), stride=TWICE): 1,
    Shape(256, 256, (8, 8)): 3,
    Shape(128, 256, (16, 16), (1, 1), TWICE, NONE): 1,
    Shape(256, 512, (8, 8), stride=TWICE): 1,
    Shape(512, 512, (4, 4)): 3,
    Shape(256, 512, (8, 8), (1, 1), TWICE, NONE): 1,
}
OTHERS = (
    Shape(5, 7, (9, 8)),
    Shape(6, 4, (12, 9), (3, 2), (1, 2), (2, 1), (2, 3)),
    Shape(16, 33, (7, 11), (1, 1), (2, 1), NONE),
    Shape(4, 6, (190,), (5,), (2,), (2,), (1,)),
    Shape(32, 64, (14, 14), (5, 5), (1, 1), TWICE),
    Shape(17, 100, (1, 1), (1, 1), (1, 1), NONE),
)
# Alternatives to the tiles in use; each takes seconds to compile for each layer.
TILES = ((64, 64, 32), (64, 128, 32), (128, 128, 32), (128, 128, 64))
METHODS = ("vogn", "ogn")


def made(shape: Shape, batch: int, device: torch.device) -> tuple[ConvLayer, Tensor]:
    """A layer with its inputs, channels last, and the gradient of its outputs."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*sizes: int) -> Tensor:
        found = torch.randn(sizes, generator=generator, device=device)
        lies = torch.channels_last if found.ndim == 4 else torch.contiguous_format
        return found.contiguous(memory_format=lies)

    options: Any = shape[4:]
    a, weight = normal(batch, shape.channels, *shape.size), normal(*shape[:2][::-1], *shape.kernel)
    convolve = functional.conv2d if len(shape.size) == 2 else functional.conv1d
    g = normal(*convolve(a, weight, None, *options).shape)
    # Sizes of channels and of examples differ, as those of a net do.
    g *= torch.logspace(-4, 0, batch, device=device).reshape(-1, *[1] * (g.ndim - 1))
    g *= torch.logspace(-3, 0, g.shape[1], device=device).reshape(1, -1, *[1] * (g.ndim - 2))
    return ConvLayer(a.relu_(), weight, None, *shape[4:], 1), g


def by_kernel(layer: ConvLayer, g: Tensor, tiles: Any = None) -> Tensor:
    """The squares by the kernel."""
    from bayesrule.curvature.layers.square_kernel import Tiles, weight_squares

    return weight_squares(
        *(layer.input, g, layer.kernel),
        stride=layer.stride,
        padding=layer.padding,
        dilation=layer.dilation,
        tiles=tiles and Tiles(*tiles),
    )


def by_rows(layer: ConvLayer, g: Tensor) -> Tensor:
    """The squares from batched products, which are used without the kernel."""
    return layer.weight_sums(g, gradient=False)[0]


def error(shape: Shape, device: torch.device, batch: int = 16) -> float:
    """The error of the kernel relative to the squares, both as norms."""
    layer, g = made(shape, batch, device)
    wide = ConvLayer(layer.input.double(), layer.weight.double(), None, *shape[4:], 1)
    exact = wide.weight_rows(g.double()).square().sum(0)
    return float((by_kernel(layer, g).double() - exact).norm() / exact.norm())


def milliseconds(work: Callable[[], object], calls: int = 20) -> float:
    """The median of three rounds of a graph's replays."""
    replay = graphed(work)
    found = []
    for _ in range(3):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(calls):
            replay()
        torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - begun) / calls)
    return statistics.median(found)


def layer_times(shape: Shape, device: torch.device) -> dict[str, Any]:
    """The cost of a layer's squares in each way, and of the weight's gradient."""
    layer, g = made(shape, BATCH, device)
    options: Any = layer.stride, layer.padding, layer.dilation, False, NONE, 1
    only_weight = False, True, False

    def gradient() -> object:
        given = g, layer.input, layer.weight, None
        return torch.ops.aten.convolution_backward(*given, *options, only_weight)

    tried = TILES if shape.channels == shape.out else ()
    each = {str(one): milliseconds(partial(by_kernel, layer, g, one)) for one in tried}
    return {
        "layer": shape.words(),
        "times": LAYERS[shape],
        "kernel": milliseconds(lambda: by_kernel(layer, g)),
        "rows": milliseconds(lambda: by_rows(layer, g)),
        "gradient": milliseconds(gradient),
        "tiles": dict(sorted(each.items(), key=lambda pair: pair[1])),
    }


@contextmanager
def without_kernel() -> Iterator[None]:
    """Disables the kernel, as if there were no Triton."""
    before = CHOICE.square_kernel_suits
    CHOICE.square_kernel_suits = lambda a: False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        CHOICE.square_kernel_suits = before  # type: ignore[attr-defined]


def step_ratios(case: str, rounds: int, device: str) -> dict[str, Any]:
    """Steps as multiples of Adam's, with the kernel and without."""
    ways = itertools.starmap(_steps, [(case, rounds, device, True), (case, rounds, device, False)])
    return {"case": case, **dict(zip(("kernel", "rows"), ways, strict=True))}


def _steps(case: str, rounds: int, device: str, kernel: bool) -> dict[str, float]:
    def timed() -> dict[str, Any]:
        return steps.run([case], METHODS, rounds=rounds, device=device)["results"][0]

    if kernel:
        found = timed()
    else:
        with without_kernel():
            found = timed()
    return {name: found["multiple_of_adam"][name] for name in METHODS}


def run(device: str, rounds: int, cases: Sequence[str], *, errors_only: bool) -> dict[str, Any]:
    """Checks all shapes, then times layers and steps."""
    place = torch.device(device)
    with fast_math(device):
        errors = {shape.words(): error(shape, place) for shape in (*LAYERS, *OTHERS)}
        layers = [] if errors_only else [layer_times(shape, place) for shape in LAYERS]
    ratios = [] if errors_only else [step_ratios(case, rounds, device) for case in cases]
    return {
        "benchmark": "squares",
        "batch": BATCH,
        "rounds": rounds,
        "bar": BAR,
        "errors": errors,
        "layers": layers,
        "steps": ratios,
        "versions": versions(),
        "machine": machine(),
    }
