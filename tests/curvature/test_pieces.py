"""A step on a batch in pieces is the step on the whole batch, or is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.curvature import PerExample
from bayesrule.expectations import LocalDraws
from bayesrule.methods import METHODS, find
from bayesrule.tensors import tree
from bayesrule.types import Info, State

N = 10
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = X.sum(1, keepdim=True).sin()
LABELS = torch.arange(N) % 3
LIKELIHOODS: dict[str, Any] = {
    "known noise": (br.GaussianLikelihood(noise=0.3), 1, Y),
    "learned noise": (br.GaussianLikelihood(), 1, Y),
    "classes": (br.CategoricalLikelihood(), 3, LABELS),
    "weighted": (br.GaussianLikelihood(), 1, br.weighted(Y, torch.arange(N).double() / 4)),
}
GROUPS = br.PerGroup({"2.*": br.GaussianFamily(br.Kronecker()), "*": br.GaussianFamily()})
REFUSED = {
    "variational_laplace": "SecondOrder",
    "mixture": "MixtureFamily",
    "noisy_ekfac": r"Kronecker\(corrected=True\)",
}


def net(outputs: int, linear: bool = False) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        if linear:
            return nn.Linear(3, outputs).double()
        return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, outputs)).double()


def trained(learner: br.Learner, y: Tensor, pieces: int) -> tuple[State, Info]:
    state = learner.init()
    for _ in range(3):
        state, info = learner.step(state, (X, y), accumulate=pieces)
    return state, info


def same(one: tuple[State, Info], two: tuple[State, Info], rtol: float = 1e-8) -> None:
    parts = [
        tree.tensors({"posterior": s.posterior, "rule": s.rule, "likelihood": s.likelihood})
        for s, _ in (one, two)
    ]
    for name, value in parts[0].items():
        torch.testing.assert_close(parts[1][name], value, rtol=rtol, atol=rtol)
    torch.testing.assert_close(two[1].loss, one[1].loss)
    torch.testing.assert_close(two[1].elbo, one[1].elbo, equal_nan=True)


@pytest.mark.parametrize("kind", LIKELIHOODS)
@pytest.mark.parametrize("name", METHODS)
def test_pieces_add_up_to_the_batch_for_every_method(name: str, kind: str) -> None:
    likelihood, outputs, y = LIKELIHOODS[kind]
    learner = find(name)(net(outputs, name in ("newton", "ridge")), likelihood, num_data=20)
    refused = REFUSED.get(name)
    if name == "tagi" and likelihood.learns:
        refused = "counts the batches that its noise is learned from; give it a noise"
    if refused:
        with pytest.raises(ValueError, match=rf"do not add up to it \(accumulate=3\): .*{refused}"):
            trained(learner, y, 3)
        return
    whole = trained(learner, y, 1)
    for pieces in (3, 7, 10, 50):
        same(whole, trained(learner, y, pieces))


@pytest.mark.parametrize(
    ("posterior", "expectation"),
    [
        (br.posteriors.KTiedFamily(), br.Draws(3)),
        (br.GaussianFamily(br.Dense()), br.Draws(4, antithetic=True)),
        (GROUPS, br.Draws(2)),
    ],
    ids=["tied", "antithetic", "groups"],
)  # fmt: skip
def test_each_piece_is_looked_at_from_all_the_points_of_the_belief(
    posterior: Any, expectation: Any
) -> None:
    natural = not isinstance(posterior, br.posteriors.KTiedFamily)
    learner = br.Learner(
        net(1), br.GaussianLikelihood(), num_data=20, posterior=posterior, expectation=expectation,
        curvature=PerExample() if natural else br.Price(),
        rule=br.Natural() if natural else br.Elbo(),
    )  # fmt: skip
    same(trained(learner, Y, 1), trained(learner, Y, 4))


def test_draws_within_layers_go_on_from_piece_to_piece() -> None:
    learner = br.Learner(
        net(1), br.GaussianLikelihood(noise=1.0), num_data=N, posterior=br.MeanFieldFamily(),
        expectation=LocalDraws(1), curvature=br.curvature.Pathwise(), rule=br.Elbo(),
    )  # fmt: skip
    state = learner.init()
    x = X[:1].expand(2, -1)  # the same input twice: the same draws would give the same loss
    problem = learner.problem(state, (x, Y[:1].expand(2, -1)), pieces=2)
    first, second = (
        learner.local(dataclasses.replace(piece, pieces=1), state.posterior).loss
        for piece in problem.in_pieces(same_draws=False)
    )
    assert float((first - second).abs()) > 1e-6


def test_batch_norm_is_refused_unless_it_is_at_rest() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    learner = br.ivon(model, br.GaussianLikelihood(), num_data=N)
    with pytest.raises(ValueError, match="batch norm in training mode sees one piece at a time"):
        learner.step(learner.init(), (X, Y), accumulate=2)
    model.train()
    model[1].eval()
    learner = br.ivon(model, br.GaussianLikelihood(), num_data=N)
    same(trained(learner, Y, 1), trained(learner, Y, 2))


def test_what_is_no_number_of_pieces_is_refused() -> None:
    learner = br.vogn(net(1), br.GaussianLikelihood(), num_data=N)
    for pieces in (0, -1, 1.5, None):
        with pytest.raises(ValueError, match="accumulate is a whole number of at least 1"):
            learner.step(learner.init(), (X, Y), accumulate=pieces)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="leave accumulate or fused out"):
        br.fit(learner, (X, Y), epochs=1, accumulate=2, fused=True)


@pytest.mark.parametrize("method", [br.vogn, br.laplace, br.mean_field])
def test_fit_in_pieces_is_fit(method: Any) -> None:
    def run(**options: Any) -> Any:
        learner = method(net(1), br.GaussianLikelihood(), num_data=N)
        return br.fit(learner, (X, Y), epochs=3, batch_size=5, **options)

    whole, pieces = run(), run(accumulate=3)
    for one, two in zip(whole.history, pieces.history, strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-8)
    torch.testing.assert_close(pieces.predict(X).mean, whole.predict(X).mean)
    torch.testing.assert_close(pieces.predict(X).epistemic, whole.predict(X).epistemic)


def test_the_largest_piece_is_all_that_the_module_sees_at_once() -> None:
    seen: list[int] = []

    class Noting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net(1)

        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            return self.inner(x)

    learner = br.vogn(Noting(), br.GaussianLikelihood(), num_data=N)
    state = learner.init()
    for _ in range(2):
        state, _ = learner.step(state, (X, Y), accumulate=4)
    assert max(seen) == 3
