"""Weights drawn from the posterior, how well the chains mixed, and predictions from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrule.hmc.density import LogDensity, as_inputs
from bayesrule.predicting.prediction import Prediction
from bayesrule.tensors.network import Inputs, num_examples, take
from bayesrule.types import Params


@dataclass(frozen=True, eq=False, repr=False)
class Samples:
    """Draws of several chains, one chain after the other: S = chains · draws, in float64.

    - `draws`: the weights, `{name: (S, *shape)}` as `model.named_parameters()` names them.
    - `precision`: the learned noise precision, (S, *) with one for each output; else None.
    - `log_density`: (S,), with all its constants, the learned precision integrated out.
    - `rhat`, `ess`: rank-normalised split R-hat and bulk effective sample size of each weight, by
      name, of the `"log density"`, of the `"outputs"` at the inputs given (n, *), and of the
      `"noise precision"`. Hidden units can change places, so weights of a network mix badly where
      its outputs mix well: look at the outputs first.
    - `divergences`: draws after warm-up whose trajectory diverged; there should be none.
    - `cut_off`: draws after warm-up whose trajectory reached the greatest length allowed.
    - `acceptance`: the mean acceptance probability after warm-up; the sampler aims at 0.8.
    - `gradients`: how many gradients were computed, `seconds`: how long all of it took.
    - `density`: the `LogDensity` that was sampled.
    """

    draws: Params
    precision: Tensor | None
    log_density: Tensor
    rhat: Params
    ess: Params
    chains: int
    divergences: int
    cut_off: int
    acceptance: float
    gradients: int
    seconds: float
    density: LogDensity

    def __len__(self) -> int:
        return len(self.log_density)

    def __repr__(self) -> str:
        return f"Samples({self.summary()})"

    def predict(self, x: Any, *, num: int | None = None, batch_size: int = 4096) -> Prediction:
        """The prediction for new inputs `x` (n, *), a tensor or an array.

        A mixture over all draws or, to save memory, over `num` evenly spaced ones.
        """
        inputs = as_inputs(x)
        if num_examples(inputs) == 0:
            raise ValueError("There are no inputs to predict.")
        chosen = self._chosen(num)
        draws = {name: value[chosen] for name, value in self.draws.items()}
        outputs = outputs_at(self.density, draws, inputs, batch_size)
        likelihood, noises = self.density.likelihood, self._noises(chosen)
        moments = [likelihood.moments(f, noise) for f, noise in zip(outputs, noises, strict=True)]
        means, variances = (torch.stack(part) for part in zip(*moments, strict=True))
        # Broadcast over the examples.
        noise = {k: torch.stack([one[k] for one in noises]).unsqueeze(1) for k in noises[0]}
        return Prediction(
            components=likelihood.distribution(outputs, noise),
            mean=means.mean(0),
            epistemic=means.var(0, correction=0),
            aleatoric=variances.mean(0),
            conditional_means=means,
        )

    def _chosen(self, num: int | None) -> Tensor:
        if num is None:
            return torch.arange(len(self))
        if not 1 <= num <= len(self):
            raise ValueError(f"num takes from 1 to all {len(self)} draws, got {num}.")
        # Half a step from both ends, so that all chains have the same share.
        return ((torch.arange(num) + 0.5) * (len(self) / num)).long()

    def _noises(self, chosen: Tensor) -> list[Params]:
        """The state of the likelihood at each draw."""
        if self.precision is None:
            return [{}] * len(chosen)
        # A belief Gamma(a, b) whose mean a / b is the drawn precision.
        drawn = self.precision[chosen]
        return [{"a": torch.ones_like(one), "b": 1.0 / one} for one in drawn]

    def summary(self) -> str:
        """One line: how many draws, how well they mixed, how long it took."""
        weights = [float(self.rhat[name].max()) for name in self.draws]
        return (
            f"{self.chains} × {len(self) // self.chains} draws in {self.seconds:.0f} s; "
            f"R-hat of outputs {float(self.rhat['outputs'].max()):.3f}, of the log density "
            f"{float(self.rhat['log density']):.3f}, of weights {max(weights):.3f}; effective "
            f"draws of outputs {float(self.ess['outputs'].min()):.0f}, of the log density "
            f"{float(self.ess['log density']):.0f}; {self.divergences} divergences"
        )


@torch.no_grad()
def outputs_at(density: LogDensity, draws: Params, x: Inputs, batch_size: int = 4096) -> Tensor:
    """The network's outputs (S, n, *) at each of S draws of the weights."""
    starts = range(0, num_examples(x), batch_size)
    parts = [take(x, slice(start, start + batch_size)) for start in starts]
    outputs = []
    for k in range(len(next(iter(draws.values())))):
        params = {name: value[k] for name, value in draws.items()}
        outputs.append(torch.cat([density.outputs(params, part) for part in parts]))
    return torch.stack(outputs)
