"""Rows of parameters that are used in unknown ways: one pass for each example, on demand.

`vmap` runs all of them as one pass. It cannot map a module that branches on numbers, for example
one that skips a mask with nothing to hide; the examples of such a module pass one after another.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from bayesrule.curvature.recorder import Statistics
from bayesrule.curvature.single_examples import SingleExamples
from bayesrule.tensors.inputs import Inputs, mapped, take
from bayesrule.tensors.network import Network, as_leaves, copies
from bayesrule.types import Params


class SlowRowsWarning(UserWarning):
    """Gradients of single examples take one pass for each example."""


@dataclass(frozen=True)
class Pass:
    """How a module is run: weights, buffers, inputs, and the statistics of its batch norms."""

    network: Network
    params: Params
    buffers: Params
    x: Inputs
    training: bool
    statistics: list[Statistics]

    def outputs(self, params: Params, x: Inputs) -> Tensor:
        """The outputs at given weights; the buffers stay as they are."""
        # Copied here, so that torch.func allows a module to count its batches in place.
        buffers = copies(self.buffers)
        return self.network(params, buffers, x, training=self.training)


@dataclass(eq=False)
class LooseRows(Mapping[str, Tensor]):
    """Rows (V, n, *shape) of some parameters by name, all computed when the first is read.

    `names` are the parameters that have rows, `shown` those that this mapping shows; None shows
    all.
    """

    run: Pass
    vectors: Tensor
    names: frozenset[str]
    refuse: Callable[[str], Exception]
    shown: frozenset[str] | None = None
    _rows: Params = field(default_factory=dict)  # shared with what `only` returns

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.names if self.shown is None else self.shown))

    def __len__(self) -> int:
        return len(self.names if self.shown is None else self.shown)

    def __contains__(self, name: object) -> bool:
        return name in (self.names if self.shown is None else self.shown)

    def only(self, names: Iterable[str]) -> LooseRows:
        """The same rows, showing fewer of them."""
        return replace(self, shown=self.names & set(names))

    def __getitem__(self, name: str) -> Tensor:
        if name not in self:
            raise KeyError(name)
        if not self._rows:
            self._rows.update(self._computed())
        return self._rows[name]

    def _computed(self) -> Params:
        params = {k: v.detach() for k, v in self.run.params.items()}
        loose = {k: v for k, v in params.items() if k in self.names}
        fixed = {k: v for k, v in params.items() if k not in self.names}
        if self.run.network.slow:
            return self._one_by_one(loose, fixed)
        states = _random_states(next(iter(params.values())).device)
        try:
            return self._by_vmap(loose, fixed)
        except (RuntimeError, ValueError) as problem:
            reason = problem
        # Later steps do not try vmap again, and must draw the same numbers as this one.
        _restore(states)
        if not self._alone_as_together(params):
            raise self.refuse(str(reason)) from reason
        rows = self._one_by_one(loose, fixed)
        self._warn(str(reason))
        return rows

    @torch.no_grad()
    def _alone_as_together(self, params: Params) -> bool:
        """Whether examples have the same outputs alone as in the batch, dropout aside."""
        run = replace(self.run, training=False)
        try:
            together = run.outputs(params, run.x)
            rows = [slice(i, i + 1) for i in range(len(together))]
            alone = torch.cat([run.outputs(params, take(run.x, row)) for row in rows])
        except (RuntimeError, ValueError):
            return False
        return torch.allclose(alone, together, rtol=1e-3, atol=1e-5)

    def _by_vmap(self, loose: Params, fixed: Params) -> Params:
        def pull(chosen: Params, x: Any, vector: Tensor) -> Tensor:
            out = self.run.outputs({**fixed, **chosen}, mapped(x, lambda part: part.unsqueeze(0)))
            return (out.squeeze(0) * vector).sum()

        per_example = vmap(grad(pull), in_dims=(None, 0, 0), randomness="different")
        rows = []
        with warnings.catch_warnings():
            # A warning about the speed of torch's own attention under vmap, which nobody here can
            # change.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            for vector in self.vectors:
                with SingleExamples(self.run.statistics):
                    rows.append(per_example(loose, self.run.x, vector))
        return {name: torch.stack([row[name] for row in rows]) for name in loose}

    def _one_by_one(self, loose: Params, fixed: Params) -> Params:
        examples = [self._example(i, loose, fixed) for i in range(self.vectors.shape[1])]
        return {name: torch.stack([rows[name] for rows in examples], 1) for name in loose}

    @torch.enable_grad()
    def _example(self, i: int, loose: Params, fixed: Params) -> Params:
        """The rows (V, *shape) of one example."""
        leaves, row = as_leaves(loose), slice(i, i + 1)
        with SingleExamples(self.run.statistics):
            out = self.run.outputs({**fixed, **leaves}, take(self.run.x, row))
        wanted = list(leaves.values())
        options: dict[str, Any] = {"retain_graph": True, "materialize_grads": True}
        slopes = [torch.autograd.grad(out, wanted, v[row], **options) for v in self.vectors]
        return dict(zip(loose, map(torch.stack, zip(*slopes, strict=True)), strict=True))

    def _warn(self, reason: str) -> None:
        self.run.network.slow = True
        warnings.warn(
            f"Gradients of single examples take a pass for each example for {len(self.names)} "
            f"parameters, of which the first is {min(self.names)!r}: the module cannot be mapped "
            f"over examples ({reason[:80]}...). Freeze them, or use ivon or mean_field, which do "
            "without.",
            SlowRowsWarning,
            stacklevel=2,
        )


def _random_states(device: torch.device) -> tuple[Tensor, Tensor | None]:
    """The states of the global generators that a module may draw from."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(
        device
    ) if device.type == "cuda" else None


def _restore(states: tuple[Tensor, Tensor | None]) -> None:
    torch.set_rng_state(states[0])
    if states[1] is not None:
        torch.cuda.set_rng_state(states[1])
