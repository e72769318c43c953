"""Every method side by side: the same rows for all, failures shown, the same result anywhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from bayesrule.app import compare
from bayesrule.app.compare import Outcome, Trial, applicable, run_trial
from bayesrule.app.data import DataError, Encoder, Table, split_rows
from bayesrule.app.recipe import Recipe
from bayesrule.app.report import Comparison
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
    given = {"splits": 2, "recipe": QUICK, "jobs": 1, **options}
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

    def record(trial: Trial) -> Outcome:
        seen.append(trial)
        return Outcome(trial.method, metrics={"rmse": float(trial.recipe.seed), "seconds": 1.0})

    monkeypatch.setattr(compare, "run_trial", record)
    return seen


def test_every_method_gets_the_same_splits(table: Table, trials: list[Trial]) -> None:
    run(table, ["map", "vogn", "laplace"], splits=3, seed=5)
    by_method = {name: [t for t in trials if t.method == name] for name in ("vogn", "laplace")}
    reference = [t for t in trials if t.method == "map"]
    assert len(reference) == 3
    for others in by_method.values():
        for mine, other in zip(reference, others, strict=True):
            assert torch.equal(mine.train, other.train)
            assert torch.equal(mine.test, other.test)
            assert mine.recipe.seed == other.recipe.seed
    for number, trial in enumerate(reference):
        train, test = split_rows(ROWS, (0.8, 0.2), seed=5 + number)
        assert torch.equal(trial.train, train)
        assert torch.equal(trial.test, test)
        assert trial.keep_predictions == (number == 0)
    assert len({tuple(t.test.tolist()) for t in reference}) == 3


def test_scores_are_gathered_over_the_splits(table: Table, trials: list[Trial]) -> None:
    (method,) = run(table, ["map"], splits=3, seed=5).methods
    assert method.metrics["rmse"].values == (5.0, 6.0, 7.0)
    assert method.metrics["rmse"].mean == 6.0
    assert method.seconds == 1.0


def test_classes_keep_their_shares(trials: list[Trial]) -> None:
    whole = Table.from_frame(frame().drop(columns="price"))
    compare.compare(whole, "kind", methods=["map"], splits=1, jobs=1)
    labels = whole.frame["kind"].to_numpy() == "up"
    (trial,) = trials
    assert labels[trial.test].mean() == pytest.approx(labels.mean(), abs=1 / 8)
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
    whole = compare._train_and_score

    def sometimes(trial: Trial) -> Outcome:
        if trial.recipe.seed == 1:
            raise RuntimeError("singular")
        return whole(trial)

    monkeypatch.setattr(compare, "_train_and_score", sometimes)
    (method,) = run(table, ["map"]).methods
    assert method.error == "in 1 of 2 splits: RuntimeError: singular"
    assert len(method.metrics["rmse"].values) == 1


def test_divergence_is_a_failure_with_a_way_out(table: Table) -> None:
    recipe = replace(QUICK, epochs=1, options={"learning_rate": 1e30})
    (method,) = run(table, ["vogn"], splits=1, recipe=recipe).methods
    assert method.error is not None
    assert "learning_rate" in method.error


def test_options_that_a_method_does_not_have_are_left_out_and_said(table: Table) -> None:
    recipe = replace(QUICK, options={"learning_rate": 0.2, "temperature": 0.5})
    found = run(table, ["vogn", "tagi"], splits=1, recipe=recipe)
    assert [method.error for method in found.methods] == [None, None]
    assert "learning_rate is not an option of tagi, which trained without it." in found.notes
    assert not any("temperature" in note for note in found.notes)
    without = run(table, ["tagi"], splits=1, recipe=replace(QUICK, options={"temperature": 0.5}))
    assert scores(without)["tagi"] == scores(found)["tagi"]


def test_an_interruption_is_not_a_failed_method(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: Trial) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "_train_and_score", interrupt)
    train, test = split_rows(ROWS, (0.8, 0.2))
    threads = torch.get_num_threads()
    with pytest.raises(KeyboardInterrupt):
        run_trial(Trial(table, {}, replace(QUICK, method="map"), train, test, False))
    assert torch.get_num_threads() == threads


def test_methods_that_fit_the_task() -> None:
    wants_scaled_layers = {"bayesbinn"}
    assert applicable(None, "regression") == [
        name for name in METHODS if name not in wants_scaled_layers
    ]
    assert "ridge" not in applicable(None, "classification")
    assert applicable(["VOGN", "map", "vogn"], "regression") == ["vogn", "map"]
    with pytest.raises(ValueError, match="newton is its counterpart"):
        applicable(["ridge"], "classification")
    with pytest.raises(ValueError, match="Did you mean 'map'"):
        applicable(["mop"], "regression")


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


def test_trials_in_threads_leave_the_number_of_threads_alone() -> None:
    before = torch.get_num_threads()
    inside = threading.Barrier(3)
    seen = []

    def work() -> None:
        with compare._one_core():
            inside.wait(timeout=30)
            seen.append(torch.get_num_threads())

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert seen == [1, 1, 1]
    assert torch.get_num_threads() == before
