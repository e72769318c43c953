"""Methods and baselines side by side on the same splits of one table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from bayesrule.app.baselines import Baseline
from bayesrule.app.data import Encoder, Table, train_and_test
from bayesrule.app.lineup import Lineup, lineup
from bayesrule.app.provenance import machine, versions
from bayesrule.app.recipe import Recipe
from bayesrule.app.report import Comparison, MethodResult, Statistic
from bayesrule.app.report.columns import order, primary
from bayesrule.app.trials import Outcome, Split, Trial, groups_of, run_trials
from bayesrule.app.workers import results
from bayesrule.methods import find, option_names, record
from bayesrule.predicting.evaluate import ECE_BINS

_OF_SCORES = {
    "regression": "log-likelihoods are means per row, of the mixture over weight draws, in "
    "the target's units",
    "classification": f"ECE uses {ECE_BINS} bins of equal width",
}
_VALIDATION = {"regression": "test log-likelihood", "classification": "test NLL"}
_KILLED = "its process was killed, perhaps for lack of memory; fewer jobs or units need less"
Noise = Literal["constant", "by-row"]
"""Whether the noise of a regression target is the same in all rows or depends on the inputs."""


def compare(
    table: Table,
    target: str | None = None,
    *,
    methods: Sequence[str] | None = None,
    every: bool = False,
    baselines: bool = True,
    noise: Noise = "constant",
    splits: int = 3,
    test_fraction: float = 0.2,
    recipe: Recipe | None = None,
    encoder_options: dict[str, Any] | None = None,
    seed: int = 0,
    jobs: int | None = None,
    command: str = "bayesrule.app.compare.compare(...)",
    progress: Callable[[int, int, Outcome], None] | None = None,
) -> Comparison:
    """Trains each method on the same random splits and gathers the scores on the test rows.

    Without `methods`, one method of each group of close relatives takes part, or with `every` all
    that fit the task. `baselines` are models of scikit-learn, trained and scored on the same rows.

    joblib runs the trials: in `jobs` processes here, or, with `jobs=None`, on the backend that is
    set around the call (`joblib.parallel_config("dask")` for a Dask cluster).
    """
    begun = time.perf_counter()
    options = encoder_options or {}
    encoder = Encoder.fit(table, target, **options)
    kind, base = encoder.task.kind, recipe or Recipe()
    _refuse_unfit(splits, test_fraction, noise, kind)
    rows = train_rows(table, encoder, test_fraction)
    present = lineup(encoder, rows, methods, every=every, with_baselines=baselines)
    nets = [_recipe(name, base, encoder, noise) for name in present.methods]
    rivals = [Baseline(name, kind) for name in present.baselines]
    trials = _trials(table, encoder, options, [*nets, *rivals], splits, test_fraction, seed)
    outcomes = _run(trials, jobs, progress)
    beside = " beside baselines" if present.baselines else ""
    comparison = Comparison(
        title=f"{table.name}: {len(present.methods)} methods{beside}",
        dataset=table.name,
        task=kind,
        rows=len(table),
        features=len(encoder.feature_names),
        summary=encoder.task.reason,
        splits=splits,
        seed=seed,
        command=command,
        versions=versions(),
        machine=machine(),
        seconds=time.perf_counter() - begun,
        notes=(
            *table.notes,
            *encoder.notes,
            *present.notes,
            *_notes(present, nets, base.options, noise),
            _how_scored(splits, test_fraction, kind),
        ),
        methods=[
            *(_gather(name, outcomes) for name in present.methods),
            *(replace(_gather(name, outcomes), baseline=True) for name in present.baselines),
        ],
        validation_label=f"{_VALIDATION[kind]} (only shown, never used to choose)",
    )
    # The best come first, so that their colours are the most distinct ones.
    ranked = [comparison.methods[i] for i in order(comparison, primary(comparison))]
    return replace(comparison, methods=ranked)


def train_rows(table: Table, encoder: Encoder, test_fraction: float) -> int:
    """How many rows a split leaves for training."""
    return len(train_and_test(table, encoder, test_fraction, seed=0)[0])


def _refuse_unfit(splits: int, test_fraction: float, noise: str, task: str) -> None:
    if splits < 1:
        raise ValueError(f"splits must be at least 1, got {splits}.")
    if not 0.0 < test_fraction < 1.0:
        raise ValueError(f"test_fraction lies strictly between 0 and 1, got {test_fraction}.")
    if noise not in get_args(Noise):
        raise ValueError(f"noise is 'constant' or 'by-row', got {noise!r}.")
    if noise == "by-row" and task == "classification":
        raise ValueError("noise='by-row' is for regression; the target here is a class.")


def _recipe(method: str, base: Recipe, encoder: Encoder, noise: Noise) -> Recipe:
    """The common recipe for one method, without the options that the method does not have."""
    names = option_names(find(method))
    options = {name: value for name, value in base.options.items() if name in names}
    recipe = replace(base, method=method, options=options)
    if encoder.task.classification:
        return replace(recipe, likelihood="categorical")
    # Linear models need a convex loss; the loss of mean and noise together is not convex.
    by_row = noise == "by-row" and not recipe.linear
    return replace(recipe, likelihood="heteroscedastic" if by_row else "gaussian")


def _trials(
    table: Table,
    encoder: Encoder,
    options: dict[str, Any],
    recipes: Sequence[Recipe | Baseline],
    splits: int,
    test_fraction: float,
    seed: int,
) -> list[Trial]:
    """Every recipe on every split; a split that cannot be encoded is refused before training."""
    fixed = {**options, "target": encoder.target, "task": encoder.task.kind}
    parts = [
        Split.of(table, *train_and_test(table, encoder, test_fraction, seed + split), fixed)
        for split in range(splits)
    ]
    return [
        Trial(part, replace(recipe, seed=seed + split), split == 0)
        for recipe in recipes
        for split, part in enumerate(parts)
    ]


def _run(
    trials: list[Trial], jobs: int | None, progress: Callable[[int, int, Outcome], None] | None
) -> list[Outcome]:
    """The outcomes in the order of the trials, whichever finished first."""
    done: dict[int, Outcome] = {}
    groups = groups_of(trials)
    waves = [[trials[number] for number in group] for group in groups]
    for wave, outcomes in results(run_trials, waves, jobs, _killed):
        for number, outcome in zip(groups[wave], outcomes, strict=True):
            done[number] = outcome
            if progress is not None:
                progress(len(done), len(trials), outcome)
    return [done[number] for number in range(len(trials))]


def _killed(trials: Sequence[Trial]) -> list[Outcome]:
    return [Outcome(trial.recipe.method, error=_KILLED) for trial in trials]


def _gather(name: str, outcomes: list[Outcome]) -> MethodResult:
    """The outcomes of one method over the splits."""
    trials = [outcome for outcome in outcomes if outcome.method == name]
    good = [outcome for outcome in trials if outcome.error is None]
    failed = [outcome.error for outcome in trials if outcome.error is not None]
    keys = list(good[0].metrics) if good else []
    return MethodResult(
        name=name,
        parts=good[0].parts if good else {},
        metrics={key: Statistic.of([o.metrics[key] for o in good]) for key in keys},
        curves=[o.curve for o in good if o.curve is not None],
        predictions=next((o.predictions for o in good if o.predictions is not None), None),
        error=f"in {len(failed)} of {len(trials)} splits: {failed[0]}" if failed else None,
    )


def _how_scored(splits: int, test_fraction: float, task: str) -> str:
    return (
        f"Each of {splits} random splits holds out {test_fraction:.0%} of the rows for testing, "
        f"the same rows for every method; {_OF_SCORES[task]}."
    )


def _notes(
    present: Lineup, nets: Sequence[Recipe], options: Iterable[str], noise: Noise
) -> Iterator[str]:
    """Which of the chosen options had no effect on some of the methods."""
    for option in options:
        without = [name for name in present.methods if not record(name).heeds(option)]
        if without:
            yield f"{option} has no effect on {', '.join(without)}, which trained without it."
    if noise == "by-row":
        constant = [net.method for net in nets if net.likelihood != "heteroscedastic"]
        names = ", ".join([*constant, *present.baselines])
        same = f" It is the same in all rows for {names}, which cannot do this." if names else ""
        yield f"The noise depends on the inputs.{same}"
