"""Rows of every kind of module against gradients taken an example at a time."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bayesrule.curvature import ExampleRows, Problem, Recording
from bayesrule.curvature.recorder import Recorder
from bayesrule.types import Params
from curvature.brute_force import at_mean, example_rows, problem_of
from curvature.zoo import LOOSE, ZOO, Arithmetic, Case, Chain, Positions, Recurrent, Scripted


def _rows(problem: Problem, num: int = 3) -> tuple[ExampleRows, Params, Tensor]:
    recording = Recording(problem, at_mean(problem))
    vectors = torch.randn(num, *recording.outputs.shape)
    rows, total = recording.backward(vectors, gradient=True)
    return rows, total, vectors


def _assert_close(got: Params, want: Params) -> None:
    assert got.keys() == want.keys()
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=1e-10, atol=1e-10)


def _gram(rows: Params, weights: Params) -> Tensor:
    flat = {k: r.flatten(start_dim=2) for k, r in rows.items()}
    parts = [torch.einsum("vnp,p,unp->nvu", r, weights[k].flatten(), r) for k, r in flat.items()]
    return torch.stack(parts).sum(0)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("make", ZOO.values(), ids=ZOO)
def test_rows_equal_single_example_gradients(make: Callable[[], Case]) -> None:
    model, x = make()
    problem = problem_of(model, x)
    rows, total, vectors = _rows(problem)
    want = example_rows(problem, vectors)
    weights = {name: torch.rand_like(v) for name, v in problem.network.params().items()}
    _assert_close(rows.per_example(), want)
    _assert_close(rows.squares(), {k: v.square().sum((0, 1)) for k, v in want.items()})
    _assert_close(total, {k: v.sum((0, 1)) for k, v in want.items()})
    torch.testing.assert_close(rows.gram(weights), _gram(want, weights), rtol=1e-10, atol=1e-10)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("make", ZOO.values(), ids=ZOO)
def test_a_module_is_understood_once_for_every_batch_size(make: Callable[[], Case]) -> None:
    model, x = make()
    problem = problem_of(model, x)
    _rows(problem)
    known = problem.network.understood
    short = x[:2] if isinstance(x, Tensor) else tuple(part[:2] for part in x)
    smaller = problem_of(model, short)
    smaller.network.understood = known
    rows, _, vectors = _rows(smaller, num=1)
    _assert_close(rows.per_example(), example_rows(smaller, vectors))
    assert smaller.network.understood is known


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", ZOO)
def test_known_layers_need_no_pass_for_each_example(name: str) -> None:
    model, x = ZOO[name]()
    problem = problem_of(model, x)
    recording = Recording(problem, at_mean(problem))
    assert recording.loose == LOOSE.get(name, set())


def test_what_the_recorder_sees_needs_no_probe() -> None:
    model = Arithmetic()
    params: Params = {**dict(model.named_parameters())}
    with Recorder(params) as recorder:
        model(torch.randn(5, 3))
    assert recorder.loose == {"scale", "layer.bias"}
    assert [(use.weight, use.bias) for use in recorder.uses] == [("layer.weight", "layer.bias")]


def test_a_parameter_given_as_an_input_is_loose() -> None:
    query = torch.ones(5, 3, requires_grad=True)
    with Recorder({"query": query}) as recorder:
        nn.functional.linear(query, torch.ones(2, 3))
    assert recorder.loose == {"query"}


def test_a_look_without_gradients_is_no_use_of_a_parameter() -> None:
    weight, x = torch.ones(2, 3, requires_grad=True), torch.ones(5, 3)
    with Recorder({"weight": weight}) as recorder:
        with torch.no_grad():
            size = weight.norm()
        nn.functional.linear(x / (size * weight.data.max()), weight)
    assert not recorder.loose
    assert len(recorder.uses) == 1


def test_zeros_at_the_start_hide_nothing_later() -> None:
    model = Scripted()
    nn.init.zeros_(model.out.weight)
    first = problem_of(model, torch.randn(5, 3))
    _rows(first)
    nn.init.normal_(model.out.weight)
    later = problem_of(model, torch.randn(5, 3))
    later.network.understood = first.network.understood
    rows, _, vectors = _rows(later)
    _assert_close(rows.per_example(), example_rows(later, vectors))


def test_gradient_of_one_vector_needs_no_single_examples() -> None:
    problem = problem_of(Recurrent(nn.LSTM), torch.randn(5, 4, 3))
    recording = Recording(problem, at_mean(problem))
    vector = torch.randn_like(recording.outputs)
    _assert_close(
        recording.gradient(vector),
        {k: v.sum((0, 1)) for k, v in example_rows(problem, vector[None]).items()},
    )


def _batch_norm_net(**options: object) -> nn.Module:
    norm = nn.BatchNorm1d(4, **options)  # type: ignore[arg-type]
    return nn.Sequential(nn.Linear(3, 4), norm, nn.Tanh(), nn.Linear(4, 2))


def test_training_batch_norm_rows_go_through_the_activations_of_one_example() -> None:
    model = _batch_norm_net()
    problem = problem_of(model, torch.randn(5, 3), training=True)
    rows, total, vectors = _rows(problem, num=1)
    got = rows.per_example()
    # By hand: a copy of the parameters for each example, statistics shared by the batch.
    copies = {k: v.expand(5, *v.shape).clone().requires_grad_() for k, v in total.items()}
    start = problem.network.params()
    copies = {k: start[k].expand_as(v).clone().requires_grad_() for k, v in copies.items()}
    hidden = torch.einsum("noi,ni->no", copies["0.weight"], problem.x) + copies["0.bias"]
    centred = hidden - hidden.mean(0)
    white = centred / (hidden.var(0, unbiased=False) + 1e-5).sqrt()
    hidden = torch.tanh(white * copies["1.weight"] + copies["1.bias"])
    out = torch.einsum("noi,ni->no", copies["3.weight"], hidden) + copies["3.bias"]
    want = torch.autograd.grad(out, list(copies.values()), vectors[0])
    _assert_close({k: v[0] for k, v in got.items()}, dict(zip(copies, want, strict=True)))
    _assert_close({k: v.sum((0, 1)) for k, v in got.items()}, total)


def test_recording_moves_batch_statistics_once() -> None:
    model = _batch_norm_net()
    problem = problem_of(model, torch.randn(5, 3), training=True)
    rows, _, _ = _rows(problem)
    rows.per_example()
    reference = _batch_norm_net()
    reference.load_state_dict(model.state_dict())
    reference(problem.x)
    for name, value in reference.named_buffers():
        torch.testing.assert_close(problem.buffers[name], value)
    assert int(model[1].num_batches_tracked) == 0  # type: ignore[index]


@pytest.mark.parametrize(("track", "training"), [(True, True), (False, True), (False, False)])
def test_batch_statistics_with_loose_parameters_are_refused(track: bool, training: bool) -> None:
    first = parametrizations.weight_norm(nn.Conv2d(2, 3, 2))
    norm = nn.BatchNorm2d(3, affine=False, track_running_stats=track)
    problem = problem_of(Chain(first, norm, nn.Tanh()), torch.randn(5, 2, 4, 4), training=training)
    with pytest.raises(ValueError, match=r"original0.*batch norm in training mode mixes"):
        _rows(problem)


def test_dropout_rows_belong_to_the_recorded_pass() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    problem = problem_of(model, torch.randn(5, 3), training=True)
    rows, total, _ = _rows(problem, num=1)
    _assert_close({k: v.sum((0, 1)) for k, v in rows.per_example().items()}, total)


class _Largest(TorchDispatchMode):
    """The number of entries of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.numel = max([self.numel, *sizes])
        return out


@pytest.mark.parametrize("positions", [0, 2])
@pytest.mark.parametrize("quantity", ["squares", "gram"])
def test_no_row_of_a_linear_layer_is_stored_for_each_example(quantity: str, positions: int) -> None:
    n, width, out = 24, 200, 150
    layer = nn.Linear(width, out)
    model: nn.Module = Positions(layer) if positions else layer
    shape = (n, positions, width) if positions else (n, width)
    problem = problem_of(model, torch.randn(shape))
    # The one pass that looks at the module itself holds rows of three examples, once.
    _rows(problem, num=1)
    with _Largest() as largest:
        rows, _, _ = _rows(problem, num=2)
        if quantity == "squares":
            rows.squares()
        else:
            rows.gram({name: torch.ones_like(v) for name, v in problem.network.params().items()})
    assert width * out <= largest.numel < n * width * out / 2


def test_chunks_of_positions_add_up() -> None:
    problem = problem_of(Positions(nn.Linear(200, 150)), torch.randn(24, 2, 200))
    rows, _, _ = _rows(problem, num=2)
    params = problem.network.params()
    weights = {name: torch.rand_like(v) for name, v in params.items()}
    every = rows.per_example()
    torch.testing.assert_close(rows.gram(weights), _gram(every, weights))
    _assert_close(rows.squares(), {k: v.square().sum((0, 1)) for k, v in every.items()})
