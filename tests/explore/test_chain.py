"""Networks in a row learn as one network of all parts."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.explore import step_chain


@pytest.fixture(autouse=True)
def _double() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


def _parts() -> list[nn.Module]:
    first = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4))
    return [first, nn.Sequential(nn.Tanh(), nn.Linear(4, 5), nn.ReLU()), nn.Linear(5, 2)]


@pytest.mark.parametrize("noise", [0.3, None])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_a_chain_is_one_network_of_its_parts(noise: float | None, temperature: float) -> None:
    parts = _parts()
    options: dict[str, Any] = {"num_data": 40, "temperature": temperature}
    whole = br.tagi(
        nn.Sequential(*copy.deepcopy(parts)), br.GaussianLikelihood(noise=noise), **options
    )
    noises = [0.1, 0.1, noise]
    chain = [
        br.tagi(part, br.GaussianLikelihood(noise=n), **options)
        for part, n in zip(parts, noises, strict=True)
    ]
    state, states = whole.init(), [one.init() for one in chain]
    for _ in range(4):
        batch = torch.randn(8, 3), torch.randn(8, 2)
        state, expected = whole.step(state, batch)
        states, info = step_chain(chain, states, batch)
        torch.testing.assert_close(info.loss, expected.loss, rtol=1e-10, atol=0)
    for k, one in enumerate(states):
        for found, wanted in (
            (one.posterior.mean, state.posterior.mean),
            (one.posterior.variance(), state.posterior.variance()),
        ):
            for name, value in found.items():
                torch.testing.assert_close(value, wanted[f"{k}.{name}"], rtol=1e-10, atol=1e-12)
    for name, value in state.likelihood.items():
        torch.testing.assert_close(states[-1].likelihood[name], value, rtol=1e-10, atol=0)


def test_a_part_that_does_not_learn_stays() -> None:
    chain = [br.tagi(p, br.GaussianLikelihood(noise=0.1), num_data=8) for p in _parts()]
    states = [one.init() for one in chain]
    moved, _ = step_chain(
        chain, states, (torch.randn(8, 3), torch.randn(8, 2)), learn=[True, False, False]
    )
    assert moved[1] is states[1]
    assert moved[2] is states[2]
    assert moved[0].step == 1
    before, after = (one[0].posterior.mean["0.weight"] for one in (states, moved))
    assert not torch.equal(before, after)


def test_other_methods_are_refused() -> None:
    learner = br.vogn(nn.Linear(3, 2), br.GaussianLikelihood(noise=0.1), num_data=8)
    with pytest.raises(TypeError, match="tagi"):
        step_chain([learner], [learner.init()], (torch.randn(8, 3), torch.randn(8, 2)))


def test_noise_without_targets_is_refused() -> None:
    chain = [br.tagi(p, br.GaussianLikelihood(), num_data=8) for p in _parts()]
    with pytest.raises(ValueError, match="Learner 0 is followed by others"):
        step_chain(chain, [c.init() for c in chain], (torch.randn(8, 3), torch.randn(8, 2)))
