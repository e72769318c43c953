"""The standard deviation of Gaussian noise on what is observed: one number, or one for each step.

A number needs no state. A schedule is asked once for each step, outside of all arithmetic; its
state holds the number of the step and the standard deviation that is then in force.
"""

from __future__ import annotations

import math
from numbers import Real

import torch
from torch import Tensor

from bayesrule.schedules import Schedule
from bayesrule.types import Params

Noise = float | Schedule
"""A standard deviation, or a callable from the step (0, 1, 2, ...) to one."""


def checked(noise: Noise) -> None:
    """Refuses what is no standard deviation and no schedule that starts with one."""
    if isinstance(noise, Real):
        _positive(float(noise), "")
    elif callable(noise) and not isinstance(noise, type):
        _positive(noise(0), " at step 0")
    else:
        raise TypeError(
            f"noise is a standard deviation or a schedule of them, got {noise!r}; for example 0.1 "
            "or schedules.exponential(1.0, rate=0.999)."
        )


def init(noise: Noise, like: Tensor) -> Params:
    """The state before the first step: nothing for a number."""
    return _at(noise, 0, like) if callable(noise) else {}


def update(noise: Noise, state: Params) -> Params:
    """The state after a step."""
    return _at(noise, int(state["step"]) + 1, state["std"]) if callable(noise) else state


def variance(noise: Noise, state: Params) -> Tensor | float:
    """The noise variance now in force."""
    return state["std"].square() if callable(noise) else float(noise) ** 2


def _at(schedule: Schedule, step: int, like: Tensor) -> Params:
    std = _positive(schedule(step), f" at step {step}")
    # The count stays on the CPU, where reading it does not make a device wait.
    return {"step": torch.tensor(step), "std": like.new_full((), std)}


def _positive(std: float, when: str) -> float:
    if not (std > 0 and math.isfinite(std)):
        raise ValueError(f"noise is a standard deviation and must be positive: {std}{when}.")
    return float(std)
