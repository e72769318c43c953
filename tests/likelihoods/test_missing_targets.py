"""Targets that are missing: left out by `weighted`, known to `tagi`, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.types import State

NAN = torch.nan
X = torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
NUMBERS: dict[str, Any] = {
    "gaussian": (br.GaussianLikelihood(), [0.5, -1.0, 0.3]),
    "known noise": (br.GaussianLikelihood(noise=0.2), [0.5, -1.0, 0.3]),
    "heteroscedastic": (br.HeteroscedasticLikelihood(), [0.5, -1.0, 0.3]),
    "bernoulli": (br.BernoulliLikelihood(), [1.0, 0.0, 1.0]),
    "poisson": (br.PoissonLikelihood(), [1.0, 3.0, 0.0]),
    "negative binomial": (br.NegativeBinomialLikelihood(), [1.0, 3.0, 0.0]),
}
L = br.likelihoods
CLASSES: dict[str, Any] = {
    "categorical": br.CategoricalLikelihood(),
    "hierarchical": L.HierarchicalLikelihood(3),
    "one-hot": L.OneHotLikelihood(),
    "remax": L.RemaxLikelihood(),
    "softmax": L.SoftmaxLikelihood(),
}


def learner(method: Any, likelihood: Any) -> br.Learner:
    outputs = likelihood.num_outputs(3 if likelihood in CLASSES.values() else 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, outputs)).double()
    return method(model, likelihood, num_data=4)


def stepped(method: Any, likelihood: Any, x: Tensor, y: Tensor) -> State:
    made = learner(method, likelihood)
    return made.step(made.init(), (x, y))[0]


def targets(kind: str) -> tuple[Any, Tensor, Tensor]:
    """A likelihood, targets of which one is missing, and those with another number for it."""
    likelihood, known = NUMBERS[kind]
    y = torch.tensor([*known, NAN], dtype=torch.float64).unsqueeze(1)
    return likelihood, y, y.nan_to_num(nan=1.0)


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("method", [br.vogn, br.mean_field, br.noisy_kfac])
def test_rows_without_targets_have_no_part(method: Any, kind: str) -> None:
    likelihood, y, other = targets(kind)
    weight = torch.tensor([1.0, 1.0, 1.0, 0.0])
    found = stepped(method, likelihood, X, br.weighted(y))
    expected = stepped(method, likelihood, X, br.weighted(other, weight))
    for name, value in expected.posterior.mean.items():
        torch.testing.assert_close(found.posterior.mean[name], value, rtol=0, atol=0)


@pytest.mark.parametrize("kind", NUMBERS)
def test_nan_is_refused_with_the_way_out_where_it_has_no_meaning(kind: str) -> None:
    likelihood, y, _ = targets(kind)
    with pytest.raises(ValueError, match=r"br\.weighted\(y\) leaves out"):
        stepped(br.vogn, likelihood, X, y)


@pytest.mark.parametrize("kind", ["gaussian", "known noise", "heteroscedastic", "bernoulli"])
def test_tagi_learns_nothing_from_what_is_missing(kind: str) -> None:
    likelihood, y, _ = targets(kind)
    found, expected = stepped(br.tagi, likelihood, X, y), stepped(br.tagi, likelihood, X[:3], y[:3])
    for name, value in expected.posterior.mean.items():
        torch.testing.assert_close(found.posterior.mean[name], value)


@pytest.mark.parametrize("kind", CLASSES)
def test_missing_classes_are_refused_with_the_way_out_or_known_to_tagi(kind: str) -> None:
    labels = torch.tensor([0, 2, 1, -1])
    for y in (labels, torch.tensor([0.0, 2.0, 1.0, NAN])):
        with pytest.raises(ValueError, match=r"missing .*ignore_index=-1.*of no weight"):
            stepped(br.vogn, CLASSES[kind], X, y)
    found = stepped(br.tagi, CLASSES[kind], X, labels)
    expected = stepped(br.tagi, CLASSES[kind], X[:3], labels[:3])
    for name, value in expected.posterior.mean.items():
        torch.testing.assert_close(found.posterior.mean[name], value)
