"""Rows: the gradients of single examples, from one forward pass of an unmodified module.

While the module runs, calls of known layers are recorded with their inputs; a backward pass then
gives the gradients of their outputs, from which `layers` builds squares, products or the rows
themselves. Recurrent layers run as loops, with their steps as positions. A parameter that is used
in any other way goes through `vmap`, so that nothing is silently wrong: tied weights, weight norm
and arithmetic on weights included.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from bayesrule.curvature.example_rows import ExampleRows
from bayesrule.curvature.recorder import Recorder, Statistics, Use, takes_statistics
from bayesrule.curvature.recurrent import unrolled
from bayesrule.posteriors import Point
from bayesrule.tensors.inputs import mapped
from bayesrule.tensors.network import (
    Network,
    Understood,
    as_leaves,
    copies,
    forked_randomness,
    num_examples,
    take,
)
from bayesrule.tensors.stand_in import gradients
from bayesrule.tensors.unfit import wide
from bayesrule.types import Params

if TYPE_CHECKING:
    from bayesrule.curvature._base import Problem


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


def refuse_embedding_bags(network: Network, whose: object) -> None:
    """A ValueError for a layer whose gradient torch cannot differentiate."""
    for name, module in network.model.named_modules():
        if isinstance(module, nn.EmbeddingBag) and module.weight.requires_grad:
            raise ValueError(
                f"{type(whose).__name__}() differentiates gradients, which torch cannot do for "
                f"{name!r} (EmbeddingBag). Use an Embedding and sum or average over its rows, "
                "freeze it, or use vogn, ivon or mean_field, which do without."
            )


class Recording:
    """One forward pass with what is needed to take gradients of single examples from it.

    `loose` names the parameters whose rows take a pass for each example, which is slower. The
    gradient is that in the point's coordinates; rows are those of the weights.
    """

    def __init__(self, problem: Problem, point: Point) -> None:
        self._leaves = as_leaves(point.coordinates)
        self.params = point.weights(self._leaves)
        self._network, self._training, self._x = problem.network, problem.training, problem.x
        # The module may move its statistics in place; single examples see those from before.
        self._before = copies(problem.buffers)
        with Recorder(self.params) as recorder:
            self.outputs = problem.forward(self.params)
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
                moved = {k: v.detach() + 0.1 * torch.randn_like(v) for k, v in self.params.items()}
                params, buffers = as_leaves(moved), copies(self._before)
                x = take(self._x, torch.arange(size) % self.size)
                with Recorder(params) as recorder:
                    outputs = self._network(params, buffers, x, training=self._training)
                if len(recorder.uses) != len(good):
                    return Understood((False,) * len(good), frozenset(self.params))
                sizes = [use.batch_sizes == (size, size) for use in recorder.uses]
                good = [a and b for a, b in zip(good, sizes, strict=True)]
                missed |= _missed(params, recorder, outputs, size)
        return Understood(tuple(good), frozenset(missed))

    def gradient(self, vector: Tensor) -> Params:
        """The gradient for one vector (n, *) backpropagated from the outputs."""
        self._way.held = False
        return gradients(self.outputs, self._leaves, self.params, vector, retain_graph=True)

    def backward(self, vectors: Tensor, *, gradient: bool) -> tuple[ExampleRows, Params]:
        """Backpropagates each of `vectors` (V, n, *) from the outputs.

        Returns the rows, and, where asked for, the gradient summed over examples and vectors; what
        is cheaper from the rows is left out of it and filled in by `rows.completed(gradient)`.

        Where batch norm sees the whole batch, rows that come with the gradient sum to it: row i is
        what goes through the activations of example i. Rows alone are those of each example by
        itself, with the batch's mean and variance held as known numbers.
        """
        self._way.held = not gradient
        later = self._from_rows() if len(vectors) == 1 else set()
        now = {k: v for k, v in self.params.items() if gradient and k not in later}
        total: Params = {}
        grads: list[dict[int, Tensor]] = []
        for vector in vectors:
            found, slopes = _slopes(self.outputs, vector, now, self._uses, retain_graph=True)
            total |= {k: total[k] + g if k in total else g for k, g in found.items()}
            grads.append(slopes)
        named = {k: total[k] if k in total else torch.zeros_like(v) for k, v in now.items()}
        loose = self._vmap_rows(vectors, held=not gradient)
        end = self.outputs.grad_fn
        return ExampleRows(self.params, self._uses, grads, loose, self.size, end), named

    def _from_rows(self) -> set[str]:
        """Weights of a single call whose squares take rows anyway: their sum is the gradient."""
        names = [name for use in self._uses for name in (use.weight, use.bias)]
        once = {use.weight for use in self._uses if use.layer.forms_rows and use.edge}
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
            one = mapped(x, lambda part: part.unsqueeze(0))
            # Made here, so that torch.func lets a module count its batches in place.
            buffers = copies(self._before)
            out = self._network({**fixed, **chosen}, buffers, one, training=self._training)
            return (out.squeeze(0) * vector).sum()

        each = vmap(grad(pull), in_dims=(None, 0, 0), randomness="different")
        try:
            with warnings.catch_warnings():
                # Speed of torch's own attention under vmap, which nobody here can change.
                warnings.filterwarnings("ignore", message="There is a performance drop")
                rows = []
                for vector in vectors:
                    with SingleExamples(self._known):
                        rows.append(each(loose, self._x, vector))
        except (RuntimeError, ValueError) as problem:
            raise self._no_rows(str(problem)) from problem
        return {name: torch.stack([row[name] for row in rows]) for name in loose}

    def _no_rows(self, reason: str) -> ValueError:
        return ValueError(
            f"No gradient of single examples for {', '.join(sorted(self.loose))}: {reason} "
            "Batch norm in training mode and packed sequences mix or hide examples: use group or "
            "layer norm, padded sequences, SquaredGradient() or Price()."
        )


def _missed(params: Params, recorder: Recorder, outputs: Tensor, size: int) -> set[str]:
    """Parameters whose recorded calls do not explain their gradient (scripted functions)."""
    tracked = {k: v for k, v in params.items() if k not in recorder.loose}
    if not tracked or not outputs.requires_grad:
        return set()
    found, slopes = _slopes(outputs, torch.randn_like(outputs), tracked, recorder.uses)
    rows = ExampleRows(tracked, recorder.uses, [slopes], {}, size)
    return {name for name, gradient in found.items() if not rows.explain(name, gradient)}


def _slopes(
    outputs: Tensor, vector: Tensor, params: Params, uses: list[Use], *, retain_graph: bool = False
) -> tuple[Params, dict[int, Tensor]]:
    """The gradients of parameters, and those of the outputs of recorded calls by their number.

    What has no part in the outputs is left out.
    """
    edges = {i: use.edge for i, use in enumerate(uses) if use.edge is not None}
    wanted: list[Any] = [*params.values(), *edges.values()]
    if not wanted:
        return {}, {}
    options = {"retain_graph": retain_graph, "allow_unused": True}
    found = torch.autograd.grad(outputs, wanted, vector, **options)
    first, last = zip(params, found, strict=False), zip(edges, found[len(params) :], strict=True)
    slopes = {i: wide(g).reshape(uses[i].shape) for i, g in last if g is not None}
    return {name: g for name, g in first if g is not None}, slopes


class SingleExamples(TorchFunctionMode):
    """Runs a module as `vmap` can map it over examples.

    Recurrent layers are loops, of which `vmap` knows every operation; batch norms in training mode
    use given statistics, in the order of their calls.
    """

    def __init__(self, known: Iterable[Statistics] = ()) -> None:
        super().__init__()
        self._known = iter(known)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if takes_statistics(func, args, kwargs):
            return _normalised(next(self._known), *args, **kwargs)
        found = None if kwargs else unrolled(func, args)
        return func(*args, **kwargs) if found is None else found[0]


def _normalised(
    known: Statistics,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *options: Any,
    **named: Any,
) -> Tensor:
    mean, inverse = known
    return functional.batch_norm(input, mean, inverse.pow(-2), weight, bias, eps=0.0)
