"""Training that begins at the most probable weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.training import fit, fit_many
from bayesrule.training.warm_start import beginning, started_at

X = torch.linspace(-2.0, 2.0, 40, dtype=torch.float64).reshape(-1, 1)
Y = X.sin()


def learner(method: str = "vogn", num_data: int = 40) -> br.Learner:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 1)).double()
    return getattr(br, method)(net, br.GaussianLikelihood(), num_data=num_data)


@pytest.mark.parametrize("method", ["vogn", "ogn", "ivon"])
def test_it_is_map_and_then_the_method(method: str) -> None:
    run = fit(learner(method), (X, Y), epochs=3, warm_start=5, progress=False)
    first = fit(beginning(learner(method)), (X, Y), epochs=5, progress=False)
    made = learner(method)
    by_hand = fit(made, (X, Y), epochs=3, state=started_at(made, first.state), progress=False)
    assert len(run.history) == 3
    for name, value in run.state.posterior.mean.items():
        assert torch.equal(value, by_hand.state.posterior.mean[name])


def test_the_beginning_has_the_prior_of_the_learner() -> None:
    made = br.ivon(nn.Linear(2, 1), br.GaussianLikelihood(), num_data=7, prior_precision=3.0)
    start = beginning(made)
    assert (start.prior_precision, start.num_data, start.model) == (3.0, 7, made.model)
    assert start.parts()["rule"] == br.map(made.model, made.likelihood, num_data=7).parts()["rule"]
    older = fit(made, (torch.zeros(7, 2), torch.zeros(7, 1)), epochs=1, progress=False)
    again = br.ivon(made.model, made.likelihood, num_data=7, prior=older.state.posterior)
    assert beginning(again).prior_precision == again.prior_precision


def test_who_says_nothing_begins_there_and_learns_sooner() -> None:
    warm = fit(learner(), (X, Y), progress=False)
    cold = fit(learner(), (X, Y), warm_start=False, progress=False)
    assert warm.history[0]["loss"] < cold.history[0]["loss"] - 0.5
    assert warm.history[-1]["loss"] < cold.history[-1]["loss"] + 0.1
    assert len(fit(learner(), (X, Y), epochs=2, progress=False).history) == 2


def test_a_folder_holds_both_parts_and_goes_on(tmp_path: Path) -> None:
    made = [learner() for _ in range(3)]
    whole = fit(made[0], (X, Y), epochs=4, warm_start=3, out=tmp_path / "a", progress=False)
    assert (tmp_path / "a" / "start" / "checkpoint.safetensors").exists()
    fit(made[1], (X, Y), epochs=2, warm_start=3, out=tmp_path / "b", progress=False)
    # More epochs of a constant rate would be equal; a falling rate depends on the length.
    again = fit(made[2], (X, Y), epochs=4, warm_start=3, out=tmp_path / "a", progress=False)
    for name, value in whole.state.posterior.mean.items():
        assert torch.equal(value, again.state.posterior.mean[name])


def test_another_beginning_in_the_folder_is_looked_for_again(tmp_path: Path) -> None:
    fit(learner(), (X, Y), epochs=1, warm_start=3, out=tmp_path, progress=False)
    for file in tmp_path.glob("*.*"):
        file.unlink()
    run = fit(learner(), (X, -Y), epochs=1, warm_start=3, out=tmp_path, progress=False)
    plain = fit(learner(), (X, -Y), epochs=1, warm_start=3, progress=False)
    for name, value in plain.state.posterior.mean.items():
        assert torch.equal(value, run.state.posterior.mean[name])


def test_many_nets_begin_as_each_alone() -> None:
    def build(x: torch.Tensor, y: torch.Tensor) -> br.Learner:
        net = nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 1)).double()
        return br.ogn(net, br.GaussianLikelihood(noise=0.1), num_data=len(y))

    runs = fit_many(build, [(X, Y), (X, -Y)], epochs=3, warm_start=True, progress=False)
    cold = fit_many(build, [(X, Y), (X, -Y)], epochs=3, progress=False)
    for run, other in zip(runs, cold, strict=True):
        assert run.history[0]["loss"] < 0.5 * other.history[0]["loss"]
    with pytest.raises(ValueError, match="2 sets, but 1 states"):
        fit_many(build, [(X, Y), (X, -Y)], epochs=3, states=[runs[0].state], progress=False)


def test_what_contradicts_itself_is_refused() -> None:
    made = learner()
    with pytest.raises(ValueError, match="leave state out"):
        fit(made, (X, Y), state=made.init(), warm_start=True, progress=False)
    with pytest.raises(ValueError, match="warm_start is a whole number"):
        fit(made, (X, Y), warm_start=0, progress=False)
