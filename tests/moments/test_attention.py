"""Attention: the plain functions where variances vanish, masks, and networks that learn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.moments import (
    GaussianTensor,
    LocallyLinear,
    MomentMatched,
    NoRule,
    Propagation,
    Tape,
)
from bayesrule.rules import Conditioning

from .attention_inputs import KEY, QUERY, VALUE, gaussian
from .monte_carlo import check_moments
from .nets import randn

TINY = 1e-14


class Attending(nn.Module):
    """Attention with everything but queries, keys and values given beforehand."""

    def __init__(self, layer: nn.MultiheadAttention, **options: Any) -> None:
        super().__init__()
        self.layer, self.options = layer, options

    def forward(self, *inputs: Tensor) -> Tensor:
        given = inputs * 3 if len(inputs) == 1 else inputs
        outputs, weights = self.layer(*given, **self.options)
        if weights is None:
            return outputs
        return torch.cat([outputs.flatten(), weights.flatten()]).reshape(len(given[0]), -1)


CAUSAL = nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
PADDING = torch.tensor([[False] * 4, [False, False, True, True], [False, True, False, False]])
PLAIN = {"need_weights": False}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "self": ({}, PLAIN, 1),
    "batch first": ({"batch_first": True}, PLAIN, 1),
    "cross": ({}, PLAIN, 3),
    "weights": ({}, {}, 1),
    "weights, batch first": ({"batch_first": True}, {}, 1),
    "causal": ({}, {"attn_mask": CAUSAL, "is_causal": True, **PLAIN}, 1),
    "truth values": ({}, {"attn_mask": CAUSAL < 0, **PLAIN}, 1),
    "a mask for each head": ({}, {"attn_mask": randn(6, 4, 4).double(), **PLAIN}, 1),
    "padding": ({"batch_first": True}, {"key_padding_mask": PADDING, **PLAIN}, 1),
    "both masks": (
        {"batch_first": True},
        {"key_padding_mask": PADDING, "attn_mask": CAUSAL < 0, **PLAIN},
        1,
    ),
    "no bias": ({"bias": False}, PLAIN, 1),
    "bias of keys": ({"add_bias_kv": True}, {"attn_mask": CAUSAL, **PLAIN}, 1),
    "a key of zeros": ({"add_zero_attn": True}, {"attn_mask": CAUSAL, **PLAIN}, 1),
    "keys and values of other sizes": ({"kdim": 5, "vdim": 3}, PLAIN, 3),
}


def case(name: str) -> tuple[Attending, tuple[Tensor, ...]]:
    layer, options, count = CASES[name]
    torch.manual_seed(0)
    model = Attending(nn.MultiheadAttention(6, 2, **layer), **options).eval()
    sizes = (6, layer.get("kdim", 6), layer.get("vdim", 6))[:count]
    shape = (3, 4) if layer.get("batch_first") else (4, 3)
    return model, tuple(randn(*shape, size, seed=i) for i, size in enumerate(sizes))


def passed(
    model: nn.Module, inputs: tuple[Tensor, ...], variance: float
) -> tuple[Propagation, GaussianTensor]:
    learner = br.tagi(model, br.GaussianLikelihood(noise=1.0), num_data=1)
    params = learner.network.params()
    propagation = Propagation(learner.network, MomentMatched())
    spread = {name: torch.full_like(value, variance) for name, value in params.items()}
    given = tuple(gaussian(x, variance) for x in inputs)
    with torch.no_grad():
        return propagation, propagation.forward(params, spread, {}, given, training=False)


@pytest.mark.parametrize("name", CASES)
class TestWhereVariancesVanish:
    def test_the_mean_is_that_of_the_plain_module(self, name: str) -> None:
        model, inputs = case(name)
        outputs = passed(model, inputs, TINY)[1]
        torch.testing.assert_close(outputs.centre, model(*inputs).detach(), rtol=1e-9, atol=1e-9)

    def test_innovations_return_as_gradients_do(self, name: str) -> None:
        model, inputs = case(name)
        propagation, outputs = passed(model, inputs, TINY)
        leaves = [x.clone().requires_grad_() for x in inputs]
        plain = model(*leaves)
        delta = randn(*plain.shape, seed=9)
        plain.backward(delta)
        found, _ = propagation.back(outputs, delta, -torch.ones_like(delta))
        for key, value in model.named_parameters():
            torch.testing.assert_close(found[key], value.grad, rtol=1e-6, atol=1e-8)
        for x, leaf in zip(propagation.inputs, leaves, strict=True):
            torch.testing.assert_close(x.node.delta, leaf.grad, rtol=1e-6, atol=1e-8)

    def test_variances_are_positive_and_fall(self, name: str) -> None:
        model, inputs = case(name)
        propagation, outputs = passed(model, inputs, 0.01)
        assert bool((outputs.variance >= 0).all())
        _, eta = propagation.back(outputs, randn(*outputs.shape), -torch.ones_like(outputs.centre))
        assert all(bool((e <= 1e-9).all()) for e in eta.values())


def test_one_example_without_a_batch() -> None:
    model = Attending(nn.MultiheadAttention(6, 2)).eval()
    x = randn(4, 6)
    assert passed(model, (x,), TINY)[1].shape == (4, 6 + 4)
    torch.testing.assert_close(passed(model, (x,), TINY)[1].centre, model(x).detach())


def test_weights_of_each_head() -> None:
    layer = nn.MultiheadAttention(6, 2)
    tape = Tape(MomentMatched(), record=True)
    x = randn(4, 3, 6)
    weights = layer(*[tape.leaf(x, torch.full_like(x, 0.01))] * 3, average_attn_weights=False)[1]
    assert weights.shape == (3, 2, 4, 4)
    torch.testing.assert_close(weights.centre.sum(-1), torch.ones(3, 2, 4))


class TestScaledDotProduct:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"is_causal": True},
            {"scale": 0.7},
            {"attn_mask": randn(3, 5) > 0.5},
            {"attn_mask": randn(2, 3, 5).double()},
        ],
        ids=lambda o: ", ".join(o) or "plain",
    )
    def test_is_the_plain_function_where_variances_vanish(self, options: dict[str, Any]) -> None:
        if "attn_mask" in options and options["attn_mask"].dtype == torch.bool:
            options["attn_mask"][:, 0] = True
        given = [gaussian(x, TINY) for x in (QUERY, KEY, VALUE)]
        expected = F.scaled_dot_product_attention(QUERY, KEY, VALUE, **options)
        found = F.scaled_dot_product_attention(*given, **options)
        torch.testing.assert_close(found.centre, expected)

    def test_groups_of_heads_and_broadcast_batches(self) -> None:
        q, k, v = randn(2, 4, 3, 6), randn(1, 2, 5, 6, seed=1), randn(2, 2, 5, 6, seed=2)
        given = [gaussian(x, TINY) for x in (q, k, v)]
        expected = F.scaled_dot_product_attention(q, k.expand(2, 2, 5, 6), v, enable_gqa=True)
        found = F.scaled_dot_product_attention(*given, enable_gqa=True)
        torch.testing.assert_close(found.centre, expected)

    @pytest.mark.parametrize("which", range(3))
    def test_any_of_the_three_may_be_uncertain(self, which: int) -> None:
        given = [QUERY, KEY, VALUE]
        given[which] = gaussian(given[which])
        check_moments(
            F.scaled_dot_product_attention,
            given,
            LocallyLinear(),
            rtol=0.25,
            atol=0.005,
            num=100_000,
            only=("mean", "variance", "slopes"),
        )

    def test_dropout_drops_weights(self) -> None:
        given = [gaussian(x) for x in (QUERY, KEY, VALUE)]
        torch.manual_seed(0)
        draws = [F.scaled_dot_product_attention(*given, dropout_p=0.5).centre for _ in range(4000)]
        expected = F.scaled_dot_product_attention(*given).centre
        torch.testing.assert_close(torch.stack(draws).mean(0), expected, rtol=0.0, atol=0.07)
        assert float(torch.stack(draws).std(0).min()) > 0.05

    def test_slopes_of_what_dropout_leaves(self) -> None:
        given = [x.clone().requires_grad_() for x in (QUERY, KEY, VALUE)]
        torch.manual_seed(0)
        kept = F.dropout(torch.ones(2, 3, 5), 0.5)
        plain = ((0.5 * given[0] @ given[1].mT).softmax(-1) * kept) @ given[2]
        plain.sum().backward()
        tape = Tape(LocallyLinear(), record=True)
        leaves = [tape.leaf(x.detach(), torch.full_like(x, 0.01)) for x in given]
        torch.manual_seed(0)
        found = F.scaled_dot_product_attention(*leaves, dropout_p=0.5)
        tape.back(found, torch.ones(2, 3, 3), -torch.ones(2, 3, 3))
        torch.testing.assert_close(found.centre, plain.detach())
        for leaf, x in zip(leaves, given, strict=True):
            torch.testing.assert_close(leaf.node.delta, x.grad)


class TestMasks:
    def test_later_tokens_are_not_seen(self) -> None:
        first = [gaussian(x) for x in (QUERY, KEY[:, :3], VALUE[:, :3])]
        changed = [gaussian(x.centre.clone()) for x in first]
        for x in changed:
            x.centre[:, 2] += 5.0
        found = [F.scaled_dot_product_attention(*x, is_causal=True) for x in (first, changed)]
        for part in ("centre", "variance"):
            old, new = (getattr(f, part) for f in found)
            torch.testing.assert_close(old[:, :2], new[:, :2], rtol=0.0, atol=0.0)
            assert not torch.allclose(old[:, 2], new[:, 2])

    def test_padding_is_not_seen(self) -> None:
        model, (x,) = case("padding")
        old = passed(model, (x,), 0.01)[1]
        x = x.clone()
        x[1, 2:] += 5.0
        new = passed(model, (x,), 0.01)[1]
        for part in ("centre", "variance"):
            torch.testing.assert_close(getattr(old, part)[1, :2], getattr(new, part)[1, :2])


class TestRefusals:
    def test_two_masks(self) -> None:
        mask = torch.ones(3, 5)
        with pytest.raises(ValueError, match="not both"):
            F.scaled_dot_product_attention(gaussian(QUERY), KEY, VALUE, mask, is_causal=True)

    def test_an_uncertain_mask(self) -> None:
        with pytest.raises(NoRule, match="plain tensor"):
            F.scaled_dot_product_attention(QUERY, KEY, VALUE, gaussian(torch.ones(3, 5)))

    def test_a_hint_without_a_mask(self) -> None:
        layer = nn.MultiheadAttention(6, 2)
        with pytest.raises(ValueError, match="attn_mask"):
            layer(*[gaussian(randn(4, 3, 6))] * 3, is_causal=True)

    def test_fixed_keys(self) -> None:
        x, w = gaussian(randn(4, 3, 6)), randn(18, 6)
        with pytest.raises(NoRule, match="static_k"):
            F.multi_head_attention_forward(
                x, x, x, 6, 2, w, None, None, None, False, 0.0, randn(6, 6), None, static_k=x
            )


class TestTransformer:
    @pytest.mark.parametrize("norm_first", [False, True])
    @pytest.mark.parametrize("activation", ["relu", "gelu"])
    @pytest.mark.parametrize("training", [False, True])
    def test_runs_unmodified_and_on_no_fast_path(
        self,
        norm_first: bool,
        activation: str,
        training: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def taken(*args: Any) -> None:
            raise AssertionError("the fast path knows no Gaussians")

        monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", taken)
        monkeypatch.setattr(torch, "_native_multi_head_attention", taken)
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(
            32, 2, 16, dropout=0.0, activation=activation, norm_first=norm_first, batch_first=True
        )
        learner = br.tagi(layer, br.GaussianLikelihood(noise=0.5), num_data=1, gain=1e-3)
        propagation, state = Propagation(learner.network, MomentMatched()), learner.init()
        x = randn(2, 3, 32)
        with torch.no_grad():
            found = propagation.forward(
                state.posterior.mean, state.posterior.variance(), {}, x, training=training
            )
            torch.testing.assert_close(found.centre, layer.train()(x), rtol=1e-3, atol=1e-3)

    def test_a_stack_with_padding_learns(self) -> None:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        stack = nn.TransformerEncoder(layer, 2)

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.stack = stack

            def forward(self, x: Tensor) -> Tensor:
                return self.stack(x, src_key_padding_mask=PADDING[:, :4])

        learner = br.tagi(
            Model(),
            br.GaussianLikelihood(noise=0.3),
            num_data=3,
            gain=0.2,
            rule=br.Conditioning(reach=0.5),
        )
        batch = randn(3, 4, 8), randn(3, 4, 8, seed=1)
        state, first = learner.step(learner.init(), batch)
        for _ in range(20):
            state, info = learner.step(state, batch)
        assert float(info.loss) < 0.7 * float(first.loss)


class Finder(nn.Module):
    """Embedded tokens, looked at one by one or by attention, averaged and classified."""

    def __init__(self, *, attends: bool, features: int = 10, length: int = 6) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(features, 16), nn.Linear(16, length)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True) if attends else None

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x)
        if self.attention is not None:
            tokens = self.attention(tokens, tokens, tokens, need_weights=False)[0]
        return self.head(tokens.mean(1))


def markers(num: int, seed: int, length: int = 6) -> br.types.Batch:
    """Tokens of kinds 1 to 3 at places 0 to 5, and the place of the one token of kind 0."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.randint(length, (num,), generator=generator)
    kinds = torch.randint(1, 4, (num, length), generator=generator)
    kinds[torch.arange(num), place] = 0
    places = torch.eye(length).expand(num, length, length)
    return torch.cat([F.one_hot(kinds, 4).to(places.dtype), places], -1), place


@pytest.mark.parametrize("attends", [True, False])
def test_attention_finds_the_marker_where_a_bag_of_words_cannot(attends: bool) -> None:
    torch.manual_seed(0)
    (x, y), (x_test, y_test) = markers(2000, 0), markers(500, 1)
    # With the width that logits have by default it takes twice as many epochs.
    given: dict[str, Any] = {"gain": 2.0, "rule": Conditioning(second_look=0.0)}
    given["activations"] = MomentMatched()
    learner = br.tagi(Finder(attends=attends), br.CategoricalLikelihood(), num_data=2000, **given)
    run = br.fit(learner, (x, y), epochs=6, batch_size=16, progress=False)
    accuracy = float((run.predict(x_test).labels == y_test).double().mean())
    assert accuracy > 0.9 if attends else accuracy < 0.3
