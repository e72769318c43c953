"""Gaussian observation noise: a fixed standard deviation, or a schedule of them."""

from __future__ import annotations

import math
from numbers import Real

import torch
from torch import Tensor

from bayesrule.schedules import Schedule
from bayesrule.types import Number, Params

Noise = float | Schedule
"""A standard deviation, or a callable from the step (0, 1, 2, ...) to one."""


class Noisy:
    """The part that likelihoods with such a `noise` share.

    A number needs no state. A schedule is called once per step, outside of all tensor arithmetic;
    the state holds the step and its standard deviation.
    """

    noise: Noise

    def __post_init__(self) -> None:
        if isinstance(self.noise, Real):
            _positive(float(self.noise), "")
        elif callable(self.noise) and not isinstance(self.noise, type):
            _positive(self.noise(0), " at step 0")
        else:
            raise TypeError(
                f"noise is a standard deviation or a schedule of them, got {self.noise!r}; for "
                "example 0.1 or schedules.exponential(1.0, rate=0.999)."
            )

    def init(self, like: Tensor) -> Params:
        return _at(self.noise, 0, like) if callable(self.noise) else {}

    def update(self, state: Params, statistics: Params, weight: Number) -> Params:
        if not callable(self.noise):
            return state
        return _at(self.noise, int(state["step"]) + 1, state["std"])

    def noise_variance(self, state: Params) -> Tensor | float:
        """The current noise variance."""
        return state["std"].square() if callable(self.noise) else float(self.noise) ** 2


def _at(schedule: Schedule, step: int, like: Tensor) -> Params:
    std = _positive(schedule(step), f" at step {step}")
    # The step stays on the CPU, where reading it does not make a GPU wait.
    return {"step": torch.tensor(step), "std": like.new_full((), std)}


def _positive(std: float, when: str) -> float:
    if not (std > 0 and math.isfinite(std)):
        raise ValueError(f"noise is a standard deviation and must be positive: {std}{when}.")
    return float(std)
