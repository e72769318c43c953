"""The Gaussian tensor, and the tape on which innovations travel back through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bayesrule.moments.choices import Activations, MomentMatched

Innovation: TypeAlias = tuple[Tensor, Tensor]
"""`(δ, η)`: given what was observed, the mean is `m + s δ` and the variance `s + s² η`."""

Pull: TypeAlias = Callable[[Tensor, Tensor], Sequence[Innovation | None]]
"""From the innovation of a result to those of its sources."""


class Node:
    """A Gaussian quantity on the tape: where it came from and what was learned of it."""

    __slots__ = ("delta", "eta", "name", "pull", "sources")

    def __init__(
        self, name: str = "", sources: Sequence[Node | None] = (), pull: Pull | None = None
    ) -> None:
        self.name, self.sources, self.pull = name, sources, pull
        self.delta: Tensor | None = None
        self.eta: Tensor | None = None

    def learn(self, delta: Tensor, eta: Tensor) -> None:
        """Adds an innovation; those of several uses of one quantity add up."""
        if self.delta is None or self.eta is None:
            self.delta, self.eta = delta, eta
        else:
            self.delta, self.eta = self.delta + delta, self.eta + eta


class Pass:
    """One way of a batch through a network: its tape, if it is to be gone back, and its choices."""

    def __init__(self, activations: Activations, *, record: bool) -> None:
        self.activations = activations
        self.tape: list[Node] | None = [] if record else None

    def leaf(self, mean: Tensor, variance: Tensor) -> GaussianTensor:
        """A Gaussian that is not computed from others: a weight or an input."""
        node = Node() if self.tape is not None else None
        return GaussianTensor(mean, variance, self, node)

    def result(
        self,
        name: str,
        mean: Tensor,
        variance: Tensor,
        sources: Sequence[Node | None],
        pull: Pull,
    ) -> GaussianTensor:
        """A Gaussian computed from others, and how innovations come back through it."""
        if self.tape is None:
            return GaussianTensor(mean, variance, self, None)
        node = Node(name, sources, pull)
        self.tape.append(node)
        return GaussianTensor(mean, variance, self, node)

    def back(self, output: GaussianTensor, delta: Tensor, eta: Tensor) -> None:
        """Carries the innovation of the output back to every quantity that it came from."""
        assert self.tape is not None
        if output.node is None:
            return
        output.node.learn(delta, eta)
        while self.tape:
            node = self.tape.pop()
            if node.delta is None or node.eta is None:
                continue
            assert node.pull is not None
            found = node.pull(node.delta, node.eta)
            for source, innovation in zip(node.sources, found, strict=True):
                if source is not None and innovation is not None:
                    source.learn(*innovation)


class NoRule(TypeError):
    """An operation that Gaussians cannot pass yet."""


RULES: dict[Any, Callable[..., Any]] = {}
"""For each torch function, its rule for Gaussian tensors."""


def rule(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Teaches Gaussian tensors to pass torch functions.

    The rule gets the arguments of the function and returns Gaussian tensors; it is written with
    other rules, with `elementwise`, or with `Pass.result`.

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


def _getters(*names: str) -> set[Any]:
    return {getattr(Tensor, name).__get__ for name in names}


# What can be asked of a Gaussian tensor without looking at its values.
_FACTS = _getters("shape", "dtype", "device", "ndim", "is_cuda", "requires_grad", "is_nested",
                  "layout", "is_sparse", "is_quantized", "is_mps", "is_cpu") | {
    Tensor.size, Tensor.dim, Tensor.__len__, Tensor.numel, Tensor.is_floating_point,
    torch.is_floating_point, Tensor.is_complex, torch.is_complex, Tensor.ndimension,
    Tensor.nelement, torch.numel, Tensor.get_device, Tensor.stride, Tensor.is_contiguous,
    Tensor.element_size, Tensor.__hash__,
}  # fmt: skip


class GaussianTensor(Tensor):
    """A tensor of independent Gaussians: `centre` holds the means, `variance` the variances.

    Torch functions and unmodified modules take it where they take tensors, as far as the table of
    rules goes. (`mean` is a function of every tensor, so the means have another name.)
    """

    centre: Tensor
    variance: Tensor
    way: Pass
    node: Node | None

    @staticmethod
    def __new__(
        cls,
        centre: Tensor,
        variance: Tensor,
        way: Pass | None = None,
        node: Node | None = None,
    ) -> GaussianTensor:
        tensor = Tensor._make_wrapper_subclass(
            cls, centre.shape, dtype=centre.dtype, device=centre.device
        )
        tensor.centre, tensor.variance, tensor.node = centre, variance, node
        tensor.way = way or Pass(MomentMatched(), record=False)
        return tensor

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        found = RULES.get(function)
        if found is not None:
            return found(*args, **(kwargs or {}))
        if function in _FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(kwargs or {}))
        raise NoRule(missing(function))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        function: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        # Reached only by calls that torch makes behind the back of __torch_function__.
        raise NoRule(missing(function))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"GaussianTensor(centre={self.centre!r}, variance={self.variance!r})"


def name_of(function: Any) -> str:
    """A torch function's name as people know it."""
    name = getattr(function, "__name__", str(function))
    owner = getattr(function, "__self__", None)
    return getattr(owner, "__name__", name) if name == "__get__" else name


def missing(function: Any) -> str:
    """What to say of an operation without a rule."""
    known = sorted({name_of(one) for one in RULES} - {""})
    public = [name for name in known if not name.startswith("_")]
    return (
        f"No moment rule for '{name_of(function)}'. Known: {', '.join(public)}. "
        "Add one with moments.rule."
    )


def parts(x: Any) -> tuple[Tensor, Tensor | None, Node | None]:
    """Mean, variance and node of a Gaussian tensor; of a plain one only the first."""
    if isinstance(x, GaussianTensor):
        return x.centre, x.variance, x.node
    return x, None, None


def way_of(*tensors: Any) -> Pass:
    """The pass that the first Gaussian tensor among several belongs to."""
    return next(x.way for x in tensors if isinstance(x, GaussianTensor))


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
