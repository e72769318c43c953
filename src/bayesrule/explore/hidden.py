"""What targets say of hidden units, the weights being left as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.expectations import Moments
from bayesrule.explore.inference import FixedNetwork, Inferred, input_prior, posterior_moments
from bayesrule.learner import Learner
from bayesrule.moments import GaussianTensor
from bayesrule.predicting.predict import as_inputs
from bayesrule.types import State


@torch.no_grad()
def infer_hidden(
    learner: Learner,
    state: State,
    x: Any,
    y: Any,
    names: Sequence[str] | None = None,
    *,
    how: Moments | None = None,
) -> dict[str, Inferred]:
    """What targets y say of the outputs of submodules, by their names, for inputs x (n, *).

    `names` are those of `model.named_modules()`; without them, all submodules whose output is one
    Gaussian tensor. The prior is what the network predicts for a hidden unit, the posterior is that
    given y. The weights stay as they are; inputs may be plain or `uncertain`.

    >>> from torch import nn
    >>> from bayesrule import GaussianLikelihood, tagi
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> learner = tagi(model, GaussianLikelihood(noise=0.1), num_data=1)
    >>> found = infer_hidden(learner, learner.init(), torch.ones(5, 2), torch.ones(5, 1))
    >>> {name: tuple(h.mean.shape) for name, h in found.items()}
    {'0': (5, 3), '1': (5, 3), '2': (5, 1)}
    """
    network = FixedNetwork(learner, state, how)
    inputs = tuple(_one_input(part, state) for part in (x if isinstance(x, tuple) else (x,)))
    targets = torch.as_tensor(y, device=inputs[0].device)
    modules = _submodules(learner.model, names)
    with _recorded(modules) as recorded:
        _, outputs = network.forward(inputs)
    network.back(outputs, targets)
    return _hidden(recorded, modules, strict=names is not None)


def _one_input(x: Any, state: State) -> Tensor:
    if isinstance(x, GaussianTensor):
        return input_prior(x, None, state)[2]
    plain = as_inputs(x, state)
    assert isinstance(plain, Tensor)
    return plain


def _submodules(model: nn.Module, names: Sequence[str] | None) -> dict[str, nn.Module]:
    modules = {name: module for name, module in model.named_modules() if name}
    wanted = [names] if isinstance(names, str) else modules if names is None else names
    for name in wanted:
        if name not in modules:
            raise ValueError(f"The model has no submodule {name!r}; it has {', '.join(modules)}.")
    return {name: modules[name] for name in wanted}


@contextmanager
def _recorded(modules: dict[str, nn.Module]) -> Iterator[dict[str, list[Any]]]:
    """The outputs of each of the modules, call by call."""
    recorded: dict[str, list[Any]] = {name: [] for name in modules}

    def keep(name: str) -> Any:
        return lambda module, args, output: recorded[name].append(output)

    handles = [module.register_forward_hook(keep(name)) for name, module in modules.items()]
    try:
        yield recorded
    finally:
        for handle in handles:
            handle.remove()


def _hidden(
    recorded: dict[str, list[Any]], modules: dict[str, nn.Module], *, strict: bool
) -> dict[str, Inferred]:
    inferred = {}
    for name, outputs in recorded.items():
        if len(outputs) == 1 and isinstance(outputs[0], GaussianTensor):
            unit = outputs[0]
            inferred[name] = Inferred(unit.centre, unit.variance, *posterior_moments(unit))
        elif strict:
            kinds = ", ".join(type(output).__name__ for output in outputs) or "nothing"
            raise ValueError(
                f"Hidden units are those of a submodule that is called once and returns one "
                f"Gaussian tensor; {name!r} ({type(modules[name]).__name__}) returned {kinds}."
            )
    return inferred
