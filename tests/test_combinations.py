"""All combinations of public parts: each takes steps, or is refused when the learner is built."""

from __future__ import annotations

import itertools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.curvature import (
    GGN,
    Curvature,
    ExpectedLoss,
    Fisher,
    Hessian,
    Innovations,
    NoCurvature,
    Pathwise,
    PerExample,
    Price,
    SecondOrder,
    SquaredGradient,
)
from bayesrule.expectations import AtMean, Draws, Expectation, Flipout, LocalDraws, Moments
from bayesrule.learner import Learner
from bayesrule.likelihoods import Likelihood, NegativeBinomialLikelihood
from bayesrule.matrices import (
    BlockTridiagonal,
    Dense,
    Diagonal,
    Isotropic,
    Kronecker,
    LowRank,
)
from bayesrule.posteriors import (
    BernoulliFamily,
    Family,
    GaussianFamily,
    KTiedFamily,
    MeanFieldFamily,
    MixtureFamily,
    PerGroup,
    PointEstimate,
    RotatedFamily,
)
from bayesrule.rules import Average, Conditioning, Elbo, HeavyBall, Natural, Rule, Velocity

FAMILIES: dict[str, Family] = {
    **{
        repr(structure): GaussianFamily(structure)
        for structure in (
            *(Isotropic(), Diagonal(), Dense(), LowRank(2), Kronecker(), Kronecker(exact=True)),
            *(Kronecker(corrected=True), BlockTridiagonal()),
        )
    },
    "MeanField": MeanFieldFamily(),
    "KTied": KTiedFamily(1),
    "Rotated": RotatedFamily(Kronecker()),
    "PointEstimate": PointEstimate(),
    "Bernoulli": BernoulliFamily(),
    "Mixture": MixtureFamily(2),
    "last layer": PerGroup({"2.*": GaussianFamily(Dense()), "*": PointEstimate()}),
    "some weights": PerGroup({"0.*": PointEstimate(with_prior=False), "*": MeanFieldFamily()}),
    "real biases": PerGroup({"*.bias": GaussianFamily(Diagonal()), "*": BernoulliFamily()}),
}
EXPECTATIONS: tuple[Expectation, ...] = (
    *(AtMean(), Draws(1), Draws(2, antithetic=True), LocalDraws(), Flipout(), Moments()),
)
CURVATURES: tuple[Curvature, ...] = (
    *(NoCurvature(), SquaredGradient(), PerExample(), Fisher(), GGN(), Hessian(), Price()),
    *(Pathwise(), SecondOrder(), ExpectedLoss(), Innovations()),
)
RULES: tuple[Rule, ...] = (
    Natural(0.05, 0.1),
    Natural(0.05, 0.1, Average(0.9)),
    Natural(0.05, 0.1, HeavyBall(0.5)),
    Natural(0.05, 0.1, retract=True),
    Natural(0.05, 0.1, square_root=True),
    Natural(0.05, fixed_precision=True),
    Natural(0.05, 0.1, Velocity(0.5), prior_at_draws=True, kl_clip=1e-2),
    Elbo(0.05),
    Conditioning(),
)
LIKELIHOODS: tuple[Likelihood, ...] = (
    br.GaussianLikelihood(),
    br.HeteroscedasticLikelihood(),
    br.CategoricalLikelihood(),
    br.BernoulliLikelihood(),
    br.PoissonLikelihood(),
    NegativeBinomialLikelihood(),
)
X = torch.linspace(-1.0, 1.0, 12).reshape(6, 2)
Y = torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0, 0.0])
QUADRATIC = {str(GGN()), str(Hessian())}
Parts = tuple[str, Expectation, Curvature, Rule, Likelihood]


def net(likelihood: Likelihood) -> nn.Module:
    """A smooth module that has as many outputs as the likelihood asks for."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        outputs = likelihood.num_outputs(2 if is_categorical(likelihood) else 1)
        return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, outputs))


def is_categorical(likelihood: Likelihood) -> bool:
    return isinstance(likelihood, br.CategoricalLikelihood)


def targets(likelihood: Likelihood) -> Tensor:
    return Y.long() if is_categorical(likelihood) else Y.unsqueeze(1)


def combinations() -> Iterator[Parts]:
    """Every choice of the four parts with Gaussian targets and, in turn, one other likelihood."""
    four = itertools.product(FAMILIES, EXPECTATIONS, CURVATURES, RULES)
    for number, parts in enumerate(four):
        yield *parts, LIKELIHOODS[0]
        yield *parts, LIKELIHOODS[1 + number % (len(LIKELIHOODS) - 1)]


def build(family: str, expectation: Any, curvature: Any, rule: Any, likelihood: Any) -> Learner:
    return Learner(
        net(likelihood),
        likelihood,
        num_data=12,
        posterior=FAMILIES[family],
        expectation=expectation,
        curvature=curvature,
        rule=rule,
        predictive=AtMean(),
    )


def described(parts: Parts) -> str:
    return f"{parts[0]} × " + " × ".join(str(part) for part in parts[1:])


@cache
def outcomes() -> dict[Parts, Any]:
    """For each combination what was refused, in words, or the numbers after three steps."""
    found: dict[Parts, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for parts in combinations():
            try:
                learner = build(*parts)
            except (TypeError, ValueError) as refusal:
                found[parts] = str(refusal)
                continue
            found[parts] = three_steps(learner, targets(parts[-1]))
    return found


def three_steps(learner: Learner, y: Tensor) -> Any:
    """The belief after three steps as a row of numbers, or the exception on the way."""
    state = learner.init(seed=1)
    try:
        for _ in range(3):
            state, info = learner.step(state, (X, y))
    except Exception as problem:
        return problem
    belief = {**state.posterior.mean}, state.posterior.variance()
    numbers = [
        float(info.loss),
        *(v for part in belief for t in part.values() for v in t.flatten()),
    ]
    return [float(number) for number in numbers]


def counted(what: Callable[[Any], bool]) -> list[str]:
    return [described(parts) for parts, outcome in outcomes().items() if what(outcome)]


def test_there_are_thousands() -> None:
    assert len(outcomes()) > 10_000
    assert len(counted(lambda outcome: isinstance(outcome, list))) > 500


def test_none_fails_after_it_was_built() -> None:
    failed = {
        described(parts): f"{type(outcome).__name__}: {outcome}"
        for parts, outcome in outcomes().items()
        if isinstance(outcome, Exception)
    }
    few = "\n".join(f"{name}: {why}" for name, why in itertools.islice(failed.items(), 12))
    assert not failed, f"{len(failed)} fail in a step, such as\n{few}"


def test_all_numbers_are_finite() -> None:
    def broken(outcome: Any) -> bool:
        return isinstance(outcome, list) and not all(math.isfinite(v) for v in outcome)

    assert not counted(broken)[:12]


def test_refusals_are_sentences_that_name_the_way_out() -> None:
    refusals = Counter(outcome for outcome in outcomes().values() if isinstance(outcome, str))
    assert refusals
    for sentence in refusals:
        assert sentence.endswith("."), sentence
        assert len(sentence) > 40, sentence
        hints = ("use ", "Use ", "go with", "goes with", "leave ", "Gaussian", "one by one")
        assert any(hint in sentence for hint in hints), sentence


def neighbours(place: int) -> Iterator[tuple[Parts, Parts]]:
    """Pairs of combinations that work and differ in one part alone."""
    groups: dict[Any, list[Parts]] = {}
    for parts, outcome in outcomes().items():
        if isinstance(outcome, list):
            rest = tuple(str(p) for i, p in enumerate(parts) if i != place)
            groups.setdefault(rest, []).append(parts)
    for group in groups.values():
        yield from itertools.combinations(group, 2)


@pytest.mark.parametrize("place", range(4), ids=["family", "expectation", "curvature", "rule"])
def test_no_choice_is_silently_ignored(place: int) -> None:
    same = [
        f"{described(one)}\n  = {two[place]}"
        for one, two in neighbours(place)
        if outcomes()[one] == outcomes()[two] and not equal_by_design(place, one, two)
    ]
    assert not same, f"{len(same)} pairs, such as\n" + "\n".join(same[:10])


def equal_by_design(place: int, one: Parts, two: Parts) -> bool:
    """Choices that are the same by their equations."""
    family, _, curvature, *_ = one
    if place == 0:
        # A covariance that does not move is about I/N in every structure.
        return not curvature.gives_curvature
    # The loss is quadratic in the last layer.
    last = family in ("last layer", "some weights")
    return place == 2 and last and {str(one[2]), str(two[2])} == QUADRATIC
