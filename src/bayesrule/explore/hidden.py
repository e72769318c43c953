"""What targets say of hidden units, the weights being left as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.expectations import Moments
from bayesrule.explore.glance import Glance, Inferred, learned, place
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

    `names` are those of `model.named_modules()`; without them all submodules are looked at whose
    output is one Gaussian tensor. The prior is what the network predicts, the posterior what it
    would have had to be. The weights stay as they are; inputs may be plain or `uncertain`.

    >>> from torch import nn
    >>> from bayesrule import GaussianLikelihood, tagi
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> learner = tagi(model, GaussianLikelihood(noise=0.1), num_data=1)
    >>> found = infer_hidden(learner, learner.init(), torch.ones(5, 2), torch.ones(5, 1))
    >>> {name: tuple(h.mean.shape) for name, h in found.items()}
    {'0': (5, 3), '1': (5, 3), '2': (5, 1)}
    """
    glance = Glance(learner, state, how)
    given = tuple(_one_input(part, state) for part in (x if isinstance(x, tuple) else (x,)))
    targets = torch.as_tensor(y, device=given[0].device)
    modules = _submodules(learner.model, names)
    with _watched(modules) as seen:
        way, outputs = glance.forward(given)
    glance.back(way, outputs, targets)
    return _hidden(seen, modules, strict=names is not None)


def _one_input(x: Any, state: State) -> Tensor:
    if isinstance(x, GaussianTensor):
        return place(x, None, state)[2]
    plain = as_inputs(x, state)
    assert isinstance(plain, Tensor)
    return plain


def _submodules(model: nn.Module, names: Sequence[str] | None) -> dict[str, nn.Module]:
    known = {name: module for name, module in model.named_modules() if name}
    wanted = list(known) if names is None else [names] if isinstance(names, str) else list(names)
    strange = [name for name in wanted if name not in known]
    if strange:
        raise ValueError(f"The model has no submodule {strange[0]!r}; it has {', '.join(known)}.")
    return {name: known[name] for name in wanted}


@contextmanager
def _watched(modules: dict[str, nn.Module]) -> Iterator[dict[str, list[Any]]]:
    """What each of the modules gives out, call by call."""
    seen: dict[str, list[Any]] = {name: [] for name in modules}

    def keep(name: str) -> Any:
        return lambda module, args, output: seen[name].append(output)

    handles = [module.register_forward_hook(keep(name)) for name, module in modules.items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _hidden(
    seen: dict[str, list[Any]], modules: dict[str, nn.Module], *, strict: bool
) -> dict[str, Inferred]:
    found = {}
    for name, outputs in seen.items():
        if len(outputs) == 1 and isinstance(outputs[0], GaussianTensor):
            one = outputs[0]
            found[name] = Inferred(one.centre, one.variance, *learned(one))
        elif strict:
            kinds = ", ".join(type(output).__name__ for output in outputs) or "nothing"
            raise ValueError(
                f"Hidden units are read off a submodule that is called once and gives out one "
                f"Gaussian tensor; {name!r} ({type(modules[name]).__name__}) gave out {kinds}."
            )
    return found
