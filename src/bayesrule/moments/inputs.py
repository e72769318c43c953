"""Predictions for inputs that are not known for sure: points of the inputs, moments of the weights.

What an uncertain input does to the units of a layer it does to all of them together. Moment
propagation takes units as independent, and so would lose nearly all of it in a wide layer. Here the
network runs at points of the inputs, each of them known, and the law of total variance puts the
outputs together: `Var f = E[Var(f | x)] + Var(E[f | x])`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from bayesrule.moments.tensor import GaussianTensor, Moments
from bayesrule.tensors.inputs import named, replaced

_PAIRS = 256


def points(num: int, size: int) -> Tensor:
    """`2 num` points (2 num, size) like draws of N(0, I), always the same.

    They come in pairs `± t`, so that their mean is zero, and directions are made orthogonal: for
    size ≤ num their covariance is the identity, and what is linear in x has its exact moments.
    """
    if size <= num:
        engine = torch.quasirandom.SobolEngine(size, scramble=True, seed=0)
        even = engine.draw(num, dtype=torch.float64).clamp(1e-9, 1.0 - 1e-9)
        rows = torch.linalg.qr(torch.special.ndtri(even))[0] * num**0.5
    else:
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(size, num, generator=generator, dtype=torch.float64)
        rows = torch.linalg.qr(drawn)[0].mT * size**0.5
    return torch.cat([rows, -rows])


def _known(inputs: dict[str, Any], num: int) -> Iterator[dict[str, Any]]:
    """The inputs at each point; all examples, the first axis, take the same one."""
    unknown = {k: x for k, x in inputs.items() if isinstance(x, GaussianTensor)}
    sizes = [x[:1].numel() for x in unknown.values()]
    stds = {k: x.variance.sqrt() for k, x in unknown.items()}
    for point in points(num, sum(sizes)):
        offsets = zip(stds.items(), point.split(sizes), strict=True)
        steps = {k: std * t.to(std).reshape(std.shape[1:]) for (k, std), t in offsets}
        yield inputs | {k: x.centre + steps[k] for k, x in unknown.items()}


def over_inputs(run: Callable[[Any], GaussianTensor], x: Any, pairs: int = _PAIRS) -> Moments:
    """Mean and variance of the outputs of `run(x)` for inputs of which some may be uncertain."""
    inputs = dict(named(x))
    if not any(isinstance(one, GaussianTensor) for one in inputs.values()):
        outputs = run(x)
        return outputs.centre, outputs.variance
    found = (run(replaced(x, one)) for one in _known(inputs, pairs))
    means, within = zip(*((f.centre, f.variance) for f in found), strict=True)
    between, mean = torch.var_mean(torch.stack(means), 0, correction=0)
    return mean, between + torch.stack(within).mean(0)
