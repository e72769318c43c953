"""Rules that move, pick, join and split elements."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.testing import assert_close

from bayesrule.moments import MomentMatched, NoRule, Tape
from moments.linear_maps import Function, check_linear, learned, leaves

WORDS = torch.tensor([[0, 2, 2], [4, 0, 1]])
INDEX = torch.tensor([2, 0, 2])
MASK = torch.tensor([[True, False, True], [False, True, True]])

MOVES: dict[str, tuple[Function, tuple[int, ...]]] = {
    "reshape": (lambda x: x.reshape(3, 2), (2, 3)),
    "view": (lambda x: x.view(-1), (2, 3)),
    "view_as": (lambda x: x.view_as(torch.empty(3, 2)), (2, 3)),
    "flatten": (lambda x: torch.flatten(x, 1), (2, 3, 2)),
    "flatten by name": (lambda x: torch.flatten(input=x, start_dim=1), (2, 3, 2)),
    "ravel": (lambda x: x.ravel(), (2, 3)),
    "unflatten": (lambda x: x.unflatten(1, (2, -1)), (2, 4)),
    "squeeze": (lambda x: x.squeeze(), (2, 1, 3)),
    "unsqueeze": (lambda x: torch.unsqueeze(x, -1), (2, 3)),
    "permute": (lambda x: x.permute(2, 0, 1), (2, 3, 4)),
    "permute by list": (lambda x: torch.permute(x, (1, -1, 0)), (2, 3, 4)),
    "permute by name": (lambda x: x.permute(dims=(1, 2, 0)), (2, 3, 4)),
    "transpose": (lambda x: x.transpose(0, -1), (2, 3, 4)),
    "t": (lambda x: x.t(), (2, 3)),
    "T": (lambda x: x.T, (2, 3)),
    "mT": (lambda x: x.mT, (2, 3, 4)),
    "mH": (lambda x: x.mH, (2, 3, 4)),
    "movedim": (lambda x: x.movedim(0, 2), (2, 3, 4)),
    "movedim of two": (lambda x: torch.movedim(x, (0, 1), (2, 0)), (2, 3, 4)),
    "swapaxes": (lambda x: torch.swapaxes(x, 0, 1), (2, 3)),
    "contiguous": (lambda x: x.contiguous(), (2, 3)),
    "channels last": (lambda x: x.contiguous(memory_format=torch.channels_last), (2, 3, 2, 2)),
    "clone": (lambda x: x.clone(), (2, 3)),
    "to": (lambda x: x.to(torch.float64), (2, 3)),
    "to another": (lambda x: x.to(x), (2, 3)),
    "double": (lambda x: x.double(), (2, 3)),
    "expand": (lambda x: x.expand(4, -1, 3), (2, 1)),
    "expand_as": (lambda x: x.expand_as(torch.empty(2, 3)), (2, 1)),
    "broadcast_to": (lambda x: torch.broadcast_to(x, (2, 3)), (3,)),
    "repeat": (lambda x: x.repeat(2, 1, 3), (2, 3)),
    "tile": (lambda x: torch.tile(x, (2,)), (2, 3)),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, dim=1), (2, 3)),
    "integer": (lambda x: x[1], (2, 3)),
    "negative": (lambda x: x[-1, 0], (2, 3)),
    "slices": (lambda x: x[1:, ::2], (3, 4)),
    "none and ellipsis": (lambda x: x[..., None, 1], (2, 3)),
    "index tensor": (lambda x: x[:, INDEX], (2, 3)),
    "index list": (lambda x: x[[0, 0, 1]], (2, 3)),
    "two index tensors": (lambda x: x[INDEX, INDEX], (3, 4)),
    "index between slices": (lambda x: x[:, INDEX, 1:], (2, 3, 2)),
    "narrow": (lambda x: x.narrow(1, 1, 2), (2, 3)),
    "select": (lambda x: torch.select(x, 1, 2), (2, 3)),
    "index_select": (lambda x: x.index_select(1, INDEX), (2, 3)),
    "gather": (lambda x: x.gather(1, torch.tensor([[0, 0], [2, 1]])), (2, 3)),
    "flip": (lambda x: x.flip(0, 1), (2, 3)),
    "roll": (lambda x: torch.roll(x, (1, 2), (0, 1)), (2, 3)),
    "tril": (lambda x: x.tril(), (3, 3)),
    "diagonal": (lambda x: x.diagonal(dim1=-2, dim2=-1), (2, 3, 3)),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 1)), (2, 3)),
    "pad with a value": (lambda x: F.pad(x, (1, 2), value=3.0), (2, 3)),
    "pad and crop": (lambda x: F.pad(x, (-1, 2)), (2, 3)),
    "pad by reflection": (lambda x: F.pad(x, (1, 2), mode="reflect"), (1, 2, 4)),
    "pad in a circle": (lambda x: F.pad(x, (1, 2), mode="circular"), (1, 2, 4)),
    "pad by edges": (lambda x: F.pad(x, (1, 2), mode="replicate"), (1, 2, 4)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (1, 4, 2, 3)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), (1, 1, 4, 2)),
    "channel_shuffle": (lambda x: torch.channel_shuffle(x, 2), (1, 4, 2, 2)),
    "unfold": (lambda x: F.unfold(x, 2, padding=1), (1, 2, 3, 3)),
    "unfold one axis": (lambda x: x.unfold(1, 2, 1), (2, 4)),
    "where": (lambda x: torch.where(MASK, x, 1.5), (2, 3)),
    "where broadcast": (lambda x: torch.where(MASK, torch.ones(2, 3).double(), x), (3,)),
    "masked_fill": (lambda x: x.masked_fill(MASK, -1.0), (3,)),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
def test_move(name: str) -> None:
    check_linear(*MOVES[name])


JOINS: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "cat": (lambda x, y: torch.cat([x, y]), ((2, 3), (1, 3))),
    "cat along another axis": (lambda x, y: torch.cat((x, y), dim=-1), ((2, 3), (2, 1))),
    "cat with plain": (
        lambda x, y: torch.concat([x, torch.ones(2, 3).double(), y]),
        ((2, 3), (1, 3)),
    ),
    "cat of one twice": (lambda x: torch.cat([x, x], 1), ((2, 3),)),
    "stack": (lambda x, y: torch.stack([x, y], 1), ((2, 3), (2, 3))),
    "hstack": (lambda x, y: torch.hstack([x, y]), ((2, 3), (2, 1))),
    "hstack of vectors": (lambda x, y: torch.hstack([x, y]), ((3,), (1,))),
    "columns of vectors": (lambda x, y: torch.column_stack([x, y]), ((3,), (3,))),
    "vstack of vectors": (lambda x, y: torch.vstack([x, y]), ((3,), (3,))),
    "where of two": (lambda x, y: torch.where(MASK, x, y), ((2, 3), (3,))),
    "chunk": (lambda x: x.chunk(3, dim=1)[1], ((2, 6),)),
    "split": (lambda x: torch.split(x, [1, 3], dim=0)[1], ((4, 2),)),
    "split by name": (lambda x: torch.split(x, split_size_or_sections=2, dim=1)[0], ((2, 3),)),
    "tensor_split": (lambda x: x.tensor_split(2, dim=1)[0], ((2, 3),)),
    "tensor_split at": (lambda x: torch.tensor_split(x, (1, 2))[1], ((4, 2),)),
    "unbind": (lambda x: x.unbind(1)[2], ((2, 3),)),
    "loop": (lambda x: torch.stack(list(x)[::-1]), ((2, 3),)),
    "unpacking": (lambda x: torch.cat(list(reversed(tuple(x)))), ((2, 3),)),
    "chunk and cat": (lambda x: torch.cat(x.chunk(2, 1)[::-1], 1), ((2, 4),)),
}


@pytest.mark.parametrize("name", JOINS)
def test_join(name: str) -> None:
    function, shapes = JOINS[name]
    check_linear(function, *shapes)


def test_view_of_any_strides() -> None:
    """Memory in another order, as in channels last, has no view; for Gaussians there is one."""
    (x,) = leaves((2, 3))
    assert_close(x.mT.view(-1).centre, x.centre.mT.reshape(-1))


def test_mask() -> None:
    # jacrev cannot follow a mask whose size it does not know, so the indices are given beside it.
    (x,) = leaves((2, 3))
    picked = x[MASK]
    assert_close(picked.centre, x.centre[MASK])
    assert_close(picked.variance, x.variance[MASK])
    picked.tape.back(picked, torch.arange(4.0).double(), torch.ones(4).double())
    expected = torch.tensor([[0.0, 0.0, 1.0], [0.0, 2.0, 3.0]]).double()
    assert_close(learned(x), (expected, MASK.double()))


def test_padding_is_known_for_sure() -> None:
    (x,) = leaves((1, 2))
    padded = F.pad(x, (1, 0), value=7.0)
    assert padded.centre[0, 0] == 7.0
    assert padded.variance[0, 0] == 0.0


def test_pieces_of_which_some_are_not_used() -> None:
    (x,) = leaves((2, 6))
    first, _, third = x.chunk(3, 1)
    total = first + third.flip(1)
    delta = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).double()
    total.tape.back(total, delta, -delta)
    zeros = torch.zeros_like(delta)
    assert_close(learned(x)[0], torch.cat([delta, zeros, delta.flip(1)], 1))
    assert_close(learned(x)[1], -torch.cat([delta, zeros, delta.flip(1)], 1))


def test_pieces_of_which_none_is_used() -> None:
    x, y = leaves((2, 4), (2, 4))
    x.chunk(2, 1)
    total = y + 1.0
    total.tape.back(total, torch.ones(2, 4).double(), torch.ones(2, 4).double())
    assert x.node is not None
    assert x.node.delta is None
    assert_close(learned(y)[0], torch.ones(2, 4).double())


def test_a_piece_used_twice() -> None:
    (x,) = leaves((1, 2))
    piece, _ = x.chunk(2, 1)
    total = torch.cat([piece, piece])
    total.tape.back(total, torch.tensor([[1.0], [2.0]]).double(), torch.ones(2, 1).double())
    assert_close(
        learned(x), (torch.tensor([[3.0, 0.0]]).double(), torch.tensor([[2.0, 0.0]]).double())
    )


def test_no_record_no_tape() -> None:
    x = Tape(MomentMatched(), record=False).leaf(torch.ones(4, 2), torch.ones(4, 2))
    parts = [piece.flip(0) for piece in x.split(2)]
    assert all(part.node is None for part in parts)
    assert_close(torch.cat(parts).centre, x.centre)


def test_detach_learns_nothing() -> None:
    (x,) = leaves((3,))
    result = x.detach() * 2.0
    assert_close(result.variance, 4.0 * x.variance)
    result.tape.back(result, torch.ones(3).double(), torch.ones(3).double())
    assert x.node is not None
    assert x.node.delta is None


def test_conversion_and_back() -> None:
    (x,) = leaves((3,))
    narrow = x.float() + 1.0
    assert narrow.dtype == narrow.centre.dtype == narrow.variance.dtype == torch.float32
    narrow.tape.back(narrow, narrow.centre, narrow.variance)
    assert learned(x)[0].dtype == torch.float64
    assert x.to(torch.float64) is x
    with pytest.raises(NoRule, match="real numbers"):
        x.to(torch.int64)


def test_form_without_values() -> None:
    (x,) = leaves((2, 3))
    for made in (
        torch.zeros_like(x),
        x.new_zeros(2, 3),
        torch.full_like(x, 0.0),
        x.new_tensor([0.0]),
    ):
        assert type(made) is Tensor
        assert made.dtype == torch.float64
        assert not made.any()


def test_modules() -> None:
    check_linear(nn.Flatten(), (2, 3, 2))
    check_linear(nn.Unflatten(1, (2, 2)), (2, 4))
    check_linear(nn.PixelShuffle(2), (1, 4, 2, 2))
    check_linear(nn.PixelUnshuffle(2), (1, 1, 4, 4))
    check_linear(nn.ZeroPad2d((1, 0, 2, 1)), (1, 2, 3, 3))
    check_linear(nn.ReflectionPad1d(1), (1, 2, 3))
    check_linear(nn.ConstantPad1d(1, 2.0), (1, 2, 3))
    check_linear(nn.Identity(), (2, 3))
    check_linear(nn.ChannelShuffle(2), (1, 4, 2, 2))


def test_stacked_networks() -> None:
    """The same rules under vmap: a leading axis of networks that the rules do not see."""
    mean, variance = torch.randn(3, 2, 6), torch.rand(3, 2, 6)

    def run(m: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        tape = Tape(MomentMatched(), record=True)
        x = tape.leaf(m, s)
        a, b = x.chunk(2, 1)
        y = torch.cat([a.flip(0), b[:, [0, 2, 0]], x[:, 1:3]], 1).permute(1, 0)
        tape.back(y, y.centre, y.variance)
        return y.centre, y.variance, *learned(x)

    with torch.no_grad():
        together = torch.func.vmap(run)(mean, variance)
        alone = [run(m, s) for m, s in zip(mean, variance, strict=True)]
    for number, found in enumerate(together):
        assert_close(found, torch.stack([one[number] for one in alone]))


def test_rows_of_a_table() -> None:
    check_linear(lambda table: F.embedding(WORDS, table), (5, 3))


def test_embedding_module() -> None:
    layer = nn.Embedding(5, 3)
    check_linear(lambda table: functional_call(layer, {"weight": table}, (WORDS,)), (5, 3))


@pytest.mark.parametrize("padding", [2, -3])
def test_padding_learns_nothing(padding: int) -> None:
    (table,) = leaves((5, 3))
    result = F.embedding(WORDS, table, padding_idx=padding)
    assert_close(result.variance, table.variance[WORDS])
    delta = torch.randn(2, 3, 3)
    result.tape.back(result, delta, -delta.abs())
    expected = torch.zeros(5, 3).index_add(0, WORDS.flatten(), delta.reshape(-1, 3))
    expected[2] = 0.0
    assert_close(learned(table)[0], expected)
    assert not learned(table)[1][2].any()


@pytest.mark.parametrize("setting", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_what_changes_the_table_is_refused(setting: dict[str, float]) -> None:
    (table,) = leaves((5, 3))
    with pytest.raises(ValueError, match="no moment rule"):
        F.embedding(WORDS, table, **setting)  # type: ignore[arg-type]
