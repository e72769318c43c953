"""The signal-to-noise ratio of gradients against brute force."""

import math

import numpy as np
import pytest
import torch
from exact import close, randn
from torch import nn

import bayesrule as br
from bayesrule.predicting import SignalToNoise
from bayesrule.types import Params, State


def _state(scales: Params) -> State:
    posterior = br.posteriors.MeanField({"w": torch.zeros(2)}, {"w": torch.zeros(2)})
    return State(posterior, {"gradients": {"scales": scales}}, {}, {}, 0, 0)


def _gradients(steps: int) -> list[Params]:
    return [
        {"w.u": randn(3, 2, seed=i) + 0.5, "w.v": randn(4, 2, seed=100 + i), "b": randn(3, seed=i)}
        for i in range(steps)
    ]


def _by_hand(given: list[Params], name: str) -> np.ndarray:
    """One parameter at a time, as in the paper's footnote."""
    table = np.stack([g[name].numpy().reshape(-1) for g in given])
    return np.array([np.mean(g**2) / (np.mean(g**2) - np.mean(g) ** 2) for g in table.T])


@pytest.mark.parametrize(("window", "steps"), [(10, 25), (10, 10), (10, 4), (3, 7)])
def test_it_is_the_papers_ratio_over_the_last_steps(window: int, steps: int) -> None:
    measure, given = SignalToNoise(window), _gradients(steps)
    for gradient in given:
        measure(_state(gradient))
    last = given[-window:]
    assert measure.steps == len(last)
    by_hand = {name: _by_hand(last, name) for name in given[0]}
    for name, ratio in measure.ratios().items():
        close(ratio.reshape(-1), torch.from_numpy(by_hand[name]))
        assert ratio.shape == given[0][name].shape
    assert measure.by_name() == pytest.approx({k: v.mean() for k, v in by_hand.items()})
    assert measure.ratio() == pytest.approx(np.concatenate(list(by_hand.values())).mean())
    tied = np.concatenate([by_hand["w.u"], by_hand["w.v"]])
    assert measure.ratio("w.*") == pytest.approx(tied.mean())


def test_parameters_that_did_not_vary_are_left_out() -> None:
    measure = SignalToNoise(3)
    for i in range(3):
        moving = torch.tensor([float(i), 0.1, 0.0])
        measure(_state({"w": moving, "still": torch.full((2,), 0.3)}))
    found = measure.ratios()["w"]
    assert found.isnan().tolist() == [False, True, True]
    wanted = (1.0 + 4.0) / 3.0 / (2.0 / 3.0)
    assert measure.by_name()["w"] == pytest.approx(wanted)
    assert measure.ratio() == pytest.approx(wanted)
    assert math.isnan(measure.by_name()["still"])


def test_memory_that_is_used_again_does_not_matter() -> None:
    measure, given, shared = SignalToNoise(), _gradients(5), torch.zeros(3, dtype=torch.float64)
    for gradient in given:
        measure(_state({"b": shared.copy_(gradient["b"])}))
    close(measure.ratios()["b"], torch.from_numpy(_by_hand(given, "b")))


def test_only_the_named_gradients_are_kept() -> None:
    measure = SignalToNoise(names="w*")
    for gradient in _gradients(3):
        measure(_state(gradient))
    assert list(measure.by_name()) == ["w.u", "w.v"]
    with pytest.raises(ValueError, match=r"No scales are named 'b'\. There are: w\.u, w\.v"):
        measure.ratio("b")
    with pytest.raises(ValueError, match=r"No scales are named 'w\*'\. There are: b"):
        measure(_state({"b": torch.zeros(2)}))


def test_it_says_what_is_missing() -> None:
    with pytest.raises(ValueError, match="at least 2, got 1"):
        SignalToNoise(1)
    measure = SignalToNoise()
    with pytest.raises(ValueError, match="needs at least 2 steps, got 0"):
        measure.ratio()
    learner = br.mean_field(nn.Linear(2, 1), br.GaussianLikelihood(noise=1.0), num_data=4)
    with pytest.raises(ValueError, match=r"rule remembers: optimiser.*Elbo\(keep_gradients=True"):
        measure(learner.init())


def _learner(family: br.posteriors.Family) -> br.Learner:
    torch.manual_seed(0)
    return br.Learner(
        nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3)),
        br.CategoricalLikelihood(),
        num_data=60,
        posterior=family,
        expectation=br.Draws(1),
        curvature=br.Price(),
        rule=br.Elbo(1e-3, keep_gradients=True),
        temperature=1.0,
    )


def test_tying_raises_the_ratio_of_a_learner() -> None:
    """Swiatkowski et al. (2020), figure 6 (top right), in small."""
    x = torch.randn(60, 6, generator=torch.Generator().manual_seed(1))
    found = {}
    for family in (br.MeanFieldFamily(0.3), br.KTiedFamily(2, 0.3)):
        learner, measure = _learner(family), SignalToNoise()
        state = learner.init(0)
        for _ in range(12):
            state, info = learner.step(state, (x, x[:, :3].argmax(1)), donate=True)
            measure(state, info)
        assert measure.steps == 10
        found[type(family)] = measure.ratio("0.weight*")
    assert found[br.KTiedFamily] > 2.0 * found[br.MeanFieldFamily]
