"""Arithmetic in blocks gives the same numbers, bit for bit."""

import pytest
import torch
from torch import Tensor

from bayesrule.moments import quadrature
from bayesrule.moments.closed_forms import matched_relu
from bayesrule.moments.quadrature import in_blocks


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quadrature, "_BLOCK", 64)


def test_the_same_numbers_in_several_calls() -> None:
    calls: list[int] = []

    def counted(m: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        calls.append(m.numel())
        return matched_relu(m, s)

    m, s = torch.randn(7, 50), torch.rand(7, 50)
    for found, wanted in zip(in_blocks(counted, m, s, num=3), matched_relu(m, s), strict=True):
        assert torch.equal(found, wanted)
    assert calls == [64] * 5 + [30]


def test_what_is_small_strided_mapped_or_traced_goes_through_whole() -> None:
    calls: list[int] = []

    def counted(m: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        calls.append(m.numel())
        return matched_relu(m, s)

    m, s = torch.randn(3, 20, 20), torch.rand(3, 20, 20)
    in_blocks(counted, m[0, :5], s[0, :5], num=3)
    in_blocks(counted, m.mT, s.mT, num=3)
    torch.vmap(lambda a, b: in_blocks(counted, a, b, num=3))(m, s)
    torch.fx.experimental.proxy_tensor.make_fx(lambda a, b: in_blocks(counted, a, b, num=3))(m, s)
    assert calls == [100, 1200, 400, 1200]
