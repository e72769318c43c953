"""From a method's name and tensors to a trained run: what the front shares."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from bayesrule import likelihoods
from bayesrule.learner import Learner
from bayesrule.likelihoods import GaussianLikelihood, Likelihood
from bayesrule.methods import Course, Need, find, record, unknown_option
from bayesrule.methods.variational import smooth
from bayesrule.schedules import falling
from bayesrule.training.calibrating import Calibration, learned
from bayesrule.training.choosing import Choice, Options, choose
from bayesrule.training.held_out import Candidate, HeldOut
from bayesrule.training.many import fit_many
from bayesrule.training.models import mlp
from bayesrule.training.train import Run, fit, keep_members, load_run
from bayesrule.training.warm_start import beginning

Method = Callable[..., Learner]

# Of fewer rows too few would be held out to choose by.
_FEWEST_ROWS = 20
# Of the noise that was learned, held-out rows know this share at most, so that its prior is looked
# at, so often at the most.
_MUCH_LESS, _NARROWER = 0.3, 2
# Seeds of the members of an ensemble are so far apart, that those of other splits lie between.
_APART = 1_000_003


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
    """A ValueError for an option that a method does not have."""
    if problem := unknown_option(method, options):
        raise ValueError(problem)


@dataclass(frozen=True)
class Recipe:
    """All choices of a training on a table, each with a default that needs no tuning.

    `steps` is about how many batches are seen where `epochs` is not given; `options` go to the
    method (`prior_precision`, `temperature`, `learning_rate`, ...). What nobody says of the length
    of training and of the temperature is chosen by rows that are held out (`chosen`); then all
    rows are trained on. The learning rate, where there is one, falls to zero along a cosine.
    Methods that begin at the most probable weights look for these in `warm_start` epochs before.
    `calibration` is what held-out rows say of how sure predictions are (`Calibration`). Where they
    say that there is far less noise than its prior Gamma(shape, rate) expects, `noise_rate` is a
    smaller rate. Where a method needs smooth activations, `bend` is how sharply they bend (β of
    `smooth`). `members` is how many nets learn from other first weights and have an equal say;
    where nobody says that, nor how long training is, as many as the method's course has.

    >>> Recipe("vogn", steps=2000).for_data(400).epochs
    154
    """

    method: str = "vogn"
    likelihood: str = "gaussian"
    hidden: tuple[int, ...] = (50,)
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
            if value is not None and not (isinstance(value, int) and value >= 1):
                raise ValueError(f"{name} is a whole number of at least 1, got {value!r}.")
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
        """How the method trains where nobody says."""
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

    def _is_open(self, num_data: int) -> bool:
        """Whether nobody says how long training is, and there are rows to choose by."""
        return not (self.epochs or self.steps or self.patience or num_data < _FEWEST_ROWS)

    def _lengths(self, num_data: int) -> list[int]:
        """The numbers of epochs to choose from, of which there is one where somebody says."""
        epochs, size = self._epochs_and_size(num_data)
        return self.course.lengths(-(-num_data // size)) if self._is_open(num_data) else [epochs]

    def length_is_open(self, num_data: int) -> bool:
        """Whether the number of epochs is chosen by held-out rows."""
        starts = self.course.start is not None and self._is_open(num_data)
        return starts or len(self._lengths(num_data)) > 1

    def chosen(self, x: Tensor, y: Tensor, targets: int, progress: bool | None = False) -> Recipe:
        """The same recipe with the epochs and the temperature that held-out rows speak for.

        The rows also say how sure predictions may be. Where they know of much less noise than was
        learned, its prior is in the way: with a narrower one all is chosen again.
        """
        asked = replace(self, members=self._num_members(len(y)))
        found, choice = asked._by_held_out(x, y, targets, progress)
        for _ in range(_NARROWER):
            factor = (found.calibration or {}).get("noise", 1.0)
            if choice is None or self.likelihood != "gaussian" or factor > _MUCH_LESS:
                break
            rate = factor * found._likelihood().rate  # type: ignore[attr-defined]
            narrower = replace(asked, noise_rate=rate)
            other, better = narrower._by_held_out(x, y, targets, progress)
            if better is None or better.score <= choice.score:
                break
            found, choice = other, better
        if choice is None or choice.calibration is None or found.members == 1:
            return found
        size = found.batch_size or len(y)
        rows = HeldOut.of((x, y), batch_size=size, seed=self.seed, progress=progress)
        return found._calibrated_together(rows, targets, choice.runs)

    def _num_members(self, num_data: int) -> int:
        # A linear model has one optimum, which all members would find.
        usual = self.course.members if self._is_open(num_data) else 1
        return 1 if self.linear else self.members or usual

    def _each_member(self) -> list[Recipe]:
        """The recipe of each member, which differ by their seeds."""
        return [replace(self, seed=self.seed + k * _APART) for k in range(self.members or 1)]

    def _by_held_out(
        self, x: Tensor, y: Tensor, targets: int, progress: bool | None
    ) -> tuple[Recipe, Choice | None]:
        """The recipe with what was chosen, the prior of the noise as it is, and the choice."""
        size, lengths = self._epochs_and_size(len(y))[1], self._lengths(len(y))
        tried = self._candidates(len(y))
        if len(y) < _FEWEST_ROWS or len(tried) * len(lengths) == 1:
            return replace(self, epochs=lengths[0], batch_size=size), None

        def build(num_data: int, options: Options, epochs: int | None) -> Learner:
            recipe = replace(self, epochs=epochs, options={**self.options, **options})
            return recipe.learner(x.shape[1], targets, num_data)

        def first(num_data: int, options: Options, epochs: int | None) -> Learner:
            return beginning(build(num_data, tried[0], epochs))

        rows: Callable[..., Choice] = partial(
            choose, batch_size=size, seed=self.seed, calibrate=True, progress=progress
        )
        start = None
        if self.course.start is not None and self._is_open(len(y)):
            start = rows(first, (x, y), [{}], self.course.start.lengths(-(-len(y) // size)))
        runs = () if start is None else start.runs
        found = rows(build, (x, y), tried, lengths, starts=runs)
        chosen = replace(
            self,
            epochs=found.epochs,
            batch_size=size,
            options={**self.options, **found.options},
            warm_start=None if start is None else start.epochs,
            calibration=None if found.calibration is None else vars(found.calibration),
        )
        return chosen, found

    def _calibrated_together(self, rows: HeldOut, targets: int, first: Sequence[Run]) -> Recipe:
        """The recipe with what held-out rows say of all members; `first` are runs of the first."""
        inputs = rows.data[0].shape[1]
        others = [
            Candidate(partial(one.learner, inputs, targets), one.seed)
            for one in self._each_member()[1:]
        ]
        if self.warm_start is not None:
            beginnings = [one.beginning() for one in others]
            starts = rows.runs(beginnings, self.warm_start)
            others = [one._replace(starts=runs) for one, runs in zip(others, starts, strict=True)]
        held = rows.held([first, *rows.runs(others, self.epochs)])
        if held is None:
            return self
        return replace(self, calibration=vars(learned(self._likelihood(), held)))

    def _candidates(self, num_data: int) -> list[Options]:
        """The options to choose from: temperatures, and to stay at the most probable weights."""
        course = self.course
        temperatures = course.temperatures if "temperature" not in self.options else ()
        tried: list[Options] = [{"temperature": one} for one in temperatures] or [{}]
        if self._is_open(num_data) and "learning_rate" not in self.options:
            tried += [{k: one[k] for k in one if k not in self.options} for one in course.stay]
        return [one for k, one in enumerate(tried) if one not in tried[:k]]

    def network(self, inputs: int, targets: int) -> nn.Module:
        """The module: as many outputs as the likelihood needs."""
        outputs = self._likelihood().num_outputs(targets)
        if not self.linear:
            model = mlp(inputs, outputs, self.hidden, seed=self.seed)
            differentiated_twice = Need.SMOOTH_ACTIVATIONS in record(self.method).needs
            return smooth(model, self.bend) if differentiated_twice else model
        model = mlp(inputs, outputs, ())
        # Where the loss is convex, zero is the safe start: Newton's steps can overshoot elsewhere.
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
            options["learning_rate"] = rate if callable(rate) else falling(rate)
        module = self.network(inputs, targets)
        return method(module, self._likelihood(), num_data=num_data, **options)

    def _likelihood(self) -> Likelihood:
        if self.likelihood == "gaussian":
            rate = {} if self.noise_rate is None else {"rate": self.noise_rate}
            return GaussianLikelihood(**{**self.course.noise, **rate})
        return _LIKELIHOODS[self.likelihood]()

    def fit(self, x: Tensor, y: Tensor, targets: int, **more: Any) -> Run:
        """Trains on tensors: x (n, d) standardised, y (n, D) standardised or (n,) class numbers.

        `more` goes to `training.fit`: `validation`, `out`, `progress`, `resume`, `callback`. Of an
        ensemble the first member is trained so, and then the others together.
        """
        recipe = self.chosen(x, y, targets)
        common: dict[str, Any] = {
            "epochs": recipe.epochs,
            "batch_size": recipe.batch_size or len(y),
            "warm_start": recipe.warm_start or False,
        }
        sure = Calibration(**recipe.calibration) if recipe.calibration else None
        first, *others = recipe._each_member()
        learner = first.learner(x.shape[1], targets, len(y))
        alone = {"seed": first.seed, "patience": self.patience, "calibrate": sure or False}
        run = fit(learner, (x, y), **alone, **common, **more)
        if not others:
            return run
        out = more.get("out")
        run = run if out is None else load_run(learner, out)
        if len(run.others) != len(others):
            learners = [one.learner(x.shape[1], targets, len(y)) for one in others]
            common |= {"seeds": [one.seed for one in others], "progress": more.get("progress")}
            runs = fit_many(learners, [(x, y)] * len(others), **common)
            states = [one.state if sure is None else sure.applied(one.state) for one in runs]
            run = replace(run, others=tuple(states))
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
        # Former recipes had activations of this kind, and one net, without saying so.
        values = {"bend": 1.0, "members": 1} | json.loads(text)
        return cls(**{**values, "hidden": tuple(values["hidden"])})
