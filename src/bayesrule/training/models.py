"""Plain torch modules for tables of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from bayesrule.tensors.network import forked_randomness


def mlp(
    inputs: int,
    outputs: int,
    hidden: Sequence[int] = (50,),
    *,
    activation: type[nn.Module] = nn.ReLU,
    seed: int = 0,
) -> nn.Sequential:
    """A multilayer perceptron; no hidden layers make a linear model.

    The first weights follow from `seed` alone and the global random state is left as it is.

    >>> mlp(3, 1, hidden=(5,))
    Sequential(
      (0): Linear(in_features=3, out_features=5, bias=True)
      (1): ReLU()
      (2): Linear(in_features=5, out_features=1, bias=True)
    )
    """
    sizes = [inputs, *hidden, outputs]
    if min(sizes) < 1:
        raise ValueError(f"A layer has at least one unit, got {sizes}.")
    layers: list[nn.Module] = []
    with forked_randomness(torch.get_default_device(), seed):
        for a, b in pairwise(sizes):
            layers += [nn.Linear(a, b), activation()]
    return nn.Sequential(*layers[:-1])
