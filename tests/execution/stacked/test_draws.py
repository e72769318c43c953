"""Steps of many nets with Kronecker and block-tridiagonal beliefs are those of each net alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule import Learner
from bayesrule.execution.stacked import draws as stacked_draws
from bayesrule.execution.stacked.obstacles import obstacle
from bayesrule.execution.stacked.problem import StackedProblem
from bayesrule.execution.stacked.stack import Stacked
from bayesrule.matrices.factors import eigen, inverse_root
from bayesrule.training.models import mlp
from bayesrule.types import State
from tests.execution.stacked import beside
from tests.execution.stacked.beside import NUM, ROWS, Build
from tests.execution.stacked.beside import real as data

pytestmark = pytest.mark.usefixtures("double_precision")
TOLERANCE = 1e-8
FREQUENT: dict[str, Any] = {"stats_every": 1, "inverse_every": 1}


def net(*, outputs: int = 1) -> nn.Sequential:
    """Two hidden layers."""
    return mlp(3, outputs, hidden=(5, 4), activation=nn.ReLU)


def kfac(model: nn.Module | None = None, name: str = "noisy_kfac", **options: Any) -> Build:
    """Noisy K-FAC, or a relative of it, with learned noise."""
    chosen = net() if model is None else model
    return lambda n: getattr(br, name)(chosen, br.GaussianLikelihood(), num_data=n, **options)


def plain(
    structure: br.matrices.Structure,
    rule: br.rules.Rule,
    model: nn.Module | None = None,
    **parts: Any,
) -> Build:
    """A learner of one's own with a plain Gaussian of some structure."""
    given: dict[str, Any] = {"expectation": br.Draws(2), "curvature": br.Fisher(), **parts}
    family, chosen = br.GaussianFamily(structure), net() if model is None else model

    def build(n: int) -> Learner:
        likelihood = br.GaussianLikelihood()
        return Learner(chosen, likelihood, num_data=n, posterior=family, rule=rule, **given)

    return build


def noisy(momentum: br.rules.Momentum | None = None, **options: Any) -> br.Natural:
    """Natural gradients with the prior at the drawn weights."""
    return br.Natural(0.05, 0.05, momentum, prior_at_draws=True, **options)


def equal(found: State, expected: State) -> None:
    """As near as roots and inverses of factors allow."""
    beside.equal(found, expected, TOLERANCE)


def follow(build: Build, *, sizes: Sequence[int] = (6, 1, 4), outputs: int = 1) -> State:
    """Six steps of a stack beside those of its nets, with data sets that differ in size."""
    return beside.follow(
        build,
        lambda seed: data(seed, outputs),
        num_data=(20, 22, 35),
        sizes=sizes,
        steps=6,
        tolerance=TOLERANCE,
    )


@pytest.mark.parametrize(
    "options",
    [
        FREQUENT,
        {**FREQUENT, "draws": 3, "kl_clip": math.inf},
        {**FREQUENT, "draws": 3, "kl_clip": 1e-3},
        {**FREQUENT, "draws": 2, "damping": 0.1, "momentum": br.rules.Velocity(0.8)},
        {**FREQUENT, "momentum": None, "temperature": 0.5, "prior_precision": 2.0},
        {**FREQUENT, "draws": 2, "curvature": br.Fisher(samples=2)},
        {**FREQUENT, "draws": 2, "curvature": br.GGN()},
        {**FREQUENT, "draws": 2, "curvature": br.PerExample()},
    ],
)
def test_noisy_kfac_steps_as_single_nets_do(options: dict[str, Any]) -> None:
    follow(kfac(**options))


@pytest.mark.parametrize("name", ["noisy_kfac", "noisy_ekfac"])
@pytest.mark.parametrize("damping", [0.0, 0.1])
def test_beliefs_that_are_kept_in_eigenbases(name: str, damping: float) -> None:
    """Where the bases follow from the data: without units that are off, after half a step."""
    smooth = mlp(3, 1, hidden=(5, 4), activation=nn.Tanh)
    every = {"stats_every": 2, "inverse_every": 4}
    follow(kfac(smooth, name, draws=3, rate=0.5, damping=damping, **every), sizes=(6, 6, 5))
    follow(kfac(smooth, name, draws=2, rate=0.5, damping=damping, **FREQUENT), sizes=(6, 6, 5))


def test_exact_damping() -> None:
    rule = br.Natural(0.05, 0.5, br.Average(0.9), prior_at_draws=True)
    smooth = mlp(3, 1, hidden=(5, 4), activation=nn.Tanh)
    follow(plain(br.Kronecker(exact=True), rule, model=smooth), sizes=(6, 6, 5))


@pytest.mark.parametrize(
    "structure",
    [
        br.Kronecker(),
        br.Kronecker(widest=5),
        br.matrices.BlockTridiagonal(),
        br.Dense(),
    ],
)
@pytest.mark.parametrize(
    "rule",
    [
        noisy(br.Average(0.9), kl_clip=1e-3, stats_every=2, inverse_every=4),
        noisy(br.rules.Velocity(0.9), damping=0.1),
        br.Natural(0.05, 0.05, br.Average(0.9)),
    ],
    ids=["seldom", "damped", "natural"],
)
@pytest.mark.filterwarnings("ignore:The layer of")
def test_structures_and_rules(structure: br.matrices.Structure, rule: br.rules.Rule) -> None:
    follow(plain(structure, rule))


def test_antithetic_draws_frozen_weights_and_no_bias() -> None:
    parts = nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)
    model = nn.Sequential(*parts)
    model[2].weight.requires_grad_(False)
    pairs = {"expectation": br.Draws(4, antithetic=True)}
    follow(plain(br.Kronecker(), noisy(), model, **pairs))


@pytest.mark.parametrize("name", ["noisy_kfac", "vogn"])
def test_large_nets_are_drawn_a_few_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Curvature that leaves its first value soon: eigenvectors of nearly equal eigenvalues would
    # turn rounding errors into other weight draws.
    build = kfac(name=name, draws=5, initial_curvature=0.1, rate=0.5)
    whole = follow(build)
    size = sum(value.numel() for value in whole.posterior.mean.values())
    groups: list[int] = []
    drawn = StackedProblem.drawn

    def counted(self: StackedProblem, num: int) -> StackedProblem:
        groups.append(num)
        return drawn(self, num)

    monkeypatch.setattr(stacked_draws, "_MOST", 2 * size)
    monkeypatch.setattr(StackedProblem, "drawn", counted)
    equal(follow(build), whole)
    assert groups[:3] == [2, 2, 1]


@pytest.mark.parametrize("name", ["vogn", "noisy_adam", "noisy_full", "ivon"])
def test_several_draws_of_other_beliefs(name: str) -> None:
    follow(kfac(name=name, draws=3))


@pytest.mark.parametrize("outputs", [2, 4])
def test_several_outputs_and_noise_that_depends_on_the_input(outputs: int) -> None:
    model = net(outputs=outputs)
    options: dict[str, Any] = {**FREQUENT, "draws": 2, "kl_clip": math.inf}
    follow(kfac(model, **options), outputs=outputs)
    unequal = br.HeteroscedasticLikelihood()
    follow(lambda n: br.noisy_kfac(model, unequal, num_data=n, **options), outputs=outputs // 2)


def test_a_factor_without_a_cholesky_root_in_one_net_alone() -> None:
    """Rounding leaves some matrices without one; the roots of the other nets stay as they are."""
    good = torch.tensor([[2.0, 0.5], [0.5, 1.0]])
    bad = torch.tensor([[1.0, 1.0], [1.0, 1.0 - 1e-15]])
    found = inverse_root(torch.stack([good, bad]), "a layer")
    assert torch.equal(found[0], inverse_root(good, "a layer"))
    torch.testing.assert_close(found[1], inverse_root(bad, "a layer"))
    assert found.isfinite().all()
    torch.testing.assert_close(found[0] @ found[0].mT, torch.linalg.inv(good))


def test_eigenbases_of_each_net_alone() -> None:
    """A factor that is diagonal already keeps its order, whatever the other nets have."""
    mixed = torch.tensor([[2.0, 0.5], [0.5, 1.0]])
    plain = torch.diag(torch.tensor([3.0, 1.0]))
    values, directions = eigen(torch.stack([mixed, plain]), "a layer")
    for i, one in enumerate((mixed, plain)):
        expected = eigen(one, "a layer")
        assert torch.equal(values[i], expected[0])
        assert torch.equal(directions[i], expected[1])
    assert torch.equal(directions[1], torch.eye(2))


def test_the_length_of_a_step_is_that_of_each_net() -> None:
    """One net far off is held back; the other goes as it would without the clip."""

    def after(clip: float) -> Tensor:
        learner = kfac(**FREQUENT, momentum=None, kl_clip=clip)(20)
        stack = Stacked(learner, NUM)
        x, y = data(0)
        y[0] = 1e6
        state, _ = stack.step(stack.stack([learner.init()] * NUM), (x, y))
        return state.posterior.mean["0.weight"]

    clipped, free = after(5.0), after(math.inf)
    assert not torch.allclose(clipped[0], free[0])
    torch.testing.assert_close(clipped[1:], free[1:])


class TestRefusals:
    """What two factors for each layer do not go with is said in words."""

    def test_modules_that_are_no_chain(self) -> None:
        model = nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 2, 2), nn.Flatten())
        found = obstacle(kfac(nn.Sequential(*model, nn.Linear(4, 1)))(20))
        assert found is not None
        assert "factors of layers in a module that is no chain" in found

    def test_inputs_with_positions(self) -> None:
        stack = Stacked(kfac(nn.Linear(3, 1))(20), NUM)
        x = torch.zeros(NUM, ROWS, 2, 3)
        with pytest.raises(ValueError, match=r"inputs \(num, n, features\), got \(3, 6, 2, 3\)"):
            stack.step(stack.init(), (x, torch.zeros(NUM, ROWS, 2, 1)))


def test_trained_together_as_alone() -> None:
    """`fit_many` beside `fit`, with sets of several lengths."""
    generator = torch.Generator().manual_seed(0)
    xs = [torch.randn(n, 3, generator=generator) for n in (20, 23, 24)]
    sets = [(x, x.sum(1, keepdim=True).sin()) for x in xs]

    def build(x: Tensor, y: Tensor) -> Learner:
        return br.noisy_kfac(net(), br.GaussianLikelihood(), num_data=len(y), draws=2, **FREQUENT)

    runs = br.fit_many(build, sets, epochs=3, batch_size=8, progress=False)
    for seed, (pair, run) in enumerate(zip(sets, runs, strict=True)):
        alone = br.fit(run.learner, pair, epochs=3, batch_size=8, seed=seed, progress=False)
        equal(run.state, alone.state)
