"""Where the loss is looked at: the mean, and draws of the weights."""

import pytest
import torch
from exact import close, dense, flat, generator, positive, randn, z_close

from bayesrule.expectations import AtMean, Draws, Moments
from bayesrule.expectations.points import MomentPoint
from bayesrule.matrices import Dense, Diagonal
from bayesrule.moments import LocallyLinear, MomentMatched
from bayesrule.posteriors import (
    Gaussian,
    GaussianDraw,
    IndependentDraw,
    MeanField,
    Point,
    PointBelief,
    Posterior,
    Product,
)

MEAN = {"w": randn(2, 2, seed=1), "b": randn(2, seed=2)}
Q = Gaussian(MEAN, Dense().project(positive(6), MEAN))


def test_at_mean_is_one_point_without_an_offset() -> None:
    (point,) = AtMean().points(Q, generator())
    assert AtMean().num == 1
    assert not AtMean().random
    assert type(point) is Point
    close(flat(point.params), flat(MEAN), 0.0)


def test_at_mean_takes_nothing_from_the_generator() -> None:
    source = generator(3)
    list(AtMean().points(Q, source))
    assert torch.equal(torch.rand(2, generator=source), torch.rand(2, generator=generator(3)))


def test_draws_are_mean_and_offset() -> None:
    points = list(Draws(5).points(Q, generator()))
    assert len(points) == Draws(5).num == 5
    assert Draws(5).random
    for point in points:
        assert isinstance(point, GaussianDraw)
        close(flat(point.params), flat(MEAN) + flat(point.offset), 0.0)
    assert len({float(point.params["b"][0]) for point in points}) == 5


@pytest.mark.parametrize("antithetic", [False, True])
def test_draws_are_the_same_where_nobody_asks_how_they_came_about(antithetic: bool) -> None:
    how = Draws(4, antithetic=antithetic)
    pairs = zip(
        how.points(Q, generator(7)), how.points(Q, generator(7), tracked=False), strict=True
    )
    for one, other in pairs:
        assert other.params.keys() == one.params.keys()
        close(flat(other.params), flat(one.params), 0.0)


def test_draws_of_independent_weights_have_their_noise() -> None:
    q = MeanField(MEAN, {name: randn(*v.shape, seed=3) for name, v in MEAN.items()})
    one, two = Draws(2, antithetic=True).points(q, generator(8))
    assert isinstance(one, IndependentDraw)
    for point, sign in ((one, 1.0), (two, -1.0)):
        assert isinstance(point, IndependentDraw)
        assert set(point.noise) == set(MEAN)
        for name, mean in MEAN.items():
            noise = point.noise[name]
            close(point.params[name], mean + noise * q.variance()[name].sqrt(), 1e-14)
            close(noise, sign * one.noise[name], 0.0)
    close(flat(q.sample(generator(8))), flat(one.params), 0.0)
    close(flat(q.offset(generator(8))), flat(one.params) - flat(MEAN), 1e-14)


def test_draws_of_a_product_mirror_each_part_and_leave_known_weights() -> None:
    uncertain = MeanField({"w": MEAN["w"]}, {"w": randn(2, 2, seed=3)})
    parts: dict[str, Posterior] = {"w": uncertain, "b": PointBelief({"b": MEAN["b"]})}
    q = Product(parts, {"w": ("w",), "b": ("b",)})
    one, two = Draws(2, antithetic=True).points(q, generator(8))
    close(0.5 * (one.params["w"] + two.params["w"]), MEAN["w"], 1e-14)
    assert not torch.equal(one.params["w"], two.params["w"])
    close(one.params["w"], uncertain.sample(generator(8))["w"], 0.0)
    for point in (one, two):
        close(point.params["b"], MEAN["b"], 0.0)


def test_draws_average_to_the_expectation() -> None:
    points = Draws(3000).points(Q, generator(4))
    draws = torch.stack([flat(point.params) for point in points])
    z_close(draws, flat(MEAN))
    # E‖θ‖² = ‖m‖² + tr S⁻¹
    spread = torch.linalg.inv(dense(Q.precision, MEAN)).trace()
    z_close(draws.square().sum(1), flat(MEAN).square().sum() + spread)


def test_antithetic_draws_mirror_each_other() -> None:
    points = list(Draws(6, antithetic=True).points(Q, generator(5)))
    assert len(points) == 6
    total = torch.stack([flat(point.params) for point in points]).mean(0)
    close(total, flat(MEAN), 1e-14)
    for one, two in zip(points[::2], points[1::2], strict=True):
        assert isinstance(one, GaussianDraw)
        assert isinstance(two, GaussianDraw)
        close(flat(one.offset), -flat(two.offset), 0.0)
        close(flat(two.params), flat(MEAN) + flat(two.offset), 0.0)
    plain = [flat(point.params) for point in Draws(3).points(Q, generator(5))]
    close(torch.stack([flat(p.params) for p in points[::2]]), torch.stack(plain), 0.0)


def test_same_generator_same_points() -> None:
    q = Gaussian(MEAN, Diagonal().identity(MEAN, 2.0))
    one, two = (
        torch.stack([flat(p.params) for p in Draws(3).points(q, generator(6))]) for _ in range(2)
    )
    assert torch.equal(one, two)


def test_moments_are_the_belief_itself() -> None:
    source = generator(3)
    (point,) = Moments(LocallyLinear()).points(Q, source)
    assert Moments().num == 1
    assert not Moments().random
    assert isinstance(point, MomentPoint)
    assert point.activations == LocallyLinear()
    close(flat(point.variance), flat(Q.variance()), 0.0)
    assert Moments().carried == Moments(MomentMatched()).carried
    close(flat(point.params), flat(MEAN), 0.0)
    assert torch.equal(torch.rand(2, generator=source), torch.rand(2, generator=generator(3)))


def test_numbers_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one draw, got 0"):
        Draws(0)
    with pytest.raises(ValueError, match="pairs, got an odd number: 3"):
        Draws(3, antithetic=True)
