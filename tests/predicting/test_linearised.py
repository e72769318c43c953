"""The linearised predictive of beliefs with a block for each layer, against `J Λ⁻¹ Jᵀ`."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from exact import close, dense, jacobian, randn
from torch import Tensor, nn

import bayesrule as br
from bayesrule import Kronecker, Learner
from bayesrule.curvature import ExampleRows
from bayesrule.matrices.layer_rows import MatrixRows, ProductRows
from bayesrule.posteriors import Normal, Rotated
from bayesrule.predicting.predict import linearised_outputs
from bayesrule.types import State

CLASSES = 3


@pytest.fixture(autouse=True)
def _exact(double_precision: None) -> None:
    """Double precision and a fixed seed."""


def dense_net() -> tuple[nn.Module, Tensor]:
    """Linear layers, one of them without a bias."""
    net = nn.Sequential(
        *(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5, bias=False), nn.Tanh()),
        nn.Linear(5, CLASSES),
    )
    return net, randn(7, 4)


def convolutions() -> tuple[nn.Module, Tensor]:
    """More positions than inputs and outputs, and fewer."""
    net = nn.Sequential(
        *(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4)),
        *(nn.Conv2d(2, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(4, CLASSES)),
    )
    return net, randn(7, 1, 8, 8)


NETS = {"linear": dense_net, "convolution": convolutions}
Made = tuple[Learner, State, nn.Module, Tensor]


def laplace(structure: br.matrices.Structure, net: str) -> Made:
    model, x = NETS[net]()
    y = torch.arange(len(x)) % CLASSES
    learner = br.laplace(
        model, br.CategoricalLikelihood(), num_data=50, structure=structure, prior_precision=0.3
    )
    return learner, learner.finish(learner.init(), [(x[:4], y[:4]), (x[4:], y[4:])]), model, x


def noisy(method: Callable[..., Learner], net: str, **options: Any) -> Made:
    model, x = NETS[net]()
    learner = method(model, br.CategoricalLikelihood(), num_data=50, stats_every=1, **options)
    state = learner.init()
    for _ in range(4):
        state, _ = learner.step(state, (x, torch.arange(len(x)) % CLASSES))
    return learner, state, model, x


BELIEFS: dict[str, Callable[[str], Made]] = {
    "laplace": lambda net: laplace(Kronecker(), net),
    "laplace, exact": lambda net: laplace(Kronecker(exact=True), net),
    "laplace, corrected": lambda net: laplace(Kronecker(corrected=True), net),
    "laplace, neighbours": lambda net: laplace(br.matrices.BlockTridiagonal(), net),
    "noisy_kfac": lambda net: noisy(br.noisy_kfac, net, inverse_every=1),
    "noisy_kfac, kept bases": lambda net: noisy(br.noisy_kfac, net, inverse_every=2),
    "noisy_ekfac": lambda net: noisy(br.noisy_ekfac, net, inverse_every=2),
}


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("belief", BELIEFS)
def test_the_covariance_is_that_of_the_dense_form(belief: str, net: str) -> None:
    learner, state, model, x = BELIEFS[belief](net)
    posterior = state.posterior
    assert isinstance(posterior, Normal)
    assert isinstance(posterior, Rotated) == (belief in ("noisy_kfac, kept bases", "noisy_ekfac"))
    mean, covariance = linearised_outputs(learner, state, x, chunk=3)
    rows = jacobian(model, posterior.mean, x)
    wanted = rows @ torch.linalg.inv(dense(posterior.precision, posterior.mean)) @ rows.mT
    close(covariance, wanted, 1e-10)
    close(mean, torch.func.functional_call(model, posterior.mean, x), 1e-12)
    p = br.predict(learner, state, x, br.Linearised())
    same = br.CategoricalLikelihood().joint_marginal(mean, wanted, {})
    close(p.epistemic, same.epistemic, 1e-8)
    close(p.probs, same.mean, 1e-10)


@pytest.mark.parametrize("belief", [name for name in BELIEFS if "neighbours" not in name])
def test_no_row_of_a_linear_layer_is_ever_formed(
    belief: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, state, _, x = BELIEFS[belief]("linear")

    def never(self: ExampleRows) -> None:
        raise AssertionError("rows of all weights were formed")

    monkeypatch.setattr(ExampleRows, "per_example", never)
    assert (linearised_outputs(learner, state, x)[1].diagonal(dim1=1, dim2=2) > 0).all()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_caller_that_wants_no_gradients_gets_the_same(mode: Callable[[], Any]) -> None:
    learner, state, _, x = BELIEFS["laplace"]("linear")
    with mode():
        # An input made in inference mode is one that a backward pass refuses.
        inside = [br.predict(learner, state, given) for given in (x, x.clone(), (x.clone(),))]
    outside = br.predict(learner, state, x)
    for found in inside:
        close(found.epistemic, outside.epistemic, 0.0)
    assert not any(value.requires_grad for value in (outside.mean, outside.epistemic))
    # Roots are kept for later, when somebody may want a gradient.
    precision = cast(Normal, state.posterior).precision
    assert not any(value.is_inference() for value in precision.inverse_diagonal().values())


@pytest.mark.parametrize(
    ("vectors", "positions", "outs", "ins"),
    [(2, 1, 3, 4), (2, 3, 3, 4), (1, 6, 2, 7), (4, 6, 3, 4), (2, 9, 3, 4)],
    ids=["linear", "both before", "outputs before", "inputs before", "both after"],
)
def test_each_side_may_be_turned_before_or_after_the_sum_over_positions(
    vectors: int, positions: int, outs: int, ins: int
) -> None:
    a, g = randn(5, positions, ins), randn(vectors, 5, positions, outs, seed=1)
    left, right = randn(outs, outs, seed=2), randn(ins, ins, seed=3)
    gains = randn(outs, ins, seed=4).square()
    parts = [(a[:2], g[:, :2]), (a[2:], g[:, 2:])]
    found = ProductRows(lambda: iter(parts)).gram(left, right, gains)
    rows = torch.einsum("vnto,nti->vnoi", g, a)
    seen = (left.mT @ rows @ right).flatten(2)
    close(found, torch.einsum("vnp,wnp,p->nvw", seen, seen, gains.flatten()), 1e-10)
    close(found, MatrixRows(rows).gram(left, right, gains), 1e-10)
