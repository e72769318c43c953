"""Batch norm in training mode: rows of single examples at the statistics of the batch."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import bayesrule as br
from bayesrule.curvature import GGN, Curvature, Fisher, Here, PerExample, Problem, Recording
from bayesrule.curvature.single_examples import SingleExamples
from bayesrule.likelihoods import CategoricalLikelihood
from bayesrule.matrices import Dense, Kronecker, Structure
from bayesrule.matrices.kronecker import KroneckerMatrix
from bayesrule.posteriors import Gaussian
from bayesrule.types import Params
from curvature.brute_force import at_mean, example_rows, problem_of


def _images(**options: Any) -> nn.Sequential:
    """Two convolutions with batch norms, an in-place activation and a head."""
    return nn.Sequential(
        nn.Conv2d(2, 3, 2, bias=False),
        nn.BatchNorm2d(3, **options),
        nn.ReLU(True),
        nn.Conv2d(3, 4, 2),
        nn.BatchNorm2d(4),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16, 2),
    )


def _vectors(**options: Any) -> nn.Sequential:
    norm = nn.BatchNorm1d(4, **options)
    return nn.Sequential(nn.Linear(3, 4), norm, nn.Tanh(), nn.Linear(4, 2))


NETS = {
    "images": (_images, (5, 2, 4, 4)),
    "vectors": (_vectors, (5, 3)),
    "no affine part": (lambda: _vectors(affine=False), (5, 3)),
    "no running averages": (lambda: _images(track_running_stats=False), (5, 2, 4, 4)),
    "weight norm, through vmap": (
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 4)), *list(_vectors())[1:]),
        (5, 3),
    ),
    "a loose weight behind two norms": (
        lambda: nn.Sequential(*list(_images())[:6], nn.Flatten(), nn.PReLU(16), nn.Linear(16, 2)),
        (5, 2, 4, 4),
    ),
}


def _problem(name: str, **options: Any) -> Problem:
    make, shape = NETS[name]
    model = make()
    for part in model.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d) and part.affine:
            nn.init.normal_(part.weight)
            nn.init.normal_(part.bias)
    return problem_of(model, torch.randn(shape), training=True, **options)


def _in_inference(problem: Problem) -> Problem:
    """The same net in inference mode, whose averages are this batch's mean and variance."""
    model = problem.network.model
    seen: dict[str, Tensor] = {}

    def note(name: str) -> Any:
        return lambda module, args: seen.__setitem__(name, args[0].detach())

    norms = {k: m for k, m in model.named_modules() if hasattr(m, "running_mean")}
    hooks = [norm.register_forward_pre_hook(note(k)) for k, norm in norms.items()]
    problem.network(problem.network.params(), problem.network.buffers(), problem.x, training=True)
    for hook in hooks:
        hook.remove()
    for name, norm in norms.items():
        axes = [0, *range(2, seen[name].ndim)]
        norm.running_var, norm.running_mean = torch.var_mean(seen[name], axes, correction=0)
        norm.track_running_stats = True
    return problem_of(model, problem.x, problem.y, problem.likelihood)


def _assert_close(got: Params, want: Params) -> None:
    assert got.keys() == want.keys()
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", NETS)
def test_rows_alone_are_those_of_inference_at_the_batch_statistics(name: str) -> None:
    problem = _problem(name)
    recording = Recording(problem, at_mean(problem))
    vectors = torch.randn(2, 5, 2)
    rows, _ = recording.backward(vectors, gradient=False)
    _assert_close(rows.per_example(), example_rows(_in_inference(problem), vectors))


def _true_gradient(problem: Problem, vector: Tensor) -> Params:
    params = {k: v.requires_grad_() for k, v in problem.network.params().items()}
    buffers = problem.network.buffers()
    outputs = problem.network(params, buffers, problem.x, training=True)
    found = torch.autograd.grad(outputs, list(params.values()), vector)
    return dict(zip(params, found, strict=True))


@pytest.mark.parametrize("name", NETS)
def test_the_gradient_goes_through_the_statistics_before_and_after(name: str) -> None:
    problem = _problem(name)
    recording = Recording(problem, at_mean(problem))
    vector = torch.randn(5, 2)
    want = _true_gradient(problem, vector)
    _assert_close(recording.gradient(vector), want)
    recording.backward(vector[None], gradient=False)
    _assert_close(recording.gradient(vector), want)


@pytest.mark.parametrize("name", ["images", "vectors"])
def test_rows_with_the_gradient_add_up_to_it(name: str) -> None:
    problem = _problem(name)
    recording = Recording(problem, at_mean(problem))
    vector = torch.randn(5, 2)
    recording.backward(vector[None], gradient=False)
    rows, gradient = recording.backward(vector[None], gradient=True)
    want = _true_gradient(problem, vector)
    _assert_close(rows.completed(gradient), want)
    _assert_close({k: v.sum((0, 1)) for k, v in rows.per_example().items()}, want)


def test_outputs_and_averages_are_torchs_own() -> None:
    problem = _problem("images")
    recording = Recording(problem, at_mean(problem))
    model = problem.network.model.train()
    torch.testing.assert_close(recording.outputs, model(problem.x), rtol=0.0, atol=0.0)
    for name, value in model.named_buffers():
        torch.testing.assert_close(problem.buffers[name], value)


@pytest.mark.parametrize("structure", [Kronecker(), Dense()])
@pytest.mark.parametrize("curvature", [Fisher(), GGN()])
def test_curvature_of_the_model_is_that_of_inference(
    curvature: Curvature, structure: Structure
) -> None:
    problem = _problem("images", y=torch.arange(5) % 2, likelihood=CategoricalLikelihood())
    point = at_mean(problem)
    shaped = structure.for_model(problem.network.model)
    belief = Gaussian(point.params, shaped.identity(point.params, 1.0))
    found = curvature.local(problem, Here(point, shaped, belief))
    still = replace(_in_inference(problem), targets=torch.Generator().manual_seed(0))
    want = curvature.local(still, Here(point, shaped, belief))
    assert found.curvature is not None and want.curvature is not None  # noqa: PT018
    _assert_close(found.curvature.diagonal(), want.curvature.diagonal())
    if isinstance(found.curvature, KroneckerMatrix):
        assert isinstance(want.curvature, KroneckerMatrix)
        for name, layer in found.curvature.layers.items():
            same = want.curvature.layers[name].factors
            torch.testing.assert_close(layer.factors.output, same.output)
    slope = problem.loss(problem.forward(point.params))[1]
    _assert_close(found.gradient, _true_gradient(problem, slope))


def test_a_bias_before_batch_norm_has_curvature_of_the_model_but_no_gradient() -> None:
    problem = _problem("vectors", y=torch.arange(5) % 2, likelihood=CategoricalLikelihood())
    point, shaped = at_mean(problem), Kronecker().for_model(problem.network.model)
    belief = Gaussian(point.params, shaped.identity(point.params, 1.0))
    found = GGN().local(problem, Here(point, shaped, belief))
    assert float(found.gradient["0.bias"].abs().max()) < 1e-12
    assert found.curvature is not None
    assert float(found.curvature.diagonal()["0.bias"].min()) > 1e-6


def test_loose_weights_are_taken_by_the_fisher_and_refused_with_the_gradient() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.PReLU(4), nn.Linear(4, 2))
    batch = torch.randn(8, 3), torch.arange(8) % 2
    learner = br.noisy_kfac(model, CategoricalLikelihood(), num_data=8)
    state, _ = learner.step(learner.init(), batch)
    assert state.posterior.mean["2.weight"].isfinite().all()
    problem = problem_of(model, *batch, CategoricalLikelihood(), training=True)
    shaped = Kronecker().for_model(model)
    params = problem.network.params()
    belief = Gaussian(params, shaped.identity(params, 1.0))
    with pytest.raises(ValueError, match=r"2\.weight.*batch norm in training mode mixes"):
        PerExample().local(problem, Here(at_mean(problem), shaped, belief))


def test_given_statistics_stand_for_those_of_the_batch() -> None:
    norm, x = nn.BatchNorm1d(3), torch.randn(6, 3)
    nn.init.normal_(norm.weight)
    variance, mean = torch.var_mean(x, 0, correction=0)
    with SingleExamples([(mean, (variance + norm.eps).rsqrt())]):
        one = norm(x[:1])
    torch.testing.assert_close(one, norm(x)[:1])
    norm.eval()
    with SingleExamples([]):
        norm(x)
