"""Beliefs over the last layer of a network alone."""

from __future__ import annotations

from torch import nn

from bayesrule.matrices import Dense, Diagonal, Structure, Subset


def last_layer_names(model: nn.Module) -> tuple[str, ...]:
    """The trainable parameters of the last module that has its own.

    >>> last_layer_names(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
    ('2.weight', '2.bias')
    """
    last: tuple[str, ...] = ()
    for prefix, module in model.named_modules():
        own = [k for k, v in module.named_parameters(prefix, recurse=False) if v.requires_grad]
        last = tuple(own) or last
    if not last:
        raise ValueError("The model has no trainable parameters, so it has no last layer.")
    return last


def laplace_structure(
    model: nn.Module, structure: Structure | None, last_layer: bool | None, online: bool
) -> Structure:
    """A full last layer unless something else is asked for."""
    if online and last_layer:
        raise ValueError(
            "Online Laplace moves the weights along the belief, so a belief over the last layer "
            "would leave all others where they start; use last_layer=False or online=False."
        )
    if online or last_layer is False or (last_layer is None and structure is not None):
        return structure or Diagonal()
    return Subset(structure or Dense(), last_layer_names(model))
