"""The contract of graphical models, and their one update `λ ← (1 − ρ) λ + ρ λ̂`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, ClassVar, Self

from torch import Tensor

from bayesrule.families import Natural
from bayesrule.graphical import saving

Messages = Mapping[str, Natural]
"""Natural parameters by the name of a node: what its neighbours tell it."""


class FitWarning(UserWarning):
    """A problem with a fit, and what to do about it."""


class NotFittedError(ValueError, AttributeError):
    """The model has not been fitted to data yet."""


def moved(old: Messages, new: Messages, rate: float) -> dict[str, Natural]:
    """`λ ← (1 − ρ) λ + ρ λ̂` for every node; Khan & Rue (2023), eqs 5 and 58.

    ρ = 1 is conjugate Bayes, EM and variational message passing, ρ < 1 is SVI.
    """
    if rate == 1.0:
        return dict(new)
    return {
        name: tuple(a + rate * (b - a) for a, b in zip(parts, new[name], strict=True))
        for name, parts in old.items()
    }


def added(first: Messages, second: Messages, weight: float = 1.0) -> dict[str, Natural]:
    """`λ + w λ'` for every node: Bayes' rule is a sum of messages; eq. 54."""
    return {
        name: tuple(a + weight * b for a, b in zip(parts, second[name], strict=True))
        for name, parts in first.items()
    }


@dataclass(frozen=True)
class Report:
    """How a fit went.

    - `objective`: one number for each pass over the data, larger is better: the log-likelihood of
      EM, the ELBO of VB and SVI, the log evidence of conjugate models.
    - `converged` and `why`: whether the fit converged, and why it ended, in words.
    """

    objective: tuple[float, ...]
    converged: bool
    why: str

    @property
    def passes(self) -> int:
        """The number of passes over the data."""
        return len(self.objective)

    def __str__(self) -> str:
        last = f"{self.objective[-1]:,.6g}" if self.objective else "none"
        state = "converged" if self.converged else "not converged"
        return f"{state} after {self.passes} passes, objective {last}: {self.why}"


@dataclass(eq=False, repr=False, kw_only=True)
class Model(ABC):
    """A model: its options are the fields of a dataclass, and `fit` learns everything else.

    A subclass writes `fit`, which sets `report_` and returns the model, `sample`, and the two
    halves of a checkpoint: `_learned`, its tensors by name, and `_adopt`, which restores them.
    Names of learned attributes end with an underscore, as in scikit-learn; fields with `init=False`
    are not options. Options are numbers, strings, None, tuples of these, or frozen dataclasses of
    the library.
    """

    kinds: ClassVar[dict[str, type[Model]]] = {}
    report_: Report | None = field(init=False, default=None)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        Model.kinds[cls.__name__] = cls

    @abstractmethod
    def _learned(self) -> dict[str, Tensor]:
        """All learned tensors by name; `_need_fit` refuses a model without any."""

    @abstractmethod
    def _adopt(self, tensors: dict[str, Tensor]) -> None:
        """Restores the tensors of `_learned`."""

    @abstractmethod
    def _summary_lines(self) -> list[str]:
        """A few lines about what was learned, for `repr`."""

    def save(self, path: saving.Place) -> None:
        """Writes options, report and learned tensors to one safetensors file."""
        report = self._need_fit()
        options = {name: saving.encoded(value) for name, value in self._options().items()}
        facts = {"model": type(self).__name__, "options": options, "report": vars(report)}
        saving.write(path, self._learned(), facts)

    @classmethod
    def load(cls, path: saving.Place) -> Self:
        """The model that `save` wrote; one of another class is refused."""
        tensors, facts = saving.read(path)
        kind = Model.kinds.get(str(facts.get("model")))
        if kind is None or not issubclass(kind, cls):
            raise saving.not_a(path, facts.get("model"), cls.__name__)
        with saving.whole(path):
            model = kind(**saving.decoded(facts["options"]))
            report = facts["report"]
            model.report_ = Report(**{**report, "objective": tuple(report["objective"])})
            model._adopt(tensors)
        return model

    def _options(self) -> dict[str, Any]:
        return {option.name: getattr(self, option.name) for option in fields(self) if option.init}

    def _set_report(self, report: Report) -> None:
        self.report_ = report

    def _need_fit(self) -> Report:
        """The report of the fit; raises `NotFittedError` if there was none."""
        if self.report_ is None:
            raise NotFittedError(
                f"This {type(self).__name__} has seen no data. Call fit(...) first, or load(path)."
            )
        return self.report_

    def __repr__(self) -> str:
        """Options that are not the default ones, the report, and what was learned."""
        defaults = {option.name: _default(option) for option in fields(self)}
        chosen = {name: v for name, v in self._options().items() if v != defaults[name]}
        head = f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in chosen.items())})"
        if self.report_ is None:
            return head
        lines = [f"<{head}", str(self.report_), *self._summary_lines()]
        return "\n  ".join(lines) + ">"


def _default(option: Field[Any]) -> Any:
    factory = option.default_factory
    return option.default if factory is MISSING else factory()
