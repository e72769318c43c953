"""The Gaussian tensor, and the tape that carries innovations back to what it was computed from."""

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
"""`(δ, η)`: given the observation, the mean is `m + s δ` and the variance `s + s² η`."""

ToSources: TypeAlias = Callable[[Tensor, Tensor], Sequence[Innovation | None]]
"""Turns the innovation `(δ, η)` of a result into those of the tensors it was computed from."""

Map: TypeAlias = Callable[[Tensor], Tensor]
"""A linear map of plain tensors."""


@dataclass(frozen=True)
class Activations:
    """How Gaussians pass nonlinear layers; choose `MomentMatched()` or `LocallyLinear()`.

    In a normalising layer each output depends on all inputs through their mean and variance, which
    innovations take into account to first order. `constant_statistics` treats both as constants, as
    the first papers on TAGI do. Deep residual nets then hardly learn: the normalisation undoes much
    of what their outputs ask for, and weights grow without effect.

    In training, max pooling passes on the element with the largest mean, as TAGI does. In
    predictions, from which no innovations come back, it takes the expected maximum of independent
    Gaussians; `expected_maxima` takes it in training too, at the price of slower steps.

    Attention uses weights that favour uncertain scores. `expected_weights` uses the expected
    weights, which are nearer to the truth where scores have a standard deviation of 1 or more. TAGI
    learns worse from them, because before training they hardly differ from key to key.

    A `width` below 1 multiplies standard deviations by this factor on entry to the network and
    divides those of the outputs by it. A linear network does not change; any other one is evaluated
    nearer to its means, in the limit to first order. In deep nets the weights' initial spread
    exceeds their means. Normalising layers then divide the differences between examples by this
    spread, so little of them reaches the outputs and no innovation comes back.
    """

    constant_statistics: bool = False
    expected_maxima: bool = False
    expected_weights: bool = False
    width: float = 1.0
    by_tangent: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.width <= 1:
            raise ValueError(f"width must be above 0 and at most 1, got {self.width}.")

    @property
    def share(self) -> float:
        """The factor on variances inside the network."""
        return self.width**2


@dataclass(frozen=True)
class LocallyLinear(Activations):
    """Replaces `φ(z)` by its tangent at the mean: `μ = φ(m)`, `σ² = φ'(m)² s`."""

    by_tangent = True


@dataclass(frozen=True)
class MomentMatched(Activations):
    """Replaces `φ(z)` by the Gaussian with its mean, variance and covariance with z."""


class Node:
    """A Gaussian tensor on the tape: its sources and the innovation that has arrived so far."""

    __slots__ = ("delta", "eta", "sources", "to_sources")

    def __init__(
        self, sources: Sequence[Node | None] = (), to_sources: ToSources | None = None
    ) -> None:
        self.sources, self.to_sources = sources, to_sources
        self.delta: Tensor | None = None
        self.eta: Tensor | None = None

    def learn(self, delta: Tensor, eta: Tensor) -> None:
        """Adds an innovation: each use of the tensor contributes one."""
        if self.delta is None or self.eta is None:
            self.delta, self.eta = delta, eta
        else:
            self.delta, self.eta = self.delta + delta, self.eta + eta


class Tape:
    """The operations on Gaussian tensors in one forward pass, in order, if `record` is set.

    `activations` says how Gaussians pass nonlinear functions. The functions in `afterwards` run
    once all innovations have come back.
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
        """A Gaussian computed from `sources`; `to_sources` turns its innovation into theirs."""
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
        """Several Gaussians computed together; an unused one has a zero innovation."""
        arrived: dict[int, Innovation] = {}

        def jointly(*_: Tensor) -> Sequence[Innovation | None]:
            means = enumerate(mean for mean, _ in moments)
            return to_sources([arrived.get(i) or (torch.zeros_like(m),) * 2 for i, m in means])

        def recorder(i: int) -> ToSources:
            def to_joint(delta: Tensor, eta: Tensor) -> tuple[Innovation]:
                arrived[i] = delta, eta
                return ((delta.new_empty(0), eta.new_empty(0)),)

            return to_joint

        # The results come off the tape before their joint node. Each one stores its innovation in
        # `arrived` and gives the joint node an empty one, without which the tape would skip it.
        joint = Node(sources, jointly)
        if self.nodes is not None:
            self.nodes.append(joint)
        return [self.result(name, *m, (joint,), recorder(i)) for i, m in enumerate(moments)]

    def back(self, output: GaussianTensor, delta: Tensor, eta: Tensor) -> None:
        """Carries the output's innovation back to every tensor it was computed from."""
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
"""The rule for Gaussian tensors of each torch function."""


def rule(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a rule: how the given torch functions act on Gaussian tensors.

    The rule takes the function's arguments and returns Gaussian tensors. Write it with other rules,
    with `elementwise`, or with `Tape.result`.

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

    Torch functions and unmodified modules accept it like any tensor, if every function they call
    has a rule. (`mean` is a method of every tensor, so the means have another name.)
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
        names = {name_of(known) for known in RULES}
        public = sorted(name for name in names if name and not name.startswith("_"))
        raise NoRule(
            f"No moment rule for '{name_of(function)}'. Known: {', '.join(public)}. "
            "Add one with moments.rule."
        )

    bypassed = unhandled

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"GaussianTensor(centre={self.centre!r}, variance={self.variance!r})"


def name_of(function: Any) -> str:
    """A torch function's usual name."""
    name = getattr(function, "__name__", str(function))
    owner = getattr(function, "__self__", None)
    return getattr(owner, "__name__", name) if name == "__get__" else name


def spread(x: Any, share: float) -> Any:
    """The Gaussian tensors in a nested object with their variances multiplied by `share`."""
    if share == 1:
        return x
    if isinstance(x, GaussianTensor):
        return GaussianTensor(x.centre, x.variance * share, x.tape, x.node)
    if isinstance(x, tuple | list):
        return type(x)(spread(item, share) for item in x)
    if isinstance(x, dict):
        return {name: spread(item, share) for name, item in x.items()}
    return x


def parts(x: Any) -> tuple[Tensor, Tensor | None, Node | None]:
    """Mean, variance and node of a Gaussian tensor; a plain tensor has only a mean."""
    if isinstance(x, GaussianTensor):
        return x.centre, x.variance, x.node
    return x, None, None


def full_parts(x: Any) -> tuple[Tensor, Tensor, Node | None]:
    """Mean, variance and node; a plain tensor is a Gaussian whose variance is zero."""
    mean, variance, node = parts(x)
    return mean, torch.zeros_like(mean) if variance is None else variance, node


def innovation(x: GaussianTensor) -> Innovation:
    """The innovation (δ, η) of a tensor after a backward pass; zero if none arrived."""
    if x.node is None or x.node.delta is None or x.node.eta is None:
        return torch.zeros_like(x.variance), torch.zeros_like(x.variance)
    return x.node.delta, x.node.eta


def tape_of(*tensors: Any) -> Tape:
    """The tape of the first Gaussian tensor among several."""
    return next(x.tape for x in tensors if isinstance(x, GaussianTensor))


def summed_like(t: Tensor, x: Tensor) -> Tensor:
    """Sums t to the shape that x had before broadcasting, in the type of x."""
    return t.sum_to_size(x.shape).to(x.dtype)


def mapped(
    name: str, x: GaussianTensor, mean: Tensor, variance: Tensor, back: Map, back_squares: Map
) -> GaussianTensor:
    """A linear function `A x + b` of one Gaussian tensor, given its mean and variance.

    `back` applies `Aᵀ`, and `back_squares` applies `(A ∘ A)ᵀ`.
    """

    def to_sources(delta: Tensor, eta: Tensor) -> tuple[Innovation]:
        return ((back(delta), back_squares(eta)),)

    return x.tape.result(name, mean, variance, (x.node,), to_sources)


def uncertain(mean: Any, variance: Any) -> GaussianTensor:
    """Uncertain inputs or targets, for `learner.step`, `predict` and the functions around them.

    `predict` runs the network at 512 points of the inputs, which is accurate however wide the
    network is. A training step propagates their moments and takes units as independent, so the part
    of the outputs' variance that inputs cause comes out too small, by up to the layers' width.

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
            f"{float(spread.min())} to {float(spread.max())}. Give inputs without uncertainty as "
            "plain tensors."
        )
    return GaussianTensor(centre, spread.expand(centre.shape).contiguous())
