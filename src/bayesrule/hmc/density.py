"""The log density of the weights of an unmodified module, and its gradient.

A sampler needs hundreds of gradients for each draw. For small networks most of their time is
overhead between torch's operations: a traced graph saves some of it, compiled code most.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.modules.batchnorm import _BatchNorm

from bayesrule.likelihoods import Likelihood
from bayesrule.likelihoods._uncertain import EXAMPLE_WEIGHT
from bayesrule.likelihoods._weighted import split, times
from bayesrule.moments import GaussianTensor
from bayesrule.predicting.at_weights import stacked_outputs
from bayesrule.rules.fit_of_parts import instance
from bayesrule.tensors import vectors
from bayesrule.tensors.inputs import Inputs, as_pair, mapped
from bayesrule.tensors.network import Network, check_batch
from bayesrule.tensors.unfit import check_finite
from bayesrule.training.batches import gathered
from bayesrule.types import Params

Floats = NDArray[np.float64]
Gradient = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Maps θ (P,) to the gradient (P,) of the log density and its value."""


class LogDensity:
    """`Σ log p(y | f(x; θ)) / T + log N(θ; 0, I / δ)` of all weights as one vector θ (P,).

    It runs in float64 on the CPU, with the module in evaluation mode (batch norm by its running
    averages, no dropout). A learned noise precision τ ~ Gamma(a₀, b₀), one for each output, is
    integrated out: with `a = a₀ + N/2T` and `b = b₀ + Σ(y − f)²/2T` the first term becomes
    `log Γ(a) − log Γ(a₀) + a₀ log b₀ − a log b − N/2T log 2π`.

    >>> from bayesrule import GaussianLikelihood
    >>> data = torch.zeros(2, 1), torch.zeros(2, 1)
    >>> density = LogDensity(nn.Linear(1, 1), GaussianLikelihood(noise=1.0), data)
    >>> round(float(density(torch.zeros(2, dtype=torch.float64))) / math.log(2.0 * math.pi), 6)
    -2.0
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        data: Any,
        *,
        prior_precision: float = 1.0,
        temperature: float = 1.0,
    ) -> None:
        self.network = Network(model)
        self.likelihood = instance(likelihood, Likelihood, "likelihood", "GaussianLikelihood()")
        self.prior_precision, self.temperature = float(prior_precision), float(temperature)
        self.params = {name: _double(value) for name, value in self.network.params().items()}
        self.buffers = {name: _double(value) for name, value in self.network.buffers().items()}
        self.num = vectors.numel(self.params)
        self.prior_noise = likelihood.init(next(iter(self.params.values())))
        self.learned = likelihood.learns
        self._refuse_changes()
        data = gathered(as_pair(data))
        targets = data[1] if isinstance(data[1], Tensor) else torch.as_tensor(np.array(data[1]))
        targets, self.weight = split(likelihood.weighed(targets))
        self.x, self.y = as_inputs(data[0]), _plain(targets, "targets")
        self.count = check_batch(self.x, self.y)
        with torch.no_grad():
            likelihood.check(self.outputs(self.params, self.x), self.y)

    def _refuse_changes(self) -> None:
        """Refuses likelihoods and modules whose log density is not a function of fixed data."""
        if self.prior_noise and not self.learned:
            raise ValueError(
                f"{type(self.likelihood).__name__} changes from step to step (a schedule of noise),"
                " but a posterior has no steps. Give a number, as GaussianLikelihood(noise=0.1), "
                "or learn it: GaussianLikelihood()."
            )
        for name, module in self.network.model.named_modules():
            if isinstance(module, _BatchNorm) and module.running_mean is None:
                raise ValueError(
                    f"Layer {name!r} ({type(module).__name__}) has no running averages, so its "
                    "outputs depend on which inputs come together. Build it with "
                    "track_running_stats=True."
                )

    def __call__(self, theta: Tensor) -> Tensor:
        """The log density at one θ (P,)."""
        outputs = self.outputs(self.named(theta), self.x)
        if self.learned:
            noise, prior = self.conjugate(outputs), self.prior_noise
            a, b, a0, b0 = noise["a"], noise["b"], prior["a"], prior["b"]
            start = a.lgamma() - a0.lgamma() + a0 * b0.log() - (a - a0) * math.log(2.0 * math.pi)
            fit = (start - a * b.log()).sum()
        else:
            log_probs = self.likelihood.log_prob(outputs, self.y, {})
            fit = times(log_probs, self.weight).sum() / self.temperature
        width = math.log(self.prior_precision / (2.0 * math.pi))
        return fit + 0.5 * (self.num * width - self.prior_precision * theta.square().sum())

    def named(self, theta: Tensor) -> Params:
        """Vectors (..., P) as the module's weights, by name and in shape."""
        return vectors.unflatten(theta, vectors.shapes_of(self.params))

    def outputs(self, params: Params, x: Inputs) -> Tensor:
        """The network's outputs (n, *)."""
        return self.network(params, dict(self.buffers), x, training=False)

    @torch.no_grad()
    def outputs_at(self, draws: Params, x: Inputs, batch_size: int = 4096) -> Tensor:
        """The network's outputs (S, n, *) at by_draw of S draws of the weights."""
        by_draw = zip(*draws.values(), strict=True)
        weights = (dict(zip(draws, values, strict=True)) for values in by_draw)
        return stacked_outputs(self.network, weights, self.buffers, x, batch_size)

    def conjugate(self, outputs: Tensor) -> Params:
        """The posterior Gamma(a, b) of the noise precision, given the outputs for all data."""
        weighted = {} if self.weight is None else {EXAMPLE_WEIGHT: self.weight.to(outputs.dtype)}
        state = {**self.prior_noise, **weighted}
        statistics = self.likelihood.expected_statistics(outputs, self.y, state)
        scaled = {name: value / self.temperature for name, value in statistics.items()}
        # Starting from the prior, one update with all data is the exact conjugate posterior.
        return self.likelihood.update(self.prior_noise, scaled, self.count / self.temperature)


def as_inputs(x: Any, what: str = "inputs") -> Inputs:
    """Tensors, arrays and lists as finite tensors on the CPU, floating ones in float64."""
    return mapped(x, lambda part: _plain(part, what))


def _plain(x: Any, what: str) -> Tensor:
    if isinstance(x, GaussianTensor):
        raise TypeError(f"hmc takes plain {what}; uncertain ones are for tagi.")
    # A copy, because torch cannot share arrays that are read-only or have negative strides.
    tensor = torch.as_tensor(x if isinstance(x, Tensor) else np.array(x))
    tensor = _double(tensor.detach())
    check_finite(f"The {what}", tensor)
    return tensor


def _double(value: Tensor) -> Tensor:
    value = value.cpu()
    return value.double() if value.is_floating_point() else value


def value_and_gradient(
    density: LogDensity, *, compile: bool = True
) -> Callable[[Floats], tuple[float, Floats]]:
    """A function from θ (P,) to the log density and its gradient (P,).

    The density is traced once and, with `compile`, compiled by torch's inductor, which takes
    seconds and a C++ compiler. The result is checked against the module; a module that cannot be
    traced is called as it is.
    """
    theta = _probe(density, 1)
    with torch.no_grad():
        once, twice = density(theta), density(theta)
    if not torch.equal(once, twice) and once.isfinite():
        raise ValueError(
            "The module gives different outputs for the same weights and inputs in evaluation "
            "mode, but a log density has no randomness. Take it out of the module."
        )
    gradient, graph = _plainly(density), _traced(density)
    if graph is not None and _agrees(density, graph.forward):
        gradient = graph.forward
        compiled = _compiled(graph, _probe(density, 0)) if compile else None
        if compiled is not None and _agrees(density, compiled):
            gradient = compiled

    def function(theta: Floats) -> tuple[float, Floats]:
        # Inference mode is a setting of the thread, and the sampler calls from its own.
        with torch.inference_mode():
            slope, value = gradient(torch.from_numpy(theta))
            return value.item(), slope.numpy()

    return function


def _plainly(density: LogDensity) -> Gradient:
    """The gradient by calling the module as it is, with one backward pass."""

    def gradient(theta: Tensor) -> tuple[Tensor, Tensor]:
        with torch.inference_mode(False), torch.enable_grad():
            point = theta.clone().requires_grad_()
            value = density(point)
            (slope,) = torch.autograd.grad(value, point)
            return slope, value.detach()

    return gradient


def _traced(density: LogDensity) -> GraphModule | None:
    # Imported here: the tracer takes as long to load as the rest of the library.
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
            # The compiler warns of deprecated parts of torch that it uses itself.
            warnings.simplefilter("ignore")
            return inductor.compile(graph, [theta], options={"cpp_wrapper": True})
    except Exception as problem:  # faults of the compiler, or no C++ compiler
        warnings.warn(
            "The log density could not be compiled, so sampling takes several times as long: "
            f"{str(problem).strip().splitlines()[0]} Is there a C++ compiler? compile=False does "
            "without one.",
            stacklevel=4,
        )
        return None


def _agrees(density: LogDensity, gradient: Gradient) -> bool:
    """Whether a gradient equals the module's, at weights other than the traced ones."""
    theta = _probe(density, 1)
    pairs = zip(_plainly(density)(theta), gradient(theta), strict=True)
    return all(torch.allclose(a, b, rtol=1e-8, atol=1e-8, equal_nan=True) for a, b in pairs)


def _probe(density: LogDensity, seed: int) -> Tensor:
    """Random weights of ordinary size, to trace and compare gradients at."""
    generator = torch.Generator().manual_seed(seed)
    return 0.3 * torch.randn(density.num, dtype=torch.float64, generator=generator)
