"""Many trainings at once end as many trainings one by one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule import Learner
from bayesrule.tensors import tree
from bayesrule.training.many import _nets, fit_many
from bayesrule.training.models import mlp
from bayesrule.training.together import groups_of

pytestmark = pytest.mark.usefixtures("double_precision")
Set = tuple[Tensor, Tensor]


def data(length: int, seed: int = 0) -> Set:
    """A line with noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(length, 2, generator=generator)
    return x, x.sum(1, keepdim=True) + 0.1 * torch.randn(length, 1, generator=generator)


def net() -> nn.Module:
    """First weights follow from torch's own seed."""
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))


def built(name: str = "vogn", **options: Any) -> Any:
    """What makes a learner of a set."""
    return lambda x, y: getattr(br, name)(
        net(), br.GaussianLikelihood(), num_data=len(y), **options
    )


def alone(build: Any, one: Set, seed: int, **options: Any) -> br.training.Run:
    """The training of one set as a user would write it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        learner = build(*one)
    return br.fit(learner, one, seed=seed, progress=False, **options)


def same(found: br.training.Run, expected: br.training.Run) -> None:
    """Whether two runs ended alike, and were alike on the way."""
    a, b = dict(tree.leaves(found.state)), dict(tree.leaves(expected.state))
    assert a.keys() == b.keys()
    for name, value in a.items():
        torch.testing.assert_close(value, b[name], rtol=1e-9, atol=1e-10, msg=name)
    assert len(found.history) == len(expected.history)
    for one, other in zip(found.history, expected.history, strict=True):
        assert one.keys() == other.keys()
        for name in one.keys() - {"seconds"}:
            assert one[name] == pytest.approx(other[name], rel=1e-9)


@pytest.mark.parametrize("name", ["map", "vogn", "mean_field", "laplace", "tagi", "noisy_kfac"])
def test_runs_are_those_of_single_trainings(name: str) -> None:
    """Lengths that differ within a batch and by more than one, and what trains one by one."""
    sets = [data(length, seed) for seed, length in enumerate((20, 19, 20, 13, 17))]
    options = {"epochs": 2, "batch_size": 4}
    x = data(5, 9)[0]
    runs = fit_many(built(name), sets, seeds=7, **options)  # type: ignore[arg-type]
    for k, (run, one) in enumerate(zip(runs, sets, strict=True)):
        expected = alone(built(name), one, 7 + k, **options)
        same(run, expected)
        torch.testing.assert_close(run.predict(x).mean, expected.predict(x).mean)
        torch.testing.assert_close(run.predict(x).variance, expected.predict(x).variance)


def test_validation_is_noted() -> None:
    sets, options = [data(8, 0), data(8, 1)], {"epochs": 2, "batch_size": 4}
    checks = [data(5, 2), None]
    runs = fit_many(built(), sets, validation=checks, **options)  # type: ignore[arg-type]
    same(runs[0], alone(built(), sets[0], 0, validation=checks[0], **options))
    same(runs[1], alone(built(), sets[1], 1, **options))
    assert "validation" in runs[0].history[0]
    assert "validation" not in runs[1].history[0]


def test_averages_of_normalising_layers_are_settled() -> None:
    def build(x: Tensor, y: Tensor) -> Learner:
        model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
        return br.tagi(model, br.GaussianLikelihood(noise=0.1), num_data=len(y))

    sets = [data(8, 0), data(8, 1)]
    runs = fit_many(build, sets, epochs=2, batch_size=4, validation=sets)
    for k, run in enumerate(runs):
        same(run, alone(build, sets[k], k, epochs=2, batch_size=4, validation=sets[k]))


class TestWhatIsGiven:
    """Learners, seeds and data, and how they may be given."""

    def test_learners_one_for_each_set(self) -> None:
        sets = [data(8, 0), data(8, 1)]
        learners = [built()(*one) for one in sets]
        runs = fit_many(learners, sets, epochs=1, batch_size=4, seeds=[5, 3])
        for run, learner, one, seed in zip(runs, learners, sets, (5, 3), strict=True):
            assert run.learner is learner
            same(run, br.fit(learner, one, epochs=1, batch_size=4, seed=seed, progress=False))

    def test_first_weights_follow_from_the_seed(self) -> None:
        """And torch's own random state stays as it is."""
        before = torch.random.get_rng_state()
        first, second = fit_many(built("map", learning_rate=0.0), [data(4)] * 2, epochs=1)
        assert torch.equal(before, torch.random.get_rng_state())
        means = first.state.posterior.mean["0.weight"], second.state.posterior.mean["0.weight"]
        assert not torch.equal(*means)

    def test_arrays_and_several_inputs(self) -> None:
        class Two(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(4, 1)

            def forward(self, a: Tensor, b: Tensor) -> Tensor:
                return self.layer(torch.cat([a, b], dim=1))

        def build(x: Any, y: Any) -> Learner:
            return br.map(Two(), br.GaussianLikelihood(), num_data=len(y))

        arrays = [tuple(part.numpy() for part in data(7 + k, k)) for k in range(2)]
        sets: list[Any] = [((x, x**2), y) for x, y in arrays]
        runs = fit_many(build, sets, epochs=2, batch_size=4)
        for k, run in enumerate(runs):
            same(run, alone(build, sets[k], k, epochs=2, batch_size=4))

    def test_errors(self) -> None:
        one = data(8)
        wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
            ({"sets": []}, ValueError, "no data sets to learn from"),
            ({"epochs": 0}, ValueError, "epochs is a whole number of at least 1, got 0"),
            ({"batch_size": 0}, ValueError, "Set 0: batch_size is a whole number"),
            ({"sets": [one, (one[0], one[1][:3])]}, ValueError, "Set 1: 8 inputs but 3 targets"),
            ({"sets": [one, one[0]]}, TypeError, r"Set 1 is a pair \(x, y\), got Tensor"),
            ({"seeds": [1, 2, 3]}, ValueError, "There are 2 sets, but 3 seeds"),
            ({"validation": [one]}, ValueError, "There are 2 sets, but 1 validation"),
            (
                {"validation": [None, 3]},
                TypeError,
                "Set 1: validation is a pair .* got int",
            ),
            ({"build": [built()(*one)]}, ValueError, "There are 2 sets, but 1 learners"),
            ({"build": lambda x, y: net()}, TypeError, "Set 0: build gives a Learner, got Seq"),
        ]
        for given, kind, message in wrong:
            options: dict[str, Any] = {"build": built(), "sets": [one, one], **given}
            with pytest.raises(kind, match=message):
                fit_many(**options)


class TestWhoTrainsTogether:
    """Nets that are alike."""

    def groups(self, build: Any, sets: list[Set], batch_size: int = 4) -> list[list[int]]:
        """The numbers of the sets that train together."""
        nets = _nets(build, sets, batch_size, None, None)
        return [[net.number for net in group] for group in groups_of(nets)]

    def test_lengths(self) -> None:
        """As many batches, however long the last one is; closed forms want the same length."""
        sets = [data(length) for length in (8, 7, 9, 12, 8)]
        assert self.groups(built(), sets) == [[0, 1, 4], [2, 3]]
        assert self.groups(built("tagi"), sets) == [[0, 4], [1], [2], [3]]
        assert self.groups(built("noisy_kfac"), sets) == [[0, 1, 4], [2, 3]]
        apart = {"curvature": br.curvature.SquaredGradient()}
        assert self.groups(built("noisy_kfac", **apart), sets) == [[0], [1], [2], [3], [4]]

    def test_settings_and_modules(self) -> None:
        likelihood = br.GaussianLikelihood()
        learners = [
            br.vogn(net(), likelihood, num_data=8),
            br.vogn(net(), likelihood, num_data=8, learning_rate=0.1),
            br.vogn(net(), likelihood, num_data=7),
            br.vogn(net(), likelihood, num_data=8, prior_precision=2.0),
            br.vogn(mlp(2, 1, (4,)), likelihood, num_data=8),
            br.vogn(net(), likelihood, num_data=8, learning_rate=lambda step: 0.1),
            br.map(net(), likelihood, num_data=8),
            br.map(net(), likelihood, num_data=8),
        ]
        found = self.groups(learners, [data(one.num_data) for one in learners])
        assert found == [[0, 2], [1], [3], [4], [5], [6, 7]]


class TestTrouble:
    """What goes wrong is said of the set where it did."""

    @pytest.mark.parametrize("length", [8, 9], ids=["together", "alone"])
    def test_numbers_that_are_not_finite(self, length: int) -> None:
        sets = [data(8, 0), data(length, 1), data(8, 2)]
        sets[1][1][2] = math.nan
        with pytest.raises(br.training.TrainingError, match=r"Set 1: The loss is nan in epoch 1"):
            fit_many(built(), sets, epochs=2, batch_size=8)

    def test_weights_that_are_not_finite(self) -> None:
        """The last step's weights, which no loss has seen yet."""
        sets = [data(4, 0), data(4, 1)]
        sets[1] = sets[1][0], sets[1][1] * 1e150
        build = built("sgd", learning_rate=1e200)
        with (
            pytest.warns(br.training.TrainingWarning, match="Set 1: Training diverged in epoch 1"),
            pytest.raises(
                br.training.TrainingError, match="Set 1: The weights are not finite in epoch 1"
            ),
        ):
            fit_many(build, sets, epochs=1, batch_size=4)

    def test_scales_that_explode(self) -> None:
        build = built("mean_field", scale_multiplier=1e6, kl_weight=50.0)
        with (
            pytest.warns(br.training.TrainingWarning, match="Set 0: Training diverged in epoch 1"),
            pytest.raises(
                br.training.TrainingError, match=r"Set 0: A standard deviation of .* has exp"
            ),
        ):
            fit_many(build, [data(4, 0), data(4, 1)], epochs=1, batch_size=4)


def test_a_bar_is_shown_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    fit_many(built(), [data(8, 0), data(8, 1), data(20, 2)], epochs=1, batch_size=4, progress=True)
    assert "3 nets" in capsys.readouterr().err
