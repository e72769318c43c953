"""Nets that a structure cannot work on are refused when the learner is built, or handled for good.

Layers that say nothing (dead units, inputs of zeros) have singular factors, which give no NaN.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from contracts.method import regression_task
from curvature.zoo import Twice
from torch import Tensor, nn

import bayesrule as br
from bayesrule import GaussianLikelihood, Kronecker
from bayesrule.matrices import BlockTridiagonal
from bayesrule.matrices.layout import flow_of
from bayesrule.tensors import tree

NOISY = ["noisy_kfac", "noisy_ekfac", "noisy_tridiagonal", "noisy_full"]


class Skip(nn.Module):
    """A connection from the first layer to the third; `choose` reads its inputs on the way."""

    def __init__(self, skip: bool = True, choose: bool = False) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 1)
        self.skip, self.choose, self.seen = skip, choose, torch.zeros(1)

    def forward(self, x: Tensor) -> Tensor:
        if self.choose and float(x.sum()) > 1e9:
            return x[:, :1]
        first = torch.relu(self.one(x))
        self.seen = first
        second = torch.relu(self.two(first))
        return self.three(second + first if self.skip else second)


class TestNoChain:
    refused = r"'one\.weight' has a way to three\.weight around 'two\.weight'.*Use Kronecker\(\)"

    def test_a_skip_connection_is_refused_when_the_learner_is_built(self) -> None:
        with pytest.raises(ValueError, match=self.refused):
            br.noisy_tridiagonal(Skip(), GaussianLikelihood(), num_data=8)
        br.noisy_tridiagonal(Skip(skip=False), GaussianLikelihood(), num_data=8)
        br.noisy_kfac(Skip(), GaussianLikelihood(), num_data=8)

    def test_a_layer_called_twice_is_refused_too(self) -> None:
        with pytest.raises(ValueError, match=r"order layer\.weight, layer\.weight\. Use Kronecker"):
            br.noisy_tridiagonal(Twice(), GaussianLikelihood(), num_data=8)

    def test_where_the_code_asks_for_its_inputs_the_first_step_tells(self) -> None:
        learner = br.noisy_tridiagonal(Skip(choose=True), GaussianLikelihood(), num_data=8)
        with pytest.raises(ValueError, match=self.refused):
            learner.step(learner.init(), (torch.randn(4, 2), torch.randn(4, 1)))

    def test_only_the_layers_in_question_have_to_be_a_chain(self) -> None:
        options: dict[str, Any] = {"structure": BlockTridiagonal(), "last_layer": True}
        learner = br.laplace(Skip(), GaussianLikelihood(), num_data=8, **options)
        batch = torch.randn(8, 2), torch.randn(8, 1)
        state = learner.finish(learner.init(), [batch])
        assert (br.predict(learner, state, batch[0]).epistemic > 0).all()

    def test_reading_the_code_leaves_the_module_as_it_is(self) -> None:
        model = Skip()
        before, seen = dict(vars(model)), model.seen
        assert flow_of(model) is not None
        assert vars(model) == before
        assert model.seen is seen

    def test_weights_outside_of_their_layers_are_left_to_the_first_step(self) -> None:
        class Bare(nn.Sequential):
            def forward(self, x: Tensor) -> Tensor:
                return nn.functional.linear(x, *self[0].parameters())

        assert flow_of(Bare(nn.Linear(2, 1))) is None


def test_a_million_weights_are_refused_a_full_matrix() -> None:
    model = nn.Sequential(nn.Linear(1000, 999), nn.ReLU(), nn.Linear(999, 1))
    with pytest.raises(ValueError, match=r"over 1,000,999 parameters takes 4,008.0 GB"):
        br.noisy_full(model, GaussianLikelihood(), num_data=8)


def test_a_layer_too_wide_says_its_size_and_what_keeps_it() -> None:
    model = nn.Linear(9, 1)
    message = r"'weight' has a factor of 10 × 10 \(0\.0 GB\).*widest=10 keeps the factor"
    for method in (br.noisy_kfac, br.noisy_ekfac):
        with pytest.warns(UserWarning, match=message):
            method(model, GaussianLikelihood(), num_data=8, widest=9)
        method(model, GaussianLikelihood(), num_data=8, widest=10)
    with pytest.raises(ValueError, match=r"10 wide; the limit is 9.*Kronecker\(\)"):
        br.noisy_tridiagonal(model, GaussianLikelihood(), num_data=8, widest=9)


class Tied(nn.Module):
    """The middle layer is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 3), nn.Linear(3, 1)
        self.middle = nn.Linear(3, 3)
        self.again = nn.Linear(3, 3)
        self.again.weight = self.middle.weight

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.middle(torch.tanh(self.first(x))))
        return self.last(torch.tanh(self.again(hidden)))


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("name", NOISY[:2])
@pytest.mark.parametrize("inverse_every", [1, 2])
def test_tied_weights_have_the_curvature_of_all_their_uses(name: str, inverse_every: int) -> None:
    """With one example and one output, `A ⊗ S` has the partial traces of `r rᵀ`."""
    model, x = Tied(), torch.randn(1, 2)
    learner = br.Learner(
        model,
        GaussianLikelihood(noise=1.0),
        num_data=1,
        posterior=br.GaussianFamily(Kronecker(corrected=name == "noisy_ekfac")),
        expectation=br.AtMean(),
        curvature=br.GGN(),
        rule=br.Natural(0.0, 1.0, inverse_every=inverse_every, prior_at_draws=True),
    )
    state, _ = learner.step(learner.init(), (x, torch.zeros(1, 1)))
    weight, bias = torch.autograd.grad(model(x).sum(), [model.middle.weight, model.middle.bias])
    row = torch.cat([weight, bias.unsqueeze(1)], 1)  # with the gradients of both uses in it
    found = state.posterior.precision.layers["middle.weight"].factors  # type: ignore[attr-defined]
    torch.testing.assert_close(found.output * found.mean_input.trace(), row @ row.mT)
    torch.testing.assert_close(found.mean_input * found.output.trace(), row.mT @ row)
    noisy = br.methods.METHODS[name](
        model, GaussianLikelihood(), num_data=8, inverse_every=inverse_every
    )
    task, state = regression_task(), noisy.init()
    for _ in range(3):
        state, info = noisy.step(state, (task.x.double(), task.y.double()))
        assert info.elbo.isfinite()


# --- singular factors -----------------------------------------------------------------------------


def dead() -> nn.Module:
    """The second layer's units are never on, so no gradient reaches it or the first."""
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 7), nn.ReLU()), nn.Linear(7, 3))
    torch.nn.init.constant_(net.get_parameter("2.bias"), -50.0)
    return net


INPUTS = {"zeros": torch.zeros(12, 5), "numbers": torch.linspace(-1.0, 1.0, 60).reshape(12, 5)}
CLASSES = torch.arange(12) % 3


def all_finite(found: object) -> bool:
    return all(bool(torch.as_tensor(value).isfinite().all()) for _, value in tree.leaves(found))


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("prior", [1.0, 1e-8])
@pytest.mark.parametrize("name", NOISY)
def test_dead_layers_and_zero_inputs_give_no_nan(name: str, prior: float, inputs: str) -> None:
    x = INPUTS[inputs]
    # The average forgets its start at once: what is left are the factors of what was seen.
    rate = 0.5 if name == "noisy_full" else 1.0
    for every in ({"stats_every": 1, "inverse_every": 1}, {"stats_every": 2, "inverse_every": 3}):
        learner = br.methods.METHODS[name](
            dead(),
            br.CategoricalLikelihood(),
            num_data=90,
            prior_precision=prior,
            rate=rate,
            **every,
        )
        state = learner.init()
        for _ in range(7):
            state, info = learner.step(state, (x, CLASSES))
            assert info.loss.isfinite()
            assert info.kl.isfinite()
        assert all_finite(state.posterior)
        for how in (br.Draws(3), br.Linearised()):
            found = br.predict(learner, state, x, how)
            assert found.mean.isfinite().all()
            assert found.epistemic.isfinite().all()


KINDS = [Kronecker(), Kronecker(exact=True), Kronecker(corrected=True), BlockTridiagonal()]


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("structure", KINDS, ids=repr)
def test_laplace_of_a_dead_layer_is_the_prior_there(
    structure: br.matrices.Structure, inputs: str
) -> None:
    learner = br.laplace(
        dead(), br.CategoricalLikelihood(), num_data=90, structure=structure, prior_precision=4.0
    )
    state = learner.finish(learner.init(), [(INPUTS[inputs], CLASSES)])
    variance = state.posterior.variance()
    for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
        torch.testing.assert_close(variance[name], torch.full_like(variance[name], 0.25))
    assert all_finite(variance)
    assert (br.predict(learner, state, INPUTS[inputs]).epistemic > 0).all()


@pytest.mark.parametrize("structure", KINDS, ids=repr)
def test_a_dead_layer_without_a_prior_says_what_mends_it(structure: br.matrices.Structure) -> None:
    learner = br.laplace(
        dead(), br.CategoricalLikelihood(), num_data=90, structure=structure, prior_precision=0.0
    )
    state = learner.finish(learner.init(), [(INPUTS["numbers"], CLASSES)])
    with pytest.raises(ValueError, match=r"layer of '0\.weight' is zero.*positive prior_precision"):
        br.predict(learner, state, INPUTS["numbers"])
