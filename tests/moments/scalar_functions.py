"""The scalar functions that Gaussians pass, and what the rules say of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.moments import Activations, GaussianTensor, LocallyLinear, MomentMatched, Tape

MATCHED, LINEAR = MomentMatched(), LocallyLinear()
Function = Callable[..., Any]

# Functions with closed forms, and where they bend.
CLOSED: dict[str, tuple[Function, tuple[float, ...]]] = {
    "ReLU": (nn.ReLU(), (0.0,)),
    "LeakyReLU": (nn.LeakyReLU(0.1), (0.0,)),
    "ReLU6": (nn.ReLU6(), (0.0, 6.0)),
    "Hardtanh": (nn.Hardtanh(), (-1.0, 1.0)),
    "Hardtanh(-0.5, 2)": (nn.Hardtanh(-0.5, 2.0), (-0.5, 2.0)),
    "Hardsigmoid": (nn.Hardsigmoid(), (-3.0, 3.0)),
    "ELU": (nn.ELU(), (0.0,)),
    "ELU(0.5)": (nn.ELU(0.5), (0.0,)),
    "SELU": (nn.SELU(), (0.0,)),
    "CELU": (nn.CELU(2.0), (0.0,)),
    "exp": (torch.exp, ()),
    "square": (torch.square, ()),
    "pow": (lambda x: x**2, ()),
    "cube": (lambda x: x**3, ()),
    "abs": (torch.abs, (0.0,)),
    "sin": (torch.sin, ()),
    "cos": (torch.cos, ()),
    "neg": (torch.neg, ()),
}
SMOOTH: dict[str, Function] = {
    "GELU": nn.GELU(),
    "GELU(tanh)": nn.GELU("tanh"),
    "SiLU": nn.SiLU(),
    "Mish": nn.Mish(),
    "Tanh": nn.Tanh(),
    "Sigmoid": nn.Sigmoid(),
    "Softplus": nn.Softplus(),
    "Softplus(2, 15)": nn.Softplus(2.0, 15.0),
    "LogSigmoid": nn.LogSigmoid(),
}
ALL: dict[str, Function] = {name: f for name, (f, _) in CLOSED.items()} | SMOOTH


def passed(
    function: Function, m: Tensor, s: Tensor, activations: Activations = MATCHED
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, variance, and what carries δ and η back, of each element."""
    tape = Tape(activations, record=True)
    x = tape.leaf(m, s)
    with torch.no_grad():
        y = function(x)
    assert isinstance(y, GaussianTensor)
    ones = torch.ones_like(m)
    tape.back(y, ones, ones)
    assert x.node is not None
    assert x.node.delta is not None
    assert x.node.eta is not None
    return y.centre, y.variance, x.node.delta, x.node.eta
