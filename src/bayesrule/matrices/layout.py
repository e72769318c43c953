"""Which parameters make up a layer with a matrix of weights, and perhaps a bias."""

from __future__ import annotations

from collections import Counter

from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from bayesrule.matrices.layer_rows import Place, Sizes

Pair = tuple[str, str | None]


def bias_of(weight: str) -> str:
    """The name that the bias of a weight would have.

    >>> bias_of("net.0.weight"), bias_of("lstm.weight_ih_l0")
    ('net.0.bias', 'lstm.bias_ih_l0')
    """
    head, dot, tail = weight.rpartition(".")
    return head + dot + tail.replace("weight", "bias")


def by_shape(shapes: Sizes) -> tuple[Pair, ...]:
    """Every parameter with two axes or more, and its bias, told by name and shape alone."""
    return tuple(
        (name, bias if shapes.get(bias := bias_of(name)) == shape[:1] else None)
        for name, shape in shapes.items()
        if len(shape) >= 2
    )


def by_module(model: nn.Module) -> tuple[Pair, ...]:
    """Weights and biases of a module's linear, convolution, attention and recurrent layers.

    Kernels with groups, transposed convolutions, embeddings and norms are left out.
    """
    pairs: list[Pair] = []
    for prefix, module in model.named_modules():
        if _has_matrices(module):
            own = dict(module.named_parameters(prefix, recurse=False))
            pairs += by_shape({name: tuple(value.shape) for name, value in own.items()})
    first = dict(model.named_parameters())
    return tuple(pair for pair in pairs if pair[0] in first)


def _has_matrices(module: nn.Module) -> bool:
    if isinstance(module, _ConvNd):
        return module.groups == 1 and not isinstance(module, _ConvTransposeNd)
    kinds = nn.Linear, nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase
    return isinstance(module, kinds)


def chain_by_module(model: nn.Module) -> tuple[Pair, ...]:
    """The linear and convolution layers of a module in their order; a ValueError for any other."""
    uses = Counter(id(v) for m in model.modules() for v in m._parameters.values() if v is not None)
    for prefix, module in model.named_modules():
        own = {k: v for k, v in module._parameters.items() if v is not None and v.requires_grad}
        plain = isinstance(module, nn.Linear | _ConvNd) and _has_matrices(module)
        if own and not plain:
            where = repr(prefix) if prefix else "the module"
            raise no_chain(f"{where} ({type(module).__name__}) is neither")
        tied = [k for k, v in own.items() if uses[id(v)] > 1]
        if tied:
            raise no_chain(f"'{prefix}.{tied[0]}' belongs to several layers")
    return by_module(model)


def no_chain(reason: str) -> ValueError:
    """What is said of a network that is no chain of layers."""
    return ValueError(
        "BlockTridiagonal() is for chains of linear and convolution layers, each used once, one "
        f"after the other, but {reason}. Use Kronecker(), which takes every layer for itself."
    )


def places(pairs: tuple[Pair, ...], shapes: Sizes) -> list[Place]:
    """The pairs whose weight is among the given parameters, with their shapes."""
    return [
        Place(weight, bias if bias in shapes else None, shapes[weight])
        for weight, bias in pairs
        if weight in shapes
    ]
