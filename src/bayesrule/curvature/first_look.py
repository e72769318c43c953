"""The size of the curvature in the first batch, before a rule has averaged any."""

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

# The number of random gradients; each costs one backward pass, once.
_LOOKS = 4


def first_look(problem: Problem, posterior: Posterior) -> list[float | None]:
    """The curvature per datum of the most sensitive layer, for each net.

    It is the largest of the layers' mean squares of a few random gradients, whose expected squares
    are the diagonal of the Fisher information. With the largest layer, the first steps are small
    enough for all layers. It is None if there is no curvature or a number is not finite. The list
    has one entry, or one for each net of a stack.
    """
    leaves = as_leaves(posterior.mean)
    with problem.module_randomness():
        draws = _random_gradients(problem, leaves)

    count = problem.count / distributed.world_size()

    def mean_square(name: str) -> Tensor:
        values = torch.stack([draw[name].detach() for draw in draws]).movedim(0, problem.axes)
        return values.square().flatten(problem.axes).mean(-1) / count

    squares = distributed.mean_over_ranks({name: mean_square(name) for name in leaves})
    largest = torch.stack(list(squares.values())).amax(0).reshape(-1).tolist()
    return [value if 0.0 < value < math.inf else None for value in largest]


def _random_gradients(problem: Problem, leaves: Params) -> list[Params]:
    """A few random gradients of the batch, which may come in pieces."""
    if problem.pieces == 1:
        outputs = problem.forward(leaves)
        return [
            gradients(outputs, leaves, leaves, slope, retain_graph=True)
            for slope in _random_slopes(problem, outputs)
        ]
    with torch.no_grad():
        outputs = torch.cat([piece.forward(leaves) for piece in problem.in_pieces()])
    slopes, first = list(_random_slopes(problem, outputs)), 0
    totals: list[Params] = [{} for _ in slopes]
    for piece in problem.in_pieces():
        outputs = piece.forward(leaves)
        rows = slice(first, first := first + len(outputs))
        parts = (gradients(outputs, leaves, leaves, s[rows], retain_graph=True) for s in slopes)
        totals = [vectors.add(a, b) if a else b for a, b in zip(totals, parts, strict=True)]
    return totals


def _least_certain(problem: Problem, outputs: Tensor) -> Tensor:
    """Outputs at which the curvature is at least about as large as it may become.

    Where classes are predicted with certainty the loss is flat, and Newton steps would be enormous,
    so all classes are taken as equally probable.
    """
    classes = problem.likelihood.classification
    return torch.zeros_like(outputs) if classes else outputs.detach()


def _random_slopes(problem: Problem, outputs: Tensor) -> Iterator[Tensor]:
    """Slopes of the outputs (n, *) whose expected outer products are the Fisher information.

    They are `Σ_v ±L_v` with random signs, for the vectors L_v that the Fisher information is made
    of; unlike slopes at targets drawn from the model, these include rare classes. A likelihood that
    does not give these vectors draws targets instead; if it cannot, those of the data are used.
    """
    if problem.likelihood.lacks("fisher_vectors") is None:
        roots = problem.fisher_vectors(_least_certain(problem, outputs))
        num, *examples = roots.shape[: problem.axes + 2]
        blank = roots.new_empty(math.prod(examples), num)
        for _ in range(_LOOKS):
            # A normal number is negative with probability one half.
            negative = normal_like(blank, problem.targets).T.signbit()
            negative = negative.reshape(num, *examples, *[1] * (outputs.ndim - len(examples)))
            yield torch.where(negative, -roots, roots).sum(0)
        return
    drawn = problem.likelihood.lacks("sample") is None
    for _ in range(_LOOKS if drawn else 1):
        leaf = outputs.detach().requires_grad_()
        loss = problem.nll(leaf, problem.sample(leaf.detach()) if drawn else problem.y)
        yield torch.autograd.grad(loss.sum(), leaf)[0]
