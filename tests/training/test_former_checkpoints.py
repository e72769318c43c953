"""Checkpoints of version 0.1 of every method load, and go on as they did then."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule import methods
from bayesrule.learner import Learner
from bayesrule.rules import Conditioning
from bayesrule.schedules import falling
from bayesrule.training import checkpoint
from bayesrule.types import Info, State

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "checkpoints"
NAMES = sorted(file.stem for file in FOLDER.glob("*.safetensors"))
LINEAR = {"newton", "ridge"}
# What the methods did where nobody said, when the checkpoints were written.
ELBO = {"learning_rate": 0.003, "scale_multiplier": 10.0}
ONLINE = {"initial_curvature": 2.0, "kl_clip": math.inf, "rate": 1e-3}
NOISY = {"initial_curvature": 1.0, "rate": 0.05}
FORMER: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("mean_field", "k_tied", "variational_laplace"), ELBO),
    **dict.fromkeys(("vogn", "ogn", "ivon"), ONLINE),
    **dict.fromkeys(("noisy_kfac", "noisy_ekfac", "noisy_tridiagonal", "noisy_full"), NOISY),
    "noisy_adam": {"initial_curvature": 1.0},
    "map": {"learning_rate": falling(3e-3)},
    "laplace": {"last_layer": True, "learning_rate": falling(3e-3)},
    "tagi": {"rule": Conditioning(second_look=0.0)},
}
X = torch.linspace(-1.0, 1.0, 24).reshape(12, 2)
BATCH = X, X.sum(1, keepdim=True).sin()


def learner(name: str) -> Learner:
    """The learner that wrote a checkpoint."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        deep = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
        model = nn.Linear(2, 1) if name in LINEAR else deep
    options = {"temperature": 1.0, **FORMER.get(name, {})}
    if name in LINEAR:
        options |= {"rate": 0.5}
    if name in {"noisy_kfac", "noisy_ekfac", "noisy_tridiagonal"}:
        options |= {"stats_every": 2, "inverse_every": 3}
    build = methods.METHODS[name]
    # tagi starts from its gain: it never had a use for the prior's precision.
    prior = {} if name == "tagi" else {"prior_precision": 0.7}
    return build(model, br.GaussianLikelihood(), num_data=24, **prior, **options)


def former_step(made: Learner, state: State) -> tuple[State, Info]:
    """A step whose KL clip, if there is one, does not grow with the loss of a datum."""
    new, info = made.step(state, BATCH)
    clip = getattr(made.rule, "kl_clip", math.inf)
    if not math.isfinite(clip):
        return new, info
    fixed = clip / max(1.0, float(info.loss) / made.num_data)
    rule = dataclasses.replace(cast(br.Natural, made.rule), kl_clip=fixed)
    return made.with_rule(rule).step(state, BATCH)


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
        state, info = former_step(made, state)
    for weight, tensor in state.posterior.mean.items():
        wanted = torch.tensor(facts["later"][weight]).view_as(tensor)
        torch.testing.assert_close(tensor, wanted, rtol=2e-4, atol=2e-5)
    assert float(info.loss) == pytest.approx(facts["loss"], rel=1e-4)
