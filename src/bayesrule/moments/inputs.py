"""Predictions for uncertain inputs: fixed points for the inputs, moments for the weights.

An uncertain input moves all units of a layer together. Moment propagation takes units as
independent, so in a wide layer it would lose nearly all of this variation. Instead the network runs
once at each of several known inputs, and the law of total variance combines the outputs:
`Var f = E[Var(f | x)] + Var(E[f | x])`.
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
    """`2 num` deterministic points (2 num, size) in place of draws of N(0, I).

    They come in pairs `± t`, so their mean is zero, and their directions are orthogonal: for
    size ≤ num their covariance is the identity, and functions linear in x get exact moments.
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


def _at_points(inputs: dict[str, Any], num: int) -> Iterator[dict[str, Any]]:
    """Plain inputs at each point; all examples (the first axis) take the same point."""
    gaussians = {k: x for k, x in inputs.items() if isinstance(x, GaussianTensor)}
    sizes = [x[:1].numel() for x in gaussians.values()]
    stds = {k: x.variance.sqrt() for k, x in gaussians.items()}
    for point in points(num, sum(sizes)):
        offsets = zip(stds.items(), point.split(sizes), strict=True)
        steps = {k: std * t.to(std).reshape(std.shape[1:]) for (k, std), t in offsets}
        yield inputs | {k: x.centre + steps[k] for k, x in gaussians.items()}


def over_inputs(run: Callable[[Any], GaussianTensor], x: Any, pairs: int = _PAIRS) -> Moments:
    """Mean and variance of the outputs of `run(x)`, where some inputs may be uncertain."""
    inputs = dict(named(x))
    if not any(isinstance(value, GaussianTensor) for value in inputs.values()):
        outputs = run(x)
        return outputs.centre, outputs.variance
    runs = (run(replaced(x, plain)) for plain in _at_points(inputs, pairs))
    means, within = zip(*((f.centre, f.variance) for f in runs), strict=True)
    between, mean = torch.var_mean(torch.stack(means), 0, correction=0)
    return mean, between + torch.stack(within).mean(0)
