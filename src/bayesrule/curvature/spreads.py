"""Estimates of the derivatives of the expected loss in the mean and the spread of every weight.

Along the paths of draws (`Pathwise`), to second order around the mean (`SecondOrder`), or in closed
form (`ExpectedLoss`, and `Innovations` for TAGI).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Never, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from bayesrule.curvature._base import Curvature, Here, Problem, plain_gradient
from bayesrule.expectations import Look
from bayesrule.expectations.layerwise import LayerPoint, WeightSampler
from bayesrule.expectations.points import MomentPoint
from bayesrule.likelihoods._weighted import split, times
from bayesrule.matrices import DiagonalMatrix
from bayesrule.moments import GaussianTensor, Propagation
from bayesrule.posteriors import Point, StdSlope
from bayesrule.tensors import vectors
from bayesrule.tensors.abilities import derived
from bayesrule.tensors.autocast import full_precision
from bayesrule.tensors.network import (
    Network,
    as_leaves,
    copies,
    forked_randomness,
    num_examples,
    take,
)
from bayesrule.tensors.stand_in import gradients
from bayesrule.tensors.vectors import apart, over
from bayesrule.types import Local, Params

# The weights that each network uses several times in one pass; computed once.
_REUSED: WeakKeyDictionary[Network, frozenset[str]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Pathwise(Curvature):
    """The reparameterised gradient, for draws that are made within the layers.

    The gradient is `∂ℓ/∂m`, the curvature `(∂ℓ/∂σ) / σ`, whose expectation is the diagonal of
    `E[∇²ℓ]` (Price): one forward and one backward pass. For `LocalDraws()` and `Flipout()`.
    """

    look = Look.LAYERS
    needs_draws = True
    may_be_negative = True
    diagonal_only = True

    def local(self, problem: Problem, here: Here) -> Local:
        point = cast(LayerPoint, here.point)
        shared = _reused(problem, point)
        mean, std = as_leaves(point.coordinates), as_leaves(point.std)
        sampler = WeightSampler(point.how, point.generator, num_examples(problem.x), shared)
        weights = sampler.weights(mean, std)
        outputs = problem.forward(weights)
        loss = problem.nll(outputs, problem.y)
        drawn = {name: weights[name] for name in std}
        wanted = mean | {f"{name}/std": value for name, value in std.items()}
        slopes = gradients(loss * problem.scale, wanted, drawn)
        gradient = apart({name: slopes[name] for name in mean})
        in_std = {name: slopes[f"{name}/std"] for name in std}
        curvature = DiagonalMatrix(vectors.div(in_std, point.std))
        return Local(loss.detach(), gradient, curvature, problem.statistics(outputs))


def _reused(problem: Problem, point: LayerPoint) -> frozenset[str]:
    """The weights that are used several times in a pass, from a pass that leaves no trace."""
    if problem.network not in _REUSED:
        mean = point.coordinates
        device = next(iter(mean.values())).device
        count = WeightSampler(point.how, None)
        with torch.no_grad(), forked_randomness(device, 0):
            replace(problem, buffers=copies(problem.buffers)).forward(count.weights(mean, mean))
        _REUSED[problem.network] = frozenset(k for k, uses in count.uses.items() if uses > 1)
    return _REUSED[problem.network]


@dataclass(frozen=True)
class SecondOrder(Curvature):
    """`E_q[ℓ] ≈ ℓ(m) + ½ Σ σ² F(m)`: the loss at the mean, and a price on sharp directions.

    F is the diagonal of the Fisher information, `E[g̃²]` with g̃ the gradient of the batch's loss
    at targets drawn from the model. It takes one backward pass, and one more through it,
    `H̃ (σ² ∘ g̃)`, for the gradient of the price in the mean. Unlu & Aitchison (2021), eq. 30
    (there the KL is misprinted).

    The drawn targets are constants when the price is differentiated. For real-valued targets with
    fixed noise this is unbiased. For classes it ignores that the model's own probabilities move
    with the mean; for a linear softmax model the price then has an expected gradient of zero.
    `exact=True` enumerates the outputs instead (`Σ Jᵀ H J`, with one row for each example and
    output) and differentiates all of it: for small nets, and as a reference for the default.

    `difference` takes `H̃ v`, `v = σ² ∘ g̃`, as a difference of gradients,
    `[g̃(m + εv) − g̃(m)] / ε`, with `ε‖v‖ = difference ‖m‖` and a random sign of ε, which cancels
    the next order on average. On a GPU, where second derivatives of normalising layers are slow, it
    takes a third of the time. It runs the net twice, so a net with dropout is refused. Under
    `torch.autocast` it still uses the precision of the weights.

    With `share` below 1 the price is computed from this share of each batch, its first examples,
    which must be in random order. The square of a sum over many examples is as noisy as one over
    few, so little is lost: a quarter of the batch makes a step cost half as much. Batch norm then
    sees a smaller batch where the price is computed.
    """

    twice = True

    exact: bool = False
    difference: float | None = None
    share: float = 1.0

    at_mean = True
    diagonal_only = True
    slopes_only = True

    @derived
    def asks(self) -> tuple[str, ...]:
        return ("fisher_vectors",) if self.exact else ("sample",)

    @derived
    def piece_obstacle(self) -> str | None:
        if self.exact and self.share == 1:
            return None
        return f"{self} squares the gradient of a whole batch; use SecondOrder(exact=True)"

    @property
    def stack_obstacle(self) -> str | None:
        return None if self == SecondOrder() else f"the curvature {self}"

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share is more than 0 and at most 1, got {self.share}.")
        if self.difference is not None and not 0 < self.difference < 1:
            raise ValueError(f"difference is a share between 0 and 1, got {self.difference}.")
        if self.exact and self.difference is not None:
            raise ValueError("exact=True differentiates everything; give no difference with it.")

    def local(self, problem: Problem, here: Here) -> Local:
        num = num_examples(problem.x)
        used = math.ceil(self.share * num)
        if used == num:
            return self._priced(problem, here.point, here.posterior.std())
        loss, gradient, outputs = plain_gradient(problem, here.point)
        x, y = take(problem.x, slice(used)), problem.y[:used]
        count = problem.count * (used / num)
        # The extra pass must not change the buffers.
        part = replace(problem, x=x, y=y, buffers=copies(problem.buffers), count=count)
        priced = self._priced(part, here.point, here.posterior.std(), alone=True)
        total = vectors.add_(gradient, priced.gradient)
        return Local(loss, total, priced.curvature, problem.statistics(outputs))

    def _priced(self, problem: Problem, point: Point, std: Params, *, alone: bool = False) -> Local:
        """Loss and price together, or the price `alone`."""
        if self.difference is not None:
            # The difference of two gradients of low precision would be rounding noise.
            with full_precision(problem.y.device.type):
                return self._by_difference(problem, point, std, self.difference, alone=alone)
        leaves = as_leaves(point.coordinates)
        outputs = problem.forward(leaves)
        loss = problem.nll(outputs, problem.y)
        sharp = {name: leaves[name] for name in std}
        rows = self._rows(problem, outputs, sharp)
        detached = {name: row.detach() for name, row in rows.items()}
        # The price is Σ σ² r² / 2, so each row r backpropagates σ² r. A row that does not depend on
        # the weights, such as that of the last bias of a linear model, has no graph.
        half = vectors.mul(detached, std)
        back = vectors.mul(half, std)
        moving = [name for name, row in rows.items() if row.requires_grad]
        share = torch.zeros_like(loss) + (0.0 if alone else problem.scale)
        ends = [loss, *(rows[name] for name in moving)]
        slopes = [share, *(back[name] for name in moving)]
        grads = torch.autograd.grad(ends, list(leaves.values()), slopes, materialize_grads=True)
        gradient = apart(dict(zip(leaves, grads, strict=True)), back.values())
        slope = vectors.mul_(half, detached)
        if self.exact:
            slope = {name: value.sum(0) for name, value in slope.items()}
        return Local(loss.detach(), gradient, StdSlope(slope), problem.statistics(outputs))

    def _by_difference(
        self, problem: Problem, point: Point, std: Params, size: float, *, alone: bool
    ) -> Local:
        _refuse_dropout(problem)
        mean = point.coordinates
        leaves = as_leaves(mean)
        # The second pass must not change the buffers.
        again = replace(problem, buffers=copies(problem.buffers))
        outputs = problem.forward(leaves)
        targets = problem.sample(outputs.detach())
        loss, root = problem.nll(outputs, problem.y), problem.scale**0.5
        drawn = problem.nll(outputs, targets) * root
        score = gradients(drawn, leaves, retain_graph=not alone)
        sharp = {name: score[name] for name in std}
        half = vectors.mul(sharp, std)
        direction = vectors.mul(half, std)
        length = torch.sqrt(vectors.dot(mean, mean) / vectors.dot(direction, direction))
        sign = torch.empty_like(length).uniform_(-1.0, 1.0, generator=problem.targets).sign()
        step = size * sign * length.nan_to_num(0.0, 0.0, 0.0)
        moved = {k: v + step * direction[k] if k in direction else v for k, v in mean.items()}
        moved = as_leaves(moved)
        moved_score = gradients(again.nll(again.forward(moved), targets) * root, moved)
        weight = torch.where(step == 0, 0.0, 1.0 / step)
        gradient = vectors.scale_(vectors.add(moved_score, score, alpha=-1.0), weight)
        if not alone:
            vectors.add_(gradient, gradients(loss * problem.scale, leaves))
        slope = StdSlope(vectors.mul_(half, sharp))
        return Local(loss.detach(), gradient, slope, problem.statistics(outputs))

    def _rows(self, problem: Problem, outputs: Tensor, leaves: Params) -> Params:
        """Gradients whose squares are F: for drawn targets, or (rows, *shape) for all outputs."""
        options: dict[str, Any] = {"create_graph": True, "materialize_grads": True}
        # Scaled by the root, so that their squares have the problem's scale.
        root, wanted = problem.scale**0.5, list(leaves.values())
        if self.exact:
            # The vectors (V, n, *), one row for each vector and example: (V n, n, *).
            roots = problem.fisher_vectors(outputs).movedim(1, -1)
            single = torch.diag_embed(roots, dim1=1, dim2=2).flatten(0, 1) * over(root, outputs)
            rows = torch.autograd.grad(outputs, wanted, single, is_grads_batched=True, **options)
        else:
            loss = problem.nll(outputs, problem.sample(outputs.detach()))
            rows = torch.autograd.grad(loss, wanted, torch.zeros_like(loss) + root, **options)
        return dict(zip(leaves, rows, strict=True))


def _refuse_dropout(problem: Problem) -> None:
    for name, part in problem.network.model.named_modules():
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0 and part.training:
            raise ValueError(
                f"{name!r} ({type(part).__name__}) is random, and a difference of gradients looks "
                "at the net twice; use SecondOrder() without difference, or take it out."
            )


@dataclass(frozen=True)
class Innovations(Curvature):
    """`−δ` as the gradient and `−η` as the curvature of the batch's negative log-evidence.

    `δ` and `η` are the first and second derivatives of `log p(y)` in the mean of a quantity, by
    moment propagation: given the batch, the mean of a weight moves by `v δ` and its variance by
    `v² η`. A batch stands for itself and is not scaled to the whole data: each datum is conditioned
    on once, with the weight 1/T at the temperature T.
    """

    look = Look.MOMENTS
    diagonal_only = True
    whole_data = False
    stack_obstacle = None
    asks = ("condition",)

    @torch.no_grad()
    def local(self, problem: Problem, here: Here) -> Local:
        point = cast(MomentPoint, here.point)
        sums = problem.innovations(point.coordinates, point.variance, point.activations)
        # Reading numbers would make a GPU wait; there, the end of the epoch shows what went wrong.
        if problem.checked and sums.loss.device.type == "cpu" and not sums.sound.all():
            problem.explain(point.coordinates, point.variance, point.activations, sums.sound)
        statistics = vectors.scale(sums.statistics, problem.scale)
        return Local(sums.loss, apart(sums.delta), DiagonalMatrix(apart(sums.eta)), statistics)


@dataclass(frozen=True)
class ExpectedLoss(Curvature):
    """`E_q[ℓ]` by moment propagation, differentiated in the means m and variances v of the weights.

    The gradient is `∂E[ℓ]/∂m` and the curvature `2 ∂E[ℓ]/∂v`. By Bonnet's and Price's theorems
    these are `E[∇ℓ]` and the diagonal of `E[∇²ℓ]`: all that the ELBO's gradient needs, without the
    noise of weight draws; Wu et al. (2019), where it is dDVI.

    Outputs, and all units, are taken as independent Gaussians. For one linear layer this is exact
    with every likelihood; for one hidden layer it is exact with Gaussian noise on the targets, if
    the activation's moments are exact. In deeper nets and after convolutions, units share weights;
    the part of their covariances in the variance of the next layer is left out.

    Weights without a variance are constants. It goes with `Moments()`, where `constant_statistics`
    has no effect: this is the plain gradient of the loss.
    """

    look = Look.MOMENTS
    may_be_negative = True
    diagonal_only = True
    asks = ("expected_log_prob",)

    def local(self, problem: Problem, here: Here) -> Local:
        point = cast(MomentPoint, here.point)
        mean, variance = as_leaves(point.coordinates), as_leaves(point.variance)
        propagation = Propagation(problem.network, point.activations, record=False)
        args = mean, variance, problem.buffers, problem.x
        with torch.enable_grad():
            outputs = propagation.forward(*args, training=problem.training)
            moments = outputs.centre, outputs.variance
            y, weight = split(problem.y)
            log_probs = problem.likelihood.expected_log_prob(*moments, y, problem.likelihood_state)
            loss = -times(log_probs, weight).sum()
            wanted = [*mean.values(), *variance.values()]
            grads = torch.autograd.grad(loss * problem.scale, wanted, materialize_grads=True)
        gradient = dict(zip(mean, grads, strict=False))
        slopes = dict(zip(variance, grads[len(mean) :], strict=True))
        # Reading numbers would make a GPU wait; there, the end of the epoch shows what went wrong.
        if problem.checked and loss.device.type == "cpu":
            norms = torch._foreach_norm(grads)
            if not math.isfinite(float(loss.detach() + torch.stack(norms).sum())):
                _explain(problem, propagation, mean, variance, loss)
        curvature = DiagonalMatrix(vectors.scale(slopes, 2.0))
        return Local(loss.detach(), apart(gradient), curvature, _statistics(problem, outputs))


def _statistics(problem: Problem, outputs: GaussianTensor) -> Params:
    """The expected statistics that the likelihood learns from, which are squares of outputs.

    Two points at `m ± √s` have the mean and the variance of f, which determine expected squares.
    """
    centre, std = outputs.centre.detach(), outputs.variance.detach().sqrt()
    above = problem.statistics(centre + std)
    below = problem.statistics(centre - std)
    return {name: 0.5 * (value + below[name]) for name, value in above.items()}


@torch.no_grad()
def _explain(
    problem: Problem, propagation: Propagation, mean: Params, variance: Params, loss: Tensor
) -> Never:
    """Raises an error that says why the loss or its gradient is not finite."""
    x, y = problem.x, problem.y
    if y.is_floating_point() and y.isnan().any():
        raise ValueError(
            f"The targets hold {int(y.isnan().sum())} numbers that are NaN. ExpectedLoss() needs "
            "all of them: leave these examples out, or use tagi, which takes NaN as missing."
        )
    if loss.isfinite():
        raise FloatingPointError(
            f"The expected loss is {float(loss)}, but its gradient is not finite: too much for "
            f"{loss.dtype}. Standardised inputs and targets, a smaller spread or float64 help."
        )
    propagation.explain(mean, variance, problem.buffers, x, y, training=problem.training)
