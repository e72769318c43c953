"""The log density of the weights of an unmodified module."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesrule.likelihoods import Likelihood
from bayesrule.moments import GaussianTensor
from bayesrule.tensors.network import Inputs, Network, check_batch
from bayesrule.types import Params


class LogDensity:
    """`Σ log p(y | f(x; θ)) / T + log N(θ; 0, I / δ)` of all weights as one vector θ (P,).

    In float64 on the CPU, with the module in evaluation mode (batch norm by its running averages,
    no dropout). A learned noise precision τ ~ Gamma(a₀, b₀), one for each output, is integrated
    out: with `a = a₀ + N/2T` and `b = b₀ + Σ(y − f)²/2T` the first term becomes
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
        data: tuple[Any, Any],
        *,
        prior_precision: float = 1.0,
        temperature: float = 1.0,
    ) -> None:
        if not isinstance(likelihood, Likelihood):
            example = "GaussianLikelihood()"
            raise TypeError(f"likelihood takes a Likelihood such as {example}, got {likelihood!r}.")
        self.network, self.likelihood = Network(model), likelihood
        self.prior_precision, self.temperature = float(prior_precision), float(temperature)
        self.params = {name: _double(value) for name, value in self.network.params().items()}
        self.buffers = {name: _double(value) for name, value in self.network.buffers().items()}
        self.num = sum(value.numel() for value in self.params.values())
        self.prior_noise = likelihood.init(next(iter(self.params.values())))
        self.learned = likelihood.learns
        _refuse(model, likelihood, bool(self.prior_noise) and not self.learned)
        self.x, self.y = as_inputs(data[0]), _plain(data[1], "targets")
        self.count = check_batch(self.x, self.y)
        with torch.no_grad():
            likelihood.check(self.outputs(self.params, self.x), self.y)

    def __call__(self, theta: Tensor) -> Tensor:
        """The log density at one θ (P,)."""
        outputs = self.outputs(self.named(theta), self.x)
        if self.learned:
            fit = self._integrated(self.conjugate(outputs))
        else:
            fit = self.likelihood.log_prob(outputs, self.y, {}).sum() / self.temperature
        width = math.log(self.prior_precision / (2.0 * math.pi))
        return fit + 0.5 * (self.num * width - self.prior_precision * theta.square().sum())

    def named(self, theta: Tensor) -> Params:
        """Vectors (..., P) as the module's weights, by name and in their shapes."""
        parts = theta.split([value.numel() for value in self.params.values()], dim=-1)
        shaped = zip(self.params.items(), parts, strict=True)
        return {name: part.reshape(*part.shape[:-1], *old.shape) for (name, old), part in shaped}

    def outputs(self, params: Params, x: Inputs) -> Tensor:
        """The network's outputs (n, *)."""
        return self.network(params, dict(self.buffers), x, training=False)

    def conjugate(self, outputs: Tensor) -> Params:
        """The belief Gamma(a, b) over the noise precision, given the outputs at all data."""
        statistics = self.likelihood.statistics(outputs, self.y)
        scaled = {name: value / self.temperature for name, value in statistics.items()}
        # From its prior, a likelihood makes the whole conjugate step at once.
        return self.likelihood.update(self.prior_noise, scaled, self.count / self.temperature)

    def _integrated(self, noise: Params) -> Tensor:
        a, b = noise["a"], noise["b"]
        a0, b0 = self.prior_noise["a"], self.prior_noise["b"]
        start = a.lgamma() - a0.lgamma() + a0 * b0.log() - (a - a0) * math.log(2.0 * math.pi)
        return (start - a * b.log()).sum()


def as_inputs(x: Any, what: str = "inputs") -> Inputs:
    """Tensors, arrays and lists as tensors on the CPU, floating ones in float64, all finite."""
    if isinstance(x, tuple):
        return tuple(_plain(part, what) for part in x)
    return _plain(x, what)


def _plain(x: Any, what: str) -> Tensor:
    if isinstance(x, GaussianTensor):
        raise TypeError(f"hmc takes plain {what}; uncertain ones are for tagi.")
    # Arrays may be read-only or run backwards, which torch cannot share.
    tensor = torch.as_tensor(x if isinstance(x, Tensor) else np.array(x))
    tensor = _double(tensor.detach())
    if tensor.is_floating_point() and not (finite := tensor.isfinite()).all():
        bad = (~finite.reshape(len(tensor), -1).all(1)).nonzero().reshape(-1)
        raise ValueError(
            f"The {what} hold numbers that are not finite (NaN or infinity) in {len(bad)} of "
            f"{len(tensor)} rows, first in row {int(bad[0])}. Leave such rows out or fill them in."
        )
    return tensor


def _double(value: Tensor) -> Tensor:
    value = value.cpu()
    return value.double() if value.is_floating_point() else value


def _refuse(model: nn.Module, likelihood: Likelihood, moving: bool) -> None:
    """Refuses likelihoods and modules that have no log density of fixed data."""
    if moving:
        raise ValueError(
            f"{type(likelihood).__name__} changes from step to step (a schedule of noise), but a "
            "posterior has no steps. Give a number, as GaussianLikelihood(noise=0.1), or learn it: "
            "GaussianLikelihood()."
        )
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.running_mean is None:
            raise ValueError(
                f"Layer {name!r} ({type(module).__name__}) has no running averages, so its outputs "
                "depend on which inputs come together. Build it with track_running_stats=True."
            )
