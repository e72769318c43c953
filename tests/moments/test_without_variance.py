"""Without variance, every moment rule is the module's own function."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from bayesrule.moments import RULES, GaussianTensor, LocallyLinear, MomentMatched, Tape
from bayesrule.moments.tensor import name_of
from moments.linear_maps import Function
from moments.nets import randn

INDEX = torch.tensor([1, 0, 1])
MASK = torch.tensor([[True, False, True, True], [False, True, True, False], [True] * 4])

# For each name in the table, a function and the shapes of its arguments.
CASES: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {}

for _name in [
    "abs",
    "absolute",
    "celu",
    "clone",
    "cos",
    "detach",
    "exp",
    "neg",
    "negative",
    "positive",
    "ravel",
    "relu",
    "selu",
    "sigmoid",
    "sin",
    "square",
    "tanh",
    "T",
    "mT",
]:
    CASES[_name] = (lambda x, n=_name: _called(x, n), ((3, 4),))
for _name in [
    "elu",
    "gelu",
    "hardsigmoid",
    "hardtanh",
    "leaky_relu",
    "mish",
    "relu6",
    "silu",
    "softplus",
    "softmax",
    "log_softmax",
    "softmin",
    "alpha_dropout",
    "feature_alpha_dropout",
]:
    _options = {"dim": -1} if "soft" in _name and _name != "softplus" else {}
    CASES[_name] = (lambda x, n=_name, o=_options: getattr(F, n)(x, **o), ((3, 4),))
for _num, _shape in ((1, (2, 4, 6)), (2, (2, 4, 6, 6)), (3, (2, 4, 6, 6, 6))):
    for _kind in ("avg", "max"):
        CASES[f"{_kind}_pool{_num}d"] = getattr(nn, f"{_kind.title()}Pool{_num}d")(2), (_shape,)
        _adaptive = getattr(nn, f"Adaptive{_kind.title()}Pool{_num}d")(3)
        CASES[f"adaptive_{_kind}_pool{_num}d"] = _adaptive, (_shape,)
    for _name in (f"max_pool{_num}d_with_indices", f"adaptive_max_pool{_num}d_with_indices"):
        CASES[_name] = (lambda x, n=_name: getattr(F, n)(x, 2)[0], (_shape,))
    CASES[f"dropout{_num}d"] = (
        lambda x, n=_num: getattr(F, f"dropout{n}d")(x, training=False),
        (_shape,),
    )
    for _name, _kernel in (("conv", (5, 4)), ("conv_transpose", (4, 5))):
        _weight = (*_kernel, *(2,) * _num)
        CASES[f"{_name}{_num}d"] = getattr(F, f"{_name}{_num}d"), (_shape, _weight, (5,))
for _name in ("rnn_tanh", "rnn_relu", "gru"):
    _kind = (
        nn.GRU(3, 4).double() if _name == "gru" else nn.RNN(3, 4, nonlinearity=_name[4:]).double()
    )
    CASES[_name] = (lambda x, m=_kind: m(x)[0], ((5, 2, 3),))
    _kind = nn.GRUCell(3, 4) if _name == "gru" else nn.RNNCell(3, 4, nonlinearity=_name[4:])
    CASES[f"{_name}_cell"] = _kind, ((2, 3), (2, 4))
LSTM, LSTM_CELL, ATTENTION = nn.LSTM(3, 4, 2), nn.LSTMCell(3, 4), nn.MultiheadAttention(4, 2)
for _module in (LSTM, LSTM_CELL, ATTENTION):
    _module.double()
_square, _pair = ((4, 4),), ((3, 4), (3, 4))
CASES |= {
    "lstm": (lambda x: LSTM(x)[0], ((5, 2, 3),)),
    "lstm_cell": (lambda x: LSTM_CELL(x)[0], ((2, 3),)),
    "batch_norm": (nn.BatchNorm1d(4), ((8, 4),)),
    "instance_norm": (nn.InstanceNorm1d(4), ((2, 4, 5),)),
    "group_norm": (nn.GroupNorm(2, 4), ((2, 4, 3),)),
    "layer_norm": (nn.LayerNorm(3), ((5, 3),)),
    "rms_norm": (nn.RMSNorm(4), ((5, 4),)),
    "linear": (F.linear, ((3, 4), (2, 4), (2,))),
    "multi_head_attention_forward": (
        lambda x: ATTENTION(x, x, x)[0],
        ((5, 2, 4),),
    ),
    "scaled_dot_product_attention": (
        F.scaled_dot_product_attention,
        ((2, 3, 4), (2, 5, 4), (2, 5, 3)),
    ),
    "log": (lambda x: torch.log(x * x + 1.0), ((3, 4),)),
    "pow": (lambda x: (x * x + 1.0) ** 0.7 + x**3, ((3, 4),)),
    "log_sigmoid": (F.logsigmoid, ((3, 4),)),
    "dropout": (lambda x: F.dropout(x, training=False), ((3, 4),)),
    "special_expit": (torch.special.expit, ((3, 4),)),
    "special_softmax": (lambda x: torch.special.softmax(x, -1), ((3, 4),)),
    "special_log_softmax": (lambda x: torch.special.log_softmax(x, -1), ((3, 4),)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), ((1, 2, 3, 3),)),
    "embedding": (lambda w: F.embedding(INDEX, w), ((3, 4),)),
    "pad": (lambda x: F.pad(x, (1, 2), value=0.5), ((3, 4),)),
    "where": (lambda x, y: torch.where(MASK, x, y), _pair),
    "masked_fill": (lambda x: x.masked_fill(MASK, 0.3), ((3, 4),)),
    "masked_select": (lambda x: x.masked_select(MASK), ((3, 4),)),
    "gather": (lambda x: x.gather(1, INDEX[:, None]), ((3, 4),)),
    "take_along_dim": (lambda x: x.take_along_dim(INDEX[:, None], 1), ((3, 4),)),
    "index_select": (lambda x: x.index_select(0, INDEX), ((3, 4),)),
    "H": (lambda x: x.H, _square),
    "mH": (lambda x: x.mH, _square),
    "__getitem__": (lambda x: x[1:, INDEX], ((3, 4),)),
    "__matmul__": (lambda x, y: x @ y.mT, _pair),
    "__rsub__": (lambda x: 1.5 - x, ((3, 4),)),
    "rsub": (lambda x, y: torch.rsub(x, y), _pair),
    "addmm": (torch.addmm, ((3, 5), (3, 4), (4, 5))),
    "addmv": (torch.addmv, ((3,), (3, 4), (4,))),
    "baddbmm": (torch.baddbmm, ((2, 3, 5), (2, 3, 4), (2, 4, 5))),
    "bmm": (torch.bmm, ((2, 3, 4), (2, 4, 5))),
    "dot": (torch.dot, ((4,), (4,))),
    "mv": (torch.mv, ((3, 4), (4,))),
    "mm": (torch.mm, ((3, 4), (4, 5))),
    "matmul": (torch.matmul, ((2, 3, 4), (4, 5))),
    "sum": (lambda x: x.sum(1), ((3, 4),)),
    "mean": (lambda x: x.mean(0), ((3, 4),)),
    "cumsum": (lambda x: x.cumsum(1), ((3, 4),)),
    "expand": (lambda x: x.expand(3, 4), ((1, 4),)),
    "expand_as": (lambda x, y: x.expand_as(y), ((1, 4), (3, 4))),
    "broadcast_to": (lambda x: torch.broadcast_to(x, (3, 4)), ((1, 4),)),
    "view": (lambda x: x.view(4, 3), ((3, 4),)),
    "view_as": (lambda x, y: x.view_as(y), ((3, 4), (4, 3))),
    "reshape": (lambda x: x.reshape(2, 6), ((3, 4),)),
    "reshape_as": (lambda x, y: x.reshape_as(y), ((3, 4), (4, 3))),
    "flatten": (lambda x: x.flatten(1), ((2, 3, 4),)),
    "unflatten": (lambda x: x.unflatten(1, (2, 2)), ((3, 4),)),
    "squeeze": (lambda x: x.squeeze(1), ((3, 1, 4),)),
    "unsqueeze": (lambda x: x.unsqueeze(1), ((3, 4),)),
    "transpose": (lambda x: x.transpose(0, 1), ((3, 4),)),
    "swapaxes": (lambda x: x.swapaxes(0, 1), ((3, 4),)),
    "swapdims": (lambda x: x.swapdims(0, 1), ((3, 4),)),
    "t": (lambda x: x.t(), ((3, 4),)),
    "adjoint": (lambda x: x.adjoint(), ((3, 4),)),
    "flip": (lambda x: x.flip(0), ((3, 4),)),
    "fliplr": (torch.fliplr, ((3, 4),)),
    "flipud": (torch.flipud, ((3, 4),)),
    "permute": (lambda x: x.permute(2, 0, 1), ((2, 3, 4),)),
    "movedim": (lambda x: x.movedim(0, 1), ((3, 4),)),
    "moveaxis": (lambda x: x.moveaxis(0, 1), ((3, 4),)),
    "contiguous": (lambda x: x.contiguous(), ((3, 4),)),
    "narrow": (lambda x: x.narrow(1, 1, 2), ((3, 4),)),
    "select": (lambda x: x.select(1, 2), ((3, 4),)),
    "select_copy": (lambda x: torch.select_copy(x, 1, 2), ((3, 4),)),
    "roll": (lambda x: x.roll(1, 0), ((3, 4),)),
    "rot90": (lambda x: x.rot90(), ((3, 4),)),
    "tile": (lambda x: x.tile(2), ((3, 4),)),
    "repeat": (lambda x: x.repeat(2, 1), ((3, 4),)),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), ((3, 4),)),
    "diagonal": (lambda x: x.diagonal(), ((3, 4),)),
    "tril": (torch.tril, ((3, 4),)),
    "triu": (torch.triu, ((3, 4),)),
    "pixel_shuffle": (nn.PixelShuffle(2), ((1, 4, 2, 2),)),
    "pixel_unshuffle": (nn.PixelUnshuffle(2), ((1, 1, 4, 4),)),
    "channel_shuffle": (nn.ChannelShuffle(2), ((1, 4, 2, 2),)),
    "unfold": (lambda x: F.unfold(x, 2), ((1, 2, 3, 3),)),
    "to": (lambda x: x.to(torch.float64), ((3, 4),)),
    "type_as": (lambda x, y: x.type_as(y), _pair),
    "double": (lambda x: x.double(), ((3, 4),)),
    "cpu": (lambda x: x.cpu(), ((3, 4),)),
}
for _name in ("add", "sub", "subtract", "mul", "multiply"):
    CASES[_name] = getattr(torch, _name), _pair
for _name in ("div", "divide", "true_divide"):
    CASES[_name] = (lambda x, n=_name: getattr(torch, n)(x, 3.0), ((3, 4),))
for _name in ("cat", "concat", "concatenate", "stack", "hstack", "vstack", "column_stack"):
    CASES[_name] = (lambda x, y, n=_name: getattr(torch, n)([x, y]), _pair)
for _name in ("split", "chunk", "tensor_split", "split_with_sizes", "unbind"):
    _how = {"split": (2,), "chunk": (2,), "tensor_split": (2,), "unbind": ()}.get(_name, ([1, 2],))
    CASES[_name] = (lambda x, n=_name, h=_how: torch.stack(getattr(x, n)(*h)[:1]), ((3, 4),))

# These ask for shapes alone, or for a type of fewer digits.
NO_NUMBERS = {
    *("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like"),
    *("new_zeros", "new_ones", "new_empty", "new_full", "new_tensor"),
    *("float", "half", "bfloat16", "cuda"),
}


def _called(x: Any, name: str) -> Any:
    found = getattr(torch, name, None) or getattr(Tensor, name)
    return getattr(x, name) if name in ("T", "mT") else found(x)


def test_every_rule_has_a_case() -> None:
    known = {name_of(function) for function in RULES}
    ours = {name for name in known if not name.startswith("special_bessel")}
    # A test elsewhere, or a user, may have added a rule of its own.
    assert ours - NO_NUMBERS - set(CASES) <= {"special_log1p", "log1p", "isnan"}


@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("activations", [MomentMatched(), LocallyLinear()], ids=["matched", "line"])
@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_a_rule_without_variance_is_the_function(name: str, activations: Any, record: bool) -> None:
    function, shapes = CASES[name]
    plain = [randn(*shape, seed=seed).double() for seed, shape in enumerate(shapes)]
    tape = Tape(activations, record=record)
    given = [tape.leaf(x, torch.zeros_like(x)) for x in plain]
    if isinstance(function, nn.Module):
        function.double().train()
        weights = {key: value.detach() for key, value in function.named_parameters()}
        uncertain = {key: tape.leaf(w, torch.zeros_like(w)) for key, w in weights.items()}
        found = functional_call(function, uncertain, tuple(given))
    else:
        found = function(*given)
    assert isinstance(found, GaussianTensor)
    torch.testing.assert_close(found.centre, function(*plain), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.variance, torch.zeros_like(found.centre), rtol=0, atol=1e-10)
