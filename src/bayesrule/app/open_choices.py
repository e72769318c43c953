"""What a recipe leaves open, chosen by rows that are held out from training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    _Found = tuple[Recipe, Choice | None]

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

        def search(rate: float, best: Recipe) -> _Found:
            narrower = replace(self.recipe, noise_rate=rate, hidden=best.hidden)
            return replace(self, recipe=narrower)._once()

        best, _ = _with_less_noise(self._once(), search)
        return best

    def _once(self) -> _Found:
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
            layers = [recipe.hidden or ()]
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

    def _start(self, course: Course, options: Options, layers: Sequence[tuple[int, ...]]) -> _Found:
        """The search for the most probable weights; a noise prior in the way is noticed here."""
        recipe, num_data = self.recipe, len(self.y)
        lengths = course.lengths(-(-num_data // (recipe.batch_size or num_data)))

        def searched(recipe: Recipe, layers: Sequence[tuple[int, ...]]) -> _Found:
            nets = [[{**options, "hidden": hidden}] for hidden in layers]
            start = replace(self, recipe=recipe)._choice(nets, lengths, start=True)
            found = replace(recipe, hidden=start.options["hidden"], warm_start=start.epochs)
            return replace(found, members=len(start.runs)), start

        def search(rate: float, best: Recipe) -> _Found:
            return searched(replace(recipe, noise_rate=rate), [best.hidden or ()])

        return _with_less_noise(searched(recipe, layers), search)

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


def _with_less_noise(found: _Found, search: Callable[[float, Recipe], _Found]) -> _Found:
    """What was found, or the result of another search if held-out rows ask for less noise.

    `search(rate, best)` takes another rate of the noise's prior and the best recipe so far.
    """
    for _ in range(_NARROWER):
        best, choice = found
        if choice is None or choice.calibration is None or best.likelihood != "gaussian":
            break
        factor = choice.calibration.noise
        if factor > _MUCH_LESS:
            break
        again = search(factor * best.noise().rate, best)
        if again[1] is None or again[1].score <= choice.score:
            break
        found = again
    return found


def each_member(recipe: Recipe) -> list[Recipe]:
    """The recipe of each member of an ensemble; they differ by their seeds."""
    return [replace(recipe, seed=recipe.seed + k * _APART) for k in range(recipe.members or 1)]
