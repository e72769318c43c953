"""Dropout as a belief against sums over all patterns of dropped units."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from contracts.family import PARAMS, FamilyContract
from exact import DTYPE, close, generator, randn, z_close
from torch import Tensor, nn
from torch.nn import functional

import bayesrule as br
from bayesrule.curvature import GGN, NoCurvature, PerExample, Price
from bayesrule.expectations import Masks
from bayesrule.matrices import DiagonalMatrix
from bayesrule.posteriors import GaussianPrior, SpikeSlab, SpikeSlabFamily
from bayesrule.posteriors.points import Pull
from bayesrule.rules import Natural
from bayesrule.types import Derivatives, Local, Params

KEEP = 0.7


class TestSpikeSlab(FamilyContract):
    """Of two columns each may be dropped; the bias may not."""

    family = SpikeSlabFamily(KEEP, curvature=0.4)
    variance_follows_mean = True

    def posterior(self, seed: int = 0) -> SpikeSlab:
        slab = {k: v + randn(*v.shape, seed=seed + 1) for k, v in PARAMS.items()}
        precision = {k: randn(*v.shape, seed=seed + 2).exp() for k, v in PARAMS.items()}
        return SpikeSlab(slab, DiagonalMatrix(precision), KEEP, ("b",))

    def log_prob(self, q: Any, params: Params) -> Tensor:
        return q.log_prob(params)

    def log_prior(self, params: Params, precision: float) -> Tensor:
        """The prior has the same spikes."""
        zeros = {k: torch.zeros_like(v) for k, v in PARAMS.items()}
        spread = DiagonalMatrix({k: torch.full_like(v, precision) for k, v in PARAMS.items()})
        return SpikeSlab(zeros, spread, KEEP, ("b",)).log_prob(params)

    def test_probabilities_sum_to_one(self) -> None:
        """Over both values of each unit, and over the weights of those that are kept."""
        q = SpikeSlab(
            {"w": torch.tensor([[0.3]], dtype=DTYPE)},
            DiagonalMatrix({"w": torch.tensor([[2.0]], dtype=DTYPE)}),
            KEEP,
        )
        line = torch.linspace(-8.0, 8.0, 4_000, dtype=DTYPE)
        density = torch.stack([q.log_prob({"w": x.reshape(1, 1)}) for x in line]).exp()
        spike = q.log_prob({"w": torch.zeros(1, 1, dtype=DTYPE)}).exp()
        close(density.sum() * (line[1] - line[0]), KEEP, 1e-6)
        close(spike, 1.0 - KEEP)

    def test_kernels_are_dropped_by_channel(self) -> None:
        q = self.family.init({"k": torch.ones(3, 40, 2, 2)}, weight=1.0, prior=1.0)
        mask = q.masks(generator(0))["k"]
        assert mask.shape == (1, 40, 1, 1)
        drawn = q.sample(generator(0))["k"]
        assert torch.equal(drawn.abs().sum((0, 2, 3)) > 0, mask.flatten() > 0)


# A linear model: everything by sums over the 2^5 patterns.

X, NOISE, DELTA = randn(12, 5, seed=1), 0.8, 0.7
Y = X @ randn(5, 1, seed=2) + NOISE * randn(12, 1, seed=3)
PATTERNS = [torch.tensor(one, dtype=DTYPE) for one in itertools.product((0.0, 1.0), repeat=5)]


def belief(seed: int = 0) -> SpikeSlab:
    precision = DiagonalMatrix({"weight": randn(1, 5, seed=seed + 4).exp()})
    return SpikeSlab({"weight": randn(1, 5, seed=seed + 5)}, precision, KEEP)


def chance(pattern: Tensor) -> float:
    kept = float(pattern.sum())
    return KEEP**kept * (1.0 - KEEP) ** (5.0 - kept)


def bound(slab: Tensor, precision: Tensor) -> Tensor:
    """`E_q[loss] + KL` by a sum over the patterns; Gaussian expectations in closed form."""
    total = torch.zeros((), dtype=DTYPE)
    for pattern in PATTERNS:
        fit = (Y - X @ (pattern * slab).mT).square().sum()
        spread = (X.square() @ (pattern / precision).mT).sum()
        total = total + chance(pattern) * 0.5 / NOISE**2 * (fit + spread)
    terms = DELTA / precision + DELTA * slab.square() - 1.0 + precision.log() - math.log(DELTA)
    return total + 0.5 * KEEP * terms.sum()


def enumerated(q: SpikeSlab) -> Local:
    """Gradient and curvature at the masked means of all patterns, weighted by their chances."""
    gradient, bends = torch.zeros_like(q.slab["weight"]), torch.zeros_like(q.slab["weight"])
    for pattern in PATTERNS:
        masks = {"weight": pattern.unsqueeze(0)}
        point = q._drawn(masks, None)
        slope = -((Y - X @ point.coordinates["weight"].mT).mT @ X) / NOISE**2
        bend = (X.square().sum(0) / NOISE**2).unsqueeze(0)
        local = Local(
            torch.zeros((), dtype=DTYPE), {"weight": slope}, DiagonalMatrix({"weight": bend}), {}
        )
        found = point.pulled(local, Pull(1.0, 1.0, GaussianPrior(DELTA)))
        assert found.curvature is not None
        gradient = gradient + chance(pattern) * found.gradient["weight"]
        bends = bends + chance(pattern) * found.curvature.diagonal()["weight"]
    curvature = DiagonalMatrix({"weight": bends})
    return Local(torch.zeros((), dtype=DTYPE), {"weight": gradient}, curvature, {})


def test_steps_are_natural_gradients_of_the_exact_bound() -> None:
    """`∇_μ1 = (∇_m)/π` and `S ← S + 2ρ/π ∇_{S⁻¹}` of the bound: eqs 82 and 83, by autograd."""
    q, rate = belief(), 0.3
    slab = q.slab["weight"].clone().requires_grad_()
    variance = q.precision.values["weight"].reciprocal().requires_grad_()
    slope, bend = torch.autograd.grad(bound(slab, 1.0 / variance), (slab, variance))
    precision = q.precision.values["weight"] + rate * 2.0 / KEEP * bend
    wanted = slab.detach() - rate / precision * slope / KEEP
    local, prior, family = enumerated(q), GaussianPrior(DELTA), SpikeSlabFamily(KEEP)
    rule = Natural(rate, rate)
    start = DiagonalMatrix({"weight": q.precision.values["weight"] - DELTA})
    derivatives = Derivatives(local.loss, local.gradient, local.curvature, 12.0)
    new, _ = rule.step(q, derivatives, prior, {"curvature": start}, 0)
    close(new.precision.values["weight"], precision)  # type: ignore[attr-defined]
    close(new.slab["weight"], wanted)  # type: ignore[attr-defined]
    assert family.prior(None, {}) == GaussianPrior(1.0)


def optimum() -> tuple[Tensor, Tensor]:
    """`s = A_jj + δ`, and m of `(diag A + π off A + δ) m = Xᵀy/σ²`, A = XᵀX/σ²."""
    a = X.mT @ X / NOISE**2
    sharp = a.diagonal().diag()
    mixed = sharp + KEEP * (a - sharp) + DELTA * torch.eye(5, dtype=DTYPE)
    slab = torch.linalg.solve(mixed, X.mT @ Y / NOISE**2).mT
    return slab, (a.diagonal() + DELTA).unsqueeze(0)


def test_the_closed_form_is_the_optimum_of_the_bound() -> None:
    slab, precision = (one.clone().requires_grad_() for one in optimum())
    for slope in torch.autograd.grad(bound(slab, precision), (slab, precision)):
        close(slope, torch.zeros_like(slope), 1e-9)


def learner_of(curvature: Any, rule: Natural, expectation: Any, **options: Any) -> br.Learner:
    return br.Learner(
        nn.Linear(5, 1, bias=False, dtype=DTYPE),
        br.GaussianLikelihood(noise=NOISE),
        num_data=12,
        posterior=SpikeSlabFamily(KEEP),
        expectation=expectation,
        curvature=curvature,
        rule=rule,
        prior_precision=DELTA,
        temperature=1.0,
        **options,
    )


@pytest.mark.parametrize(
    ("curvature", "retract", "expectation"),
    [(GGN(), False, Masks(4)), (GGN(), False, br.Draws(4)), (Price(), True, br.Draws(4))],
    ids=repr,
)
def test_newton_steps_find_the_optimum(curvature: Any, retract: bool, expectation: Any) -> None:
    falls = br.schedules.cosine(0.1, 1500, final=0.002)
    learner = learner_of(curvature, Natural(falls, falls, retract=retract), expectation)
    state = learner.init(seed=1)
    for _ in range(1500):
        state, _ = learner.step(state, (X, Y), donate=True)
    slab, precision = optimum()
    loose = 1.0 if retract else 0.1
    q: Any = state.posterior
    close(q.slab["weight"], slab, 0.1)
    close(q.precision.values["weight"] / precision, torch.ones_like(precision), loose * 0.5)


class Net(nn.Module):
    """A hidden layer of four units, dropped by torch's own module."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 4, dtype=DTYPE), nn.Linear(4, 1, dtype=DTYPE)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(functional.softplus(self.first(x))))


def test_predictions_are_those_of_dropout_modules() -> None:
    """Mean and variance over masks, by sums over 2^4 patterns, and over nn.Dropout's own draws."""
    model = Net(0.0)
    learner = br.dropout(model, br.GaussianLikelihood(noise=1.0), num_data=12, drop=1.0 - KEEP)
    q: Any = learner.init(0).posterior
    hidden = functional.softplus(model.first(X)).detach()
    outputs, chances = [], []
    for pattern in itertools.product((0.0, 1.0), repeat=4):
        mask = torch.tensor(pattern, dtype=DTYPE)
        outputs.append(functional.linear(hidden * mask, q.slab["last.weight"], model.last.bias))
        chances.append(KEEP ** sum(pattern) * (1.0 - KEEP) ** (4.0 - sum(pattern)))
    chance, table = torch.tensor(chances, dtype=DTYPE), torch.stack(outputs).detach()
    mean = torch.tensordot(chance, table, 1)
    found = br.predict(learner, learner.init(0), X, how=Masks(4000))
    variance = torch.tensordot(chance, (table - mean).square(), 1)
    close(found.mean, mean, 0.03)
    close(found.epistemic / variance, torch.ones_like(variance), 0.15)
    # Torch scales what is kept by 1/keep in training, which is the slab of the first belief.
    torchs = Net(1.0 - KEEP).train()
    torchs.load_state_dict(model.state_dict())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn = torch.stack([torchs(X) for _ in range(4000)]).detach()
    z_close(drawn.flatten(1), mean.flatten())
    close(drawn.var(0) / variance, torch.ones_like(variance), 0.15)


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_steps_are_those_of_an_optimiser_under_masks(kind: str) -> None:
    """The same masks in a loop with torch's optimiser on the slab."""
    model = nn.Linear(5, 1, bias=False, dtype=DTYPE)
    options: dict[str, Any] = {"learning_rate": 0.05, "drop": 1.0 - KEEP, "temperature": 1.0}
    if kind == "sgd":
        options |= {"curvature": NoCurvature(), "momentum": 0.0}
    learner = br.dropout(
        model,
        br.GaussianLikelihood(noise=1.0),
        num_data=12,
        **options,
        prior_precision=0.0 if kind == "adam" else 1e-12,
    )
    state = learner.init(3)
    slab = nn.Parameter(state.posterior.slab["weight"].clone())  # type: ignore[attr-defined]
    # Gradient descent divides by the fixed precision, that of 12 data.
    made = {"adam": torch.optim.Adam([slab], 0.05), "sgd": torch.optim.SGD([slab], 0.05 / 12.0)}
    optimiser = made[kind]
    for _ in range(5):
        draws = learner.problem(state, (X, Y)).draws
        mask = state.posterior.masks(draws)["weight"]  # type: ignore[attr-defined]
        state, _ = learner.step(state, (X, Y))
        optimiser.zero_grad()
        loss = 0.5 * (Y - X @ (mask * slab).mT).square().sum() / KEEP
        loss.backward()
        optimiser.step()
        close(state.posterior.slab["weight"], slab.detach(), 1e-6)  # type: ignore[attr-defined]


def test_an_earlier_posterior_is_the_prior_of_later_data() -> None:
    """What earlier data said of the spread is not forgotten: precisions add up."""

    def learned(rows: slice, prior: Any) -> Any:
        learner = br.Learner(
            nn.Linear(5, 1, bias=False, dtype=DTYPE), br.GaussianLikelihood(noise=NOISE),
            num_data=len(X[rows]), posterior=SpikeSlabFamily(KEEP), expectation=Masks(1),
            curvature=PerExample(), rule=Natural(0.1, 0.1), prior=prior, temperature=1.0,
        )  # fmt: skip
        state = learner.init(0)
        for _ in range(50):
            state, _ = learner.step(state, (X[rows], Y[rows]))
        return state.posterior

    earlier = learned(slice(0, 6), None)
    later = learned(slice(6, 12), earlier)
    assert bool((later.precision.values["weight"] > earlier.precision.values["weight"]).all())


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"above 0 and at most 1, got 0\.0"):
        SpikeSlabFamily(0.0)
    with pytest.raises(ValueError, match="at least one mask, got 0"):
        Masks(0)
    with pytest.raises(TypeError, match="drops no units; use SpikeSlabFamily"):
        br.Learner(
            nn.Linear(5, 1),
            br.GaussianLikelihood(noise=1.0),
            num_data=12,
            posterior=br.GaussianFamily(),
            expectation=Masks(2),
            curvature=PerExample(),
            rule=Natural(),
        )
    with pytest.raises(ValueError, match=r"with probability 0\.7, this family with 0\.9"):
        SpikeSlabFamily(0.9).prior(belief(), {})
    with pytest.raises(TypeError, match=r"use Draws\(\) for Masks\(\)"):
        belief().masked(generator(0)).price({"weight": torch.ones(1, 5, dtype=DTYPE)})
