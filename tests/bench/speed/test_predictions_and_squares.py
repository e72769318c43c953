"""What times predictions by draws and squares of convolutions, on small nets."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from calling import bench, only_line
from torch import nn

from benchmarks.speed import predictions, squares


@pytest.mark.parametrize("method", predictions.METHODS)
def test_both_ways_are_timed_and_give_the_same(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    small = predictions.Case("small", lambda: nn.Sequential(nn.Linear(3, 2)), (5, 3), draws=4)
    monkeypatch.setitem(predictions.CASES, "small", small)
    found = predictions.run(["small"], [method], 2, "cpu")
    (one,) = found["results"]
    assert one["error"] < 1e-5
    assert one["draws"] == 4
    assert all(took > 0 for took in one["milliseconds"].values())
    assert found["precision"] == "float32"


def test_an_unknown_case_is_refused_in_one_line() -> None:
    assert "Did you mean 'small'" in only_line(bench("predictions", "--cases", "smal"))


@pytest.mark.parametrize("shape", [*squares.OTHERS[:4], squares.Shape(2, 3, (5, 5))])
def test_layers_are_made_as_convolutions_are(shape: squares.Shape) -> None:
    layer, g = squares.made(shape, 3, torch.device("cpu"))
    convolve = torch.nn.functional.conv2d if len(shape.size) == 2 else torch.nn.functional.conv1d
    weight = layer.weight.double().requires_grad_()
    options = shape.stride, shape.padding, shape.dilation
    exact = torch.zeros_like(weight)
    for a, slope in zip(layer.input.double(), g.double(), strict=True):
        out = convolve(a.unsqueeze(0), weight, None, *options)
        exact += torch.autograd.grad(out, weight, slope.unsqueeze(0))[0].square()
    torch.testing.assert_close(squares.by_rows(layer, g).double(), exact, rtol=1e-3, atol=1e-9)


def test_the_kernel_comes_back_after_steps_without_it() -> None:
    before = squares.CHOICE.square_kernel_suits
    with squares.without_kernel():
        assert squares.CHOICE.square_kernel_suits is not before
    assert squares.CHOICE.square_kernel_suits is before


@pytest.mark.skipif(find_spec("triton") is not None, reason="triton is here")
def test_the_kernel_asks_for_what_it_needs() -> None:
    said = only_line(bench("squares", "--device", "cpu", "--errors-only", "--cases", "cnn"))
    assert "pip install triton" in said
