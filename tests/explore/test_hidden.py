"""Hidden units inferred from targets."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br

NOISE = 0.5


@pytest.fixture(autouse=True)
def _exact(double_precision: None) -> None:
    """Float64 in every test."""


def net() -> tuple[br.Learner, br.types.State]:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    learner = br.tagi(model, br.GaussianLikelihood(noise=NOISE), num_data=1)
    return learner, learner.init()


def test_units_are_conditioned_layer_by_layer() -> None:
    learner, state = net()
    x, y = torch.randn(5, 2), torch.randn(5, 1)
    found = br.explore.infer_hidden(learner, state, x, y)
    assert list(found) == ["0", "1", "2"]
    out, hidden = found["2"], found["1"]
    total = out.prior_variance + NOISE**2
    delta, eta = (y - out.prior_mean) / total, -1.0 / total
    torch.testing.assert_close(out.mean, out.prior_mean + out.prior_variance * delta)
    torch.testing.assert_close(out.variance, out.prior_variance + out.prior_variance**2 * eta)
    w, s = state.posterior.mean["2.weight"], hidden.prior_variance
    torch.testing.assert_close(hidden.mean, hidden.prior_mean + s * w * delta)
    torch.testing.assert_close(hidden.variance, s + s.square() * w.square() * eta)
    prediction = br.predict(learner, state, x)
    torch.testing.assert_close(out.prior_mean, prediction.mean)
    torch.testing.assert_close(out.prior_variance, prediction.epistemic)


def test_names_choose_and_uncertain_inputs_widen() -> None:
    learner, state = net()
    x, y = torch.randn(5, 2), torch.randn(5, 1)
    plain = br.explore.infer_hidden(learner, state, x, y, ["0"])
    wide = br.explore.infer_hidden(learner, state, br.moments.uncertain(x, 0.5), y, "0")
    assert list(plain) == list(wide) == ["0"]
    assert bool((wide["0"].prior_variance > plain["0"].prior_variance).all())


def test_what_the_outputs_do_not_depend_on_stays() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(2, 1), nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Tensor:
            self.idle(x)
            return self.used(x)

    learner = br.tagi(Idle(), br.GaussianLikelihood(noise=NOISE), num_data=1)
    found = br.explore.infer_hidden(learner, learner.init(), torch.randn(5, 2), torch.randn(5, 1))
    torch.testing.assert_close(found["idle"].mean, found["idle"].prior_mean)
    torch.testing.assert_close(found["idle"].variance, found["idle"].prior_variance)
    assert bool((found["used"].variance < found["used"].prior_variance).all())


def test_the_module_is_left_without_hooks() -> None:
    learner, state = net()
    br.explore.infer_hidden(learner, state, torch.randn(5, 2), torch.randn(5, 1))
    with pytest.raises(ValueError, match="needs targets"):
        br.explore.infer_hidden(learner, state, torch.randn(5, 2), torch.randn(5, 3))
    assert not any(module._forward_hooks for module in learner.model.modules())


def test_submodules_that_cannot_be_read_are_named() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x))

    learner = br.tagi(Twice(), br.GaussianLikelihood(noise=NOISE), num_data=1)
    state, x, y = learner.init(), torch.randn(5, 2), torch.randn(5, 2)
    assert br.explore.infer_hidden(learner, state, x, y) == {}
    with pytest.raises(ValueError, match=r"'layer' \(Linear\) returned GaussianTensor, Gauss"):
        br.explore.infer_hidden(learner, state, x, y, ["layer"])
    with pytest.raises(ValueError, match=r"'unused' \(Linear\) returned nothing"):
        br.explore.infer_hidden(learner, state, x, y, ["unused"])
    with pytest.raises(ValueError, match="no submodule 'lair'; it has layer, unused"):
        br.explore.infer_hidden(learner, state, x, y, ["lair"])
