"""What a recipe leaves open, chosen by rows that are held out from training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from bayesrule.learner import Learner
from bayesrule.methods import Course
from bayesrule.training.choosing import Choice, Member, Options, choose
from bayesrule.training.train import Run
from bayesrule.training.warm_start import beginning

if TYPE_CHECKING:
    from bayesrule.app.recipe import Recipe

HIDDEN = ((50,), (50, 50))
"""The hidden layers to choose from; a training of a given length has the first."""
# With fewer rows, too few would be held out to choose by.
FEWEST_ROWS = 20
# Where calibration multiplies the learned noise by this factor or less, the noise's prior is in the
# way. Its rate is reduced this often at most.
_MUCH_LESS, _NARROWER = 0.3, 2
# Members' seeds lie far apart, so as not to meet the consecutive seeds of other splits.
_APART = 1_000_003


@dataclass(frozen=True)
class OpenChoices:
    """The open choices of a recipe, for a table x (n, d) with targets y."""

    recipe: Recipe
    x: Tensor
    y: Tensor
    targets: int
    progress: bool | None = False

    def made(self) -> Recipe:
        """The recipe with the choices that predict held-out rows best.

        If these rows ask for much less noise than was learned, its prior Gamma(shape, rate) is in
        the way: with a smaller rate everything but the layers is chosen again.
        """
        best, choice = self._once()
        for _ in range(_NARROWER):
            rate = self._narrower(best, choice)
            if rate is None:
                break
            narrower = replace(self.recipe, noise_rate=rate, hidden=best.hidden)
            recipe, new_choice = replace(self, recipe=narrower)._once()
            if choice is None or new_choice is None or new_choice.score <= choice.score:
                break
            best, choice = recipe, new_choice
        return best

    def _narrower(self, recipe: Recipe, choice: Choice | None) -> float | None:
        """A smaller rate of the noise's prior; None if held-out rows do not ask for less noise."""
        if choice is None or choice.calibration is None or recipe.likelihood != "gaussian":
            return None
        factor = choice.calibration.noise
        return factor * recipe.noise().rate if factor <= _MUCH_LESS else None

    def _once(self) -> tuple[Recipe, Choice | None]:
        """The recipe with all choices made, and the last choice; None where nothing was open."""
        recipe, num_data = self.recipe, len(self.y)
        size, lengths = recipe.for_data(num_data).batch_size, recipe.lengths(num_data)
        recipe = replace(recipe, batch_size=size, members=self._num_members())
        layers, options = self._layers(), self._options()
        if num_data < FEWEST_ROWS or len(layers) * len(options) * len(lengths) == 1:
            return replace(recipe, hidden=layers[0], epochs=lengths[0]), None
        run = replace(self, recipe=recipe)
        start, course = None, recipe.course.start
        if course is not None and recipe.is_open(num_data):
            recipe, start = run._start(course, options[0], layers)
            layers = [start.options["hidden"]]
        tried = [[{**values, "hidden": hidden} for values in options] for hidden in layers]
        starts = () if start is None else start.runs
        choice = replace(run, recipe=recipe)._choice(tried, lengths, starts)
        chosen = replace(
            recipe.with_options(choice.options),
            epochs=choice.epochs,
            members=len(choice.runs),
            calibration=None if choice.calibration is None else vars(choice.calibration),
        )
        return chosen, choice

    def _start(
        self, course: Course, options: Options, layers: Sequence[tuple[int, ...]]
    ) -> tuple[Recipe, Choice]:
        """The search for the most probable weights; a noise prior in the way is noticed here."""
        recipe, num_data = self.recipe, len(self.y)
        lengths = course.lengths(-(-num_data // (recipe.batch_size or num_data)))

        def searched(recipe: Recipe, layers: Sequence[tuple[int, ...]]) -> Choice:
            nets = [[{**options, "hidden": hidden}] for hidden in layers]
            return replace(self, recipe=recipe)._choice(nets, lengths, start=True)

        start = searched(recipe, layers)
        for _ in range(_NARROWER):
            rate = self._narrower(recipe, start)
            if rate is None:
                break
            narrower = replace(recipe, noise_rate=rate)
            again = searched(narrower, [start.options["hidden"]])
            if again.score <= start.score:
                break
            recipe, start = narrower, again
        return replace(recipe, warm_start=start.epochs, members=len(start.runs)), start

    def _choice(
        self,
        options: Sequence[Sequence[Options]],
        lengths: Sequence[int],
        starts: Sequence[Sequence[Run]] = (),
        *,
        start: bool = False,
    ) -> Choice:
        """The best of some options; with `start`, for nets at their most probable weights."""
        team = each_member(self.recipe)
        members = [
            Member(partial(self._learner, member, start), member.seed, starts[k] if starts else ())
            for k, member in enumerate(team)
        ]
        return choose(
            members,
            (self.x, self.y),
            options,
            lengths,
            batch_size=self.recipe.batch_size or len(self.y),
            calibrate=True,
            progress=self.progress,
        )

    def _learner(
        self, member: Recipe, start: bool, num_data: int, options: Options, epochs: int | None
    ) -> Learner:
        recipe = replace(member.with_options(options), epochs=epochs)
        learner = recipe.learner(self.x.shape[1], self.targets, num_data)
        return beginning(learner) if start else learner

    def _num_members(self) -> int:
        if self.recipe.linear:
            return 1  # All members would find the same optimum.
        usual = self.recipe.course.members if self.recipe.is_open(len(self.y)) else 1
        return self.recipe.members or usual

    def _layers(self) -> list[tuple[int, ...]]:
        """The hidden layers to choose from."""
        if self.recipe.hidden is not None or self.recipe.linear:
            return [self.recipe.hidden or ()]
        return [*HIDDEN] if self.recipe.is_open(len(self.y)) else [HIDDEN[0]]

    def _options(self) -> list[Options]:
        """The options to choose from: temperatures, and staying at the most probable weights."""
        course, fixed = self.recipe.course, self.recipe.options
        temperatures = course.temperatures if "temperature" not in fixed else ()
        tried: list[Options] = [{"temperature": value} for value in temperatures] or [{}]
        if self.recipe.is_open(len(self.y)) and "learning_rate" not in fixed:
            tried += [{k: v for k, v in stay.items() if k not in fixed} for stay in course.stay]
        return [options for k, options in enumerate(tried) if options not in tried[:k]]


def each_member(recipe: Recipe) -> list[Recipe]:
    """The recipe of each member of an ensemble; they differ by their seeds."""
    return [replace(recipe, seed=recipe.seed + k * _APART) for k in range(recipe.members or 1)]
