"""Step by step against other people's optimisers on the same batches."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from unittest import mock

import ivon
import pytest
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

import bayesrule as br
from bayesrule import CategoricalLikelihood, Draws, Learner
from bayesrule.posteriors import Gaussian, Point, Posterior
from bayesrule.posteriors.points import GaussianDraw
from bayesrule.types import State

NUM_DATA = 60
Batches = list[tuple[Tensor, Tensor]]


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def _batches(steps: int) -> Batches:
    return [(torch.randn(10, 4), torch.randint(3, (10,))) for _ in range(steps)]


def _assert_same(state: State, model: nn.Module, tolerance: float) -> None:
    for name, value in model.named_parameters():
        got = state.posterior.mean[name]
        torch.testing.assert_close(got, value.detach(), rtol=tolerance, atol=tolerance)


Optimiser = Callable[..., torch.optim.Optimizer]
PAIRS: dict[str, tuple[Callable[..., Learner], dict[str, float], Optimiser, dict[str, object]]] = {
    "sgd": (br.sgd, {"momentum": 0.0}, torch.optim.SGD, {}),
    "sgd, momentum": (br.sgd, {"momentum": 0.8}, torch.optim.SGD, {"momentum": 0.8}),
    "rmsprop": (br.rmsprop, {"rate": 0.05}, torch.optim.RMSprop, {"alpha": 0.95}),
    "adam": (br.adam, {}, torch.optim.Adam, {}),
    "adam, other averages": (
        br.adam,
        {"momentum": 0.5, "rate": 0.1},
        torch.optim.Adam,
        {"betas": (0.5, 0.9)},
    ),
    "map without a prior": (br.map, {"prior_precision": 0.0}, torch.optim.Adam, {}),
}


@pytest.mark.parametrize("temperature", [1.0, 0.1])
@pytest.mark.parametrize(("method", "ours", "optimiser", "theirs"), PAIRS.values(), ids=PAIRS)
def test_plain_optimisers_equal_those_of_torch(
    method: Callable[..., Learner],
    ours: dict[str, float],
    optimiser: Optimiser,
    theirs: dict[str, object],
    temperature: float,
) -> None:
    model = _model()
    reference = deepcopy(model)
    learner = method(
        model,
        CategoricalLikelihood(),
        num_data=NUM_DATA,
        learning_rate=0.02,
        temperature=temperature,
        **ours,
    )
    stepper = optimiser(reference.parameters(), lr=0.02, **theirs)
    state = learner.init()
    for x, y in _batches(25):
        state, info = learner.step(state, (x, y))
        stepper.zero_grad()
        loss = functional.cross_entropy(reference(x), y)
        loss.backward()
        stepper.step()
        _assert_same(state, reference, 1e-12)
        torch.testing.assert_close(info.loss, NUM_DATA * loss.detach(), rtol=1e-12, atol=0.0)


def test_sgd_with_a_prior_is_weight_decay() -> None:
    model = _model()
    reference = deepcopy(model)
    learner = br.sgd(
        model, CategoricalLikelihood(), num_data=NUM_DATA, learning_rate=0.1, prior_precision=6.0
    )
    # The fixed precision is N + δ, so that the step is (N ĝ + δ m) / (N + δ).
    rate = 0.1 * NUM_DATA / (NUM_DATA + 6.0)
    stepper = torch.optim.SGD(
        reference.parameters(), lr=rate, momentum=0.9, weight_decay=6.0 / NUM_DATA
    )
    state = learner.init()
    for x, y in _batches(10):
        state, _ = learner.step(state, (x, y))
        stepper.zero_grad()
        functional.cross_entropy(reference(x), y).backward()
        stepper.step()
        _assert_same(state, reference, 1e-12)


@dataclass(frozen=True)
class _Watched(Draws):
    """Draws that keep their white noise, for the other implementation to use."""

    kept: list[Tensor] = field(default_factory=list)

    def points(
        self, posterior: Posterior, generator: Generator, *, tracked: bool = True
    ) -> Iterator[Point]:
        assert isinstance(posterior, Gaussian)
        root = {k: v.sqrt() for k, v in posterior.precision.diagonal().items()}
        for point in super().points(posterior, generator):
            assert isinstance(point, GaussianDraw)
            white = [(point.offset[k] * root[k]).flatten() for k in posterior.mean]
            self.kept.append(torch.cat(white))
            yield point


def _ivon_step(optimiser: ivon.IVON, model: nn.Module, batch: tuple, noise: list[Tensor]) -> None:
    x, y = batch
    for white in noise:
        with (
            mock.patch.object(torch, "randn", lambda *_, white=white, **__: white),
            optimiser.sampled_params(train=True),
        ):
            optimiser.zero_grad()
            functional.cross_entropy(model(x), y).backward()
    optimiser.step()


@pytest.mark.parametrize(
    ("draws", "temperature", "clip"),
    [(1, 1.0, float("inf")), (3, 0.5, float("inf")), (1, 1.0, 0.05)],
)
def test_ivon_equals_the_package_of_its_authors(
    draws: int, temperature: float, clip: float
) -> None:
    prior, first, lr, decay, rate = 0.7, 0.2, 0.4, 0.85, 0.02
    ess = NUM_DATA / temperature
    model = _model()
    reference = deepcopy(model)
    learner = br.ivon(
        model,
        CategoricalLikelihood(),
        num_data=NUM_DATA,
        prior_precision=prior,
        temperature=temperature,
        learning_rate=lr * (first + prior / ess),
        momentum=decay,
        rate=rate,
        initial_curvature=first,
        draws=draws,
        clip=clip,
        kl_clip=torch.inf,
    )
    watched = _Watched(draws)
    learner.expectation = watched
    optimiser = ivon.IVON(
        reference.parameters(),
        lr=lr,
        ess=ess,
        hess_init=first,
        beta1=decay,
        beta2=1.0 - rate,
        weight_decay=prior / ess,
        mc_samples=draws,
        clip_radius=clip,
    )
    state = learner.init()
    for batch in _batches(25):
        watched.kept.clear()
        state, _ = learner.step(state, batch)
        _ivon_step(optimiser, reference, batch, watched.kept)
        _assert_same(state, reference, 1e-11)
        assert isinstance(state.posterior, Gaussian)
        diagonal = state.posterior.precision.diagonal()
        got = torch.cat([diagonal[name].flatten() for name in state.posterior.mean])
        want = ess * (optimiser.param_groups[0]["hess"] + prior / ess)
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
