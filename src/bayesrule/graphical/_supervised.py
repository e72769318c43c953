"""The base of models of targets given inputs: checks, the score and the evidence."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrule.graphical import tables
from bayesrule.graphical._base import Model
from bayesrule.likelihoods import Likelihood
from bayesrule.predicting.prediction import Prediction


@dataclass(eq=False, repr=False, kw_only=True)
class Supervised(Model):
    """A model of one target y for each row x; a subclass writes `predict`.

    `columns_` is the number of input columns that it was fitted to.
    """

    @abstractmethod
    def predict(self, x: Any) -> Prediction:
        """The predictive distribution of y at rows x (n, d)."""

    def score(self, x: Any, y: Any) -> float:
        """The mean of `log p(y | x)` over rows that the model has not seen; larger is better."""
        prediction = self.predict(x)
        return float(prediction.log_prob(self._targets(y, len(prediction.mean))).mean())

    @property
    def log_evidence(self) -> float:
        """`log p(y)` of the training data, or its lower bound if it has no closed form."""
        return self._need_fit().objective[-1]

    def _inputs(self, x: Any, *, fitted: bool) -> Tensor:
        """The rows in float64; a fitted model checks the number of columns."""
        if not fitted:
            return tables.matrix(x).double()
        self._need_fit()
        return tables.matrix(x, columns=self.columns_).double()

    def _targets(self, y: Any, rows: int) -> Tensor:
        return tables.vector(y, rows=rows).double()

    @property
    @abstractmethod
    def columns_(self) -> int:
        """How many columns x has."""


def need_positive(owner: object, **numbers: float | None) -> None:
    """Refuses numbers that are given and not positive, by name."""
    for name, value in numbers.items():
        if isinstance(value, Likelihood):
            raise TypeError(
                f"{type(owner).__name__}: {name} is a number. {type(value).__name__} is not "
                "conjugate to a Gaussian belief, which is needed for an exact answer; models that "
                "let a Gaussian site stand in for it: LogisticRegression for answers, "
                "GP(likelihood=...) for anything."
            )
        if value is not None and not (value > 0.0 and math.isfinite(value)):
            raise ValueError(
                f"{type(owner).__name__}: {name} must be positive and finite, or None to be "
                f"learned; got {value}."
            )


def need_rate(owner: object, rate: float, passes: int) -> None:
    """Refuses a step ρ outside of (0, 1], and fewer than one pass."""
    if not 0.0 < rate <= 1.0 or passes < 1:
        raise ValueError(
            f"{type(owner).__name__}: rate ρ lies in (0, 1] and passes are 1 or more; got {rate} "
            f"and {passes}."
        )


def with_intercept(rows: Tensor, intercept: bool) -> Tensor:
    """Rows (n, d) with a last column of ones, if there is an intercept."""
    ones = torch.ones(len(rows), int(intercept), dtype=torch.float64)
    return torch.cat([rows, ones], dim=1)


def weights_line(weights: Tensor, intercept: float) -> str:
    """The weights of a linear model in a line, for `repr`."""
    shown = ", ".join(f"{w:.4g}" for w in weights[:6].tolist())
    more = ", ..." if len(weights) > 6 else ""
    return f"weights [{shown}{more}], intercept {intercept:.4g}"


def generator(seed: int) -> torch.Generator:
    """A new generator with this seed."""
    return torch.Generator().manual_seed(seed)
