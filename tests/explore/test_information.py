"""Information gain against divergences between exact posteriors."""

from typing import Any

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.explore.information import gaussian_gain
from bayesrule.predicting.predict import linearised_outputs


@pytest.fixture(autouse=True)
def _double() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


class _Mixed(nn.Module):
    """A linear model whose outputs share weights, so that they vary together."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.mix = nn.Buffer(torch.tensor([[1.0, 0.5], [0.3, -1.0], [0.7, 0.7]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) @ self.mix.T


MODELS = {"one": lambda: nn.Linear(3, 1), "three": lambda: nn.Linear(3, 3), "mixed": _Mixed}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("own", [None, 0.4])
def test_it_is_the_divergence_of_exact_posteriors(kind: str, own: float | None) -> None:
    torch.manual_seed(0)
    model = MODELS[kind]()
    likelihood = br.GaussianLikelihood(noise=0.4)
    x = torch.randn(6, 3)
    y = torch.randn_like(model(x)).detach()
    before = br.ridge(model, likelihood, num_data=5, prior_precision=0.5)
    old, _ = before.step(before.init(), (x[:5], y[:5]))
    target = y[5:] if own is None else br.uncertain(y[5:], own)
    after = br.ridge(model, likelihood, num_data=1, prior=old.posterior)
    new, _ = after.step(after.init(), (x[5:], target))
    found = br.information_gain(before, old, x[5:], target)
    expected = new.posterior.kl(after.prior)
    torch.testing.assert_close(found[0], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["one", "mixed"])
def test_the_expected_gain_is_the_mean_over_targets(kind: str) -> None:
    torch.manual_seed(1)
    model = MODELS[kind]()
    learner = br.ridge(model, br.GaussianLikelihood(noise=0.4), num_data=5, prior_precision=0.5)
    state, x = learner.init(), torch.randn(1, 3)
    n = 200_000
    mean, covariance = linearised_outputs(learner, state, x)
    root = torch.linalg.cholesky(covariance[0] + 0.16 * torch.eye(mean.shape[1]))
    y = mean + torch.randn(n, mean.shape[1]) @ root.T
    gains = gaussian_gain(covariance.expand(n, -1, -1), torch.full_like(y, 0.16), y - mean)
    expected = br.information_gain(learner, state, x)[0]
    assert float(gains.mean()) == pytest.approx(
        float(expected), abs=5 * float(gains.std()) / n**0.5
    )


@pytest.mark.parametrize(
    "how", [br.Linearised(), br.Moments(), br.Draws(4000)], ids=["linear", "moments", "draws"]
)
def test_ways_to_predict_agree_on_a_linear_model(how: Any) -> None:
    torch.manual_seed(2)
    learner = br.vogn(nn.Linear(3, 2), br.GaussianLikelihood(noise=0.4), num_data=20)
    state, _ = learner.step(learner.init(), (torch.randn(20, 3), torch.randn(20, 2)))
    x, y = torch.randn(4, 3), torch.randn(4, 2)
    for target in (y, None):
        exact = br.information_gain(learner, state, x, target, br.Linearised())
        found = br.information_gain(learner, state, x, target, how)
        torch.testing.assert_close(
            found, exact, rtol=0.08 if how == br.Draws(4000) else 1e-9, atol=0
        )


@pytest.mark.parametrize("method", [br.vogn, br.laplace, br.noisy_kfac, br.mean_field])
def test_expected_gain_of_classes_is_the_mean_over_classes(method: Any) -> None:
    torch.manual_seed(3)
    learner = method(nn.Linear(3, 3), br.CategoricalLikelihood(), num_data=20)
    state, _ = learner.step(learner.init(), (torch.randn(20, 3), torch.arange(20) % 3))
    state = learner.finish(state, [(torch.randn(20, 3), torch.arange(20) % 3)])
    how, x = br.Draws(500), torch.randn(4, 3)
    probs = br.predict(learner, state, x, how).probs
    each = [br.information_gain(learner, state, x, torch.full((4,), k), how) for k in range(3)]
    mean = (probs * torch.stack(each, 1)).sum(1)
    found = br.information_gain(learner, state, x, None, how)
    torch.testing.assert_close(found, mean, rtol=1e-9, atol=1e-12)
    own = br.information_gain(learner, state, x)
    assert own.shape == (4,)
    assert (own >= 0).all()


def test_counts_are_the_mean_over_drawn_counts() -> None:
    torch.manual_seed(4)
    learner = br.vogn(nn.Linear(3, 1), br.PoissonLikelihood(), num_data=20)
    state = learner.init()
    x, how = torch.randn(2, 3), br.Draws(300)
    p = br.predict(learner, state, x, how)
    counts = torch.arange(60.0)
    gains = torch.stack(
        [br.information_gain(learner, state, x, c.expand(2, 1), how) for c in counts]
    )
    masses = torch.stack([p.log_prob(c.expand(2, 1)).exp() for c in counts])
    found = br.information_gain(learner, state, x, None, how)
    torch.testing.assert_close(found, (gains * masses).sum(0), rtol=0.3, atol=0.03)


def test_a_mean_alone_is_refused() -> None:
    learner = br.map(nn.Linear(3, 1), br.GaussianLikelihood(noise=0.4), num_data=20)
    with pytest.raises(ValueError, match="mean of its weights"):
        br.information_gain(learner, learner.init(), torch.zeros(1, 3))
