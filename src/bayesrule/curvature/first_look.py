"""What the first batch says of the size of the curvature, before a rule has averaged any."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from bayesrule.curvature._base import Problem
from bayesrule.posteriors import Posterior
from bayesrule.tensors import distributed, vectors
from bayesrule.tensors.network import as_leaves
from bayesrule.tensors.randomness import normal_like
from bayesrule.tensors.stand_in import gradients
from bayesrule.types import Params

# Each costs a backward pass, once.
_LOOKS = 4


def first_look(problem: Problem, posterior: Posterior) -> list[float | None]:
    """The curvature that the loss of one datum has in the layer that matters most to it, by net.

    It is the largest of the layers' mean squares of some random gradients, whose squares are the
    diagonal of the Fisher information on average, so that few backward passes tell the size of it.
    With the largest layer, the first steps are small enough for all layers. None where there is no
    curvature to be seen, or a number is not finite. A stack has several nets, others have one.
    """
    leaves = as_leaves(posterior.mean)
    with problem.module_randomness():
        found = _random_gradients(problem, leaves)

    count = problem.count / distributed.world_size()

    def mean_square(name: str) -> Tensor:
        each = torch.stack([one[name].detach() for one in found]).movedim(0, problem.axes)
        return each.square().flatten(problem.axes).mean(-1) / count

    squares = distributed.mean_over_ranks({name: mean_square(name) for name in leaves})
    largest = torch.stack(list(squares.values())).amax(0).reshape(-1).tolist()
    return [value if 0.0 < value < math.inf else None for value in largest]


def _random_gradients(problem: Problem, leaves: Params) -> list[Params]:
    """Some random gradients of the batch, which may come in pieces."""
    if problem.pieces == 1:
        outputs = problem.forward(leaves)
        slopes = _random_slopes(problem, outputs)
        return [gradients(outputs, leaves, leaves, one, retain_graph=True) for one in slopes]
    with torch.no_grad():
        outputs = torch.cat([piece.forward(leaves) for piece in problem.in_pieces()])
    every, first = list(_random_slopes(problem, outputs)), 0
    found: list[Params] = [{} for _ in every]
    for piece in problem.in_pieces():
        outputs = piece.forward(leaves)
        rows = slice(first, first := first + len(outputs))
        each = (gradients(outputs, leaves, leaves, one[rows], retain_graph=True) for one in every)
        found = [vectors.add(a, b) if a else b for a, b in zip(found, each, strict=True)]
    return found


def _least_known(problem: Problem, outputs: Tensor) -> Tensor:
    """Outputs at which the curvature is not taken for smaller than it may become.

    Where classes are known well the loss is flat, and steps of Newton's kind would be enormous. So
    they are taken as equally probable.
    """
    classes = problem.likelihood.classification
    return torch.zeros_like(outputs) if classes else outputs.detach()


def _random_slopes(problem: Problem, outputs: Tensor) -> Iterator[Tensor]:
    """Slopes of the outputs whose outer products are the Fisher information on average, (n, *).

    `Σ_v ±L_v` of the vectors L_v of which it consists: other than slopes at targets that are drawn
    from the model, they see rare classes, too. Where a likelihood does not tell these vectors, its
    targets are drawn, and where it draws none, those of the data are taken.
    """
    if problem.likelihood.lacks("fisher_vectors") is None:
        found = problem.fisher_vectors(_least_known(problem, outputs))
        num, *examples = found.shape[: problem.axes + 2]
        blank = found.new_empty(math.prod(examples), num)
        for _ in range(_LOOKS):
            # A normal number is negative with a chance of one half.
            negative = normal_like(blank, problem.targets).T.signbit()
            negative = negative.reshape(num, *examples, *[1] * (outputs.ndim - len(examples)))
            yield torch.where(negative, -found, found).sum(0)
        return
    drawn = problem.likelihood.lacks("sample") is None
    for _ in range(_LOOKS if drawn else 1):
        given = outputs.detach().requires_grad_()
        loss = problem.nll(given, problem.sample(given.detach()) if drawn else problem.y)
        yield torch.autograd.grad(loss.sum(), given)[0]
