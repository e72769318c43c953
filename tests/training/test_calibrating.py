"""How sure probabilities are is learned from examples that are held out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule import CategoricalLikelihood, GaussianLikelihood, Learner, fit
from bayesrule.predicting.outputs import NOISE, SHARPNESS, SPREAD
from bayesrule.training import load_run
from bayesrule.training.calibrating import Calibration, calibrated, held_out

OPTIONS: dict[str, Any] = {"epochs": 1, "batch_size": 100, "progress": False}


def data(size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three classes with probabilities of softmax(x)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 3, generator=generator)
    return x, torch.multinomial(x.softmax(1), 1, generator=generator).squeeze(1)


def learner(sharpness: float = 1.0, size: int = 1000, method: str = "map") -> Learner:
    """A linear model that is as many times too sure of its probabilities."""
    model = nn.Linear(3, 3)
    with torch.no_grad():
        model.weight.copy_(sharpness * torch.eye(3))
        model.bias.zero_()
    return getattr(br, method)(model, CategoricalLikelihood(), num_data=size)


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 4.0])
def test_the_sharpness_that_was_lost_is_found(sharpness: float) -> None:
    made = learner(sharpness)
    state = calibrated(made, made.init(), data(20_000))
    assert float(state.likelihood[SHARPNESS]) == pytest.approx(1.0 / sharpness, rel=0.05)
    x, y = data(2000, seed=1)
    before = br.predict(made, made.init(), x).log_prob(y).mean()
    after = br.predict(made, state, x).log_prob(y).mean()
    assert after > before - 1e-3
    assert torch.equal(
        br.predict(made, state, x).mean.argmax(1), br.predict(made, made.init(), x).mean.argmax(1)
    )


def test_a_belief_that_is_too_wide_is_made_narrower() -> None:
    made = learner(method="vogn", size=10).replaced(temperature=1.0)
    x, y = data(5000)
    state = calibrated(made, made.init(), (x, y))
    assert float(state.likelihood[SPREAD]) < 0.7
    before, after = (br.predict(made, one, x).log_prob(y).mean() for one in (made.init(), state))
    assert after > before


def test_a_tenth_is_held_out_where_there_are_enough_classes() -> None:
    found = held_out(learner(), data(1500), seed=0)
    assert found is not None
    (x, y), (held, _) = found
    assert (len(x), len(y), len(held)) == (1350, 1350, 150)
    rows = {tuple(row) for row in torch.cat([x, held]).tolist()}
    assert rows == {tuple(row) for row in data(1500)[0].tolist()}
    assert held_out(learner(), data(999), seed=0) is None
    real = br.map(nn.Linear(3, 1), GaussianLikelihood(noise=0.1), num_data=2000)
    assert held_out(real, (torch.zeros(2000, 3), torch.zeros(2000, 1)), seed=0) is None


@pytest.mark.parametrize("factor", [0.2, 1.0, 5.0])
def test_a_noise_that_was_learned_wrong_is_mended(factor: float) -> None:
    made = br.map(nn.Linear(2, 1), GaussianLikelihood(), num_data=1000)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4000, 2, generator=generator)
    with torch.no_grad():
        y = made.model(x) + 0.3 * torch.randn(4000, 1, generator=generator)
    first = made.init()
    wrong = {"a": torch.tensor(500.0), "b": torch.tensor([500.0 * 0.09 / factor])}
    state = calibrated(made, replace(first, likelihood=wrong), (x, y))
    assert float(state.likelihood[NOISE]) == pytest.approx(factor, rel=0.1)
    assert br.predict(made, state, x).aleatoric.sqrt().mean() == pytest.approx(0.3, rel=0.05)
    assert Calibration(noise=2.0).applied(state).likelihood[NOISE] == 2.0


def test_what_was_learned_before_is_applied() -> None:
    x = torch.linspace(-1.0, 1.0, 40).reshape(-1, 1)
    runs = [
        fit(
            br.vogn(nn.Linear(1, 1, dtype=torch.float64), GaussianLikelihood(), num_data=40),
            (x.double(), x.double()),
            epochs=2,
            calibrate=given,
            progress=False,
        )
        for given in (False, Calibration(noise=4.0, spread=2.0))
    ]
    weights = runs[0].state.posterior.mean
    runs[1] = replace(runs[1], state=replace(runs[1].state, posterior=runs[0].state.posterior))
    plain, wide = (run.predict(x) for run in runs)
    assert weights.keys() == runs[1].state.posterior.mean.keys()
    torch.testing.assert_close(wide.epistemic, 4.0 * plain.epistemic)
    torch.testing.assert_close(wide.mean, plain.mean)


def test_a_calibrated_run_is_loaded_and_gone_on_with(tmp_path: Path) -> None:
    run = fit(learner(), data(1000), out=tmp_path, **OPTIONS)
    x = data(50, seed=2)[0]
    loaded = load_run(learner(), tmp_path)
    assert torch.equal(loaded.predict(x).mean, run.predict(x).mean)
    more = fit(learner(), data(1000, seed=3), state=run.state, **OPTIONS)
    assert more.state.step == 2 * run.state.step
    assert SHARPNESS in more.state.likelihood


def test_what_cannot_be_calibrated_is_refused() -> None:
    real = br.map(nn.Linear(3, 1), GaussianLikelihood(noise=0.1), num_data=10)
    with pytest.raises(ValueError, match=r"noise that is learned, got GaussianLikelihood"):
        fit(real, (torch.zeros(10, 3), torch.zeros(10, 1)), calibrate=True, **OPTIONS)
    with pytest.raises(ValueError, match="at least 1,000 of them"):
        fit(learner(size=20), data(20), calibrate=True, **OPTIONS)
    plain = fit(learner(), data(1000), calibrate=False, **OPTIONS)
    assert plain.state.likelihood == {}
