"""Pieces that tests of learners share: a small problem, a rule that only looks, given draws."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

import bayesrule as br
from bayesrule import (
    AtMean,
    CategoricalLikelihood,
    Diagonal,
    GaussianFamily,
    Learner,
    Natural,
    PerExample,
)
from bayesrule.expectations import Expectation
from bayesrule.posteriors import Family, Gaussian, Point, Posterior
from bayesrule.posteriors.points import GaussianDraw
from bayesrule.rules import Memory, Now, Rule
from bayesrule.tensors import tree


@dataclass(frozen=True)
class Spy(Rule):
    """Keeps what it is given and moves nothing."""

    def check(
        self, family: Family, expectation: Expectation, curvature: br.curvature.Curvature
    ) -> None: ...

    def structure(self, family: Family) -> br.matrices.Structure:
        assert isinstance(family, GaussianFamily)
        return family.structure

    def init(self, family: Family, posterior: Posterior, weight: float) -> Memory:
        return {}

    def rates(self, step: int) -> tuple[()]:
        return ()

    def move(self, now: Now) -> tuple[Posterior, Memory]:
        return now.posterior, {"seen": now.derivatives}


@dataclass(frozen=True)
class Given(Expectation):
    """Points that are known beforehand."""

    offsets: tuple[br.types.Params, ...]

    random = True

    @property
    def num(self) -> int:
        return len(self.offsets)

    def points(
        self, posterior: Posterior, generator: Generator, *, tracked: bool = True
    ) -> Iterator[Point]:
        for given in self.offsets:
            # An offset belongs to whoever gets the point.
            offset = {k: v.clone() for k, v in given.items()}
            assert isinstance(posterior, Gaussian)
            yield GaussianDraw.of(posterior.mean, offset, posterior.precision)


def small_model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))


def small_batch(size: int = 6) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 3), torch.randint(3, (size,))


def small_learner(model: nn.Module | None = None, **changes: Any) -> Learner:
    parts: dict[str, Any] = {
        "num_data": 24,
        "posterior": GaussianFamily(Diagonal()),
        "expectation": AtMean(),
        "curvature": PerExample(),
        "rule": Natural(0.1, 0.1),
        **changes,
    }
    likelihood = parts.pop("likelihood", CategoricalLikelihood())
    return Learner(model or small_model(), likelihood, **parts)


def equal_trees(a: object, b: object) -> bool:
    one, two = dict(tree.leaves(a)), dict(tree.leaves(b))
    same = (torch.equal(torch.as_tensor(v), torch.as_tensor(two[k])) for k, v in one.items())
    return one.keys() == two.keys() and all(same)
