"""The draws, gradients and curvature of the `sampled_params()` blocks between two steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from bayesrule.expectations import Expectation
from bayesrule.optim.parts import Part, set_grads
from bayesrule.posteriors import Gaussian, Point
from bayesrule.tensors import seeds, vectors
from bayesrule.types import Params

# Random streams: the one of a learner's draws, and one that training never uses.
TRAINING, PREVIEW = 2, 0


class Draw(NamedTuple):
    """A part of the parameters, its posterior, and the point at which the loss is evaluated."""

    part: Part
    posterior: Gaussian
    point: Point


@dataclass(frozen=True)
class Open:
    """An open block: its draws, and the gradients from before it.

    - `train`: its gradients count; `add`: they are added to the earlier ones, not averaged.
    - `moves`: whether the weights change inside the block.
    """

    params: Params
    before: dict[str, Tensor | None]
    draws: list[Draw]
    train: bool
    add: bool
    moves: bool

    def enter(self) -> None:
        """Sets the weights to the draws; if that fails, back to the mean."""
        try:
            for draw in self.draws if self.moves else ():
                draw.part.set_weights(draw.point.params)
        except BaseException:
            self.leave()
            raise
        if self.train:
            set_grads(self.params, dict.fromkeys(self.params))

    def leave(self) -> None:
        """Sets the weights to the mean."""
        for draw in self.draws if self.moves else ():
            draw.part.set_weights(draw.posterior.mean)


@dataclass
class Blocks:
    """The blocks since the last step; their joint gradient is in the parameters' `.grad`.

    - `curvature`: Price's curvature of the batch-mean loss, joined in the same way.
    - `norms`: of each parameter's gradient when the last block ended.
    """

    stream: int
    count: int = 0
    curvature: Params = field(default_factory=dict)
    norms: Params = field(default_factory=dict)
    generators: dict[int, Generator] = field(default_factory=dict)
    points: dict[tuple[int, int], Iterator[Point]] = field(default_factory=dict)

    def draw(self, part: Part, posterior: Gaussian, expectation: Expectation) -> Draw:
        """The next point of the expectation, starting over after its last point."""
        if part.stream not in self.generators:
            origin = part.group["seed"], part.group["step"], self.stream + 3 * part.stream
            self.generators[part.stream] = seeds.generator(part.device, *origin)
        key = part.stream, part.step
        if key not in self.points:
            arguments = itertools.repeat((posterior, self.generators[part.stream]))
            rounds = itertools.starmap(expectation.points, arguments)
            self.points[key] = itertools.chain.from_iterable(rounds)
        return Draw(part, posterior, next(self.points[key]))

    def forget(self) -> None:
        """Discards gradients and curvature; draws continue, so that none repeats."""
        self.count, self.curvature, self.norms = 0, {}, {}

    def start(self, curvature: Params) -> None:
        """Counts the first block."""
        self.count, self.curvature = 1, curvature

    def joined(self, earlier: Params, gradient: Params, curvature: Params, add: bool) -> Params:
        """Counts one more block; returns the mean (or sum) of its gradient and earlier ones."""
        self.check(gradient)
        if not all(norm.isfinite() for norm in self.norms.values()):
            # A step was skipped because of an overflow; its gradient must not enter the mean.
            self.start(curvature)
            return gradient
        self.count += 1
        if curvature:
            curvature = self._with(self.shrunk(earlier), curvature, add)
        self.curvature = curvature
        return self._with(earlier, gradient, add)

    def _with(self, earlier: Params, new: Params, add: bool) -> Params:
        return vectors.add(earlier, new) if add else vectors.lerp(earlier, new, 1.0 / self.count)

    def shrunk(self, gradient: Params) -> Params:
        """The curvature, scaled down as clipping or unscaling has since scaled the gradient."""
        ratios = vectors.div(norms(gradient), self.norms)
        factors = {name: ratio.nan_to_num(1.0).clamp(max=1.0) for name, ratio in ratios.items()}
        return vectors.mul(factors, self.curvature)

    def check(self, params: Params) -> None:
        """Refuses parameters that were added or removed since the first block."""
        if self.norms.keys() != params.keys():
            raise RuntimeError(
                "Parameters were added, frozen or unfrozen between a sampled_params() block and "
                "its step(); do so after step() or zero_grad()."
            )


def unfit(params: Params) -> list[str]:
    """The parameters on a CPU with non-finite gradients; a GPU would have to wait."""
    grads = {k: p.grad for k, p in params.items() if p.grad is not None}
    grads = {k: v for k, v in grads.items() if v.is_cpu and v.layout is torch.strided}
    if not grads or math.isfinite(sum(norm.item() for norm in norms(grads).values())):
        return []
    return [name for name, grad in grads.items() if not grad.isfinite().all()]


def norms(gradient: Params) -> Params:
    """The Euclidean norm of each tensor, 0-d."""
    return dict(zip(gradient, torch._foreach_norm(list(gradient.values())), strict=True))
