"""Rows: the gradients of single examples, from one forward pass of an unmodified module.

While the module runs, calls of known layers are recorded with their inputs; a backward pass then
gives the gradients of their outputs, from which `layers` builds squares, products or the rows
themselves. Recurrent layers run as loops, with their steps as positions. A parameter that is used
in any other way goes through `vmap`, so that nothing is silently wrong: tied weights, weight norm
and arithmetic on weights included.
"""

from __future__ import annotations

import warnings
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from bayesrule.curvature.example_rows import ExampleRows
from bayesrule.curvature.held import HeldNorms
from bayesrule.curvature.recorder import Recorder
from bayesrule.curvature.recurrent import Unrolled
from bayesrule.posteriors import Point
from bayesrule.tensors.network import (
    Inputs,
    Network,
    Understood,
    forked_randomness,
    num_examples,
    take,
)
from bayesrule.tensors.stand_in import named_gradients
from bayesrule.types import Params


def refuse_recurrent(network: Network, whose: object) -> None:
    """A ValueError for a recurrent layer whose single examples are not seen."""
    for name, module in network.model.named_modules():
        projected = isinstance(module, nn.RNNBase) and module.proj_size > 0
        if projected and any(v.requires_grad for v in module.parameters()):
            raise ValueError(
                f"{type(whose).__name__}() needs the gradients of single examples, which {name!r} "
                f"({type(module).__name__}) with proj_size={module.proj_size} hides. Build it with "
                "proj_size=0 and put a Linear layer behind it, freeze it, or use noisy_adam, ivon "
                "or mean_field, which do without."
            )


class Forward(Protocol):
    """What a recording needs to know of a forward pass."""

    @property
    def network(self) -> Network: ...

    @property
    def buffers(self) -> Params: ...

    @property
    def x(self) -> Inputs: ...

    @property
    def training(self) -> bool: ...

    def forward(self, params: Params) -> Tensor:
        """The outputs at the given weights."""


class Recording:
    """One forward pass with what is needed to take gradients of single examples from it.

    `loose` names the parameters whose rows take a pass for each example, which is slower. The
    gradient is that in the point's coordinates; rows are those of the weights.
    """

    def __init__(self, forward: Forward, point: Point) -> None:
        coordinates = point.coordinates.items()
        self._leaves = {name: value.detach().requires_grad_() for name, value in coordinates}
        self.params = point.weights(self._leaves)
        self._network, self._training, self._x = forward.network, forward.training, forward.x
        # The module may move its statistics in place; single examples see those from before.
        self._before = {name: value.clone() for name, value in forward.buffers.items()}
        recorder = Recorder(self.params)
        with recorder:
            self.outputs = forward.forward(self.params)
        self.size = num_examples(self._x)
        self._uses, self._way, self._known = recorder.uses, recorder.way, recorder.statistics
        self.loose = recorder.loose | self._not_understood()

    def _not_understood(self) -> set[str]:
        """Parameters of layers whose first axis does not hold the examples, or that were missed.

        The answer is a property of the module, found by two small passes and kept with it.
        """
        known = self._network.understood
        if known is None or len(known.batch_first) != len(self._uses):
            known = self._network.understood = self._probe()
        names = set(known.missed)
        for use, good in zip(self._uses, known.batch_first, strict=True):
            if not good or use.batch_sizes != (self.size, self.size):
                names |= {name for name in (use.weight, use.bias) if name is not None}
        return names

    def _probe(self) -> Understood:
        """Tries two further batch sizes: an axis of the right length may still be another one."""
        good = [True] * len(self._uses)
        missed: set[str] = set()
        device = self.outputs.device
        # A module's own draws here must not shift those of the step, so they get their own seed.
        with forked_randomness(device, 0), torch.enable_grad():
            for size in (2, 3):
                # Away from the start, where a last layer of zeros would hide all gradients.
                params = {k: _moved(v).requires_grad_() for k, v in self.params.items()}
                recorder, outputs = self._small_pass(params, size)
                if len(recorder.uses) != len(good):
                    return Understood((False,) * len(good), frozenset(self.params))
                sizes = [use.batch_sizes == (size, size) for use in recorder.uses]
                good = [a and b for a, b in zip(good, sizes, strict=True)]
                missed |= _missed(params, recorder, outputs, size)
        return Understood(tuple(good), frozenset(missed))

    def _small_pass(self, params: Params, size: int) -> tuple[Recorder, Tensor]:
        rows = torch.arange(size) % self.size
        buffers = {name: value.clone() for name, value in self._before.items()}
        recorder = Recorder(params)
        with recorder:
            x = take(self._x, rows)
            outputs = self._network(params, buffers, x, training=self._training)
        return recorder, outputs

    def gradient(self, vector: Tensor) -> Params:
        """The gradient for one vector (n, *) backpropagated from the outputs."""
        self._way.held = False
        return named_gradients(self.outputs, vector, self._leaves, self.params, retain_graph=True)

    def backward(self, vectors: Tensor, *, gradient: bool) -> tuple[ExampleRows, Params]:
        """Backpropagates each of `vectors` (V, n, *) from the outputs.

        Returns the rows, and, where asked for, the gradient summed over examples and vectors; what
        is cheaper from the rows is left out of it and filled in by `rows.completed(gradient)`.

        Where batch norm sees the whole batch, rows that come with the gradient sum to it: row i is
        what goes through the activations of example i. Rows alone are those of each example by
        itself, with the batch's mean and variance held as known numbers.
        """
        self._way.held = not gradient
        edges = {i: use.edge for i, use in enumerate(self._uses) if use.edge is not None}
        later = self._from_rows() if len(vectors) == 1 else set()
        now = {k: v for k, v in self.params.items() if gradient and k not in later}
        wanted: list[Any] = list(now.values())
        grads: list[dict[int, Tensor]] = []
        total: list[Tensor | None] = [None] * len(wanted)
        for vector in vectors:
            found = self._pulled([*wanted, *edges.values()], vector)
            total = [_plus(t, f) for t, f in zip(total, found, strict=False)]
            late = zip(edges, found[len(wanted) :], strict=True)
            shaped = ((i, g, self._uses[i].shape) for i, g in late)
            grads.append({i: g.reshape(shape) for i, g, shape in shaped if g is not None})
        each = zip(now.items(), total, strict=True)
        named = {k: torch.zeros_like(value) if t is None else t for (k, value), t in each}
        loose = self._vmap_rows(vectors, held=not gradient)
        end = self.outputs.grad_fn
        return ExampleRows(self.params, self._uses, grads, loose, self.size, end), named

    def _pulled(self, wanted: list[Any], vector: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of some tensors or edges; where all weights are loose there are none."""
        if not wanted:
            return ()
        return torch.autograd.grad(
            self.outputs, wanted, vector, retain_graph=True, allow_unused=True
        )

    def _from_rows(self) -> set[str]:
        """Weights of a single call whose squares take rows anyway: their sum is the gradient."""
        names = [name for use in self._uses for name in (use.weight, use.bias)]
        once = {use.weight for use in self._uses if use.call.layer.forms_rows and use.edge}
        return {k for k in once if k is not None and names.count(k) == 1 and k not in self.loose}

    def _vmap_rows(self, vectors: Tensor, *, held: bool) -> Params:
        """Rows of loose parameters, {name: (V, n, *shape)}, by a pass for each example."""
        if not self.loose:
            return {}
        if self._known and not held:
            raise self._no_rows("batch norm in training mode mixes the examples.")
        fixed = {k: v.detach() for k, v in self.params.items() if k not in self.loose}
        loose = {k: v.detach() for k, v in self.params.items() if k in self.loose}

        def pull(chosen: Params, x: Any, vector: Tensor) -> Tensor:
            one = x.unsqueeze(0) if isinstance(x, Tensor) else tuple(p.unsqueeze(0) for p in x)
            # Made here, so that torch.func lets a module count its batches in place.
            buffers = {name: value.clone() for name, value in self._before.items()}
            out = self._network({**fixed, **chosen}, buffers, one, training=self._training)
            return (out.squeeze(0) * vector).sum()

        each = vmap(grad(pull), in_dims=(None, 0, 0), randomness="different")
        try:
            with warnings.catch_warnings():
                # Speed of torch's own attention under vmap, which nobody here can change.
                warnings.filterwarnings("ignore", message="There is a performance drop")
                rows = []
                for vector in vectors:
                    with Unrolled(), HeldNorms(self._known):
                        rows.append(each(loose, self._x, vector))
        except (RuntimeError, ValueError) as problem:
            raise self._no_rows(str(problem)) from problem
        return {name: torch.stack([row[name] for row in rows]) for name in loose}

    def _no_rows(self, reason: str) -> ValueError:
        return ValueError(
            f"No gradient of single examples for {', '.join(sorted(self.loose))}: {reason} "
            "Batch norm in training mode and packed sequences mix or hide examples; group or layer "
            "norm, sequences that are padded, or a curvature that needs no single examples "
            "(SquaredGradient(), Price()), work."
        )


def _plus(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    if total is None or part is None:
        return part if total is None else total
    return total + part


def _moved(value: Tensor) -> Tensor:
    value = value.detach()
    return value + 0.1 * torch.randn_like(value)


def _missed(params: Params, recorder: Recorder, outputs: Tensor, size: int) -> set[str]:
    """Parameters whose recorded calls do not explain their gradient (scripted functions)."""
    tracked = {k: v for k, v in params.items() if k not in recorder.loose}
    edges = {i: use.edge for i, use in enumerate(recorder.uses) if use.edge is not None}
    if not tracked or not outputs.requires_grad:
        return set()
    wanted: list[Any] = [*tracked.values(), *edges.values()]
    found = torch.autograd.grad(outputs, wanted, torch.randn_like(outputs), allow_unused=True)
    late = zip(edges, found[len(tracked) :], strict=True)
    grads = {i: g.reshape(recorder.uses[i].shape) for i, g in late if g is not None}
    rows = ExampleRows(tracked, recorder.uses, [grads], {}, size)
    total = zip(tracked, found, strict=False)
    return {k for k, g in total if g is not None and not rows.explain(k, g)}
