"""Checkpoints of version 0.1 of every method load, and go on as they did then."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule import methods
from bayesrule.learner import Learner
from bayesrule.training import checkpoint

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "checkpoints"
NAMES = sorted(file.stem for file in FOLDER.glob("*.safetensors"))
LINEAR = {"newton", "ridge"}
FORMER: dict[str, dict[str, object]] = {
    "laplace": {"last_layer": True},
    "noisy_adam": {"rate": 1e-3},
    "tagi": {"rule": br.rules.Conditioning(second_look=0.0)},
}
X = torch.linspace(-1.0, 1.0, 24).reshape(12, 2)
BATCH = X, X.sum(1, keepdim=True).sin()


def learner(name: str) -> Learner:
    """The learner that wrote a checkpoint."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        deep = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
        model = nn.Linear(2, 1) if name in LINEAR else deep
    options: dict[str, object] = {"rate": 0.5} if name in LINEAR else {}
    if name in {"noisy_kfac", "noisy_ekfac", "noisy_tridiagonal"}:
        options = {"stats_every": 2, "inverse_every": 3}
    build = methods.METHODS[name]
    # What were the defaults then.
    known = methods.record(name).options
    former: dict[str, object] = {"temperature": 1.0}
    if name.startswith("noisy_"):
        former |= {"rate": 0.05, "initial_curvature": 1.0}
    if name in {"vogn", "ogn", "ivon"}:
        former |= {"kl_clip": math.inf, "initial_curvature": 2.0, "rate": 1e-3}
    if name in {"mean_field", "k_tied", "variational_laplace"}:
        former |= {"learning_rate": 3e-3, "scale_multiplier": 10.0}
    former |= FORMER.get(name, {})
    options = {**{k: v for k, v in former.items() if k in known}, **options}
    # tagi starts from its gain: it never had a use for the prior's precision.
    prior = {} if name == "tagi" else {"prior_precision": 0.7}
    return build(model, br.GaussianLikelihood(), num_data=24, **prior, **options)


def test_there_is_one_of_each_method() -> None:
    assert len(NAMES) == 19
    assert set(NAMES) <= set(methods.METHODS)


@pytest.mark.filterwarnings("ignore:.*piecewise linear")
@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_loads_and_goes_on_as_it_did(name: str) -> None:
    made = learner(name)
    file = FOLDER / f"{name}.safetensors"
    state, facts = checkpoint.load(file, made.init(), checkpoint.other_form(made))
    assert (state.step, state.seed) == (4, 3)
    for key, value in (("mean", state.posterior.mean), ("variance", state.posterior.variance())):
        for weight, tensor in value.items():
            wanted = torch.tensor(facts[key][weight]).view_as(tensor)
            torch.testing.assert_close(tensor, wanted, rtol=1e-5, atol=1e-6)
    for _ in range(3):
        state, info = made.step(state, BATCH)
    for weight, tensor in state.posterior.mean.items():
        wanted = torch.tensor(facts["later"][weight]).view_as(tensor)
        torch.testing.assert_close(tensor, wanted, rtol=2e-4, atol=2e-5)
    assert float(info.loss) == pytest.approx(facts["loss"], rel=1e-4)
