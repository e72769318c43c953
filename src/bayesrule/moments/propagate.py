"""A network run on Gaussian weights: moments forwards, innovations back."""

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
    """One forward pass of a batch through a network with Gaussian weights, and the way back.

    `weights` and `inputs` are the Gaussian tensors that entered the network. Within the network
    variances are the `share` of them that the activations carry; outside they are whole.
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
        """The Gaussian outputs; a weight without a variance is taken as known."""
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
        """Whatever the module returns; its arguments `x` may be nested (recurrent states)."""
        leaf = self.tape.leaf
        self.weights = {k: leaf(mean[k], v) for k, v in variance.items() if k in mean}
        inputs = self._leaves(x)
        self.inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        weights, given = self.carried({**mean, **self.weights}), self.carried(inputs)
        try:
            return self.whole(self.network(weights, buffers, given, training=training))
        except (NoRule, FloatingPointError) as problem:
            layer = _layer(problem.__traceback__)
            raise type(problem)(f"{problem}{layer}") from problem

    def carried(self, x: Any) -> Any:
        """Gaussians as the network sees them."""
        return spread(x, self.share)

    def whole(self, x: Any) -> Any:
        """Gaussians of the network with all of their variance."""
        return spread(x, 1.0 / self.share)

    def _leaves(self, x: Any) -> Any:
        """The same inputs with each Gaussian tensor as a leaf of this tape."""
        if isinstance(x, tuple | list):
            return type(x)(self._leaves(one) for one in x)
        if isinstance(x, dict):
            return {name: self._leaves(one) for name, one in x.items()}
        return self.tape.leaf(x.centre, x.variance) if isinstance(x, GaussianTensor) else x

    def back(self, outputs: GaussianTensor, delta: Tensor, eta: Tensor) -> tuple[Params, Params]:
        """The innovations of all weights, zero for those that the outputs do not depend on."""
        first, second = self.innovations(outputs, delta, eta)
        return vectors.apart(first), vectors.apart(second)

    def innovations(
        self, outputs: GaussianTensor, delta: Tensor, eta: Tensor
    ) -> tuple[Params, Params]:
        """The same, but those of several weights may share memory; `vectors.apart` copies them."""
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
        """Raises the reason why a pass gave numbers that are not finite, by running it again.

        A ValueError names columns of the inputs, or the targets, a FloatingPointError the weight or
        the operation and its layer.
        """
        for one in input_parts(x):
            _refuse_inputs(one)
        for name, value in mean.items():
            if not value.isfinite().all():
                raise FloatingPointError(f"The mean of the weight '{name}' is not finite.")
        again = Propagation(self.network, self.tape.activations)
        again.tape = _CheckedTape(self.tape.activations, record=False)
        again.forward(mean, variance, buffers, x, training=training)
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


def _refuse_inputs(x: Tensor) -> None:
    centre, variance, _ = parts(x)
    sound = centre.isfinite() if variance is None else centre.isfinite() & variance.isfinite()
    refuse_where("The inputs", ~sound)


def _layer(trace: TracebackType | None) -> str:
    """The innermost module of a traceback, in words; the outermost one is the whole."""
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
