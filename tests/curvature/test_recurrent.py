"""Recurrent layers as loops: torch's own results, rows and factors of single steps."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import bayesrule as br
from bayesrule.curvature import ExampleRows, Recording
from bayesrule.curvature.recurrent import unrolled
from bayesrule.curvature.single_examples import SingleExamples
from bayesrule.matrices import Kronecker
from bayesrule.matrices.kronecker import KroneckerMatrix
from bayesrule.posteriors import Point
from bayesrule.posteriors.rotated import RotatedPoint
from bayesrule.types import Params
from curvature.brute_force import at_mean, example_rows, problem_of

KINDS: list[Callable[..., nn.RNNBase]] = [nn.LSTM, nn.GRU, nn.RNN]
LAYOUTS: dict[str, dict[str, Any]] = {
    "one layer": {"batch_first": True},
    "time first": {},
    "no biases": {"bias": False, "batch_first": True},
    "both ways": {"bidirectional": True, "batch_first": True},
    "two layers, both ways, time first": {"bidirectional": True, "num_layers": 2},
}


class Reader(nn.Module):
    """Reads sequences (n, T, 3) with a recurrent layer; the head sees a mean and the last state."""

    def __init__(self, kind: Callable[..., nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.memory = kind(3, 4, **options)
        self.out = nn.Linear(8 * (2 if self.memory.bidirectional else 1), 2)

    def forward(self, x: Tensor) -> Tensor:
        over = 1 if self.memory.batch_first else 0
        hidden, last = self.memory(x if over else x.transpose(0, 1))
        states = last[0] if isinstance(last, tuple) else last
        ends = states[-2:] if self.memory.bidirectional else states[-1:]
        return self.out(torch.cat([hidden.mean(over), *ends], -1))


class Started(nn.Module):
    """A recurrent layer whose first state is learned too."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(1, 1, 4))
        self.memory, self.out = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        start = self.first.expand(1, len(x), 4).contiguous()
        return self.out(self.memory(x, start)[0][:, -1])


class Packed(nn.Module):
    """Sequences of different lengths, packed."""

    def __init__(self, kind: Callable[..., nn.RNNBase]) -> None:
        super().__init__()
        self.memory, self.out = kind(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        lengths = torch.arange(len(x)) % x.shape[1] + 1
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        last = self.memory(packed)[1]
        return self.out((last[0] if isinstance(last, tuple) else last)[-1])


def _rows(model: nn.Module, x: Tensor, num: int = 2) -> tuple[ExampleRows, Params, Params]:
    problem = problem_of(model, x)
    recording = Recording(problem, at_mean(problem))
    vectors = torch.randn(num, *recording.outputs.shape)
    rows, total = recording.backward(vectors, gradient=True)
    return rows, total, example_rows(problem, vectors)


def _assert_close(got: Params, want: Params) -> None:
    assert got.keys() == want.keys()
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("kind", [*KINDS, lambda *a, **k: nn.RNN(*a, **k, nonlinearity="relu")])
def test_the_loop_equals_the_fused_call(
    kind: Callable[..., nn.RNNBase], options: dict[str, Any]
) -> None:
    model, x = Reader(kind, **options), torch.randn(5, 6, 3, requires_grad=True)
    with SingleExamples():
        loop = model(x)
    fused, vector = model(x), torch.randn(5, 2)
    torch.testing.assert_close(loop, fused, rtol=1e-10, atol=1e-12)
    wanted = [x, *model.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad(loop, wanted, vector),
        torch.autograd.grad(fused, wanted, vector),
        rtol=1e-10,
        atol=1e-12,
    )


def test_all_that_a_recurrent_layer_returns_is_the_same() -> None:
    model, x = nn.LSTM(3, 4, num_layers=2, bidirectional=True), torch.randn(6, 5, 3)
    first = torch.randn(4, 5, 4), torch.randn(4, 5, 4)
    hidden, states = model(x, first)
    with SingleExamples():
        loop, ends = model(x, first)
    torch.testing.assert_close((loop, *ends), (hidden, *states), rtol=1e-10, atol=1e-12)


def test_other_calls_are_left_to_torch() -> None:
    projected = nn.LSTM(3, 4, proj_size=2)
    states = torch.zeros(1, 5, 2), torch.zeros(1, 5, 4)
    weights = list(projected.parameters())
    options = True, 1, 0.0, False, False, False
    assert unrolled(torch.lstm, (torch.zeros(6, 5, 3), states, weights, *options)) is None
    assert unrolled(torch.tanh, (torch.zeros(2),)) is None


def test_dropout_between_layers_is_drawn_in_training_mode_alone() -> None:
    model, x = nn.GRU(3, 4, num_layers=2, dropout=0.5, batch_first=True), torch.ones(5, 6, 3)
    with SingleExamples():
        assert not torch.equal(model(x)[0], model(x)[0])
        model.eval()
        torch.testing.assert_close(model(x)[0], model(x)[0], rtol=0.0, atol=0.0)


@pytest.mark.parametrize("options", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_equal_single_example_gradients(
    kind: Callable[..., nn.RNNBase], options: dict[str, Any]
) -> None:
    rows, total, want = _rows(Reader(kind, **options), torch.randn(5, 6, 3))
    _assert_close(rows.per_example(), want)
    _assert_close(rows.squares(), {k: v.square().sum((0, 1)) for k, v in want.items()})
    _assert_close(total, {k: v.sum((0, 1)) for k, v in want.items()})


@pytest.mark.parametrize("frozen", ["weight_hh_l0", "bias_hh_l0", "weight_ih_l0", "bias_ih_l0"])
def test_rows_beside_a_frozen_part(frozen: str) -> None:
    model = Reader(nn.LSTM, batch_first=True)
    model.memory.get_parameter(frozen).requires_grad_(False)
    problem = problem_of(model, torch.randn(5, 6, 3))
    recording = Recording(problem, at_mean(problem))
    assert not recording.loose
    vectors = torch.randn(1, 5, 2)
    rows, _ = recording.backward(vectors, gradient=False)
    _assert_close(rows.per_example(), example_rows(problem, vectors))


def test_a_learned_first_state_goes_through_single_examples() -> None:
    problem = problem_of(Started(), torch.randn(5, 6, 3))
    recording = Recording(problem, at_mean(problem))
    assert recording.loose == {"first"}
    vectors = torch.randn(1, 5, 2)
    rows, _ = recording.backward(vectors, gradient=False)
    _assert_close(rows.per_example(), example_rows(problem, vectors))


def test_as_many_steps_as_examples_do_not_deceive() -> None:
    rows, _, want = _rows(Reader(nn.LSTM), torch.randn(4, 4, 3))
    _assert_close(rows.per_example(), want)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_are_refused_by_name(kind: Callable[..., nn.RNNBase]) -> None:
    problem = problem_of(Packed(kind), torch.randn(5, 4, 3))
    recording = Recording(problem, at_mean(problem))
    rows, _ = recording.backward(torch.ones(1, 5, 2), gradient=False)
    with pytest.raises(ValueError, match=r"memory\.weight_ih_l0.*packed sequences.*padded"):
        rows.per_example()


def test_an_lstm_with_projections_is_refused_by_name() -> None:
    model = nn.Sequential(nn.LSTM(3, 4, proj_size=2))
    with pytest.raises(ValueError, match=r"Fisher\(\) needs.*'0' \(LSTM\) with proj_size=2 hides"):
        br.noisy_kfac(model, br.GaussianLikelihood(), num_data=8)
    with pytest.raises(ValueError, match=r"GGN\(\) needs.*put a Linear layer behind it"):
        br.laplace(model, br.GaussianLikelihood(), num_data=8, structure=Kronecker())


# --- Kronecker factors ----------------------------------------------------------------------------


def _factors(rows: ExampleRows, model: nn.Module) -> KroneckerMatrix:
    return Kronecker().for_model(model).contract(rows)


def _slopes(cell: nn.LSTMCell, out: nn.Linear, x: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
    """By hand: the states before each step (T, n, h), and the gradients of the gates (T, n, 4h)."""
    h = c = x.new_zeros(len(x), 4)
    before, gates, total = [], [], torch.zeros(())
    for one in x.unbind(1):
        before.append(h)
        gate = cell.weight_ih @ one.mT + cell.weight_hh @ h.mT
        gate = gate.mT + cell.bias_ih + cell.bias_hh
        gates.append(gate)
        i, f, g, o = gate.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        total = total + h / x.shape[1]
    outputs = out(torch.cat([total, h], 1))
    return torch.stack(before), torch.stack(torch.autograd.grad(outputs, gates, given))


def test_factors_are_moments_over_all_examples_and_steps() -> None:
    model, x = Reader(nn.LSTM, batch_first=True), torch.randn(5, 6, 3)
    problem = problem_of(model, x)
    recording = Recording(problem, at_mean(problem))
    given = torch.randn(5, 2)
    matrix = _factors(recording.backward(given[None], gradient=False)[0], model)
    cell = nn.LSTMCell(3, 4)
    cell.load_state_dict({k[:-3]: v for k, v in model.memory.state_dict().items()})
    before, slopes = _slopes(cell, model.out, x, given)
    for side, inputs in (("ih", x.transpose(0, 1)), ("hh", before)):
        with_one = torch.cat([inputs, torch.ones(6, 5, 1)], -1)
        factors = matrix.layers[f"memory.weight_{side}_l0"].factors
        want = torch.einsum("tni,tnj->ij", with_one, with_one) / 30
        torch.testing.assert_close(factors.mean_input, want, rtol=1e-10, atol=1e-12)
        want = torch.einsum("tno,tnp->op", slopes, slopes)
        torch.testing.assert_close(factors.output, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_one_example_and_one_step_are_exact(kind: Callable[..., nn.RNNBase]) -> None:
    model = Reader(kind, batch_first=True)
    rows, _, _ = _rows(model, torch.randn(1, 1, 3), num=3)
    for layer in _factors(rows, model).layers.values():
        if not layer.place.weight.startswith("memory"):
            continue
        table = layer.place.join(rows.per_example()).flatten(end_dim=1).flatten(start_dim=1)
        got = torch.kron(layer.factors.output, layer.factors.mean_input)
        torch.testing.assert_close(got, table.mT @ table, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_given_in_other_bases(kind: Callable[..., nn.RNNBase]) -> None:
    model = Reader(kind, batch_first=True)
    rows, _, _ = _rows(model, torch.randn(5, 6, 3))
    rotation = _factors(rows, model).damped(1.0).spectral()
    problem = problem_of(model, torch.randn(5, 6, 3))
    params, vectors = problem.network.params(), torch.randn(2, 5, 2)
    plain = Recording(problem, Point(params))
    turned = Recording(problem, RotatedPoint(rotation.into_bases(params), rotation))
    want = rotation.into_bases(plain.gradient(vectors[0]))
    _assert_close(turned.gradient(vectors[0]), {k: want[k] for k in turned.gradient(vectors[0])})
    found, wanted = (r.backward(vectors, gradient=False)[0] for r in (turned, plain))
    _assert_close(found.per_example(), wanted.per_example())


def _drifts() -> tuple[Tensor, Tensor]:
    """Sequences of five steps, and whether their first coordinate has a positive sum."""
    x = torch.randn(256, 5, 3)
    return x, (x[:, :, 0].sum(1) > 0).long()


@pytest.mark.parametrize("every", [1, 4])
def test_noisy_kfac_learns_with_an_lstm(every: int) -> None:
    x, y = _drifts()
    learner = br.noisy_kfac(
        Reader(nn.LSTM, batch_first=True),
        br.CategoricalLikelihood(),
        num_data=256,
        learning_rate=0.3,
        kl_clip=0.05,
        stats_every=every,
        inverse_every=every,
    )
    state, losses = learner.init(), []
    for _ in range(100):
        state, info = learner.step(state, (x, y))
        losses.append(float(info.loss) / 256)
    assert losses[0] > 0.6
    assert sum(losses[-5:]) / 5 < 0.45


def test_laplace_takes_the_kronecker_curvature_of_an_lstm() -> None:
    x, y = _drifts()
    learner = br.laplace(
        Reader(nn.LSTM, batch_first=True),
        br.CategoricalLikelihood(),
        num_data=256,
        structure=Kronecker(),
        learning_rate=0.03,
    )
    state = learner.init()
    losses = []
    for _ in range(60):
        state, info = learner.step(state, (x, y))
        losses.append(float(info.loss) / 256)
    assert losses[0] > 0.6
    assert losses[-1] < 0.35
    state = learner.finish(state, [(x, y)])
    wide = state.posterior.variance()["memory.weight_hh_l0"]
    assert wide.isfinite().all()
    assert (wide < 1.0).any()
    assert float(br.predict(learner, state, x).log_prob(y).mean()) > -0.5
