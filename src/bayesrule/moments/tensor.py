"""The Gaussian tensor, and the tape along which innovations travel back to where it came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from bayesrule.tensors.stand_in import StandIn

Moments: TypeAlias = tuple[Tensor, Tensor]
"""Mean and variance."""

Innovation: TypeAlias = tuple[Tensor, Tensor]
"""`(δ, η)`: given what was observed, the mean is `m + s δ` and the variance `s + s² η`."""

ToSources: TypeAlias = Callable[[Tensor, Tensor], Sequence[Innovation | None]]
"""From the innovation `(δ, η)` of a result to those of the tensors that it was computed from."""

Map: TypeAlias = Callable[[Tensor], Tensor]
"""A linear map of plain tensors."""


@dataclass(frozen=True)
class Activations:
    """How Gaussians pass elementwise functions; `MomentMatched()` or `LocallyLinear()`.

    In a normalising layer each output depends on all inputs through their mean and variance.
    Innovations include that to first order. With `constant_statistics` they take both as constants,
    as in the first papers on TAGI; deep residual nets then hardly learn, since much of what their
    outputs ask for is lost in the normalisation, and weights grow without effect.

    Max pooling passes the element with the largest mean on where innovations are to come back, as
    TAGI does, and the expected maximum of independent Gaussians where nobody goes back, in
    predictions; with `expected_maxima` always. A training step would take longer with it.

    Attention takes weights that favour uncertain scores. The expected weights, which it takes with
    `expected_weights`, are nearer to the truth where scores have a standard deviation of 1 and
    more, but TAGI learns worse from them: while nothing is known, they hardly differ from key to
    key.

    With a `width` below 1, deviations are carried at that share of their size, and the outputs'
    are made as much larger. Where the network is linear nothing changes; elsewhere it is looked at
    nearer to its means, in the limit to first order. In deep nets the spread of first weights is
    larger than the weights, and normalising layers then divide what examples differ in by what
    nothing is known of: little of it arrives at the outputs, and no innovation comes back.
    """

    constant_statistics: bool = False
    expected_maxima: bool = False
    expected_weights: bool = False
    width: float = 1.0
    by_tangent: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.width <= 1:
            raise ValueError(f"width is a share of deviations, over 0 to 1, got {self.width}.")

    @property
    def share(self) -> float:
        """The share of variances that is carried."""
        return self.width**2


@dataclass(frozen=True)
class LocallyLinear(Activations):
    """`φ(z)` as its tangent at the mean: `μ = φ(m)`, `σ² = φ'(m)² s`."""

    by_tangent = True


@dataclass(frozen=True)
class MomentMatched(Activations):
    """`φ(z)` as the Gaussian of the same mean and variance, and the same covariance with z."""


class Node:
    """A Gaussian tensor on the tape: what it was computed from and its innovation so far."""

    __slots__ = ("delta", "eta", "sources", "to_sources")

    def __init__(
        self, sources: Sequence[Node | None] = (), to_sources: ToSources | None = None
    ) -> None:
        self.sources, self.to_sources = sources, to_sources
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

    `activations` says how Gaussians pass functions that are not linear; `afterwards` is called once
    all innovations have come back.
    """

    def __init__(self, activations: Activations, *, record: bool) -> None:
        self.activations = activations
        self.nodes: list[Node] | None = [] if record else None
        self.afterwards: list[Callable[[], None]] = []

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
        node = Node(sources, to_sources)
        self.nodes.append(node)
        return GaussianTensor(mean, variance, self, node)

    def results(
        self,
        name: str,
        moments: Sequence[Moments],
        sources: Sequence[Node | None],
        to_sources: Callable[[list[Innovation]], Sequence[Innovation | None]],
    ) -> list[GaussianTensor]:
        """Several Gaussians computed together; the innovation of one that is not used is zero."""
        learned: dict[int, Innovation] = {}

        def together(*_: Tensor) -> Sequence[Innovation | None]:
            means = enumerate(mean for mean, _ in moments)
            return to_sources([learned.get(i) or (torch.zeros_like(m),) * 2 for i, m in means])

        def noted(i: int) -> ToSources:
            def to_whole(delta: Tensor, eta: Tensor) -> tuple[Innovation]:
                learned[i] = delta, eta
                return ((delta.new_empty(0), eta.new_empty(0)),)

            return to_whole

        # The results come off the tape before the whole. Each notes its innovation in `learned` and
        # gives the whole an empty one, without which the tape would skip it.
        whole = Node(sources, together)
        if self.nodes is not None:
            self.nodes.append(whole)
        return [self.result(name, *m, (whole,), noted(i)) for i, m in enumerate(moments)]

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
        while self.afterwards:
            self.afterwards.pop()()


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
        RULES.update(dict.fromkeys(functions, function))
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
        cls, centre: Tensor, variance: Tensor, tape: Tape | None = None, node: Node | None = None
    ) -> GaussianTensor:
        tensor = Tensor._make_wrapper_subclass(
            cls, centre.shape, dtype=centre.dtype, device=centre.device
        )
        tensor.centre, tensor.variance, tensor.node = centre, variance, node
        tensor.tape = tape or Tape(MomentMatched(), record=False)
        return tensor

    @classmethod
    def unhandled(cls, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        names = {name_of(one) for one in RULES}
        public = sorted(name for name in names if name and not name.startswith("_"))
        raise NoRule(
            f"No moment rule for '{name_of(function)}'. Known: {', '.join(public)}. "
            "Add one with moments.rule."
        )

    bypassed = unhandled

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"GaussianTensor(centre={self.centre!r}, variance={self.variance!r})"


def name_of(function: Any) -> str:
    """A torch function's name as people know it."""
    name = getattr(function, "__name__", str(function))
    owner = getattr(function, "__self__", None)
    return getattr(owner, "__name__", name) if name == "__get__" else name


def spread(x: Any, share: float) -> Any:
    """The same quantities with their variances multiplied by a number; nests of them, too."""
    if share == 1:
        return x
    if isinstance(x, GaussianTensor):
        return GaussianTensor(x.centre, x.variance * share, x.tape, x.node)
    if isinstance(x, tuple | list):
        return type(x)(spread(one, share) for one in x)
    if isinstance(x, dict):
        return {name: spread(one, share) for name, one in x.items()}
    return x


def parts(x: Any) -> tuple[Tensor, Tensor | None, Node | None]:
    """Mean, variance and node of a Gaussian tensor; of a plain one only the first."""
    if isinstance(x, GaussianTensor):
        return x.centre, x.variance, x.node
    return x, None, None


def full_parts(x: Any) -> tuple[Tensor, Tensor, Node | None]:
    """Mean, variance and node; a plain tensor is a Gaussian whose variance is zero."""
    mean, variance, node = parts(x)
    return mean, torch.zeros_like(mean) if variance is None else variance, node


def innovation(x: GaussianTensor) -> Innovation:
    """The innovation (δ, η) of a quantity after a pass back; zero where none arrived."""
    if x.node is None or x.node.delta is None or x.node.eta is None:
        return torch.zeros_like(x.variance), torch.zeros_like(x.variance)
    return x.node.delta, x.node.eta


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

    `predict` looks at 512 points of them, and is right however wide the network is. A step of
    training carries their moments along, where units are taken as independent: what inputs add to
    the outputs' variance is then too small, by up to the width of the layers.

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
