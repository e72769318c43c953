"""The rows of the UCI table: a method each, with all its settings."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from bayesrule.app.data.errors import nearest
from bayesrule.app.recipe import refuse_unknown
from bayesrule.expectations import Draws
from bayesrule.learner import Learner
from bayesrule.likelihoods import GaussianLikelihood
from bayesrule.methods import Course, find
from bayesrule.schedules import Schedule, cosine, piecewise
from bayesrule.training.models import mlp
from benchmarks.regression import uci
from benchmarks.regression.tasks import TASKS


def second_half(rate: float, steps: int) -> Schedule:
    """A tenth of the rate in the second half.

    >>> second_half(1.0, 10)(4), second_half(1.0, 10)(5)
    (1.0, 0.1)
    """
    return piecewise(rate, {steps // 2: 0.1})


@dataclass(frozen=True)
class Setting:
    """A method and its options on every set; `dataclasses.replace(OWN, ...)` makes a variant.

    - `schedule`: from a learning rate and the number of steps to a schedule.
    - `course`: epochs and batches from the number of data; without it those of the paper by set.
    - `noise_shape`, `noise_rate`: of the Gamma prior of the noise's precision (standardised).
    - `draws`: of weights in a training step.
    - `options`: other ones of the method; `deep` are those that nets of two hidden layers have
      instead.

    >>> from dataclasses import replace
    >>> OWN.size("boston", 455), replace(OWN, course=None).size("boston", 455)
    ((2000, 32), (1000, 10))
    """

    name: str
    method: str
    learning_rate: float = 0.01
    schedule: Callable[[float, int], Schedule] = second_half
    course: Course | None = None
    prior_precision: float = 1.0
    temperature: float = 1.0
    noise_shape: float = 6.0
    noise_rate: float = 6.0
    draws: int = 10
    options: Mapping[str, Any] = field(default_factory=dict)
    deep: Mapping[str, Any] = field(default_factory=dict)

    def _own(self, two_layers: bool) -> dict[str, Any]:
        return {**self.options, **(self.deep if two_layers else {})}

    def size(self, name: str, num_data: int, epochs: int | None = None) -> tuple[int, int]:
        """Epochs and batch size for a set of `num_data` rows; `epochs` if requested."""
        if self.course is None:
            return epochs or TASKS[name].epochs, TASKS[name].batch
        batch = self.course.batch
        return epochs or self.course.lengths(math.ceil(num_data / batch))[0], batch

    def learner(
        self,
        name: str,
        inputs: int,
        num_data: int,
        *,
        two_layers: bool = False,
        epochs: int | None = None,
        seed: int = 0,
        device: str = "cpu",
    ) -> Learner:
        """A net of one or two hidden layers for a set, and how it learns."""
        method = find(self.method)
        rounds, batch = self.size(name, num_data, epochs)
        rate = self.schedule(self.learning_rate, rounds * math.ceil(num_data / batch))
        own = inspect.signature(method).parameters
        drawn = {"draws": self.draws} if "draws" in own else {"expectation": Draws(self.draws)}
        options = {**drawn, **self._own(two_layers), "learning_rate": rate}
        refuse_unknown(method, options)
        net = mlp(inputs, 1, (TASKS[name].hidden,) * (2 if two_layers else 1), seed=seed)
        return method(
            net.to(device),
            GaussianLikelihood(shape=self.noise_shape, rate=self.noise_rate),
            num_data=num_data,
            prior_precision=self.prior_precision,
            temperature=self.temperature,
            **options,
        )

    def facts(self, two_layers: bool = False) -> dict[str, Any]:
        """The setting as json."""
        found = {**asdict(self), "schedule": self.schedule.__name__}
        del found["deep"]
        own = self._own(two_layers)
        options = {k: v if isinstance(v, int | str) else _plain(v) for k, v in own.items()}
        return {**found, "options": options}


def _plain(value: Any) -> Any:
    """Numbers unchanged, except infinity, which json does not have; objects as text."""
    return value if isinstance(value, float) and math.isfinite(value) else repr(value)


@dataclass(frozen=True)
class Tagi:
    """TAGI in one of its settings."""

    setting: str

    @property
    def name(self) -> str:
        """The name of the row."""
        return f"tagi-{self.setting}"


Entry = Setting | Tagi

_EVERY_STEP = {"rate": 1e-3, "stats_every": 1, "inverse_every": 1, "kl_clip": math.inf}
OWN = Setting(
    "noisy_kfac-own",
    "noisy_kfac",
    learning_rate=0.03,
    schedule=cosine,
    course=Course(least=60, most=2000, steps=(30_000,), batch=32),
    prior_precision=0.3,
    noise_shape=1.0,
    noise_rate=0.1,
    options={**_EVERY_STEP, "rate": 0.01},
)
"""Noisy K-FAC with the same settings for all sets."""

# Bayes by backprop as in the paper: prior, noise, batches, draws and Adam's rate are the others'.
# Scales with the means' learning rate have the larger ELBO after 1000 epochs (yacht; of × 1, × 3).
_MEAN_FIELD = Setting("mean_field", "mean_field", options={"scale_multiplier": 1.0})
_PAPERS = (
    # Without a clip two layers diverge on protein and naval; that of the method's default does
    # nothing in most steps.
    Setting("noisy_kfac", "noisy_kfac", options=_EVERY_STEP, deep={"kl_clip": 1e-3}),
    _MEAN_FIELD,
    Setting("noisy_adam", "noisy_adam", options={"rate": 1e-3}),
    Setting("noisy_full", "noisy_full", options=_EVERY_STEP),
    Setting("noisy_tridiagonal", "noisy_tridiagonal", options=_EVERY_STEP),
    Setting("vogn", "vogn", options={"rate": 1e-3}),
)
SETTINGS = {setting.name: setting for setting in (*_PAPERS, OWN)}
"""The named settings: those of the paper under the methods' names, and the library's own."""


def entries(names: list[str], settings: list[str] | None = None) -> list[Entry]:
    """The rows of names, each once; "tagi" stands for its `settings`, or all of them.

    >>> [one.name for one in entries(["tagi", "mean_field"])]
    ['tagi-table', 'tagi-learned', 'mean_field']
    """
    tagis = {one.name: one for one in map(Tagi, uci.SETTINGS)}
    known: dict[str, Entry] = {**tagis, **SETTINGS}
    found: list[Entry] = []
    for name in names:
        if name == "tagi":
            found += map(Tagi, settings or uci.SETTINGS)
        elif name in known:
            found.append(known[name])
        else:
            every = ["tagi", *known]
            raise ValueError(
                f"Unknown method {name!r}.{nearest(name, every)} Methods: {', '.join(every)}."
            )
    return list({one.name: one for one in found}.values())
