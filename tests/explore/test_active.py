"""Pool-based active learning: what is chosen, what is seen, and how it is scored."""

from __future__ import annotations

import importlib.util
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.explore.active import Standard
from bayesrule.tensors.network import Inputs
from tests import exact

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


def linear(outputs: int) -> nn.Module:
    """A linear model that starts at zero."""
    model = nn.Linear(2, outputs)
    for value in model.parameters():
        nn.init.zeros_(value)
    return model


def ridge(num_data: int) -> br.Learner:
    """A linear model, whose posterior is exact after one epoch in one batch."""
    return br.ridge(linear(1), br.GaussianLikelihood(noise=0.2), num_data=num_data)


def newton(num_data: int) -> br.Learner:
    """Logistic regression of three classes."""
    return br.newton(linear(3), br.CategoricalLikelihood(), num_data=num_data, learning_rate=0.5)


def counts(num_data: int) -> br.Learner:
    """Poisson regression."""
    return br.newton(linear(1), br.PoissonLikelihood(), num_data=num_data, learning_rate=0.5)


def numbers(num: int = 60, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A plane far from zero; most inputs lie close together."""
    x = 0.05 * exact.randn(num, 2, seed=seed).float()
    x[::6] *= 40.0
    y = 300.0 + 50.0 * x[:, :1] - 20.0 * x[:, 1:]
    return 7.0 + x, y + 3.0 * exact.randn(num, 1, seed=seed + 100).float()


def classes(num: int = 60, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three clouds."""
    y = torch.arange(num) % 3
    centres = torch.tensor([[0.0, 3.0], [3.0, -1.0], [-3.0, -1.0]])
    return centres[y] + exact.randn(num, 2, seed=seed).float(), y


def learn(build: Any = ridge, **options: Any) -> br.explore.ActiveRun:
    pool, test = numbers(), numbers(30, seed=1)
    given = {"pool": pool, "test": test, "start": 4, "steps": 3, "epochs": 1, "batch_size": 100}
    return br.explore.active_learning(build, **{**given, **options})


def test_the_far_point_is_asked_for() -> None:
    x = torch.tensor([[0.0, 0.0], [0.1, 0.0], [0.0, 0.1], [9.0, 9.0], [0.1, 0.1], [0.2, 0.0]])
    y = x.sum(1, keepdim=True)
    for criterion in (br.explore.LargestVariance(), br.explore.BALD()):
        run = learn(pool=(x, y), test=(x, y), start=[0, 1, 2], steps=1, criterion=criterion)
        assert run.chosen.tolist() == [3]


def test_choosing_is_better_than_drawing() -> None:
    chosen = torch.stack([learn(seed=seed, steps=4).rmse for seed in range(4)])
    drawn = torch.stack(
        [learn(seed=seed, steps=4, criterion=br.explore.Random()).rmse for seed in range(4)]
    )
    # Both begin with the same rows.
    torch.testing.assert_close(chosen[:, 0], drawn[:, 0])
    assert float(chosen[:, -1].mean()) < 0.7 * float(drawn[:, -1].mean())


def test_every_fit_is_from_scratch_on_what_is_labelled_standardised_by_it_alone() -> None:
    run = learn(seed=3)
    (x, y), (x_test, y_test) = numbers(), numbers(30, seed=1)
    for step in range(4):
        rows = run.labelled[: 4 + step]
        shift, scale = x[rows].mean(0), x[rows].std(0, correction=0)
        middle, spread = y[rows].mean(), y[rows].std(correction=0)
        data = (x[rows] - shift) / scale, (y[rows] - middle) / spread
        own = br.fit(ridge(4 + step), data, epochs=1, batch_size=100, seed=3)
        found = own.predict((x_test - shift) / scale)
        mean = middle + spread * found.mean
        rmse = (mean - y_test).square().mean().sqrt()
        assert float(run.rmse[step]) == pytest.approx(float(rmse), rel=1e-3)
        variance = spread.square() * found.variance
        density = -0.5 * ((2 * math.pi * variance).log() + (y_test - mean).square() / variance)
        assert float(run.log_likelihood[step]) == pytest.approx(float(density.mean()), rel=1e-3)


def test_labels_that_were_not_asked_for_are_not_looked_at() -> None:
    x, y = numbers()
    run = learn()
    hidden = torch.full_like(y, torch.nan)
    hidden[run.labelled] = y[run.labelled]
    again = learn(pool=(x, hidden))
    assert again.chosen.tolist() == run.chosen.tolist()
    torch.testing.assert_close(again.rmse, run.rmse, rtol=0, atol=0)


def test_the_test_data_do_not_choose() -> None:
    x, y = numbers(30, seed=1)
    assert learn(test=(-x, 5 * y)).chosen.tolist() == learn().chosen.tolist()


def test_what_a_run_tells() -> None:
    run = learn()
    assert run.num_labelled.tolist() == [4, 5, 6, 7]
    assert len(run.labelled.unique()) == 7
    assert len(run.history) == len(run.rmse) == len(run.log_likelihood) == 4
    with pytest.raises(TypeError, match="predictions of numbers"):
        _ = run.error
    x, y = numbers(30, seed=1)
    # Predictions are in the units of the data.
    rmse = (run.predict(x).mean - y).square().mean().sqrt()
    assert float(rmse) == pytest.approx(float(run.rmse[-1]), rel=1e-5)
    assert float(run.final.state.step) == 1


def test_classes() -> None:
    for criterion in (br.explore.LargestVariance(), br.explore.BALD(), br.explore.EPIG()):
        run = learn(
            newton,
            pool=classes(),
            test=classes(45, seed=1),
            start=[0, 1, 2],
            steps=5,
            criterion=criterion,
            epochs=15,
        )
        assert run.error.shape == (6,)
        assert float(run.error[-1]) < 0.15
        torch.testing.assert_close(
            run.log_likelihood, -torch.tensor([one["nll"] for one in run.history])
        )
        with pytest.raises(TypeError, match="predictions of classes"):
            _ = run.rmse


def test_the_seed_tells_all() -> None:
    for criterion in (br.explore.Random(), br.explore.EPIG(draws=8)):
        one, two, other = (learn(seed=seed, criterion=criterion) for seed in (1, 1, 2))
        assert one.labelled.tolist() == two.labelled.tolist()
        assert one.labelled.tolist() != other.labelled.tolist()


class Flat(br.explore.Criterion):
    """A criterion of one's own: all inputs alike."""

    def scores(
        self, learner: br.Learner, state: br.types.State, x_pool: Inputs, generator: torch.Generator
    ) -> Tensor:
        return torch.zeros(len(x_pool))


class Wrong(br.explore.Criterion):
    """Not one number for each input."""

    def scores(
        self, learner: br.Learner, state: br.types.State, x_pool: Inputs, generator: torch.Generator
    ) -> Tensor:
        return torch.zeros(2, 2)


def test_one_of_the_best_is_drawn() -> None:
    picks = [
        int(learn(criterion=Flat(), steps=1, start=[0], seed=seed).chosen) for seed in range(12)
    ]
    assert len(set(picks)) > 6
    with pytest.raises(ValueError, match=r"Wrong must give one number for each of 56 inputs"):
        learn(criterion=Wrong())


def test_targets_of_epig_are_moved_with_the_inputs() -> None:
    x, _ = numbers()
    standard = Standard.of(x, None)
    moved = br.explore.EPIG(x[:3]).standardised(standard.standardise)
    assert isinstance(moved.targets, Tensor)
    torch.testing.assert_close(moved.targets, (x[:3] - x.mean(0)) / x.std(0, correction=0))
    # In units of their own the targets would be far from everything that is known.
    chosen = {float(scale): learn_scaled(scale) for scale in (1.0, 1000.0)}
    assert chosen[1.0] == chosen[1000.0]


def learn_scaled(scale: float) -> list[int]:
    x, y = numbers()
    criterion = br.explore.EPIG(scale * x[:8], num_targets=8)
    return learn(pool=(scale * x, y), criterion=criterion).chosen.tolist()


class TestStandard:
    """Shifts and scales."""

    def test_columns_that_never_change_are_only_shifted(self) -> None:
        x = torch.tensor([[0.1, 1.0], [0.1, 3.0], [0.1, 2.0]])
        placed = Standard.of(x, None).standardise(torch.tensor([[0.6, 2.0]]))
        torch.testing.assert_close(placed, torch.tensor([[0.5, 0.0]]))

    def test_whole_numbers_are_names_and_stay(self) -> None:
        tokens, x = torch.tensor([[4, 5], [6, 7]]), torch.tensor([[1.0], [3.0]])
        placed = Standard.of((tokens, x), None).standardise((tokens, x))
        assert placed[0] is tokens
        torch.testing.assert_close(placed[1], torch.tensor([[-1.0], [1.0]]))

    def test_nothing_is_moved_where_it_is_not_wanted(self) -> None:
        run = learn(standardise=False)
        x, y = numbers()
        own = br.fit(ridge(7), (x[run.labelled], y[run.labelled]), epochs=1, batch_size=100)
        torch.testing.assert_close(run.predict(x).mean, own.predict(x).mean)

    def test_counts_are_not_standardised(self) -> None:
        x, _ = classes()
        y = (x > 0.0).sum(1, keepdim=True)
        run = learn(
            counts, pool=(x, y), test=(x, y), start=20, criterion=br.explore.EPIG(), epochs=9
        )
        assert run.standard.targets is None
        assert bool((run.rmse < 1.0).all())


def test_arrays_are_taken_even_those_that_must_not_be_written() -> None:
    x, y = (part.double().numpy() for part in numbers())
    x.flags.writeable = False
    run = learn(pool=(x, y[:, 0]), test=(x, y[:, 0]), criterion=br.explore.EPIG())
    torch.testing.assert_close(
        run.rmse, learn(pool=(x, y), test=(x, y), criterion=br.explore.EPIG()).rmse
    )
    assert run.predict(np.asarray(x)).mean.shape == (60, 1)


def test_no_label_at_all_is_asked_for() -> None:
    run = learn(steps=0)
    assert len(run.chosen) == 0
    assert len(run.rmse) == 1


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"start": 61}, ValueError, r"1 to 60 \(the size of the pool\), got 61"),
        ({"start": 0}, ValueError, "got 0"),
        ({"start": [0, 0, 1]}, ValueError, "each from 0 to 59 and once"),
        ({"start": [60]}, ValueError, "each from 0 to 59 and once"),
        ({"start": []}, ValueError, "each from 0 to 59 and once"),
        ({"steps": 57}, ValueError, "0 to 56, as the pool has 60 rows and 4 are"),
        ({"steps": -1}, ValueError, "got -1"),
        ({"steps": 1.5}, ValueError, "got 1.5"),
        ({"criterion": "variance"}, TypeError, r"takes LargestVariance\(\), .* got 'variance'"),
        ({"criterion": br.explore.BALD}, TypeError, r"got the class: write BALD\(\)"),
        ({"out": "run"}, TypeError, "no option out; of br.fit it takes epochs"),
        ({"pool": torch.zeros(3)}, TypeError, r"pool is a pair \(x, y\), got Tensor"),
        ({"pool": (torch.zeros(3, 2), torch.zeros(2))}, ValueError, "pool .* got 3 and 2"),
        ({"test": (torch.zeros(0, 2), torch.zeros(0))}, ValueError, "test .* at least one"),
        ({"build": lambda num: None}, TypeError, "makes a learner, .* got NoneType"),
    ],
)
def test_what_cannot_be_done_is_refused(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        learn(**options)


def test_a_method_that_is_sure_of_everything_cannot_choose() -> None:
    def build(num_data: int) -> br.Learner:
        return br.map(linear(1), br.GaussianLikelihood(noise=0.2), num_data=num_data)

    with pytest.raises(ValueError, match=r"predict with weight draws \(how=Draws\(32\)\)"):
        learn(build)
    assert len(learn(build, criterion=br.explore.Random()).chosen) == 3


def test_the_example_draws_both_beliefs_and_all_curves() -> None:
    spec = importlib.util.spec_from_file_location("active", EXAMPLES / "active.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    root = ElementTree.fromstring(module.picture(trials=1, steps=2, epochs=3))
    svg = "{http://www.w3.org/2000/svg}"
    kinds = [one.get("class") for one in root.iter(f"{svg}path")]
    assert kinds.count("belief") == kinds.count("mean") == 2
    # A curve and its line in the legend.
    assert [kinds.count(name) for name in ("random", "variance", "epig")] == [2, 2, 2]
    groups = [g for g in root.iter(f"{svg}g") if g.get("class") == "asked"]
    assert [len(list(g.iter(f"{svg}circle"))) for g in groups] == [2, 2]
