"""A recipe for methods and modules that the caller wrote."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from bayesrule.app.recipe import Method, Recipe
from bayesrule.learner import Learner
from bayesrule.tensors.network import forked_randomness

Build = Callable[[int, int], nn.Module]
"""`build(inputs, outputs)` makes a module."""


@dataclass(frozen=True)
class OwnRecipe(Recipe):
    """A recipe whose method and module may be the caller's own; other modules have float64."""

    function: Method | None = None
    build: Build | None = None

    def cores(self, inputs: int) -> AbstractContextManager[None]:
        return super().cores(inputs) if self.build is None else nullcontext()

    def network(self, inputs: int, targets: int) -> nn.Module:
        if self.build is None:
            # In double precision a prediction does not depend on the rows predicted with it.
            return super().network(inputs, targets).double()
        outputs = self._likelihood().num_outputs(targets)
        with forked_randomness(torch.get_default_device(), self.seed):
            return self.build(inputs, outputs)

    def learner(self, inputs: int, targets: int, num_data: int) -> Learner:
        if self.function is None:
            return super().learner(inputs, targets, num_data)
        module = self.network(inputs, targets)
        return self.function(module, self._likelihood(), num_data=num_data, **self.options)
