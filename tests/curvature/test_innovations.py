"""Innovations: derivatives of the evidence where those are known, their scale, and no waste."""

from __future__ import annotations

import dataclasses
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.curvature import Here, Innovations, Problem
from bayesrule.expectations import Moments
from bayesrule.likelihoods import Likelihood
from bayesrule.matrices import Diagonal, DiagonalMatrix
from bayesrule.moments import Propagation
from bayesrule.posteriors import Gaussian
from bayesrule.types import Local
from curvature.brute_force import problem_of

NOISE = 0.4


def of_line(num: int = 5, likelihood: Likelihood | None = None) -> tuple[Problem, DiagonalMatrix]:
    """A linear layer and its belief's precision."""
    problem = problem_of(
        nn.Linear(3, 2),
        torch.randn(num, 3),
        torch.randn(num, 2),
        likelihood or br.GaussianLikelihood(noise=NOISE),
        training=True,
    )
    params = problem.network.params()
    return problem, DiagonalMatrix({k: 0.5 + torch.rand(v.shape) for k, v in params.items()})


def look(problem: Problem, precision: DiagonalMatrix, **changes: Any) -> Local:
    """What the batch says."""
    belief = Gaussian(problem.network.params(), precision)
    (point,) = Moments().points(belief, problem.targets)
    changed = dataclasses.replace(problem, **changes)
    return Innovations().local(changed, Here(point, Diagonal(), belief))


def curvature(local: Local) -> dict[str, Tensor]:
    """The diagonal of the curvature."""
    assert isinstance(local.curvature, DiagonalMatrix)
    return local.curvature.values


def test_they_are_derivatives_of_the_evidence_in_the_means() -> None:
    problem, precision = of_line()
    assert isinstance(problem.x, Tensor)
    variance = precision.inverse_diagonal()
    leaves = {k: v.requires_grad_() for k, v in problem.network.params().items()}
    spread = problem.x.square() @ variance["weight"].mT + variance["bias"] + NOISE**2
    mean = problem.x @ leaves["weight"].mT + leaves["bias"]
    loss = -torch.distributions.Normal(mean, spread.sqrt()).log_prob(problem.y).sum()
    gradient = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
    found = look(problem, precision)
    torch.testing.assert_close(found.loss, loss.detach())
    for (name, leaf), slope in zip(leaves.items(), gradient, strict=True):
        torch.testing.assert_close(found.gradient[name], slope.detach())
        flat = [
            torch.autograd.grad(one, leaf, retain_graph=True)[0].flatten()[i]
            for i, one in enumerate(slope.flatten())
        ]
        torch.testing.assert_close(curvature(found)[name].flatten(), torch.stack(flat))


def test_a_batch_stands_for_itself_at_the_temperature() -> None:
    problem, precision = of_line()
    once, scaled = look(problem, precision), look(problem, precision, weight=7.0)
    hot = look(problem, precision, temperature=4.0)
    for name, gradient in once.gradient.items():
        torch.testing.assert_close(scaled.gradient[name], gradient)
        torch.testing.assert_close(hot.gradient[name], gradient / 4.0)
        torch.testing.assert_close(curvature(hot)[name], curvature(once)[name] / 4.0)
    assert once.loss == scaled.loss == hot.loss


def test_what_the_noise_learns_from_is_scaled_to_the_whole_data() -> None:
    problem, precision = of_line(likelihood=br.GaussianLikelihood())
    noise = problem.likelihood.init(torch.zeros(1))
    once = look(problem, precision, likelihood_state=noise)
    scaled = look(problem, precision, likelihood_state=noise, weight=7.0)
    assert "squares" in once.statistics
    for name, value in once.statistics.items():
        torch.testing.assert_close(scaled.statistics[name], 7.0 * value)


def test_batches_add_up() -> None:
    problem, precision = of_line(6)
    assert isinstance(problem.x, Tensor)
    whole = look(problem, precision)
    halves = [
        look(problem, precision, x=problem.x[rows], y=problem.y[rows])
        for rows in (slice(2), slice(2, 6))
    ]
    for name in whole.gradient:
        torch.testing.assert_close(whole.gradient[name], sum(h.gradient[name] for h in halves))
        torch.testing.assert_close(curvature(whole)[name], sum(curvature(h)[name] for h in halves))


def test_no_second_look_where_all_is_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("the pass was gone once more")

    monkeypatch.setattr(Propagation, "explain", refuse)
    problem, precision = of_line()
    problem.y[1] = torch.nan
    assert look(problem, precision).loss.isfinite()
    assert isinstance(problem.x, Tensor)
    problem.x[1, 0] = torch.nan
    with pytest.raises(AssertionError, match="once more"):
        look(problem, precision)


def test_nothing_is_left_on_a_graph() -> None:
    problem, precision = of_line()
    found = look(problem, precision)
    tensors = [found.loss, *found.gradient.values(), *curvature(found).values()]
    assert not any(tensor.requires_grad for tensor in tensors)
