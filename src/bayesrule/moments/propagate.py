"""Runs a network on Gaussian weights: moments go forwards, innovations come back."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Never

import torch
from torch import Tensor, nn

from bayesrule.moments.tensor import Activations, GaussianTensor, NoRule, Tape, parts, spread
from bayesrule.tensors import vectors
from bayesrule.tensors.inputs import Inputs, num_examples
from bayesrule.tensors.inputs import parts as input_parts
from bayesrule.tensors.network import Network
from bayesrule.tensors.unfit import check_outputs, refuse_where
from bayesrule.types import Params


class Propagation:
    """One forward pass of a batch through a network with Gaussian weights, and the pass back.

    `weights` and `inputs` are the Gaussian tensors that entered the network. Inside the network
    variances are multiplied by the activations' `share`; outside they have their full size.
    """

    def __init__(self, network: Network, activations: Activations, *, record: bool = True) -> None:
        self.network = network
        self.tape = Tape(activations, record=record)
        self.share = activations.share
        self.weights: dict[str, GaussianTensor] = {}
        self.inputs: tuple[Any, ...] = ()

    def forward(
        self, mean: Params, variance: Params, buffers: Params, x: Inputs, *, training: bool
    ) -> GaussianTensor:
        """The Gaussian outputs; a weight without a variance is a constant."""
        outputs = self.run(mean, variance, buffers, x, training=training)
        check_outputs(outputs, num_examples(x))
        if not isinstance(outputs, GaussianTensor):
            raise TypeError(
                "The network's output does not depend on its uncertain weights in a way that "
                f"moment propagation can see: it is a {type(outputs).__name__}."
            )
        return outputs

    def run(
        self, mean: Params, variance: Params, buffers: Params, x: Any, *, training: bool
    ) -> Any:
        """What the module returns, of any type; its arguments `x` may be nested."""
        leaf = self.tape.leaf
        self.weights = {k: leaf(mean[k], v) for k, v in variance.items() if k in mean}
        inputs = self._leaves(x)
        self.inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        weights, narrowed = self.carried({**mean, **self.weights}), self.carried(inputs)
        try:
            return self.whole(self.network(weights, buffers, narrowed, training=training))
        except (NoRule, FloatingPointError) as problem:
            layer = _layer(problem.__traceback__)
            raise type(problem)(f"{problem}{layer}") from problem

    def carried(self, x: Any) -> Any:
        """Gaussians from outside, with their variances as they are inside the network."""
        return spread(x, self.share)

    def whole(self, x: Any) -> Any:
        """Gaussians from inside the network, with their full variances."""
        return spread(x, 1.0 / self.share)

    def _leaves(self, x: Any) -> Any:
        """The same inputs with each Gaussian tensor as a leaf of this tape."""
        if isinstance(x, tuple | list):
            return type(x)(self._leaves(item) for item in x)
        if isinstance(x, dict):
            return {name: self._leaves(item) for name, item in x.items()}
        return self.tape.leaf(x.centre, x.variance) if isinstance(x, GaussianTensor) else x

    def back(self, outputs: GaussianTensor, delta: Tensor, eta: Tensor) -> tuple[Params, Params]:
        """The innovations of all weights; zero where the outputs do not depend on them."""
        first, second = self.innovations(outputs, delta, eta)
        return vectors.apart(first), vectors.apart(second)

    def innovations(
        self, outputs: GaussianTensor, delta: Tensor, eta: Tensor
    ) -> tuple[Params, Params]:
        """As `back`, but several weights may share memory; `vectors.apart` copies them."""
        self.tape.back(outputs, delta, eta)
        first: Params = {}
        second: Params = {}
        for name, weight in self.weights.items():
            node = weight.node
            assert node is not None
            first[name] = torch.zeros_like(weight.centre) if node.delta is None else node.delta
            second[name] = torch.zeros_like(weight.centre) if node.eta is None else node.eta
        return first, second

    def explain(
        self, mean: Params, variance: Params, buffers: Params, x: Any, y: Tensor, *, training: bool
    ) -> Never:
        """Runs a pass that gave non-finite numbers again and raises an error with the reason.

        A ValueError names the targets or the columns of the inputs; a FloatingPointError names the
        weight, or the operation and its layer.
        """
        for part in input_parts(x):
            centre, spreads, _ = parts(part)
            finite = centre.isfinite()
            if spreads is not None:
                finite = finite & spreads.isfinite()
            refuse_where("The inputs", ~finite)
        for name, value in mean.items():
            if not value.isfinite().all():
                raise FloatingPointError(f"The mean of the weight '{name}' is not finite.")
        checked = Propagation(self.network, self.tape.activations)
        checked.tape = _CheckedTape(self.tape.activations, record=False)
        checked.forward(mean, variance, buffers, x, training=training)
        if y.is_floating_point() and y.isinf().any():
            raise ValueError(
                f"The targets hold {int(y.isinf().sum())} infinite numbers. A target that is not "
                "known is given as NaN."
            )
        raise FloatingPointError(
            "The outputs are finite, but the log-probability of the targets is not: they lie too "
            f"far from the outputs for {y.dtype}. Standardised targets or a larger noise help."
        )


class _CheckedTape(Tape):
    """A tape that stops at the first operation whose result is not finite."""

    def result(self, name: str, mean: Tensor, variance: Tensor, *source: Any) -> GaussianTensor:
        for what, values in (("mean", mean), ("variance", variance)):
            bad = ~values.isfinite()
            if bad.any():
                raise FloatingPointError(
                    f"The {what} that '{name}' gives is {float(values[bad][0])} in "
                    f"{int(bad.sum())} of {values.numel()} places: too much for {values.dtype}. "
                    "Standardised inputs, a smaller gain or float64 help."
                )
        return super().result(name, mean, variance, *source)


def _layer(trace: TracebackType | None) -> str:
    """Names the innermost module of a traceback; the outermost one is the whole network."""
    names: dict[int, str] = {}
    words = ""
    while trace is not None:
        module = trace.tb_frame.f_locals.get("self")
        if isinstance(module, nn.Module):
            names = names or {id(part): name for name, part in module.named_modules()}
            if names.get(id(module)):
                words = f" (Layer '{names[id(module)]}', {type(module).__name__}.)"
        trace = trace.tb_next
    return words
