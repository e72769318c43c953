"""Every method side by side: the same rows for all, failures shown, the same result anywhere."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from bayesrule.app import compare
from bayesrule.app import trials as trials_of
from bayesrule.app.baselines import Baseline
from bayesrule.app.data import DataError, Encoder, Table, split_rows
from bayesrule.app.recipe import Recipe
from bayesrule.app.report import Comparison
from bayesrule.app.trials import Outcome, Split, Trial, groups_of, run_trials
from bayesrule.methods import METHODS

pandas = pytest.importorskip("pandas")
joblib = pytest.importorskip("joblib")

ROWS = 40
QUICK = Recipe(epochs=2, hidden=(4,))


def frame() -> Any:
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=ROWS), rng.normal(size=ROWS)
    price = 2 * x - z + 0.1 * rng.normal(size=ROWS)
    kind = np.where(price > 0, "up", "down")
    return pandas.DataFrame({"x": x, "z": z, "price": price, "kind": kind})


@pytest.fixture
def table() -> Table:
    return Table.from_frame(frame().drop(columns="kind"), "small")


def run(table: Table, methods: list[str], **options: Any) -> Comparison:
    given = {"splits": 2, "recipe": QUICK, "jobs": 1, "baselines": False, **options}
    return compare.compare(table, "price", methods=methods, **given)


def scores(comparison: Comparison) -> dict[str, dict[str, tuple[float, ...]]]:
    """Every score of every split, but for the time it took."""
    return {
        method.name: {k: v.values for k, v in method.metrics.items() if k != "seconds"}
        for method in comparison.methods
    }


# The comparison


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[Trial]:
    """Collects what would be trained."""
    seen: list[Trial] = []

    def record(given: list[Trial]) -> list[Outcome]:
        seen.extend(given)
        figures = [{"rmse": float(trial.recipe.seed), "seconds": 1.0} for trial in given]
        return [
            Outcome(t.recipe.method, metrics=own) for t, own in zip(given, figures, strict=True)
        ]

    monkeypatch.setattr(compare, "run_trials", record)
    return seen


def test_every_method_gets_the_same_splits(table: Table, trials: list[Trial]) -> None:
    run(table, ["map", "vogn", "laplace"], splits=3, seed=5)
    by_method = {
        name: [t for t in trials if t.recipe.method == name] for name in ("vogn", "laplace")
    }
    reference = [t for t in trials if t.recipe.method == "map"]
    assert len(reference) == 3
    for others in by_method.values():
        for mine, other in zip(reference, others, strict=True):
            assert torch.equal(mine.split.train, other.split.train)
            assert torch.equal(mine.split.test, other.split.test)
            assert mine.recipe.seed == other.recipe.seed
    for number, trial in enumerate(reference):
        train, test = split_rows(ROWS, (0.8, 0.2), seed=5 + number)
        assert torch.equal(trial.split.train, train)
        assert torch.equal(trial.split.test, test)
        assert trial.keep_predictions == (number == 0)
    assert len({tuple(t.split.test.tolist()) for t in reference}) == 3


def test_scores_are_gathered_over_the_splits(table: Table, trials: list[Trial]) -> None:
    (method,) = run(table, ["map"], splits=3, seed=5).methods
    assert method.metrics["rmse"].values == (5.0, 6.0, 7.0)
    assert method.metrics["rmse"].mean == 6.0
    assert method.metrics["seconds"].mean == 1.0


def test_classes_keep_their_shares(trials: list[Trial]) -> None:
    whole = Table.from_frame(frame().drop(columns="price"))
    compare.compare(whole, "kind", methods=["map"], baselines=False, splits=1, jobs=1)
    labels = whole.frame["kind"].to_numpy() == "up"
    (trial,) = trials
    assert labels[trial.split.test].mean() == pytest.approx(labels.mean(), abs=1 / 8)
    assert trial.recipe.likelihood == "categorical"


def test_a_trial_is_what_it_would_be_by_hand(table: Table) -> None:
    (method,) = run(table, ["map"], splits=1).methods
    train, test = split_rows(ROWS, (0.8, 0.2), seed=0)
    encoder = Encoder.fit(table.rows(train), "price")
    trained = replace(QUICK, method="map").fit(
        encoder.transform(table.rows(train)), encoder.targets(table.rows(train)), 1, progress=False
    )
    mean = trained.predict(encoder.transform(table.rows(test))).mean
    mean = encoder.target_mean + encoder.target_std * mean.squeeze(1).double().numpy()
    wanted = np.sqrt(np.mean((mean - table.rows(test).frame["price"].to_numpy()) ** 2))
    assert method.metrics["rmse"].mean == pytest.approx(wanted, rel=1e-5)


def test_the_same_seed_gives_the_same_scores(table: Table) -> None:
    first = scores(run(table, ["map", "vogn"], seed=1))
    assert scores(run(table, ["map", "vogn"], seed=1)) == first
    assert scores(run(table, ["map", "vogn"], seed=2)) != first


def test_global_randomness_and_threads_are_left_alone(table: Table) -> None:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    run(table, ["vogn"], splits=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_a_method_that_fails_is_listed_and_hides_no_other(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def newton(*_: object, **__: object) -> NoReturn:
        raise RuntimeError("no such luck")

    monkeypatch.setitem(METHODS, "newton", newton)
    expected = scores(run(table, ["map", "vogn"]))
    found = run(table, ["map", "newton", "vogn"])
    failed = next(method for method in found.methods if method.name == "newton")
    assert failed.error is not None
    assert failed.error.startswith("in 2 of 2 splits: ")
    assert failed.metrics == {}
    assert {k: v for k, v in scores(found).items() if k != "newton"} == expected


def test_a_failure_on_one_split_keeps_the_others(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trials_of._train_and_score

    def sometimes(trial: Trial) -> Outcome:
        if trial.recipe.seed == 1:
            raise RuntimeError("singular")
        return whole(trial)

    monkeypatch.setattr(trials_of, "_train_and_score", sometimes)
    (method,) = run(table, ["map"]).methods
    assert method.error == "in 1 of 2 splits: RuntimeError: singular"
    assert len(method.metrics["rmse"].values) == 1


def test_divergence_is_a_failure_with_a_way_out(table: Table) -> None:
    recipe = replace(QUICK, epochs=1, options={"learning_rate": 1e30})
    (method,) = run(table, ["map"], splits=1, recipe=recipe).methods
    assert method.error is not None
    assert "learning_rate" in method.error


def test_options_that_a_method_does_not_have_are_left_out_and_said(table: Table) -> None:
    recipe = replace(QUICK, options={"learning_rate": 0.2, "temperature": 0.5})
    found = run(table, ["vogn", "tagi"], splits=1, recipe=recipe)
    assert [method.error for method in found.methods] == [None, None]
    assert "learning_rate has no effect on tagi, which trained without it." in found.notes
    assert not any("temperature" in note for note in found.notes)
    without = run(table, ["tagi"], splits=1, recipe=replace(QUICK, options={"temperature": 0.5}))
    assert scores(without)["tagi"] == scores(found)["tagi"]


def test_an_interruption_is_not_a_failed_method(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: Trial) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(trials_of, "_train_and_score", interrupt)
    split = Split.of(table, *split_rows(ROWS, (0.8, 0.2)), {"target": "price"})
    threads = torch.get_num_threads()
    with pytest.raises(KeyboardInterrupt):
        run_trials([Trial(split, replace(QUICK, method="map"), False)])
    assert torch.get_num_threads() == threads


def test_absurd_numbers_are_refused(table: Table) -> None:
    with pytest.raises(ValueError, match="splits must be at least 1, got 0"):
        run(table, ["map"], splits=0)
    with pytest.raises(ValueError, match=r"test_fraction lies strictly between 0 and 1, got 1\.5"):
        run(table, ["map"], test_fraction=1.5)


def test_a_split_without_content_is_said_before_any_training(trials: list[Trial]) -> None:
    rows = pandas.DataFrame({"x": [0.0] * 9 + [1.0], "price": np.arange(10.0)})
    # Some split holds out the one row in which x differs.
    with pytest.raises(DataError, match="no feature to learn from"):
        run(Table.from_frame(rows), ["map"], splits=40, test_fraction=0.3)
    assert trials == []


# Beside baselines


def test_baselines_get_the_same_rows_and_are_marked(table: Table, trials: list[Trial]) -> None:
    found = run(table, ["map"], baselines=True, splits=2)
    names = "map", "random forest", "constant"
    rows = [[t.split.train.tolist() for t in trials if t.recipe.method == name] for name in names]
    assert rows[0] == rows[1] == rows[2]
    assert {m.name: m.baseline for m in found.methods} == {
        "map": False, "constant": True, "bayesian ridge": True, "gradient boosting": True,
        "random forest": True, "gaussian process": True,
    }  # fmt: skip


@pytest.mark.parametrize("target", ["price", "kind"])
def test_baselines_have_the_scores_that_methods_have(target: str) -> None:
    other = {"price": "kind", "kind": "price"}[target]
    whole = Table.from_frame(frame().drop(columns=other))
    found = compare.compare(whole, target, methods=["map"], splits=2, recipe=QUICK, jobs=1)
    assert [m.error for m in found.methods] == [None] * 6
    assert len({tuple(m.metrics) for m in found.methods}) == 1
    assert all(m.predictions is not None for m in found.methods)
    # This target is a line in x and z; two epochs of a net are not enough to beat one.
    assert found.methods[0].baseline
    likelihoods = [m.metrics["log_likelihood" if target == "price" else "nll"].mean
                   for m in found.methods]  # fmt: skip
    assert likelihoods == sorted(likelihoods, reverse=target == "price")


@pytest.mark.parametrize(("target", "key"), [("price", "log_likelihood"), ("kind", "nll")])
def test_the_validation_curve_has_the_units_of_the_table(target: str, key: str) -> None:
    other = {"price": "kind", "kind": "price"}[target]
    rows = frame().drop(columns=other)
    if target == "price":
        rows["price"] *= 1000.0
    whole = Table.from_frame(rows)
    found = compare.compare(
        whole, target, methods=["map"], baselines=False, splits=2, recipe=QUICK, jobs=1
    )
    (method,) = found.methods
    for curve, score in zip(method.curves, method.metrics[key].values, strict=True):
        # Of map nothing is drawn: its last prediction on the way is that of the table.
        assert curve.validation[-1] == pytest.approx(score, rel=1e-4)
    assert ("NLL" in found.validation_label) == (target == "kind")


def test_noise_by_row(table: Table, trials: list[Trial]) -> None:
    found = run(table, ["map", "vogn", "ridge"], noise="by-row", baselines=True, splits=1)
    nets = {t.recipe.method: t.recipe.likelihood for t in trials if isinstance(t.recipe, Recipe)}
    assert nets == {"map": "heteroscedastic", "vogn": "heteroscedastic", "ridge": "gaussian"}
    (note,) = [note for note in found.notes if "noise depends on the inputs" in note]
    assert "It is the same in all rows for ridge, constant, bayesian ridge, " in note
    with pytest.raises(ValueError, match="noise is 'constant' or 'by-row', got 'some'"):
        run(table, ["map"], noise="some")
    classes = Table.from_frame(frame().drop(columns="price"))
    with pytest.raises(ValueError, match="for regression; the target here is a class"):
        compare.compare(classes, "kind", methods=["map"], noise="by-row")


def test_noise_by_row_is_found_where_it_is() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 400)
    spread = np.where(x > 0, 1.0, 0.05)
    rows = Table.from_frame(pandas.DataFrame({"x": x, "price": spread * rng.normal(size=400)}))
    recipe = Recipe(hidden=(20,), epochs=60)
    found = {
        noise: run(rows, ["vogn"], noise=noise, recipe=recipe, splits=1).methods[0]
        for noise in ("constant", "by-row")
    }
    likelihood = {noise: m.metrics["log_likelihood"].mean for noise, m in found.items()}
    assert likelihood["by-row"] > likelihood["constant"] + 0.2


# On other machines


@pytest.fixture(scope="module")
def expected() -> dict[str, dict[str, tuple[float, ...]]]:
    table = Table.from_frame(frame().drop(columns="kind"), "small")
    return scores(run(table, ["map", "vogn"]))


def test_two_processes_give_the_same(table: Table, expected: dict[str, Any]) -> None:
    done: list[int] = []
    try:
        found = run(
            table, ["map", "vogn"], jobs=2, progress=lambda number, _, __: done.append(number)
        )
    finally:
        from joblib.externals.loky import get_reusable_executor

        get_reusable_executor().shutdown(wait=True)
    assert scores(found) == expected
    assert done == [1, 2, 3, 4]


def test_a_killed_process_loses_no_method(table: Table) -> None:
    from joblib.externals.loky import get_reusable_executor, reusable_executor

    def kill(number: int, total: int, _: Outcome) -> None:
        if number == 2:
            os.kill(next(iter(reusable_executor._executor._processes)), signal.SIGKILL)

    wanted = scores(run(table, ["map", "vogn"], splits=3))
    try:
        found = run(table, ["map", "vogn"], splits=3, jobs=2, progress=kill)
    finally:
        get_reusable_executor().shutdown(wait=True)
    assert scores(found) == wanted


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two Dask workers on this machine, each a process with one thread."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as local,
        distributed.Client(local),
    ):
        yield local


def test_a_dask_cluster_gives_the_same(
    table: Table, expected: dict[str, Any], cluster: Any
) -> None:
    before = cluster.scheduler.transition_counter
    with joblib.parallel_config(backend="dask"):
        found = run(table, ["map", "vogn"], jobs=None)
    assert scores(found) == expected
    assert cluster.scheduler.transition_counter > before


def test_a_few_splits_of_a_method_train_together(table: Table) -> None:
    split = Split.of(table, *split_rows(ROWS, (0.8, 0.2)), {"target": "price"})
    large = replace(split, train=torch.arange(40_000))
    nets = [Trial(split, replace(QUICK, method="map"), False)] * 5
    others = [Trial(large, replace(QUICK, method="vogn"), False)] * 2
    rivals = [Trial(split, Baseline("constant", "regression"), False)] * 2
    groups = groups_of([*nets, *others, *rivals])
    assert groups == [[0, 1, 2, 3], [4], [5], [6], [7], [8]]
