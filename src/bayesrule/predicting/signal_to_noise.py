"""The signal-to-noise ratio of the gradients that a belief's scales are learned from."""

from __future__ import annotations

import fnmatch
import math
from collections import deque

import torch
from torch import Tensor

from bayesrule.types import Info, Params, State


class SignalToNoise:
    """`E[g²] / Var[g]` of each log scale's gradient over the last steps.

    Call it with the state after each step, or pass it to `fit`; the rule must keep its gradients:
    `Elbo(keep_gradients=True)`. Swiatkowski et al. (2020), footnote 3: expectation and variance
    (over the window, divided by its length) are of each parameter, then the ratios are averaged
    over parameters. A ratio is at least 1; it is 1 where the gradient is noise alone.

    Parameters whose gradient did not vary at all in the window have no ratio and are left out.

    - `window`: over how many steps the moments are taken.
    - `names`: a pattern; the gradients of other tensors are not kept.

    >>> from bayesrule import Elbo, GaussianLikelihood, Learner, MeanFieldFamily, Price, Draws
    >>> learner = Learner(
    ...     torch.nn.Linear(2, 1), GaussianLikelihood(noise=1.0), num_data=8, curvature=Price(),
    ...     posterior=MeanFieldFamily(), expectation=Draws(1), rule=Elbo(keep_gradients=True),
    ... )
    >>> state, measure = learner.init(), SignalToNoise()
    >>> for _ in range(10):
    ...     state, info = learner.step(state, (torch.ones(8, 2), torch.ones(8, 1)))
    ...     measure(state, info)
    >>> sorted(measure.by_name()), measure.ratio() > 1, measure.ratio("weight") > 1
    (['bias', 'weight'], True, True)
    """

    def __init__(self, window: int = 10, names: str = "*") -> None:
        if not (isinstance(window, int) and window >= 2):
            raise ValueError(f"window is a whole number of at least 2, got {window!r}.")
        self.window, self.names = window, names
        self._gradients: deque[Params] = deque(maxlen=window)

    def __call__(self, state: State, info: Info | None = None) -> None:
        """Records a step's gradients; `info` is not used."""
        scales = state.rule.get("gradients", {}).get("scales", {})
        names = fnmatch.filter(scales, self.names)
        if not names:
            raise ValueError(_no_gradients(state, scales, self.names))
        # Copies, because the next step may overwrite the memory.
        self._gradients.append({name: scales[name].detach().clone() for name in names})

    @property
    def steps(self) -> int:
        """How many steps there are in the window now."""
        return len(self._gradients)

    def ratios(self) -> Params:
        """The ratio of each parameter, in float64; NaN where its gradient did not vary."""
        if self.steps < 2:
            raise ValueError(
                f"A variance needs at least 2 steps, got {self.steps}: call this with the state "
                "after each step."
            )
        last = self._gradients[-1]
        return {name: _ratio([step[name] for step in self._gradients]) for name in last}

    def by_name(self) -> dict[str, float]:
        """The mean ratio over the parameters of each tensor of `posterior.scales`."""
        return {name: _mean([ratio]) for name, ratio in self.ratios().items()}

    def ratio(self, pattern: str = "*") -> float:
        """The mean ratio over all parameters whose tensor's name fits, such as "2.weight*"."""
        ratios = self.ratios()
        names = fnmatch.filter(ratios, pattern)
        if not names:
            raise ValueError(_no_scales(pattern, ratios))
        return _mean([ratios[name] for name in names])


def _ratio(gradients: list[Tensor]) -> Tensor:
    """`E[g²] / Var[g]` along a list of tensors, elementwise."""
    window = torch.stack(gradients).double()
    variance = window.var(0, correction=0)
    return torch.where(variance > 0, window.square().mean(0) / variance, math.nan)


def _mean(ratios: list[Tensor]) -> float:
    return float(torch.cat([ratio.reshape(-1) for ratio in ratios]).nanmean())


def _no_scales(pattern: str, scales: Params) -> str:
    return f"No scales are named {pattern!r}. There are: {', '.join(scales)}."


def _no_gradients(state: State, scales: Params, pattern: str) -> str:
    if scales:
        return _no_scales(pattern, scales)
    memory = ", ".join(state.rule) or "nothing"
    return (
        f"The state holds no gradients of scales (its rule remembers: {memory}). Use "
        "Elbo(keep_gradients=True) with MeanFieldFamily() or KTiedFamily()."
    )
