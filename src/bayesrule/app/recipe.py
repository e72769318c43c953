"""From a method's name and tensors to a trained run: for the command line and scikit-learn."""

from __future__ import annotations

import inspect
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from bayesrule import likelihoods
from bayesrule.app.open_choices import FEWEST_ROWS, HIDDEN, OpenChoices, each_member
from bayesrule.execution.threads import one_core
from bayesrule.learner import Learner
from bayesrule.likelihoods import GaussianLikelihood, Likelihood
from bayesrule.methods import Course, Need, find, record, unknown_option
from bayesrule.methods.variational import smooth
from bayesrule.schedules import falling
from bayesrule.tensors.unfit import whole_number
from bayesrule.training.calibrating import Calibration
from bayesrule.training.many import fit_many
from bayesrule.training.models import mlp
from bayesrule.training.train import Run, fit, keep_members, load_run

Method = Callable[..., Learner]

# Nets with more weights than this between their layers are trained on several cores.
_SMALL = 50_000


def _by_name() -> dict[str, type[Likelihood]]:
    """The likelihoods that need no arguments: GaussianLikelihood is "gaussian", and so on."""
    table = {}
    for name in likelihoods.__all__:
        stem, likelihood = name.removesuffix("Likelihood"), getattr(likelihoods, name)
        if stem in ("", name):
            continue
        parameters = inspect.signature(likelihood).parameters.values()
        if all(parameter.default is not parameter.empty for parameter in parameters):
            table[re.sub("(?<!^)(?=[A-Z])", "_", stem).lower()] = likelihood
    return table


_LIKELIHOODS = _by_name()


def refuse_unknown(method: Method, options: Mapping[str, Any]) -> None:
    """Raises a ValueError for an option that a method does not have."""
    if problem := unknown_option(method, options):
        raise ValueError(problem)


@dataclass(frozen=True)
class Recipe:
    """All choices of a training on a table, each with a default that needs no tuning.

    Held-out rows choose what is left open (`chosen`): the hidden layers, the length of training,
    the temperature, and the calibration. Then training is on all rows.

    - `hidden`: units of the hidden layers.
    - `epochs`: passes through the data, or else `steps`: about how many batches are seen.
    - `options`: those of the method (`prior_precision`, `temperature`, `learning_rate`, ...). A
      learning rate that is a number falls to zero along a cosine.
    - `members`: nets of an ensemble, which differ in their first weights; None is the number of the
      method's course, or one where the length of training is given.
    - `warm_start`: epochs of the search for the most probable weights, where a method begins there.
    - `calibration`: the factors of a `Calibration`.
    - `noise_rate`: the rate of the noise's prior Gamma(shape, rate), where held-out rows ask for a
      smaller one than the course's.
    - `bend`: β of `smooth`, for methods that need smooth activations.

    >>> Recipe("vogn", steps=2000).for_data(400).epochs
    154
    """

    method: str = "vogn"
    likelihood: str = "gaussian"
    hidden: tuple[int, ...] | None = None
    epochs: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    patience: int | None = None
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    warm_start: int | None = None
    calibration: dict[str, float] | None = None
    bend: float = 10.0
    noise_rate: float | None = None
    members: int | None = None

    def __post_init__(self) -> None:
        find(self.method)
        if self.likelihood not in _LIKELIHOODS:
            raise ValueError(
                f"Unknown likelihood {self.likelihood!r}. Known: {', '.join(_LIKELIHOODS)}."
            )
        for name in ("epochs", "steps", "batch_size", "members"):
            value = getattr(self, name)
            if value is not None:
                whole_number(name, value)
        if self.patience and (self.members or 1) > 1:
            raise ValueError(
                "patience stops one net early and members trains several. Leave one of them out."
            )

    @property
    def linear(self) -> bool:
        """Whether the method is for linear models and takes all data at once."""
        return Need.LINEAR_MODEL in record(self.method).needs

    @property
    def course(self) -> Course:
        """How the method trains by default."""
        return record(self.method).course

    def for_data(self, num_data: int) -> Recipe:
        """The same recipe with epochs and batch size worked out for so many examples."""
        epochs, size = self._epochs_and_size(num_data)
        return replace(self, epochs=epochs, batch_size=size)

    def _epochs_and_size(self, num_data: int) -> tuple[int, int]:
        if num_data < 1:
            raise ValueError("There are no examples to learn from.")
        course = self.course
        size = self.batch_size or course.batch_size(num_data)
        steps = self.steps or course.steps[0]
        return self.epochs or course.epochs(-(-num_data // size), steps), size

    def is_open(self, num_data: int) -> bool:
        """Whether the length of training is not given, and there are enough rows to choose by."""
        return not (self.epochs or self.steps or self.patience or num_data < FEWEST_ROWS)

    def lengths(self, num_data: int) -> list[int]:
        """The numbers of epochs to choose from; a single one where the length is given."""
        epochs, size = self._epochs_and_size(num_data)
        return self.course.lengths(-(-num_data // size)) if self.is_open(num_data) else [epochs]

    def length_is_open(self, num_data: int) -> bool:
        """Whether the number of epochs is chosen by held-out rows."""
        starts = self.course.start is not None and self.is_open(num_data)
        return starts or len(self.lengths(num_data)) > 1

    def chosen(self, x: Tensor, y: Tensor, targets: int, progress: bool | None = False) -> Recipe:
        """The same recipe with held-out rows' choices for all that it left open."""
        with self.cores(x.shape[1]):
            return OpenChoices(self, x, y, targets, progress).made()

    def cores(self, inputs: int) -> AbstractContextManager[None]:
        """One core for a small net, which gains nothing from several."""
        sizes = [inputs, *(HIDDEN[-1] if self.hidden is None else self.hidden)]
        small = sum(a * b for a, b in itertools.pairwise(sizes)) <= _SMALL
        return one_core() if small else nullcontext()

    def with_options(self, options: Mapping[str, Any]) -> Recipe:
        """The recipe with these options of the method; `hidden` among them sets the layers."""
        merged = {**self.options, **options}
        return replace(self, hidden=merged.pop("hidden", self.hidden), options=merged)

    def network(self, inputs: int, targets: int) -> nn.Module:
        """The module: as many outputs as the likelihood needs."""
        outputs = self._likelihood().num_outputs(targets)
        if not self.linear:
            hidden = HIDDEN[0] if self.hidden is None else self.hidden
            model = mlp(inputs, outputs, hidden, seed=self.seed)
            differentiated_twice = Need.SMOOTH_ACTIVATIONS in record(self.method).needs
            return smooth(model, self.bend) if differentiated_twice else model
        model = mlp(inputs, outputs, ())
        # Zero is the safe start of a convex loss: from elsewhere Newton's steps can overshoot.
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        return model

    def learner(self, inputs: int, targets: int, num_data: int) -> Learner:
        """The learner; `targets` is the number of target columns or classes."""
        method = find(self.method)
        refuse_unknown(method, self.options)
        epochs, size = self._epochs_and_size(num_data)
        steps = epochs * -(-num_data // size)
        options = {**record(self.method).training_options(num_data, steps), **self.options}
        parameter = inspect.signature(method).parameters.get("learning_rate")
        if parameter is not None and not self.linear:
            rate = options.get("learning_rate", parameter.default)
            options["learning_rate"] = rate if rate is None or callable(rate) else falling(rate)
        module = self.network(inputs, targets)
        return method(module, self._likelihood(), num_data=num_data, **options)

    def _likelihood(self) -> Likelihood:
        return self.noise() if self.likelihood == "gaussian" else _LIKELIHOODS[self.likelihood]()

    def noise(self) -> GaussianLikelihood:
        """A Gaussian likelihood with a learned noise, under the prior of this recipe."""
        rate = {} if self.noise_rate is None else {"rate": self.noise_rate}
        return GaussianLikelihood(**{**self.course.noise, **rate})

    def fit(self, x: Tensor, y: Tensor, targets: int, **more: Any) -> Run:
        """Trains on tensors: x (n, d) standardised, y (n, D) standardised or (n,) class numbers.

        `more` goes to `training.fit`: `validation`, `out`, `progress`, `resume`, `callback`, `log`.
        Members of an ensemble train together; where there is a folder, validation data or a log,
        these are for the first member, and the others train together after it.
        """
        with self.cores(x.shape[1]):
            return self._fit(x, y, targets, **more)

    def _fit(self, x: Tensor, y: Tensor, targets: int, **more: Any) -> Run:
        recipe = self.chosen(x, y, targets)
        calibration = Calibration(**recipe.calibration) if recipe.calibration else None
        common: dict[str, Any] = {
            "epochs": recipe.epochs,
            "batch_size": recipe.batch_size or len(y),
            "warm_start": recipe.warm_start or False,
            "progress": more.pop("progress", None),
        }

        def together(members: Sequence[Recipe], callback: Any = None) -> list[Run]:
            learners = [one.learner(x.shape[1], targets, len(y)) for one in members]
            seeds, sets = [one.seed for one in members], [(x, y)] * len(members)
            runs = fit_many(learners, sets, seeds=seeds, callback=callback, **common)
            if calibration is None:
                return runs
            return [replace(run, state=calibration.applied(run.state)) for run in runs]

        members, out = each_member(recipe), more.get("out")
        asked = [name for name, value in more.items() if value and name != "callback"]
        if not self.patience and not asked:
            runs = together(members, more.get("callback"))
            return runs[0] if len(runs) == 1 else Run.together(runs)
        run = fit(
            members[0].learner(x.shape[1], targets, len(y)),
            (x, y),
            seed=members[0].seed,
            patience=self.patience,
            calibrate=calibration or False,
            **common,
            **more,
        )
        if len(members) == 1:
            return run
        saved = run if out is None else load_run(run.learner, out)
        if len(saved.states) == len(members):
            return saved
        run = Run.together([run, *together(members[1:])])
        if out is not None:
            keep_members(run, out)
        return run

    def to_json(self) -> str:
        """The recipe as text."""
        try:
            return json.dumps(vars(self))
        except TypeError as problem:
            raise TypeError(
                f"The recipe's options {self.options} cannot be written down: {problem}. Numbers, "
                "texts and true or false can; give objects to the method in Python instead."
            ) from problem

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """The recipe back from text."""
        # Recipes of former versions had this bend, and one net, without saying so.
        values = {"bend": 1.0, "members": 1} | json.loads(text)
        hidden = values["hidden"]
        return cls(**{**values, "hidden": None if hidden is None else tuple(hidden)})
