"""Rows of parameters that no known layer explains, and of those that all examples share."""

import warnings
from typing import Any

import pytest
import torch
from reader import ByHand, Reader, packed, texts
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import bayesrule as br
from bayesrule.curvature import Recording
from bayesrule.curvature.loose_rows import SlowRowsWarning
from curvature.brute_force import at_mean, example_rows, problem_of

X, Y = texts()


class Looks(nn.Module):
    """A module that looks at its numbers, and multiplies by a bare parameter."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale, self.drop = nn.Parameter(torch.rand(3) + 0.5), nn.Dropout(dropout)
        self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale if bool((x[:, 0] > 0).all()) else x * self.scale.square()
        return self.two(self.drop(torch.tanh(self.one(x))))  # type: ignore[no-any-return]


class ByLength(nn.Module):
    """Packed sequences, whose lengths are read from the sequences."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.memory, self.out = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        lengths = (x.abs().sum(2) > 0).sum(1)
        given = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.out(self.memory(given)[1][-1])  # type: ignore[no-any-return]


def of_different_lengths() -> Tensor:
    x = torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(0))
    return x * (torch.arange(4) < torch.tensor([1, 4, 2, 3, 4])[:, None]).unsqueeze(2)


@pytest.mark.parametrize(
    ("model", "x"),
    [(Looks(), torch.linspace(0.1, 2.0, 15).reshape(5, 3)), (ByLength(), of_different_lengths())],
    ids=["looks at numbers", "packed by length"],
)
def test_examples_go_one_by_one_where_they_cannot_be_mapped(model: nn.Module, x: Tensor) -> None:
    problem = problem_of(model, x)
    recording, vectors = Recording(problem, at_mean(problem)), torch.randn(2, 5, 2)
    assert recording.loose
    rows, _ = recording.backward(vectors, gradient=False)
    with pytest.warns(SlowRowsWarning, match="take a pass for each example .*cannot be mapped"):
        found = rows.per_example()
    torch.testing.assert_close(found, example_rows(problem, vectors), rtol=1e-4, atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Recording(problem, at_mean(problem)).backward(vectors, gradient=False)[0].per_example()


def test_outputs_that_depend_on_the_other_examples_are_refused() -> None:
    problem = problem_of(Looks(), torch.linspace(-1.0, 2.0, 15).reshape(5, 3))
    rows, _ = Recording(problem, at_mean(problem)).backward(torch.ones(1, 5, 2), gradient=False)
    with pytest.raises(ValueError, match="No gradient of single examples for scale"):
        rows.per_example()


@pytest.mark.filterwarnings("ignore::bayesrule.curvature.loose_rows.SlowRowsWarning")
def test_runs_that_are_interrupted_draw_the_same_dropout() -> None:
    batch = torch.linspace(0.1, 2.0, 15).reshape(5, 3), torch.zeros(5).long()

    def after(learner: br.Learner, state: Any, steps: int) -> Any:
        for _ in range(steps):
            state, _ = learner.step(state, batch)
        return state

    def learner() -> br.Learner:
        return br.vogn(Looks(0.5), br.CategoricalLikelihood(), num_data=5)

    whole = learner()
    first, later = learner(), learner()
    found = after(later, after(first, first.init(), 1), 2)
    expected = after(whole, whole.init(), 3)
    torch.testing.assert_close(found.posterior.mean, expected.posterior.mean, rtol=0.0, atol=0.0)


def test_a_last_layer_needs_no_rows_of_what_is_before_it() -> None:
    """No warning: nothing goes through the module one by one."""
    x, y = torch.linspace(0.1, 2.0, 15).reshape(5, 3), torch.arange(5) % 2
    model, frozen = Looks(), Looks()
    for name, parameter in frozen.named_parameters():
        parameter.requires_grad_(name.startswith("two"))
    likelihood = br.CategoricalLikelihood()
    options: dict[str, Any] = {"num_data": 5, "prior_precision": 1.0}
    learners = [br.laplace(one, likelihood, last_layer=True, **options) for one in (model, frozen)]
    found, expected = ((one, one.finish(one.init(), [(x, y)])) for one in learners)
    torch.testing.assert_close(
        br.predict(*found, x).mean, br.predict(*expected, x).mean, rtol=1e-5, atol=1e-6
    )


class Positions(Reader):
    """The positions of all examples are looked up once."""

    def forward(self, *, input_ids: Tensor, attention_mask: Tensor) -> Any:
        x = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1])[None])
        scores = self.asked(x) @ self.known(x).mT
        scores = scores.masked_fill(attention_mask.unsqueeze(1) == 0, -1e9)
        x = self.norm(x + scores.softmax(-1) @ self.said(x))
        # What looks at numbers cannot be mapped: positions must not be loose.
        x = x.nan_to_num() if bool(attention_mask.all()) else x
        return {"logits": self.head((x * attention_mask.unsqueeze(2)).sum(1))}


@pytest.mark.parametrize("training", [True, False])
def test_positions_that_all_examples_share_have_rows(training: bool) -> None:
    problem = problem_of(Positions(), X, training=training)
    recording, vectors = Recording(problem, at_mean(problem)), torch.randn(2, len(Y), 2)
    assert not recording.loose
    rows, _ = recording.backward(vectors, gradient=True)
    torch.testing.assert_close(
        rows.per_example(), example_rows(problem, vectors), rtol=1e-3, atol=1e-5
    )


class OneForAll(nn.Module):
    """A row of an embedding that stands for the whole batch, and not for each example."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rows, self.layer = nn.Embedding(2, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        shift = self.rows(torch.zeros(1, 1, dtype=torch.long)).sum((0, 1))
        return self.layer(x + shift)  # type: ignore[no-any-return]


def test_a_look_up_that_is_not_for_each_example_is_left_as_it_is() -> None:
    problem = problem_of(OneForAll(), torch.randn(4, 3))
    recording, vectors = Recording(problem, at_mean(problem)), torch.randn(1, 4, 2)
    assert recording.loose == {"rows.weight"}
    rows, _ = recording.backward(vectors, gradient=False)
    torch.testing.assert_close(
        rows.per_example(), example_rows(problem, vectors), rtol=1e-4, atol=1e-5
    )


def test_a_gradient_that_is_only_rounding_is_explained() -> None:
    """A softmax over keys does not see their bias."""
    problem = problem_of(ByHand(), packed(X))
    assert "known.bias" not in Recording(problem, at_mean(problem)).loose
