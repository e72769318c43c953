"""Labels at each place of a sequence: the same as places that are examples of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from exact import DTYPE, close, randn
from torch import Tensor, nn

import bayesrule as br
from bayesrule.curvature import GGN, PerExample
from bayesrule.likelihoods._weighted import split
from bayesrule.predicting import Linearised
from bayesrule.predicting.evaluate import scores_of

N, T, C, IGNORED = 4, 3, 5, -100
OUTPUTS = randn(N, T, C, seed=1)
LABELS = torch.arange(N * T).reshape(N, T) % C
HOLES = LABELS.clone()
HOLES[0, 1:] = HOLES[2, 0] = IGNORED
LIKELIHOOD = br.CategoricalLikelihood(ignore_index=IGNORED)


def tagger() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, C)).to(DTYPE)


X = randn(N, T, 2, seed=2)


def learner(curvature: Any = None, likelihood: Any = LIKELIHOOD, num_data: int = N) -> br.Learner:
    return br.Learner(
        tagger(), likelihood, num_data=num_data, posterior=br.GaussianFamily(br.Dense()),
        expectation=br.AtMean(), curvature=curvature or GGN(), rule=br.Natural(),
        temperature=1.0,
    )  # fmt: skip


def sums(made: br.Learner, x: Tensor, y: Tensor) -> Any:
    state = made.init()
    problem = made.problem(state, (x, y))
    return made.local(problem, state.posterior)


def test_the_log_prob_is_that_of_each_label() -> None:
    found = LIKELIHOOD.log_prob(OUTPUTS, LABELS, {})
    flat = LIKELIHOOD.log_prob(OUTPUTS.reshape(-1, C), LABELS.reshape(-1), {})
    close(found, flat.reshape(N, T))
    targets, weight = split(LIKELIHOOD.weighed(HOLES))
    assert weight is not None
    close(weight.to(DTYPE), (HOLES != IGNORED).to(DTYPE))
    assert int(targets.min()) >= 0


def test_fisher_vectors_make_the_hessian() -> None:
    vectors = LIKELIHOOD.fisher_vectors(OUTPUTS, {})
    assert vectors.shape == (T * C, N, T, C)
    found = torch.einsum("vnsc,vntd->nsctd", vectors, vectors).reshape(N, T * C, T * C)
    for i in range(N):
        hessian = torch.autograd.functional.hessian(
            lambda f, i=i: -LIKELIHOOD.log_prob(f[None], LABELS[i : i + 1], {}).sum(), OUTPUTS[i]
        )
        close(found[i], hessian.reshape(T * C, T * C))


def test_gradients_are_those_of_places_as_examples() -> None:
    found = sums(learner(), X, HOLES)
    seen = HOLES.reshape(-1) != IGNORED
    places = X.reshape(-1, 2)[seen], HOLES.reshape(-1)[seen]
    # The same loss, with a scale of one for each.
    flat = sums(learner(num_data=int(seen.sum())), *places)
    close(found.loss, flat.loss)
    for name, value in flat.gradient.items():
        close(found.gradient[name], value)


def test_the_ggn_is_that_of_places_as_examples_and_holes_have_none() -> None:
    found = sums(learner(GGN()), X, HOLES)
    seen = HOLES.reshape(-1) != IGNORED
    flat = sums(
        learner(GGN(), num_data=int(seen.sum())), X.reshape(-1, 2)[seen], HOLES.reshape(-1)[seen]
    )
    close(found.curvature.values, flat.curvature.values)


def test_a_sequence_is_one_example_of_squared_gradients() -> None:
    found = sums(learner(PerExample()), X, HOLES)
    total = torch.zeros_like(found.curvature.values)
    for i in range(N):
        one = sums(learner(num_data=1), X[i : i + 1], HOLES[i : i + 1])
        row = torch.cat([one.gradient[name].reshape(-1) for name in one.gradient])
        total = total + torch.outer(row, row)
    close(found.curvature.values, total)


@pytest.mark.parametrize(
    "method", [br.vogn, br.ivon, br.noisy_kfac, br.mean_field, br.laplace, br.adam]
)
def test_methods_learn_and_predict_labels_along_sequences(method: Any) -> None:
    x = randn(60, T, 2, seed=3)
    y = (x[..., 0] > 0).long() + (x[..., 1] > 0).long()
    held = y.clone()
    held[:, 1] = IGNORED
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3)).to(DTYPE)
    made = method(model, LIKELIHOOD, num_data=60)
    run = br.fit(made, (x, held), epochs=40, batch_size=20, validation=(x, held))
    p = run.predict(x, br.Draws(8) if method is not br.adam else None)
    assert p.probs.shape == (60, T, 3)
    assert p.entropy.shape == p.mutual_information.shape == p.labels.shape == (60, T)
    assert run.history[-1]["loss"] < 0.95 * run.history[0]["loss"]
    # What is at places that were ignored is not scored.
    assert run.scores((x, held)).keys() == run.scores((x, y)).keys()
    expected = -p.probs.gather(-1, y[..., None])[:, [0, 2]].log().mean()
    if method is not br.adam:
        found = scores_of(made, run.state, (x, held), br.Draws(8))["nll"]
        assert found == pytest.approx(float(expected), rel=1e-6)


def test_a_linearised_prediction_of_sequences_is_that_of_places() -> None:
    made = br.laplace(tagger(), LIKELIHOOD, num_data=N)
    run = br.fit(made, (X, LABELS), epochs=2)
    found, flat = run.predict(X, Linearised()), run.predict(X.reshape(-1, 2), Linearised())
    close(found.probs.reshape(-1, C), flat.probs)
    close(found.epistemic.reshape(-1, C), flat.epistemic, 1e-7)
    close(found.mutual_information.reshape(-1), flat.mutual_information, 1e-7)


def test_several_nets_at_once_see_the_same_labels() -> None:
    sets = [(X, LABELS), (X.flip(0), LABELS.flip(0))]
    likelihood = br.CategoricalLikelihood()
    together = br.fit_many(lambda x, y: br.ivon(tagger(), likelihood, num_data=N), sets, epochs=2)
    alone = [
        br.fit(br.ivon(tagger(), likelihood, num_data=N), one, epochs=2, seed=k)
        for k, one in enumerate(sets)
    ]
    for one, two in zip(together, alone, strict=True):
        assert one.history[-1]["loss"] == pytest.approx(two.history[-1]["loss"], rel=1e-6)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"class numbers of shape \(4, 3\), got .* \(4,\)"):
        LIKELIHOOD.log_prob(OUTPUTS, LABELS[:, 0], {})
    with pytest.raises(ValueError, match="class_weight is for one label of each example"):
        br.CategoricalLikelihood(class_weight=(1.0,) * C).weighed(LABELS)
    with pytest.raises(ValueError, match=r"needs one output for each class: \(n, C\)"):
        br.likelihoods.OneHotLikelihood().log_prob(OUTPUTS, LABELS, {})
    with pytest.raises(ValueError, match=r"ignore_index=-1"):
        br.CategoricalLikelihood().check(OUTPUTS, LABELS - 1)
