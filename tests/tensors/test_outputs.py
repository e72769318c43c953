"""What a module returns, and how one field of it is chosen."""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.tensors.outputs import fields, logits

T = torch.zeros(2, 1)
Two = namedtuple("Two", ["mean", "spread"])


@dataclass
class Scores:
    scores: Tensor
    extra: Tensor | None = None


class Returns(nn.Module):
    def __init__(self, make: Any) -> None:
        super().__init__()
        self.layer, self.make = nn.Linear(1, 1), make

    def forward(self, x: Tensor) -> Any:
        return self.make(self.layer(x))


def test_logits_are_found_and_others_are_left() -> None:
    assert logits(T) is T
    assert logits({"logits": T, "loss": None}) is T
    assert logits((T, T)) == (T, T)
    assert logits(None) is None


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda f: {"a": f, "b": f}, ["a", "b"]),
        (Scores, ["scores", "extra"]),
        (lambda f: (f, f), [0, 1]),
        (lambda f: Two(f, f), ["mean", "spread"]),
    ],
)
def test_every_field_can_be_chosen(make: Any, names: list[str | int]) -> None:
    model = Returns(make)
    assert fields(model(T)) == names
    for name in names[:1]:
        torch.testing.assert_close(br.Output(model, name)(T), model.layer(T))
    learner = br.ivon(model, br.GaussianLikelihood(noise=1.0), num_data=2)
    words = rf"returns a {type(model(T)).__name__} of .*Output\(model, {names[0]!r}\)"
    with pytest.raises(TypeError, match=words):
        learner.step(learner.init(), (T, T))


def test_a_field_that_is_not_there_is_refused_by_name() -> None:
    for make, field in ((Scores, "logits"), (lambda f: {"a": f}, "b"), (lambda f: (f,), 1)):
        with pytest.raises(TypeError, match=f"without the field {field!r}; it has"):
            br.Output(Returns(make), field)(T)
    with pytest.raises(TypeError, match="no fields"):
        br.Output(nn.Linear(1, 1), "logits")(T)


def test_what_is_no_module_or_no_field_is_refused() -> None:
    with pytest.raises(TypeError, match=r"takes a torch\.nn\.Module, got Tensor"):
        br.Output(T, "logits")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a name or a place, got None"):
        br.Output(nn.Linear(1, 1), None)  # type: ignore[arg-type]


def test_the_mode_of_the_module_stays() -> None:
    assert not br.Output(nn.Linear(1, 1).eval(), 0).training
    assert repr(br.Output(nn.Linear(1, 1), 0)).startswith("Output(\n  field=0")
