"""Chains of linear layers and activations, run for many nets at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bayesrule.tensors.network import Inputs, Network
from bayesrule.types import Params

# Elementwise functions, which work the same with an axis of nets.
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
        """Without the parameters that are not among the names."""
        weight = self.weight if self.weight in names else None
        return replace(self, weight=weight, bias=self.bias if self.bias in names else None)


class Chain:
    """A module of linear layers and activations, run on many nets by a few batched products.

    `vmap` gives the same result, but has to dispatch every single operation.
    """

    def __init__(self, steps: list[Linear | nn.Module]) -> None:
        self._steps = steps
        self.layers = [step for step in steps if isinstance(step, Linear)]

    @classmethod
    def of(cls, network: Network) -> Chain | None:
        """The network as a chain, or None if it is not one."""
        tensors = (*network.model.named_parameters(), *network.model.named_buffers())
        names = {name for name, _ in tensors}
        steps: list[Linear | nn.Module] = []
        for name, part in _parts(network.model, ""):
            if part._forward_hooks or part._forward_pre_hooks:
                return None
            if type(part).forward is nn.Linear.forward:
                bias = None if part.bias is None else f"{name}bias"
                # A tied weight, or one computed from others, has no name here.
                if not {f"{name}weight", *([bias] if bias else [])} <= names:
                    return None
                steps.append(Linear(f"{name}weight", bias))
            elif type(part) in _ELEMENTWISE and not getattr(part, "inplace", False):
                steps.append(part)
            else:
                return None
        return cls(steps) if any(isinstance(step, Linear) for step in steps) else None

    def takes(self, x: Inputs) -> bool:
        """Whether inputs are one tensor (num, n, features)."""
        return isinstance(x, Tensor) and x.ndim == 3

    def width(self, params: Params) -> int:
        """The largest number of inputs or outputs of any layer."""
        weights = [params[layer.weight] for layer in self.layers if layer.weight in params]
        return max((max(weight.shape[-2:]) for weight in weights), default=1)

    def __call__(self, params: Params, buffers: Params, x: Inputs) -> Tensor:
        """The outputs (num, n, *) for inputs (num, n, features)."""
        assert isinstance(x, Tensor)
        tensors, value = {**buffers, **params}, x
        for step in self._steps:
            value = _applied(step, tensors, value) if isinstance(step, Linear) else step(value)
        return value

    def recorded(
        self, params: Params, buffers: Params, x: Inputs
    ) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Inputs and outputs of each layer, and of the chain its outputs.

        The parameters are detached, so gradients end at the layers' outputs.
        """
        assert isinstance(x, Tensor)
        tensors = {name: value.detach() for name, value in {**buffers, **params}.items()}
        inputs, outs, value = [], [], x
        for step in self._steps:
            if isinstance(step, Linear):
                inputs.append(value.detach())
                value = _applied(step, tensors, value)
                outs.append(value if value.requires_grad else value.requires_grad_())
            else:
                value = step(value)
        return inputs, outs, value


def _applied(layer: Linear, tensors: Params, x: Tensor) -> Tensor:
    assert layer.weight is not None
    weight = tensors[layer.weight].mT
    if layer.bias is None:
        return torch.bmm(x, weight)
    return torch.baddbmm(tensors[layer.bias].unsqueeze(1), x, weight)


def _parts(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """The modules of nested `nn.Sequential`s in the order in which they run."""
    hooked = module._forward_hooks or module._forward_pre_hooks
    if type(module) is not nn.Sequential or hooked:
        yield prefix, module
        return
    # Not `named_children`, which skips repeated modules.
    for name, part in module._modules.items():
        assert part is not None
        yield from _parts(part, f"{prefix}{name}.")
