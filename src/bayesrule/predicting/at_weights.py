"""A network's outputs at many weights, in as few passes as pays."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import islice

import torch
from torch import Tensor
from torch.func import vmap

from bayesrule.expectations import Expectation
from bayesrule.learner import Learner
from bayesrule.tensors import autocast, seeds, vectors
from bayesrule.tensors.chain import Chain
from bayesrule.tensors.inputs import Inputs, num_examples, parts, take
from bayesrule.tensors.network import Network
from bayesrule.tensors.products import quick_products
from bayesrule.tensors.unfit import check_outputs
from bayesrule.types import Params, State

# The most uses of weights (weights × examples) in one pass with several draws: on a CPU larger
# passes lose more to its caches than they save in calls. Writing a weight counts as _FEW uses.
_MOST_ON_CPU, _MOST_ON_GPU, _FEW = 1 << 23, 1 << 26, 8
NOTHING = "There are no inputs to predict."
# With fewer uses it does not matter which library computes the products.
_MANY = 1 << 22


@torch.no_grad()
def outputs_at(
    learner: Learner,
    state: State,
    x: Inputs,
    how: Expectation,
    *,
    seed: int = 0,
    batch_size: int = 4096,
) -> Tensor:
    """The network's outputs at each point of an expectation, (K, n, *)."""
    passes, posterior = Passes(learner.network, state.buffers, x, batch_size), state.posterior
    generator = seeds.generator(posterior.device, seed, 0)
    if passes.at_once == 1 or not how.plain_draws:
        points = how.points(posterior, generator, tracked=False)
        return passes.at(point.params for point in points)
    sizes = [len(part) for part in torch.arange(how.num).split(passes.at_once)]
    return torch.cat([passes.together(posterior.several(generator, size)) for size in sizes])


def stacked_outputs(
    network: Network, weights: Iterable[Params], buffers: Params, x: Inputs, batch_size: int
) -> Tensor:
    """A network's outputs at each of K weights, (K, n, *)."""
    return Passes(network, buffers, x, batch_size).at(weights)


def pieces(x: Inputs, size: int) -> list[Inputs]:
    """All examples, `size` at a time."""
    if num_examples(x) == 0:
        raise ValueError(NOTHING)
    return [take(x, slice(i, i + size)) for i in range(0, num_examples(x), size)]


class Passes:
    """Passes of some inputs through a network, each at several draws of its weights if that pays.

    A chain of linear layers takes several draws as batched products, other modules by `torch.vmap`.
    A module that cannot be mapped, or gives other numbers when it is (because it draws some
    itself), is called with one draw after another.
    """

    def __init__(self, network: Network, buffers: Params, x: Inputs, batch_size: int) -> None:
        self._network, self._buffers = network, buffers
        self._parts = pieces(x, batch_size)
        chain = Chain.of(network)
        rows = isinstance(x, Tensor) and x.ndim == 2
        self._chain = chain if rows else None
        self._on_cpu = parts(x)[0].device.type == "cpu"
        weights: Params = dict(network.model.named_parameters())
        self._uses = vectors.numel(weights) * max(_FEW, num_examples(self._parts[0]))
        self.at_once = self._most(weights)

    def _most(self, weights: Params) -> int:
        """How many draws to take in one pass."""
        if self._chain is None and self._network.maps_weights is False:
            return 1
        if self._on_cpu:
            return max(1, _MOST_ON_CPU // self._uses)
        per_draw = self._uses
        # A chain's use of memory is known beforehand, and is then what is bounded.
        if self._chain is not None:
            rows = num_examples(self._parts[0])
            per_draw = vectors.numel(weights) + rows * self._chain.width(weights)
        return max(1, _MOST_ON_GPU // per_draw)

    def at(self, weights: Iterable[Params]) -> Tensor:
        """The outputs at each of K weights, (K, n, *)."""
        remaining, outputs = iter(weights), []
        while group := list(islice(remaining, self.at_once)):
            plain = all(type(value) is Tensor for draw in group for value in draw.values())
            if plain and len(group) > 1:
                stacked = {name: torch.stack([draw[name] for draw in group]) for name in group[0]}
                outputs.append(self.together(stacked))
            else:
                outputs += [self._alone(draw).unsqueeze(0) for draw in group]
        return torch.cat(outputs)

    def together(self, weights: Params) -> Tensor:
        """The outputs (k, n, *) at k draws of the weights, {name: (k, *shape)}."""
        if self._chain is not None:
            return self._cat([self._chained(weights, part) for part in self._parts], axis=1)
        if self._network.maps_weights is not False:
            outputs = self._mapped(weights)
            if outputs is not None:
                return outputs
        return torch.stack([self._alone(draw) for draw in _unstacked(weights)])

    def _alone(self, weights: Params) -> Tensor:
        """The outputs (n, *) at one draw of the weights."""
        with quick_products() if self._on_cpu and self._uses >= _MANY else nullcontext():
            return self._cat([self._called(weights, part) for part in self._parts])

    def _called(self, weights: Params, part: Inputs) -> Tensor:
        outputs = self._network(weights, self._buffers, part, training=False)
        return check_outputs(outputs, num_examples(part))

    def _chained(self, weights: Params, part: Inputs) -> Tensor:
        assert self._chain is not None
        assert isinstance(part, Tensor)
        num = len(next(iter(weights.values())))
        buffers = {k: v.expand(num, *v.shape) for k, v in self._buffers.items()}
        arguments = weights, buffers, part.expand(num, *part.shape)
        return self._checked(autocast.called(self._chain, arguments, {}), part)

    def _mapped(self, weights: Params) -> Tensor | None:
        """As `together`, by `torch.vmap`; None where the module cannot be mapped."""
        try:
            outputs = self._cat([self._by_vmap(weights, part) for part in self._parts], axis=1)
        except Exception:
            outputs = None  # A call without vmap raises what is really wrong.
        if self._network.maps_weights is None:
            self._network.maps_weights = outputs is not None and self._agrees(outputs, weights)
        if not self._network.maps_weights:
            self.at_once = 1
            return None
        return outputs

    def _by_vmap(self, weights: Params, part: Inputs) -> Tensor:
        def call(params: Params) -> Tensor:
            return self._network(params, dict(self._buffers), part, training=False)

        with warnings.catch_warnings():
            # torch warns of operations that it maps in a loop, which is as fast as single calls.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            return self._checked(vmap(call)(weights), part)

    @staticmethod
    def _checked(outputs: Tensor, part: Inputs) -> Tensor:
        return outputs.to(check_outputs(outputs[0], num_examples(part)).dtype)

    def _agrees(self, outputs: Tensor, weights: Params) -> bool:
        """Whether the first and the last outputs are those of the module called without vmap."""
        draws = list(_unstacked(weights))
        alone = torch.stack([self._alone(draws[0]), self._alone(draws[-1])])
        error = (alone - outputs[[0, -1]]).abs().max()
        return bool(error <= 1e-3 * alone.abs().max())

    @staticmethod
    def _cat(parts: list[Tensor], axis: int = 0) -> Tensor:
        return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


def _unstacked(weights: Params) -> Iterator[Params]:
    """Each of k draws that are stacked, {name: (k, *shape)}."""
    for values in zip(*weights.values(), strict=True):
        yield dict(zip(weights, values, strict=True))
