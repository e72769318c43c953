"""What the first batch says of the size of the curvature, before a rule has averaged any."""

from __future__ import annotations

import math

from bayesrule.curvature._base import Problem
from bayesrule.posteriors import Posterior
from bayesrule.tensors import distributed
from bayesrule.tensors.network import as_leaves, num_examples
from bayesrule.tensors.stand_in import gradients


def first_look(problem: Problem, posterior: Posterior) -> float | None:
    """The curvature that the loss of one datum has in the layer that matters most to it.

    It is the largest of the layers' mean squares of the gradient, at targets drawn from the model:
    their sum over a batch has squares that are the diagonal of the Fisher information on average,
    so that one backward pass tells the size of it. Where the likelihood draws no targets, those of
    the data are taken. With the largest layer, the first steps are small enough for all layers.
    None where there is no curvature to be seen, or a number is not finite.
    """
    leaves = as_leaves(posterior.mean)
    with problem.module_randomness():
        outputs = problem.forward(leaves)
        drawn = problem.likelihood.lacks("sample") is None
        loss = problem.nll(outputs, problem.sample(outputs.detach()) if drawn else problem.y)
        gradient = gradients(loss, leaves, leaves)
    count = num_examples(problem.x)
    squares = {k: value.detach().square().mean() / count for k, value in gradient.items()}
    largest = max(float(value) for value in distributed.mean_over_ranks(squares).values())
    return largest if 0.0 < largest < math.inf else None
