"""The Gaussian tensor, and the tape along which innovations travel back to where it came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bayesrule.moments.choices import Activations, MomentMatched
from bayesrule.tensors.stand_in import StandIn

Innovation: TypeAlias = tuple[Tensor, Tensor]
"""`(δ, η)`: given what was observed, the mean is `m + s δ` and the variance `s + s² η`."""

ToSources: TypeAlias = Callable[[Tensor, Tensor], Sequence[Innovation | None]]
"""From the innovation `(δ, η)` of a result to those of the tensors that it was computed from."""

Map: TypeAlias = Callable[[Tensor], Tensor]
"""A linear map of plain tensors."""


class Node:
    """A Gaussian tensor on the tape: what it was computed from and its innovation so far."""

    __slots__ = ("delta", "eta", "name", "sources", "to_sources")

    def __init__(
        self,
        name: str = "",
        sources: Sequence[Node | None] = (),
        to_sources: ToSources | None = None,
    ) -> None:
        self.name, self.sources, self.to_sources = name, sources, to_sources
        self.delta: Tensor | None = None
        self.eta: Tensor | None = None

    def learn(self, delta: Tensor, eta: Tensor) -> None:
        """Adds an innovation; those of several uses of one tensor add up."""
        if self.delta is None or self.eta is None:
            self.delta, self.eta = delta, eta
        else:
            self.delta, self.eta = self.delta + delta, self.eta + eta


class Tape:
    """The operations of one forward pass on Gaussian tensors, in order, if they are recorded.

    `activations` says how Gaussians pass functions that are not linear.
    """

    def __init__(self, activations: Activations, *, record: bool) -> None:
        self.activations = activations
        self.nodes: list[Node] | None = [] if record else None

    def leaf(self, mean: Tensor, variance: Tensor) -> GaussianTensor:
        """A Gaussian that is not computed from others: a weight or an input."""
        node = Node() if self.nodes is not None else None
        return GaussianTensor(mean, variance, self, node)

    def result(
        self,
        name: str,
        mean: Tensor,
        variance: Tensor,
        sources: Sequence[Node | None],
        to_sources: ToSources,
    ) -> GaussianTensor:
        """A Gaussian computed from others, and how its innovation becomes innovations of them."""
        if self.nodes is None:
            return GaussianTensor(mean, variance, self, None)
        node = Node(name, sources, to_sources)
        self.nodes.append(node)
        return GaussianTensor(mean, variance, self, node)

    def back(self, output: GaussianTensor, delta: Tensor, eta: Tensor) -> None:
        """Carries the innovation of the output back to every tensor that it was computed from."""
        assert self.nodes is not None
        if output.node is None:
            return
        output.node.learn(delta, eta)
        while self.nodes:
            node = self.nodes.pop()
            if node.delta is None or node.eta is None:
                continue
            assert node.to_sources is not None
            innovations = node.to_sources(node.delta, node.eta)
            for source, innovation in zip(node.sources, innovations, strict=True):
                if source is not None and innovation is not None:
                    source.learn(*innovation)


class NoRule(TypeError):
    """An operation that has no rule for Gaussian tensors."""


RULES: dict[Any, Callable[..., Any]] = {}
"""For each torch function, its rule for Gaussian tensors."""


def rule(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers what torch functions do with Gaussian tensors.

    The rule gets the arguments of the function and returns Gaussian tensors; it is written with
    other rules, with `elementwise`, or with `Tape.result`.

    >>> from bayesrule import moments
    >>> @moments.rule(torch.special.log1p)
    ... def log1p(x: moments.GaussianTensor) -> moments.GaussianTensor:
    ...     return moments.through(x, torch.log1p)
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for one in functions:
            RULES[one] = function
        return function

    return register


class GaussianTensor(StandIn):
    """A tensor of independent Gaussians: `centre` holds the means, `variance` the variances.

    Torch functions and unmodified modules take it where they take tensors, if the functions that
    they call are in the table of rules. (`mean` is a method of every tensor, so the means have
    another name.)
    """

    centre: Tensor
    variance: Tensor
    tape: Tape
    node: Node | None
    handlers = RULES

    @staticmethod
    def __new__(
        cls,
        centre: Tensor,
        variance: Tensor,
        tape: Tape | None = None,
        node: Node | None = None,
    ) -> GaussianTensor:
        tensor = Tensor._make_wrapper_subclass(
            cls, centre.shape, dtype=centre.dtype, device=centre.device
        )
        tensor.centre, tensor.variance, tensor.node = centre, variance, node
        tensor.tape = tape or Tape(MomentMatched(), record=False)
        return tensor

    @classmethod
    def unhandled(cls, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        raise NoRule(missing(function))

    bypassed = unhandled

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"GaussianTensor(centre={self.centre!r}, variance={self.variance!r})"


def name_of(function: Any) -> str:
    """A torch function's name as people know it."""
    name = getattr(function, "__name__", str(function))
    owner = getattr(function, "__self__", None)
    return getattr(owner, "__name__", name) if name == "__get__" else name


def missing(function: Any) -> str:
    """The message for an operation without a rule."""
    names = sorted({name_of(one) for one in RULES} - {""})
    public = [name for name in names if not name.startswith("_")]
    return (
        f"No moment rule for '{name_of(function)}'. Known: {', '.join(public)}. "
        "Add one with moments.rule."
    )


def parts(x: Any) -> tuple[Tensor, Tensor | None, Node | None]:
    """Mean, variance and node of a Gaussian tensor; of a plain one only the first."""
    if isinstance(x, GaussianTensor):
        return x.centre, x.variance, x.node
    return x, None, None


def full_parts(x: Any) -> tuple[Tensor, Tensor, Node | None]:
    """Mean, variance and node; a plain tensor is a Gaussian whose variance is zero."""
    mean, variance, node = parts(x)
    return mean, torch.zeros_like(mean) if variance is None else variance, node


def tape_of(*tensors: Any) -> Tape:
    """The tape of the first Gaussian tensor among several."""
    return next(x.tape for x in tensors if isinstance(x, GaussianTensor))


def summed_like(t: Tensor, x: Tensor) -> Tensor:
    """t summed and converted to the shape and type that x had before broadcasting."""
    return t.sum_to_size(x.shape).to(x.dtype)


def mapped(
    name: str, x: GaussianTensor, mean: Tensor, variance: Tensor, back: Map, back_squares: Map
) -> GaussianTensor:
    """A linear function `A x + b` of one Gaussian tensor, from its moments.

    `back` is `Aᵀ` and `back_squares` is `(A ∘ A)ᵀ`, the transposed map of the variances.
    """

    def to_sources(delta: Tensor, eta: Tensor) -> tuple[Innovation]:
        return ((back(delta), back_squares(eta)),)

    return x.tape.result(name, mean, variance, (x.node,), to_sources)


def uncertain(mean: Any, variance: Any) -> GaussianTensor:
    """Inputs that are not known for sure, for `learner.step`, `predict` and anything between.

    `variance` is one number or has the shape of `mean`.

    >>> x = uncertain(torch.zeros(2, 3), 0.1)
    >>> x.shape, x.variance[0]
    (torch.Size([2, 3]), tensor([0.1000, 0.1000, 0.1000]))
    """
    centre = torch.as_tensor(mean)
    spread = torch.as_tensor(variance, dtype=centre.dtype, device=centre.device)
    if spread.ndim and spread.shape != centre.shape:
        raise ValueError(
            f"The variance has the shape {tuple(spread.shape)}, the mean {tuple(centre.shape)}; "
            "give one number or one for each element."
        )
    if not (spread > 0).all() or not spread.isfinite().all():
        raise ValueError(
            "Every variance must be positive and finite, got "
            f"{float(spread.min())} to {float(spread.max())}. An input that is known for sure is "
            "given as a plain tensor."
        )
    return GaussianTensor(centre, spread.expand(centre.shape).contiguous())
