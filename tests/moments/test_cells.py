"""One step of a recurrent cell: the equations of TAGI, the squared Jacobian, draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayesrule.moments import MomentMatched, Tape
from bayesrule.moments.cells import sigmoid, tanh
from bayesrule.moments.quadrature import quadrature
from bayesrule.tensors.network import Network

from .recurrence import CELLS, IN, LINEAR, B, H, Went, arguments, build, flat, plain

pytestmark = pytest.mark.usefixtures("double_precision")


def squared_jacobian(outputs: Tensor, etas: Tensor, sources: list[Tensor]) -> list[Tensor]:
    """`Σ_k η_k (∂f_k / ∂θ)²`."""
    sums = [torch.zeros_like(s) for s in sources]
    for value, eta in zip(outputs.flatten(), etas.flatten(), strict=True):
        found = torch.autograd.grad(value, sources, retain_graph=True)
        sums = [s + eta * f.square() for s, f in zip(sums, found, strict=True)]
    return sums


@pytest.mark.parametrize("kind", CELLS)
def test_one_steps_etas_are_those_of_the_squared_jacobian(kind: type[nn.Module]) -> None:
    module = build(kind, {})
    args = arguments(module)
    went, (results, sources) = Went(module, args), plain(module, args)
    eta = -torch.rand(B, H)
    nothing = [torch.zeros(B, H) for _ in results]
    went.back(nothing, [eta, *nothing[1:]])
    expected = squared_jacobian(results[0], eta, sources)
    for got, want in zip(went.sources, expected, strict=True):
        torch.testing.assert_close(got.node.eta, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "weights", "inputs"),
    [(nn.GRUCell, 1e-7, 1e-7), (nn.RNNCell, 1e-7, 1e-7), (nn.LSTMCell, 1e-7, None)],
)
def test_small_variances_are_those_of_the_tangent(
    kind: type[nn.Module], weights: float, inputs: float | None
) -> None:
    module = build(kind, {})
    args = arguments(module)
    went = Went(module, args, weights=weights, inputs=inputs)
    results, sources = plain(module, args)
    own = sources if inputs else list(module.parameters())
    for value, got in zip(results[0].flatten(), went.results[0].variance.flatten(), strict=True):
        found = torch.autograd.grad(value, own, retain_graph=True)
        expected = 1e-7 * sum(float(f.square().sum()) for f in found)
        assert float(got) == pytest.approx(expected, rel=1e-5)


def lstm_by_hand(module: nn.LSTMCell, x: Any, h: Any, c: Any, v: float) -> dict[str, Tensor]:
    """The equations of one step for one example, sums written out; gates i, f, g, o."""
    (xm, xs), (hm, hs), (c0, s0) = x, h, c
    inputs, spread = torch.cat([xm, hm]), torch.cat([xs, hs])
    w = torch.cat([module.weight_ih, module.weight_hh], 1).detach()
    bias = (module.bias_ih + module.bias_hh).detach()
    m = [bias[k] + sum(w[k, j] * inputs[j] for j in range(IN + H)) for k in range(4 * H)]
    s = [
        2 * v
        + sum(v * (inputs[j] ** 2 + spread[j]) + w[k, j] ** 2 * spread[j] for j in range(IN + H))
        for k in range(4 * H)
    ]
    names = ("c", "sc", "h", "sh", "jc", "f", "to_i", "to_f", "to_g", "to_o", "to_c")
    out: dict[str, list[Tensor]] = {name: [] for name in names}
    for k in range(H):
        at = [k, H + k, 2 * H + k, 3 * H + k]
        i, f, o = (torch.sigmoid(m[at[a]]) for a in (0, 1, 3))
        g = torch.tanh(m[at[2]])
        ji, jf, jo, jg = i * (1 - i), f * (1 - f), o * (1 - o), 1 - g**2
        si, sf, sg, so = (j**2 * s[a] for j, a in zip((ji, jf, jg, jo), at, strict=True))

        def shared(a: int, b: int, at: list[int] = at) -> Tensor:
            return torch.stack([w[at[a], j] * w[at[b], j] * spread[j] for j in range(IN + H)]).sum()

        ig = ji * jg * shared(0, 2)
        cell = f * c0[k] + i * g + ig
        sc = s0[k] * f**2 + s0[k] * sf + sf * c0[k] ** 2
        sc = sc + sg * i**2 + si * sg + si * g**2 + ig**2 + 2 * ig * i * g
        a = torch.tanh(cell)
        jc = 1 - a**2
        sa = jc**2 * sc
        oa = jf * c0[k] * shared(1, 3) + ji * g * shared(0, 3) + jg * i * shared(2, 3)
        oa = jc * jo * oa
        sh = sa * o**2 + sa * so + so * a**2 + oa**2 + 2 * oa * o * a
        row = (cell, sc, o * a + oa, sh, jc, f)
        row += (jc * o * ji * g, jc * o * jf * c0[k], jc * o * jg * i, jo * a, jc * o)
        for name, value in zip(names, row, strict=True):
            out[name].append(value)
    return {name: torch.stack(values) for name, values in out.items()}


def close(got: Any, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


def test_one_lstm_step_is_that_of_the_equations() -> None:
    module, v = nn.LSTMCell(IN, H), 0.02
    tape = Tape(LINEAR, record=True)
    weights = {
        k: tape.leaf(p.detach(), torch.full_like(p, v)) for k, p in module.named_parameters()
    }
    means = torch.randn(1, IN), torch.randn(1, H), torch.randn(1, H)
    spreads = torch.rand(1, IN), torch.rand(1, H), torch.rand(1, H)
    x, h0, c0 = (tape.leaf(m, s) for m, s in zip(means, spreads, strict=True))
    with torch.no_grad():
        h, c = Network(module)(weights, {}, (x, (h0, c0)), training=False)
    by_hand = lstm_by_hand(module, *((m[0], s[0]) for m, s in zip(means, spreads, strict=True)), v)
    close(h.centre[0], by_hand["h"])
    close(h.variance[0], by_hand["sh"])
    close(c.centre[0], by_hand["c"])
    close(c.variance[0], by_hand["sc"])

    delta, eta = torch.randn(1, H), -torch.rand(1, H)
    tape.back(h, delta, eta)
    # The cell state learns through h alone: c̄ += s_c J_c ō δ, s_c += (s_c J_c ō)² η.
    close(c.node.delta[0], by_hand["to_c"] * delta[0])
    close(c.node.eta[0], by_hand["to_c"] ** 2 * eta[0])
    close(c0.node.delta[0], by_hand["f"] * by_hand["to_c"] * delta[0])
    factors = torch.cat([by_hand[f"to_{gate}"] for gate in "ifgo"])
    for which, source in (("ih", x), ("hh", h0)):
        w = dict(module.named_parameters())[f"weight_{which}"].detach()
        total = (factors[:, None] * w).reshape(4, H, -1).sum(0)  # Σ_gates G w̄, (H, in)
        close(source.node.delta[0], total.mT @ delta[0])
        close(source.node.eta[0], total.square().mT @ eta[0])
        four = delta[0].repeat(4), eta[0].repeat(4)
        close(
            weights[f"weight_{which}"].node.delta,
            torch.outer(factors * four[0], source.centre[0]),
        )
        close(
            weights[f"weight_{which}"].node.eta,
            torch.outer(factors**2 * four[1], source.centre[0] ** 2),
        )
        close(weights[f"bias_{which}"].node.delta, factors * four[0])
        close(weights[f"bias_{which}"].node.eta, factors**2 * four[1])


@pytest.mark.parametrize("kind", CELLS)
def test_moments_by_draws(kind: type[nn.Module]) -> None:
    """With exact moments of the gates, means hold to the square of the variances."""
    module, num, v = kind(1, 2), 1_000_000, 0.04
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(2.0)
    size = [(1, 1), (1, 2), (1, 2)][: 3 if kind is nn.LSTMCell else 2]
    parts = [torch.randn(s) for s in size]
    args: Any = (parts[0], tuple(parts[1:]) if kind is nn.LSTMCell else parts[1])
    went = Went(module, args, weights=None, inputs=v, activations=MomentMatched())
    draws = [p + v**0.5 * torch.randn(num, p.shape[1]) for p in parts]
    drawn: Any = (draws[0], tuple(draws[1:]) if kind is nn.LSTMCell else draws[1])
    with torch.no_grad():
        results = flat(module(*drawn))
    for got, values in zip(went.results, results, strict=True):
        torch.testing.assert_close(got.centre[0], values.mean(0), rtol=0, atol=4e-3)
        if kind is not nn.LSTMCell:  # there the covariance of f c₋ with i g is left out
            torch.testing.assert_close(got.variance[0], values.var(0), rtol=0.1, atol=1e-4)


@pytest.mark.parametrize("variance", [1e-14, 0.01, 0.25, 1.0])
@pytest.mark.parametrize(("ours", "function"), [(sigmoid, torch.sigmoid), (tanh, torch.tanh)])
def test_gates_have_the_moments_of_many_nodes(
    ours: Callable[..., Any], function: Callable[[Tensor], Tensor], variance: float
) -> None:
    m = torch.linspace(-3.0, 3.0, 25)[None]
    s = torch.full_like(m, variance)
    for got, want in zip(ours(m, s, MomentMatched()), quadrature(function, m, s, 80), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=4e-3 * variance + 1e-15)
