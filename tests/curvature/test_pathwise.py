"""Gradients along what layers draw: in expectation those of weight draws, with less noise."""

import dataclasses
import functools
from typing import Any

import pytest
import torch
from exact import close, flat, randn, z_close
from expectations.nets import NETS, Function, belief_of, each, net, problem_of, slopes_of
from torch import Tensor, nn

import bayesrule as br
from bayesrule.curvature import Here, Pathwise, Price
from bayesrule.expectations import Draws, Expectation, Flipout, Layerwise, LocalDraws
from bayesrule.likelihoods import CategoricalLikelihood, GaussianLikelihood
from bayesrule.matrices import Diagonal, Isotropic
from bayesrule.posteriors import (
    Family,
    GaussianFamily,
    MeanField,
    MeanFieldFamily,
    PointBelief,
    Product,
)
from bayesrule.tensors.network import Network

pytestmark = pytest.mark.usefixtures("double_precision")
both = pytest.mark.parametrize("how", [LocalDraws(), Flipout()], ids=["local", "flipout"])


@functools.cache
def _reference(name: str) -> Tensor:
    """Slopes by shared draws of the weights; mirrored draws are averaged, as they go together."""
    found = slopes_of(*net(name, 6), Draws(600, antithetic=True), Price())
    return found.unflatten(0, (-1, 2)).mean(1)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, LocalDraws(60)) for name in ("mlp", "one position", "batch norm", "lstm")),
        *((name, Flipout(60)) for name in ("mlp", "cnn", "batch norm", "lstm", "sequence")),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_expectation_is_that_of_weight_draws(name: str, how: Layerwise) -> None:
    # Copies of a batch draw for themselves, so that a few passes stand for many.
    found, wanted = slopes_of(*net(name, 6, copies=30), how, Pathwise()), _reference(name)
    error = (found.var(0) / len(found) + wanted.var(0) / len(wanted)).sqrt()
    worst = ((found.mean(0) - wanted.mean(0)) / error).abs().max()
    assert worst < 5.0, f"{worst:.1f} standard errors away"


@both
def test_one_linear_layer_has_the_gradient_in_closed_form(how: Layerwise) -> None:
    x, y = randn(8, 3, seed=1), randn(8, 2, seed=2)
    problem = problem_of(nn.Linear(3, 2), x.repeat(50, 1), y.repeat(50, 1))
    q = belief_of(problem)
    found = slopes_of(problem, q, dataclasses.replace(how, num=200), Pathwise())
    # E[ℓ] = ½ Σ [(x Mᵀ + b − y)² + x² σ² + σ_b²], here as a mean over the examples
    error = x @ q.mean["weight"].mT + q.mean["bias"] - y
    bends = {"weight": x.square().mean(0).expand(2, 3), "bias": torch.ones(2)}
    gradient = {"weight": error.mT @ x / 8, "bias": error.mean(0)}
    scales = {name: s.square() * bends[name] for name, s in q.std().items()}
    z_close(found, torch.cat([flat(gradient), flat(scales)]))


@both
@pytest.mark.parametrize("name", ["mlp", "cnn", "lstm"])
def test_there_is_less_noise_than_with_shared_draws(name: str, how: Layerwise) -> None:
    problem, q = net(name, 32)
    noise = slopes_of(problem, q, dataclasses.replace(how, num=100), Pathwise()).var(0).sum()
    shared = slopes_of(problem, q, Draws(100), Price()).var(0).sum()
    assert noise < 0.6 * shared


@both
def test_a_draw_that_is_first_looked_at_without_gradients_has_them(how: Layerwise) -> None:
    def call(module: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            norm = module.weight.norm()
        return nn.functional.linear(x, module.weight / norm, module.bias)

    problem = problem_of(Function(call, (2, 2)), randn(4, 2), randn(4, 2))
    (local,) = each(problem, belief_of(problem), how, Pathwise())
    assert local.curvature is not None
    assert local.gradient["weight"].abs().min() > 0
    assert local.curvature.diagonal()["weight"].abs().min() > 0


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x @ weight.mT

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[None, Tensor]:
        return None, slopes[0].mT @ ctx.saved_tensors[0]


@both
def test_gradients_that_go_around_a_draw_are_refused(how: Layerwise) -> None:
    module = Function(lambda m, x: _Product.apply(x, m.weight) + m.bias, (2, 2))
    problem = problem_of(module, randn(4, 2), randn(4, 2))
    with pytest.raises(TypeError, match=r"'weight' is given to a torch.autograd.Function"):
        each(problem, belief_of(problem), how, Pathwise())


@both
def test_weights_that_are_unused_or_known_are_told_apart(how: Layerwise) -> None:
    module = Function(lambda m, x: nn.functional.linear(x, m.weight), (2, 2))
    problem = problem_of(module, randn(4, 2), randn(4, 2))
    (local,) = each(problem, belief_of(problem), how, Pathwise())
    assert local.curvature is not None
    close(local.gradient["bias"], torch.zeros(2), 0.0)
    close(local.curvature.diagonal()["bias"], torch.zeros(2), 0.0)

    problem = problem_of(nn.Linear(2, 2), randn(4, 2), randn(4, 2))
    q = belief_of(problem)
    weight = MeanField({"weight": q.mean["weight"]}, {"weight": q.scales["weight"]})
    groups = {"weight": ("weight",), "bias": ("bias",)}
    some = Product({"weight": weight, "bias": PointBelief({"bias": q.mean["bias"]})}, groups)
    (local,) = each(problem, some, how, Pathwise())
    assert local.curvature is not None
    assert set(local.curvature.diagonal()) == {"weight"}
    assert local.gradient["bias"].abs().min() > 0


@both
def test_the_scale_multiplies_derivatives_and_not_the_loss(how: Layerwise) -> None:
    problem, q = net("mlp", 5)
    (one,) = each(problem, q, how, Pathwise())
    (two,) = each(dataclasses.replace(problem, weight=3.0 * problem.weight), q, how, Pathwise())
    assert one.curvature is not None
    assert two.curvature is not None
    close(two.loss, one.loss)
    close(flat(two.gradient), 3.0 * flat(one.gradient))
    close(flat(two.curvature.diagonal()), 3.0 * flat(one.curvature.diagonal()))


@both
def test_inputs_of_zeros_have_finite_gradients(how: Layerwise) -> None:
    model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 2, bias=False))
    problem = problem_of(model, torch.zeros(4, 2), randn(4, 2))
    (local,) = each(problem, belief_of(problem), how, Pathwise())
    assert local.curvature is not None
    close(flat(local.gradient), torch.zeros(12), 1e-100)
    close(flat(local.curvature.diagonal()), torch.zeros(12), 1e-100)


def test_gradients_do_not_share_memory() -> None:
    module = Function(lambda m, x: x[:, :1] * 0 + m.weight + m.bias.sum(), (4, 1))
    problem = problem_of(module, randn(4, 2), randn(4, 1))
    (local,) = each(problem, belief_of(problem), LocalDraws(), Pathwise())
    before = local.gradient["weight"].clone()
    local.gradient["bias"].mul_(2.0)
    close(local.gradient["weight"], before, 0.0)


@both
def test_the_first_pass_leaves_no_trace(how: Layerwise) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
    problem = problem_of(model, randn(6, 3), randn(6, 2), training=True)
    q, results = belief_of(problem), []
    before = {name: value.clone() for name, value in problem.buffers.items()}
    for _ in range(2):
        fresh = {name: value.clone() for name, value in before.items()}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            again = dataclasses.replace(problem, buffers=fresh)
            (local,) = each(again, q, how, Pathwise())
        results.append(torch.cat([flat(local.gradient), flat(fresh)]))
        assert int(fresh["1.num_batches_tracked"]) == 1
    close(results[0], results[1], 0.0)


@both
def test_randomness_comes_from_the_given_generator_alone(how: Layerwise) -> None:
    problem, q = net("cnn", 5)
    state = torch.get_rng_state()
    one, two = (slopes_of(problem, q, how, Pathwise()) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(one, two)
    pairs = slopes_of(problem, q, dataclasses.replace(how, num=2), Pathwise())
    assert not torch.equal(pairs[0], pairs[1])


@both
def test_learners_learn_with_them(how: Layerwise) -> None:
    x, y = randn(40, 2, seed=1), randn(40, 1, seed=2)
    target = x @ torch.tensor([[1.0], [-2.0]]) + 0.1 * y
    for family, rule in (
        (MeanFieldFamily(), br.Elbo(0.05)),
        (GaussianFamily(Diagonal(), 100.0), br.Natural(0.1, 0.02, retract=True)),
    ):
        learner = br.Learner(
            nn.Linear(2, 1),
            GaussianLikelihood(noise=0.1),
            num_data=40,
            posterior=family,
            expectation=dataclasses.replace(how, num=2),
            curvature=Pathwise(),
            rule=rule,
        )
        state = learner.init()
        for _ in range(100):
            state, _ = learner.step(state, (x, target), donate=True)
        close(state.posterior.mean["weight"], torch.tensor([[1.0, -2.0]]), 0.1)
        p = br.predict(learner, state, x, how=how)
        assert (p.mean - target).abs().mean() < 0.3


def test_parts_that_do_not_fit_are_refused() -> None:
    def build(expectation: Expectation, family: Family) -> br.Learner:
        return br.Learner(
            nn.Linear(2, 1),
            GaussianLikelihood(noise=0.1),
            num_data=40,
            posterior=family,
            expectation=expectation,
            curvature=Pathwise(),
            rule=br.Natural(0.1, 0.02, retract=True),
        )

    with pytest.raises(ValueError, match=r"shows weights: LocalDraws\(\) and Flipout\(\) go with"):
        build(Draws(1), GaussianFamily(Diagonal()))
    with pytest.raises(ValueError, match=r"natural gradients of Isotropic\(\) need a curvature"):
        build(LocalDraws(), GaussianFamily(Isotropic()))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@both
@pytest.mark.parametrize("name", ["mlp", "cnn", "batch norm", "lstm"])
def test_a_cuda_graph_draws_anew_each_time(name: str, how: Layerwise) -> None:
    problem, belief = net(name, 8)
    network, source = Network(NETS[name][0]().cuda()), torch.Generator("cuda").manual_seed(0)
    q = MeanField(
        *({k: v.cuda() for k, v in part.items()} for part in (belief.mean, belief.scales))
    )
    assert isinstance(problem.x, Tensor)
    problem = dataclasses.replace(
        problem,
        network=network,
        likelihood=CategoricalLikelihood(),
        buffers=network.buffers(),
        x=problem.x.cuda(),
        y=torch.zeros(8, dtype=torch.long, device="cuda"),
        training=True,  # as backward passes of recurrent layers want it there
    )

    def gradient() -> Tensor:
        (point,) = how.points(q, source)
        return flat(Pathwise().local(problem, Here(point, Diagonal(), q)).gradient)

    gradient()
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(source)
    # Waiting for the device is an error while its work is recorded.
    with torch.cuda.graph(graph):
        kept = gradient()
    found = []
    for _ in range(3):
        graph.replay()
        found.append(kept.clone())
    assert all(one.isfinite().all() for one in found)
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[2])
