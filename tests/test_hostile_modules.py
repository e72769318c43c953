"""Modules that do unusual things: each learns as its plain twin does, or is refused by name."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import bayesrule as br
from bayesrule import GaussianLikelihood
from bayesrule.learner import Learner
from bayesrule.methods import METHODS

NAMES = ["map", "sgd", "vogn", "ivon", "mean_field", "noisy_adam", "noisy_kfac", "noisy_ekfac",
         "noisy_full", "laplace", "variational_laplace", "tagi"]  # fmt: skip
X = torch.linspace(-2.0, 2.0, 24).reshape(8, 3).sin()
Y = X.sum(1, keepdim=True).cos()


class Plain(nn.Module):
    """Two layers; `hostile` modules have the same weights and the same function."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 1)

    def hidden(self, x: Tensor) -> Tensor:
        return torch.tanh(self.one(x))

    def forward(self, x: Tensor) -> Any:
        return self.two(self.hidden(x))


class Returns(Plain):
    """Outputs of another form."""

    def __init__(self, form: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: Tensor) -> Any:
        return self.form(super().forward(x))


@dataclasses.dataclass
class Scores:
    scores: Tensor


@dataclasses.dataclass
class Classified:
    loss: None
    logits: Tensor


class Views(Plain):
    """Parameters in a list of the module's own."""

    def __init__(self) -> None:
        super().__init__()
        self.views = [self.one.weight, {"bias": (self.one.bias,)}]

    def hidden(self, x: Tensor) -> Tensor:
        weight, rest = self.views
        return torch.tanh(nn.functional.linear(x, weight, rest["bias"][0]))  # type: ignore[arg-type, index]


class Parts(Plain):
    """Modules in a list, bound methods, functions and partial functions that hold the module."""

    def __init__(self) -> None:
        super().__init__()
        self.order = [self.one, self.two]
        self.bound = self._second
        self.closed = lambda x: torch.tanh(self.order[0](x))
        self.given = partial(_apply, self.closed)

    def _second(self, x: Tensor) -> Tensor:
        return self.order[1](x)

    def forward(self, x: Tensor) -> Tensor:
        return self.bound(self.given(x))


def _apply(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return function(x)


class Hooked(Plain):
    """What a hook keeps in the module is used in the same call."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Tensor | None = None
        self.one.register_forward_hook(self._keep)

    def _keep(self, _: nn.Module, __: Any, output: Tensor) -> None:
        self.kept = output

    def hidden(self, x: Tensor) -> Tensor:
        self.one(x)
        assert self.kept is not None
        return torch.tanh(self.kept)


_ELSEWHERE: dict[str, Tensor] = {}


class Elsewhere(Plain):
    """A weight that is reached by a global variable."""

    def __init__(self) -> None:
        super().__init__()
        _ELSEWHERE["weight"] = self.one.weight

    def hidden(self, x: Tensor) -> Tensor:
        return torch.tanh(nn.functional.linear(x, _ELSEWHERE["weight"], self.one.bias))


class Beforehand(Plain):
    """A view of a weight that was made once."""

    def __init__(self) -> None:
        super().__init__()
        self.turned = [self.one.weight.T]

    def hidden(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.turned[0] + self.one.bias)


class Checkpointed(Plain):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.two(checkpoint(self.hidden, x, use_reentrant=self.reentrant))


class Autocast(Plain):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x)


class Complex(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.ones(3, dtype=torch.complex64))

    def hidden(self, x: Tensor) -> Tensor:
        return super().hidden((x * self.phase).real)


class Words(nn.Module):
    """Embeddings of whole numbers."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.words, self.last = embedding, nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        found = self.words((x.abs() * 2).long())
        return self.last(found.mean(1) if found.ndim == 3 else found)


class Bag(Words):
    def __init__(self, **options: Any) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            super().__init__(nn.EmbeddingBag(4, 2, **options))


class AveragedWords(Words):
    def __init__(self) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            super().__init__(nn.Embedding(4, 2))


def with_hook() -> nn.Module:
    model = Plain()
    model.one.weight.register_hook(lambda gradient: 2.0 * gradient)
    return model


def with_later_hook() -> nn.Module:
    model = Plain()
    model.two.bias.register_post_accumulate_grad_hook(lambda _: None)
    return model


def broken() -> nn.Module:
    model = Plain()
    model.two.weight.data[0, 1] = torch.inf
    return model


def scripted(make: Callable[[nn.Module], nn.Module]) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return nn.Sequential(nn.Linear(3, 3), make(nn.Linear(3, 1)))


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "tuple": (lambda: Returns(lambda f: (f, f)), "returns a tuple of 0, 1, but its outputs must"),
    "dict": (lambda: Returns(lambda f: {"f": f}), "returns a dict of f, but its outputs must be"),
    "dataclass": (lambda: Returns(Scores), "returns a Scores of scores, but its outputs must be"),
    "none": (lambda: Returns(lambda f: None), "returns None, but its outputs must be one tensor"),
    "scalar": (lambda: Returns(torch.sum), r"shape \(\) for 8 examples; its outputs must have a"),
    "complex": (Complex, "'phase' is complex"),
    "meta": (lambda: Plain().to("meta"), "'one.weight' is on the meta device"),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(1)), "'0.weight' has no shape yet"),
    "half": (lambda: Plain().half(), "'one.weight' is in half precision"),
    "bfloat16": (lambda: Plain().bfloat16(), "'one.weight' is in half precision"),
    "hook": (with_hook, "'one.weight' has a hook on its gradient"),
    "later hook": (with_later_hook, "'two.bias' has a hook on its gradient"),
    "infinite": (broken, "'two.weight' holds infinity"),
    "script": (lambda: scripted(torch.jit.script), r"Layer '1' .* is a script module"),
    "sparse": (lambda: Bag(mode="sum", sparse=True), r"Layer 'words' .* has sparse=True"),
    "elsewhere": (Elsewhere, "reaches its parameter 'one.weight' in a way that cannot be followed"),
    "beforehand": (Beforehand, "reaches its parameter 'one.weight' in a way that cannot be"),
}
LEARNED: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "dict of logits": (lambda: Returns(lambda f: {"hidden": f + 1.0, "logits": f}), Plain),
    "dataclass of logits": (lambda: Returns(lambda f: Classified(None, f)), Plain),
    "views": (Views, Plain),
    "parts": (Parts, Plain),
    "hooked": (Hooked, Plain),
    "checkpointed": (lambda: Checkpointed(reentrant=False), Plain),
    "bag": (lambda: Bag(mode="mean"), AveragedWords),
}
# A twin that is handled by most methods, and refused by name by these.
EXCEPTIONS = {
    ("checkpointed", "noisy_kfac"): "'one.weight' and those like it cannot be met a second time",
    ("checkpointed", "noisy_ekfac"): "'one.weight' and those like it cannot be met a second time",
    ("bag", "variational_laplace"): r"'words' \(EmbeddingBag\)",
    ("bag", "tagi"): r"No moment rule for 'embedding_bag'.*\(Layer 'words', EmbeddingBag\.\)",
}
FOLLOWED = {"tagi"}
"""Methods whose weights stand in the module for something else."""


@pytest.fixture(autouse=True)
def _no_warnings_of_torch() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "None of the inputs have requires_grad")
        yield


def learner_of(name: str, model: nn.Module) -> Learner:
    return METHODS[name](model, GaussianLikelihood(noise=0.5), num_data=8)


def three_steps(name: str, model: nn.Module, context: Any = None) -> dict[str, Tensor]:
    """The mean and the variances that three steps lead to."""
    learner = learner_of(name, model)
    state = learner.init()
    with context or nullcontext():
        for _ in range(3):
            state, info = learner.step(state, (X, Y))
            assert info.loss.isfinite()
        state = learner.finish(state, [(X, Y)])
        prediction = br.predict(learner, state, X)
    assert prediction.mean.dtype is torch.float32
    variance = {f"variance of {k}": v for k, v in state.posterior.variance().items()}
    return {**state.posterior.mean, **variance, "prediction": prediction.mean}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_learned_is_refused_by_name(case: str, name: str) -> None:
    build, words = REFUSED[case]
    with pytest.raises((ValueError, TypeError), match=words):
        three_steps(name, build())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", LEARNED)
def test_what_can_be_learned_is_learned_as_by_a_plain_module(case: str, name: str) -> None:
    build, twin = LEARNED[case]
    model = build()
    if (case, name) in EXCEPTIONS:
        with pytest.raises(
            (ValueError, TypeError, NotImplementedError), match=EXCEPTIONS[case, name]
        ):
            three_steps(name, model)
        return
    first = {key: value.detach().clone() for key, value in model.named_parameters()}
    found, expected = three_steps(name, model), three_steps(name, twin())
    assert found.keys() == expected.keys()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert all(value.isfinite().all() for value in found.values())
    assert not any(torch.equal(found[key], value) for key, value in first.items())
    assert all(torch.equal(value, first[key]) for key, value in model.named_parameters())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("around", [False, True], ids=["inside", "around"])
def test_autocast_is_for_the_module_alone(around: bool, name: str) -> None:
    context = torch.autocast("cpu", torch.bfloat16) if around else None
    if name in FOLLOWED:
        with pytest.raises(TypeError, match=r"under torch\.autocast.*Take the autocast out"):
            three_steps(name, Plain() if around else Autocast(), context)
        return
    found = three_steps(name, Plain() if around else Autocast(), context)
    expected = three_steps(name, Plain())
    torch.testing.assert_close(found, expected, rtol=0.1, atol=0.02)
    assert any(not torch.equal(found[key], value) for key, value in expected.items())


@pytest.mark.parametrize("name", NAMES)
def test_weights_without_gradients_are_refused_by_name(name: str) -> None:
    """A checkpoint of the old kind has no gradients for a first layer; moments need none."""
    model = Checkpointed(reentrant=True)
    if name == "tagi":
        torch.testing.assert_close(three_steps(name, model), three_steps(name, Plain()))
        return
    with pytest.raises(ValueError, match=r"'one\.bias' is only used where .*use_reentrant=False"):
        three_steps(name, model)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_steps_can_be_taken_where_gradients_are_off(context: Any, name: str) -> None:
    torch.testing.assert_close(three_steps(name, Plain(), context()), three_steps(name, Plain()))
    with context():
        model, x, y = Plain(), X.clone(), Y.clone()
        learner = learner_of(name, model)
        state, _ = learner.step(learner.init(), (x, y))
    learner.step(state, (X, Y))


class _Product(torch.autograd.Function):
    """A product with its own gradient, within which torch records nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.mT

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        return slope @ weight, slope.mT @ x


class _WithOwnGradient(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, 3))

    def forward(self, x: Tensor) -> Tensor:
        return _Product.apply(x, self.weight)


@pytest.mark.parametrize("name", ["map", "mean_field", "ivon"])
def test_weights_in_functions_with_their_own_gradient_are_learned(name: str) -> None:
    learner = br.methods.METHODS[name](
        _WithOwnGradient(), br.GaussianLikelihood(noise=1.0), num_data=8
    )
    state = learner.init()
    for _ in range(3):
        state, _ = learner.step(state, (torch.ones(8, 3), torch.ones(8, 1)))
    assert (state.posterior.mean["weight"] > 0).all()
