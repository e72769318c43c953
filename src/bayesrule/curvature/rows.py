"""Rows: the gradients of single examples, from one forward pass of an unmodified module.

While the module runs, calls of known layers are recorded with their inputs. A backward pass then
gives the gradients of their outputs, from which `layers` builds squares, products or the rows
themselves. Recurrent layers run as loops, with their steps as positions. A parameter that is used
in any other way (tied weights, weight norm, arithmetic on weights) goes through `vmap`, so that no
result is silently wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bayesrule.curvature.example_rows import ExampleRows
from bayesrule.curvature.loose_rows import LooseRows, Pass
from bayesrule.curvature.recorder import Recorder, Use
from bayesrule.posteriors import Point
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
    """Raises a ValueError for a recurrent layer that hides its single examples."""
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
    """Raises a ValueError for a layer whose gradient torch cannot differentiate."""
    for name, module in network.model.named_modules():
        if isinstance(module, nn.EmbeddingBag) and module.weight.requires_grad:
            raise ValueError(
                f"{type(whose).__name__}() differentiates gradients, which torch cannot do for "
                f"{name!r} (EmbeddingBag). Use an Embedding and sum or average over its rows, "
                "freeze it, or use vogn, ivon or mean_field, which do without."
            )


class Recording:
    """One forward pass, with all that the gradients of single examples need.

    `loose` names the parameters whose rows take a pass for each example, which is slower. Gradients
    are taken in the point's coordinates, rows in the weights.
    """

    def __init__(self, problem: Problem, point: Point) -> None:
        self._leaves = as_leaves(point.coordinates)
        self.params = point.weights(self._leaves)
        self._network, self._training, self._x = problem.network, problem.training, problem.x
        # The module may update its statistics in place; single examples use those from before.
        self._buffers = copies(problem.buffers)
        self.size = num_examples(self._x)
        with self._recorder(self.params, self.size) as recorder:
            self.outputs = problem.forward(self.params)
        self._uses, self._way, self._statistics = recorder.uses, recorder.way, recorder.statistics
        self.loose = recorder.loose | self._not_understood()

    def _recorder(self, params: Params, size: int) -> Recorder:
        """A recorder that gives each example its own rows of an embedding that all share."""
        if self._network.shares is None:
            self._network.shares = self._finds_shared()
        return Recorder(params, size if self._network.shares else 1)

    @torch.enable_grad()
    def _finds_shared(self) -> bool:
        """Whether the module looks something up once for all examples, with equal results."""
        if not any(isinstance(part, nn.Embedding) for part in self._network.model.modules()):
            return False
        x = take(self._x, torch.arange(2) % self.size)
        plain, repeating = Recorder(self.params), Recorder(self.params, 2)

        def outputs(recorder: Recorder) -> Tensor:
            buffers, device = copies(self._buffers), next(iter(self.params.values())).device
            with forked_randomness(device, 0), recorder:
                return self._network(self.params, buffers, x, training=self._training)

        try:
            expected, repeated = outputs(plain), outputs(repeating)
        except Exception:
            return False  # The run without changes reports what is wrong.
        return repeating.shared and torch.allclose(expected, repeated, rtol=1e-4, atol=1e-6)

    def _not_understood(self) -> set[str]:
        """Parameters of layers whose first axis is not the examples, or whose use was missed.

        The answer belongs to the module: two small passes find it, and it is kept with the network.
        """
        understood = self._network.understood
        if understood is None or len(understood.batch_first) != len(self._uses):
            understood = self._network.understood = self._probe()
        names = set(understood.missed)
        for use, batch_first in zip(self._uses, understood.batch_first, strict=True):
            if not batch_first or use.batch_sizes != (self.size, self.size):
                names |= {name for name in (use.weight, use.bias) if name is not None}
        return names

    def _probe(self) -> Understood:
        """Tries two more batch sizes: another axis may have the length of the batch by chance."""
        batch_first = [True] * len(self._uses)
        missed: set[str] = set()
        device = self.outputs.device
        # The module's own draws here must not shift those of the step, so they have their own seed.
        with forked_randomness(device, 0), torch.enable_grad():
            for size in (2, 3):
                # Moved weights, since an initial last layer of zeros would hide all gradients.
                moved = {k: v.detach() + 0.1 * torch.randn_like(v) for k, v in self.params.items()}
                params, buffers = as_leaves(moved), copies(self._buffers)
                x = take(self._x, torch.arange(size) % self.size)
                with self._recorder(params, size) as recorder:
                    outputs = self._network(params, buffers, x, training=self._training)
                if len(recorder.uses) != len(batch_first):
                    return Understood((False,) * len(batch_first), frozenset(self.params))
                fits = [use.batch_sizes == (size, size) for use in recorder.uses]
                batch_first = [a and b for a, b in zip(batch_first, fits, strict=True)]
                missed |= _missed(params, recorder, outputs, size)
        return Understood(tuple(batch_first), frozenset(missed))

    def gradient(self, vector: Tensor) -> Params:
        """The gradient for one vector (n, *) backpropagated from the outputs."""
        self._way.held = False
        return gradients(self.outputs, self._leaves, self.params, vector, retain_graph=True)

    def backward(self, vectors: Tensor, *, gradient: bool) -> tuple[ExampleRows, Params]:
        """Backpropagates each of `vectors` (V, n, *) from the outputs.

        Returns the rows and, with `gradient`, the gradient summed over examples and vectors. Parts
        of it that are cheaper to get from the rows are left out and filled in by
        `rows.completed(gradient)`.

        Where batch norm uses the whole batch, rows that come with the gradient sum to it: row i is
        what goes through the activations of example i. Rows alone are those of each example by
        itself, with the batch's mean and variance as constants.
        """
        self._way.held = not gradient
        later = self._from_rows() if len(vectors) == 1 else set()
        now = {k: v for k, v in self.params.items() if gradient and k not in later}
        total: Params = {}
        grads: list[dict[int, Tensor]] = []
        for vector in vectors:
            grad, slopes = _slopes(self.outputs, vector, now, self._uses, retain_graph=True)
            total |= {k: total[k] + g if k in total else g for k, g in grad.items()}
            grads.append(slopes)
        named = {k: total[k] if k in total else torch.zeros_like(v) for k, v in now.items()}
        loose = self._loose_rows(vectors, held=not gradient)
        end = self.outputs.grad_fn
        return ExampleRows(self.params, self._uses, grads, loose, self.size, end), named

    def _from_rows(self) -> set[str]:
        """Weights with a single call whose squares form rows anyway: their sum is the gradient."""
        names = [name for use in self._uses for name in (use.weight, use.bias)]
        once = {use.weight for use in self._uses if use.layer.forms_rows and use.edge}
        return {k for k in once if k is not None and names.count(k) == 1 and k not in self.loose}

    def _loose_rows(self, vectors: Tensor, *, held: bool) -> Mapping[str, Tensor]:
        """Rows of loose parameters, {name: (V, n, *shape)}, from a pass for each example."""
        if not self.loose:
            return {}
        if self._statistics and not held:
            raise self._no_rows("batch norm in training mode mixes the examples.")
        args = self._network, self.params, self._buffers, self._x, self._training
        run, names = Pass(*args, self._statistics), frozenset(self.loose)
        return LooseRows(run, vectors, names, self._no_rows)

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
    grads, slopes = _slopes(outputs, torch.randn_like(outputs), tracked, recorder.uses)
    rows = ExampleRows(tracked, recorder.uses, [slopes], {}, size)
    return {name for name, grad in grads.items() if not rows.explain(name, grad)}


def _slopes(
    outputs: Tensor, vector: Tensor, params: Params, uses: list[Use], *, retain_graph: bool = False
) -> tuple[Params, dict[int, Tensor]]:
    """The gradients of parameters, and those of the outputs of recorded calls by their number.

    What the outputs do not depend on is left out.
    """
    edges = {i: use.edge for i, use in enumerate(uses) if use.edge is not None}
    wanted: list[Any] = [*params.values(), *edges.values()]
    if not wanted:
        return {}, {}
    options = {"retain_graph": retain_graph, "allow_unused": True}
    grads = torch.autograd.grad(outputs, wanted, vector, **options)
    of_calls = zip(edges, grads[len(params) :], strict=True)
    slopes = {i: wide(g).reshape(uses[i].shape) for i, g in of_calls if g is not None}
    of_params = zip(params, grads, strict=False)
    return {name: g for name, g in of_params if g is not None}, slopes
