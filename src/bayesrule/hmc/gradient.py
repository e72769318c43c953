"""A log density and its gradient as one function of numbers, traced and compiled.

A sampler needs hundreds of gradients for each draw, and for small networks most of their time is
overhead between torch's operations: a traced graph saves some of it, compiled code most.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.fx import GraphModule

from bayesrule.hmc.density import LogDensity

Floats = NDArray[np.float64]
Gradient = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From θ (P,) to the gradient (P,) of the log density and its value."""


def value_and_gradient(
    density: LogDensity, *, compile: bool = True
) -> Callable[[Floats], tuple[float, Floats]]:
    """A function from θ (P,) to the log density and its gradient (P,).

    Traced once and, with `compile`, compiled by torch's inductor, which takes seconds and a C++
    compiler. The result is checked against the module; a module that cannot be traced is called as
    it is.
    """
    _refuse_randomness(density)
    gradient = _fastest(density, compile)

    def function(theta: Floats) -> tuple[float, Floats]:
        # Inference mode belongs to a thread, and the sampler calls from its own.
        with torch.inference_mode():
            slope, value = gradient(torch.from_numpy(theta))
            return value.item(), slope.numpy()

    return function


def _fastest(density: LogDensity, compile: bool) -> Gradient:
    graph = _traced(density)
    if graph is None or not _agrees(density, graph.forward):
        return _plainly(density)
    if compile:
        compiled = _compiled(graph, _probe(density, 0))
        if compiled is not None and _agrees(density, compiled):
            return compiled
    return graph.forward


def _plainly(density: LogDensity) -> Gradient:
    """The module called as it is, with one backward pass."""

    def gradient(theta: Tensor) -> tuple[Tensor, Tensor]:
        with torch.inference_mode(False), torch.enable_grad():
            point = theta.clone().requires_grad_()
            value = density(point)
            (slope,) = torch.autograd.grad(value, point)
            return slope, value.detach()

    return gradient


def _traced(density: LogDensity) -> GraphModule | None:
    # Loading the tracer takes as long as loading the rest of the library.
    from torch.fx.experimental.proxy_tensor import make_fx

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make_fx(torch.func.grad_and_value(density))(_probe(density, 0))
    except Exception:  # modules fail to be traced in many ways
        return None


def _compiled(graph: GraphModule, theta: Tensor) -> Gradient | None:
    import torch._inductor as inductor

    try:
        with warnings.catch_warnings():
            # The compiler warns of parts of torch that it still uses itself.
            warnings.simplefilter("ignore")
            return inductor.compile(graph, [theta], options={"cpp_wrapper": True})
    except Exception as problem:  # the compiler's own faults, and that there is none for C++
        warnings.warn(
            "The log density could not be compiled, so sampling takes several times as long: "
            f"{str(problem).strip().splitlines()[0]} Is there a C++ compiler? compile=False does "
            "without one.",
            stacklevel=5,
        )
        return None


def _agrees(density: LogDensity, gradient: Gradient) -> bool:
    """Whether a traced gradient is that of the module, at weights other than the traced ones."""
    theta = _probe(density, 1)
    pairs = zip(_plainly(density)(theta), gradient(theta), strict=True)
    return all(torch.allclose(a, b, rtol=1e-8, atol=1e-8, equal_nan=True) for a, b in pairs)


def _refuse_randomness(density: LogDensity) -> None:
    theta = _probe(density, 1)
    with torch.no_grad():
        once, twice = density(theta), density(theta)
    if not torch.equal(once, twice) and once.isfinite():
        raise ValueError(
            "The module gives different outputs for the same weights and inputs in evaluation "
            "mode, but a log density has no randomness. Take it out of the module."
        )


def _probe(density: LogDensity, seed: int) -> Tensor:
    """Weights of an ordinary size at which the density is evaluated."""
    generator = torch.Generator().manual_seed(seed)
    return 0.3 * torch.randn(density.num, dtype=torch.float64, generator=generator)
