"""Recurrent modules on Gaussians: torch's own results, its gradients, and what must hold."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.moments import (
    Activations,
    GaussianTensor,
    LocallyLinear,
    MomentMatched,
    NoRule,
    Tape,
)
from bayesrule.rules import Conditioning
from bayesrule.tensors.network import Network

from .recurrence import CELLS, IN, LAYERS, B, H, T, Went, arguments, build, flat, plain

pytestmark = pytest.mark.usefixtures("double_precision")


@pytest.mark.parametrize(("kind", "options"), [*LAYERS, *[(cell, {}) for cell in CELLS]])
def test_means_are_torchs_and_deltas_its_gradients_where_nothing_is_uncertain(
    kind: type[nn.Module], options: dict[str, Any]
) -> None:
    module = build(kind, options)
    args = arguments(module)
    went, (results, sources) = Went(module, args), plain(module, args)
    for got, expected in zip(went.results, results, strict=True):
        torch.testing.assert_close(got.centre, expected.detach(), rtol=0, atol=1e-12)
    deltas = [torch.randn_like(r) for r in results]
    went.back(deltas, [torch.zeros_like(d) for d in deltas])
    total = sum((r * d).sum() for r, d in zip(results, deltas, strict=True))
    assert isinstance(total, Tensor)
    for got, expected in zip(went.sources, torch.autograd.grad(total, sources), strict=True):
        torch.testing.assert_close(got.node.delta, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_sequence_is_its_parts_one_after_another(kind: type[nn.Module]) -> None:
    module = kind(IN, H, num_layers=2)
    x = torch.randn(T, B, IN)
    tape = Tape(MomentMatched(), record=False)
    weights = {
        k: tape.leaf(p.detach(), torch.full_like(p, 0.1)) for k, p in module.named_parameters()
    }
    network = Network(module)
    with torch.no_grad():
        whole, last = network(weights, {}, x, training=False)
        first, state = network(weights, {}, x[:1], training=False)
        second, end = network(weights, {}, (x[1:], state), training=False)
        alone, _ = network(weights, {}, x[:, :1], training=False)
    both = torch.cat([first.variance, second.variance])
    torch.testing.assert_close(whole.variance, both, rtol=1e-12, atol=0)
    torch.testing.assert_close(whole.variance[:, :1], alone.variance, rtol=1e-12, atol=0)
    for a, b in zip(flat(last), flat(end), strict=True):
        torch.testing.assert_close(a.centre, b.centre, rtol=1e-12, atol=0)
    assert (whole.variance > 0).all()


def test_last_states_hold_what_was_learned_through_the_outputs() -> None:
    module = nn.LSTM(IN, H, num_layers=2)
    went = Went(module, torch.randn(T, B, IN), weights=0.1, inputs=None)
    outputs, h, c = went.results
    delta, eta = torch.zeros(T, B, H), torch.zeros(T, B, H)
    delta[-1], eta[-1] = torch.randn(B, H), -torch.rand(B, H)
    went.tape.back(outputs, delta, eta)
    torch.testing.assert_close(h.node.delta[-1], delta[-1])
    torch.testing.assert_close(h.node.eta[-1], eta[-1])
    assert (h.node.delta[0] != 0).all()  # the lower layer's, through the upper one
    assert (c.node.delta != 0).all()
    assert (c.node.eta <= 0).all()


def test_states_alone_can_be_learned_from() -> None:
    module = nn.GRU(IN, H)
    went = Went(module, torch.randn(T, B, IN), weights=0.1, inputs=None)
    delta, eta = torch.randn(1, B, H), -torch.rand(1, B, H)
    went.tape.back(went.results[1], delta, eta)
    again = Went(module, went.args, weights=0.1, inputs=None)
    on_outputs = torch.zeros(2, T, B, H)
    on_outputs[0, -1], on_outputs[1, -1] = delta[0], eta[0]
    again.tape.back(again.results[0], *on_outputs)
    for name, weight in went.weights.items():
        torch.testing.assert_close(weight.node.delta, again.weights[name].node.delta)
        torch.testing.assert_close(weight.node.eta, again.weights[name].node.eta)


def test_dropout_between_layers_is_a_mask_in_training_alone() -> None:
    module = nn.LSTM(IN, H, num_layers=2, dropout=0.5)
    x = torch.randn(T, B, IN)
    torch.manual_seed(3)
    first = Went(module, x, training=True)
    torch.manual_seed(3)
    again = Went(module, x, training=True)
    quiet, own = Went(module, x), module.eval()(x)[0]
    torch.testing.assert_close(first.results[0].centre, again.results[0].centre)
    torch.testing.assert_close(quiet.results[0].centre, own)
    assert not torch.allclose(first.results[0].centre, own)
    delta = torch.randn(T, B, H)
    first.tape.back(first.results[0], delta, torch.zeros_like(delta))
    # The last layer's inputs were masked: a unit that was dropped at all steps teaches nothing.
    on_weight = first.weights["weight_ih_l1"].node
    assert on_weight is not None
    assert on_weight.delta is not None
    assert on_weight.delta.isfinite().all()


def test_a_single_sequence_without_batch() -> None:
    module = nn.LSTM(IN, H)
    x = torch.randn(T, IN)
    went = Went(module, x, inputs=None)
    torch.testing.assert_close(went.results[0].centre, module(x)[0].detach())
    assert went.results[1].shape == (1, H)


def test_what_has_no_rule_is_refused_by_name() -> None:
    with pytest.raises(NoRule, match=r"proj_size=2.*Linear layer"):
        Went(nn.LSTM(IN, H, proj_size=2), torch.randn(T, B, IN), inputs=None)

    class Packed(nn.Module):
        def __init__(self, kind: type[nn.RNNBase]) -> None:
            super().__init__()
            self.body = kind(IN, H)

        def forward(self, x: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 2]))
            return self.body(packed)[0].data

    for kind in (nn.LSTM, nn.GRU):
        with pytest.raises(NoRule, match="packed sequences"):
            Went(Packed(kind), torch.randn(T, B, IN), inputs=None)


def test_the_module_is_left_as_it_was() -> None:
    module = nn.LSTM(IN, H)
    listed, references = module._flat_weights, module._flat_weight_refs
    Went(module, torch.randn(T, B, IN), inputs=None)
    assert module._flat_weights is listed
    assert module._flat_weight_refs is references
    twin = copy.deepcopy(module)
    x = torch.randn(T, B, IN)
    torch.testing.assert_close(twin(x)[0], module(x)[0])


def test_gaussian_weights_are_never_brought_into_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a layer moves new weights into one piece of memory; Gaussians have none."""
    module = nn.LSTM(IN, H)

    def refuse(self: nn.RNNBase) -> None:
        raise AssertionError("flatten_parameters was called")

    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", refuse)
    assert Went(module, torch.randn(T, B, IN), inputs=None).results[0].shape == (T, B, H)


class Last(nn.Module):
    """A number from a sequence."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.body, self.head = kind(1, 12, batch_first=True), nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0][:, -1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("activations", [LocallyLinear(), MomentMatched()])
def test_tagi_learns_what_a_sequence_began_with(
    kind: type[nn.RNNBase], activations: Activations
) -> None:
    torch.manual_seed(0)
    x = torch.randn(256, 4, 1)
    y = x[:, 0] - 0.5 * x[:, 2]
    likelihood = br.GaussianLikelihood(noise=0.2)
    given: dict[str, Any] = {"gain": 0.7, "rule": Conditioning(second_look=0.0)}
    learner = br.tagi(Last(kind), likelihood, num_data=256, activations=activations, **given)
    state = learner.init(seed=0)
    for _ in range(8):
        for start in range(0, 256, 16):
            batch = x[start : start + 16], y[start : start + 16]
            state, _ = learner.step(state, batch)
    prediction = br.predict(learner, state, x)
    assert float((prediction.mean - y).square().mean()) < 0.2 * float(y.square().mean())
    assert isinstance(prediction.mean, Tensor)
    assert not isinstance(prediction.mean, GaussianTensor)
