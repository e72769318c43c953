"""Piecewise-linear activations, which second derivatives do not see, and smooth ones instead."""

from __future__ import annotations

import copy
import warnings

from torch import nn

PIECEWISE_LINEAR = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU),
    *(nn.Hardtanh, nn.Hardsigmoid, nn.Hardshrink, nn.Softshrink, nn.Threshold),
)


def piecewise_linear_layers(model: nn.Module) -> list[str]:
    """The names of a module's layers that are piecewise linear, with their types.

    >>> piecewise_linear_layers(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
    ['1 (ReLU)']
    """
    return [
        f"{name or 'the model'} ({type(layer).__name__})"
        for name, layer in model.named_modules()
        if isinstance(layer, PIECEWISE_LINEAR)
    ]


def warn_if_piecewise_linear(model: nn.Module) -> None:
    """Warns where a method that looks at second derivatives would not see the activations."""
    layers = piecewise_linear_layers(model)
    if layers:
        more = f" and {len(layers) - 1} more" if len(layers) > 1 else ""
        warnings.warn(
            f"{layers[0]}{more} is piecewise linear: its second derivative is zero almost "
            "everywhere, so the curvature of the loss is not seen where it bends. Train "
            "bayesrule.smooth(model), the same module with softplus.",
            # The line that calls the method, whose options are completed on the way.
            stacklevel=4,
        )


def smooth(model: nn.Module, beta: float = 1.0) -> nn.Module:
    """A copy of the module in which rectifying activations are `softplus(βx)/β`.

    It has the same weights and names. What a module calls as a function inside its own `forward`,
    such as `torch.relu(x)`, cannot be seen from outside and stays. Leaky ones become softplus too.

    >>> smooth(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))[1]
    Softplus(beta=1.0, threshold=20.0)
    """
    if not beta > 0:
        raise ValueError(f"beta must be positive, got {beta}.")
    if isinstance(model, PIECEWISE_LINEAR):
        return nn.Softplus(beta)
    changed = copy.deepcopy(model)
    for layer in list(changed.modules()):
        for name, child in layer.named_children():
            if isinstance(child, PIECEWISE_LINEAR):
                setattr(layer, name, nn.Softplus(beta))
    return changed
