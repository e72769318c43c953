"""Linear layers and activations one after another, run for many nets at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bayesrule.tensors.network import Inputs, Network
from bayesrule.types import Params

# Functions of each number alone, to which it is the same where the nets' axis is.
_ELEMENTWISE = {
    nn.CELU, nn.ELU, nn.GELU, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.Identity, nn.LeakyReLU,
    nn.LogSigmoid, nn.Mish, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus,
    nn.Softsign, nn.Tanh,
}  # fmt: skip


@dataclass(frozen=True)
class Linear:
    """The names of a linear layer's parameters."""

    weight: str | None
    bias: str | None

    def only(self, names: Collection[str]) -> Linear:
        """Without those that are not among the names."""
        weight = self.weight if self.weight in names else None
        return replace(self, weight=weight, bias=self.bias if self.bias in names else None)


class Chain:
    """A module of linear layers and activations: for many nets it is a few batched products.

    Mapping over nets gives the same, but has to find out for every operation what that means.
    """

    def __init__(self, steps: list[Linear | nn.Module]) -> None:
        self._steps = steps
        self.layers = [step for step in steps if isinstance(step, Linear)]

    @classmethod
    def of(cls, network: Network) -> Chain | None:
        """The chain that a network is, or None."""
        named = (*network.model.named_parameters(), *network.model.named_buffers())
        known = {name for name, _ in named}
        steps: list[Linear | nn.Module] = []
        for name, part in _parts(network.model, ""):
            if part._forward_hooks or part._forward_pre_hooks:
                return None
            if type(part).forward is nn.Linear.forward:
                bias = None if part.bias is None else f"{name}bias"
                # A weight that is tied to another, or worked out, has no name of its own.
                if not {f"{name}weight", *([bias] if bias else [])} <= known:
                    return None
                steps.append(Linear(f"{name}weight", bias))
            elif type(part) in _ELEMENTWISE and not getattr(part, "inplace", False):
                steps.append(part)
            else:
                return None
        return cls(steps) if any(isinstance(step, Linear) for step in steps) else None

    def takes(self, x: Inputs) -> bool:
        """Whether inputs are rows of numbers, (num, n, features)."""
        return isinstance(x, Tensor) and x.ndim == 3

    def width(self, params: Params) -> int:
        """The most numbers that a layer takes or gives for one example."""
        weights = [params[layer.weight] for layer in self.layers if layer.weight in params]
        return max((max(weight.shape[-2:]) for weight in weights), default=1)

    def __call__(self, params: Params, buffers: Params, x: Inputs) -> Tensor:
        """The outputs (num, n, *) for inputs (num, n, features)."""
        assert isinstance(x, Tensor)
        known, value = {**buffers, **params}, x
        for step in self._steps:
            value = _applied(step, known, value) if isinstance(step, Linear) else step(value)
        return value

    def recorded(
        self, params: Params, buffers: Params, x: Inputs
    ) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """The layers' inputs and outputs, and the outputs of the whole; gradients end at layers."""
        assert isinstance(x, Tensor)
        known = {name: value.detach() for name, value in {**buffers, **params}.items()}
        inputs, outs, value = [], [], x
        for step in self._steps:
            if isinstance(step, Linear):
                inputs.append(value.detach())
                value = _applied(step, known, value)
                outs.append(value if value.requires_grad else value.requires_grad_())
            else:
                value = step(value)
        return inputs, outs, value


def _applied(layer: Linear, known: Params, x: Tensor) -> Tensor:
    assert layer.weight is not None
    weight = known[layer.weight].mT
    if layer.bias is None:
        return torch.bmm(x, weight)
    return torch.baddbmm(known[layer.bias].unsqueeze(1), x, weight)


def _parts(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """The modules of nested sequences in the order in which they run."""
    hooked = module._forward_hooks or module._forward_pre_hooks
    if type(module) is not nn.Sequential or hooked:
        yield prefix, module
        return
    # Not `named_children`, which leaves a part out that comes again.
    for name, part in module._modules.items():
        assert part is not None
        yield from _parts(part, f"{prefix}{name}.")
