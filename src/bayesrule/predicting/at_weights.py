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

# So many times a weight may be used in one pass with several weights: on a CPU larger passes lose
# more to its caches than they save in calls. Weights that few examples use are written as often.
_MOST_ON_CPU, _MOST_ON_GPU, _FEW = 1 << 23, 1 << 26, 8
NOTHING = "There are no inputs to predict."
# With fewer uses it does not matter by which library products are.
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
    passes, belief = Passes(learner.network, state.buffers, x, batch_size), state.posterior
    generator = seeds.generator(belief.device, seed, 0)
    if passes.at_once == 1 or not how.plain_draws:
        points = how.points(belief, generator, tracked=False)
        return passes.at(point.params for point in points)
    sizes = [len(part) for part in torch.arange(how.num).split(passes.at_once)]
    return torch.cat([passes.together(belief.several(generator, size)) for size in sizes])


def stacked_outputs(
    network: Network, weights: Iterable[Params], buffers: Params, x: Inputs, batch_size: int
) -> Tensor:
    """A network's outputs at each of K weights, (K, n, *)."""
    return Passes(network, buffers, x, batch_size).at(weights)


def pieces(x: Inputs, size: int) -> list[Inputs]:
    """All examples, so many at a time."""
    if num_examples(x) == 0:
        raise ValueError(NOTHING)
    return [take(x, slice(i, i + size)) for i in range(0, num_examples(x), size)]


class Passes:
    """The passes of some inputs through a network, each with several weights where that pays.

    A chain of linear layers takes several weights as batched products, other modules by
    `torch.vmap`. A module that cannot be mapped, or for which that gives other numbers (it draws
    some itself), is called with one after another.
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
        """How many weights go through together."""
        if self._chain is None and self._network.maps_weights is False:
            return 1
        if self._on_cpu:
            return max(1, _MOST_ON_CPU // self._uses)
        # What a chain keeps in memory is known, so a pass may fill as much of that.
        each = self._uses
        if self._chain is not None:
            rows = num_examples(self._parts[0])
            each = vectors.numel(weights) + rows * self._chain.width(weights)
        return max(1, _MOST_ON_GPU // each)

    def at(self, weights: Iterable[Params]) -> Tensor:
        """The outputs at each of K weights, (K, n, *)."""
        left, found = iter(weights), []
        while group := list(islice(left, self.at_once)):
            plain = all(type(value) is Tensor for one in group for value in one.values())
            if plain and len(group) > 1:
                several = {name: torch.stack([one[name] for one in group]) for name in group[0]}
                found.append(self.together(several))
            else:
                found += [self._alone(one).unsqueeze(0) for one in group]
        return torch.cat(found)

    def together(self, weights: Params) -> Tensor:
        """The outputs (k, n, *) at several weights, {name: (k, *shape)}."""
        if self._chain is not None:
            return self._cat([self._chained(weights, part) for part in self._parts], axis=1)
        if self._network.maps_weights is not False:
            found = self._mapped(weights)
            if found is not None:
                return found
        return torch.stack([self._alone(one) for one in _each(weights)])

    def _alone(self, weights: Params) -> Tensor:
        """The outputs (n, *) at one of the weights."""
        with quick_products() if self._on_cpu and self._uses >= _MANY else nullcontext():
            return self._cat([self._called(weights, part) for part in self._parts])

    def _called(self, weights: Params, part: Inputs) -> Tensor:
        found = self._network(weights, self._buffers, part, training=False)
        return check_outputs(found, num_examples(part))

    def _chained(self, weights: Params, part: Inputs) -> Tensor:
        assert self._chain is not None
        assert isinstance(part, Tensor)
        num = len(next(iter(weights.values())))
        buffers = {k: v.expand(num, *v.shape) for k, v in self._buffers.items()}
        given = weights, buffers, part.expand(num, *part.shape)
        return self._checked(autocast.called(self._chain, given, {}), part)

    def _mapped(self, weights: Params) -> Tensor | None:
        """As `together`, by `torch.vmap`; None where the module cannot be mapped."""
        try:
            found = self._cat([self._by_vmap(weights, part) for part in self._parts], axis=1)
        except Exception:
            found = None  # Whatever is wrong is said where the module is called by itself.
        if self._network.maps_weights is None:
            self._network.maps_weights = found is not None and self._agrees(found, weights)
        if not self._network.maps_weights:
            self.at_once = 1
            return None
        return found

    def _by_vmap(self, weights: Params, part: Inputs) -> Tensor:
        def one(params: Params) -> Tensor:
            return self._network(params, dict(self._buffers), part, training=False)

        with warnings.catch_warnings():
            # Of torch's operations that it maps one by one, which is as fast as calls one by one.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            return self._checked(vmap(one)(weights), part)

    @staticmethod
    def _checked(found: Tensor, part: Inputs) -> Tensor:
        return found.to(check_outputs(found[0], num_examples(part)).dtype)

    def _agrees(self, found: Tensor, weights: Params) -> bool:
        """Whether first and last outputs are those of the module called with these weights."""
        each = list(_each(weights))
        alone = torch.stack([self._alone(each[0]), self._alone(each[-1])])
        error = (alone - found[[0, -1]]).abs().max()
        return bool(error <= 1e-3 * alone.abs().max())

    @staticmethod
    def _cat(parts: list[Tensor], axis: int = 0) -> Tensor:
        return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


def _each(weights: Params) -> Iterator[Params]:
    """The single weights of several, {name: (k, *shape)}."""
    for values in zip(*weights.values(), strict=True):
        yield dict(zip(weights, values, strict=True))
