"""`python -m benchmarks images` and `text`: tasks and their options, tables, files, pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.images import noisy_tasks, tied, variational
from tests.calling import Said, bench, only_line

from .small_tasks import noisy, preact
from .small_tasks import tied as tied_task

NOISY = ["images", "fashion-noisy", "--held-out", "60", "--epochs", "1"]
ELBO = ["images", "fashion-preact", "--held-out", "60", "--epochs", "1"]
TIED = ["images", "mnist-tied", "--epochs", "1", "--marks", "12"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that take no time under the names of those that do."""
    monkeypatch.setitem(variational.TASKS, "fashion-preact", preact())
    monkeypatch.setitem(noisy_tasks.TASKS, "fashion-noisy", noisy())
    for name in ("mnist-tied", "imdb-tied"):
        monkeypatch.setitem(tied.TASKS, name, tied_task())
    monkeypatch.setattr(tied, "DRAWS", 2)


def row(said: Said, start: str) -> list[str]:
    """The cells of the first line of a table that begins so."""
    line = next(line for line in said.out.splitlines() if line.startswith(start))
    return line[len(start) :].split()


def test_methods_at_temperatures_beside_the_paper(tmp_path: Path) -> None:
    file = tmp_path / "new" / "elbo.json"
    words = [*ELBO, "--methods", "map,mean-field", "--out", str(file)]
    said = bench(*words, "--temperatures", "1")
    assert said.code == 0
    assert row(said, "map, mean")[2::2] == ["0.5", "90", "0.1"]
    assert row(said, "mean_field, 10 draws")[3::2] == ["0.4", "91", "0.05"]
    assert row(said, "mean_field, mean")[3::2] == ["–", "–", "–"]
    assert said.err.splitlines()[0] == "[1/2] map, temperature 1"
    kept = json.loads(file.read_text())
    assert kept["command"].startswith("python -m benchmarks images fashion-preact --held-out 60")
    assert [one["temperature"] for one in kept["results"]] == [1.0] * 3
    more = bench(*words)
    first, second, *_ = more.err.splitlines()
    assert (first, second) == ("3 results are there already", "[3/4] map, temperature 0.1")
    kept = json.loads(file.read_text())
    one, two = kept["command"].split("; ")
    assert one == f"{two} --temperatures 1", "both calls have a part in it"
    assert sorted({one["temperature"] for one in kept["results"]}) == [0.1, 1.0]
    settings = more.out.partition("All settings")[2].splitlines()
    assert len([line for line in settings if line.startswith(("map", "mean_field"))]) == 6
    before = file.read_bytes()
    again = bench(*words)
    assert again.err.splitlines() == ["6 results are there already"]
    assert again.out == more.out
    assert file.read_bytes() == before, "nothing new, so the file stays that of the run"


def test_trials_may_run_side_by_side(tmp_path: Path) -> None:
    words = [*ELBO, "--methods", "map,mean_field", "--temperatures", "1,0.1"]
    one = json.loads(bench(*words, "--json").out)
    file = tmp_path / "two.json"
    said = bench(*words, "--jobs", "2", "--out", file)
    assert said.code == 0
    two = json.loads(file.read_text())
    kept = [
        [(row["method"], row["temperature"], row["way"], row["test"]) for row in found["results"]]
        for found in (one, two)
    ]
    assert len(kept[0]) == 6
    for alone, beside in zip(*kept, strict=True):
        assert alone[:3] == beside[:3], "in the order of the trials, whichever ends first"
        assert beside[3] == pytest.approx(alone[3], rel=1e-4)


def test_ranks_may_run_side_by_side(tmp_path: Path) -> None:
    file = tmp_path / "tied.json"
    said = bench(*TIED, "--ranks", "0,2", "--seeds", "0,1", "--jobs", "2", "--out", file)
    assert said.code == 0
    assert [line.split()[0] for line in said.err.splitlines()] == [f"[{k}/4]" for k in range(1, 5)]
    kept = json.loads(file.read_text())["results"]
    assert [(one["seed"], one["rank"]) for one in kept] == [(0, 0), (0, 2), (1, 0), (1, 2)]


def test_the_chosen_temperature_is_that_of_the_held_out_images() -> None:
    found = json.loads(bench(*ELBO, "--methods", "variational_laplace", "--json").out)
    best = min(found["results"], key=lambda one: one["held_out"]["nll"])
    said = bench(*ELBO, "--methods", "variational_laplace")
    cells = row(said, "variational_laplace, mean")
    assert cells[:3] == [f"{best['temperature']:g}", "10", f"{best['test']['nll']:.3f}"]


def test_noisy_methods_beside_plain_optimisers(tmp_path: Path) -> None:
    file = tmp_path / "noisy.json"
    words = [*NOISY, "--methods", "sgd,noisy-kfac", "--rates", "1,2", "--out", str(file)]
    said = bench(*words)
    assert said.code == 0
    kept = json.loads(file.read_text())["results"]
    tried = [(one["method"], one["temperature"], one["rate_multiplier"]) for one in kept]
    colder = [("noisy_kfac", t, r) for t in (0.5, 0.1) for r in (1.0, 2.0) for _ in range(2)]
    assert tried == [("sgd", 1.0, 1.0), ("sgd", 1.0, 2.0), *colder]
    assert "paper" not in said.out
    best = min(kept[:2], key=lambda one: one["held_out"]["nll"])
    own = best["test"]
    figures = [f"{own['nll']:.3f}", f"{own['accuracy']:.2f}", f"{own['ece']:.3f}"]
    assert row(said, "sgd, mean") == [f"{best['rate_multiplier']:g}", *figures]
    assert len(row(said, "noisy_kfac, 10 draws")) == 5
    assert "T, the temperature; rate ×, the multiplier of the learning rate." in said.out


def test_a_rate_that_all_share_has_no_column() -> None:
    said = bench(*NOISY, "--methods", "adam")
    assert said.err.splitlines()[0] == "[1/1] adam"
    assert len(row(said, "adam, mean")) == 3
    assert "on 60 held-out training images.\n" in said.out


def test_multipliers_are_drawn(tmp_path: Path) -> None:
    words = ["--methods", "mean_field", "--temperatures", "1", "--multipliers", "1,30"]
    said = bench(*ELBO, *words, "--pictures", tmp_path / "drawn")
    files = [tmp_path / "drawn" / f"fashion-preact-{one}.svg" for one in ("elbo", "multipliers")]
    assert sorted((tmp_path / "drawn").iterdir()) == files
    assert "scales × 30" in files[0].read_text()
    assert "last ELBO, temperature 1" in files[1].read_text()
    assert said.err.splitlines()[-2:] == [f"drawn: {file}" for file in files]


def test_what_was_done_is_kept_when_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = variational.train

    def stopped(task: object, trial: variational.Trial, *given: object, **more: object) -> object:
        if trial.temperature < 1:
            raise KeyboardInterrupt
        return train(task, trial, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(variational, "train", stopped)
    file = tmp_path / "elbo.json"
    said = bench(*ELBO, "--methods", "map", "--out", file)
    assert said.code == 130
    assert "Finished trials are in --out" in said.err
    assert len(json.loads(file.read_text())["results"]) == 1


@pytest.mark.parametrize("words", [TIED, ["text", *TIED[2:]]])
def test_ranks_beside_the_paper(words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "tied.json"
    given = [*words, "--ranks", "0,2", "--seeds", "0,1", "--out", str(file)]
    said = bench(*given, "--pictures", tmp_path / "drawn")
    assert said.code == 0
    assert "means over seeds 0, 1" in said.out
    cells = row(said, "mean_field")
    assert (cells[1], cells[5], cells[7], cells[9]) == ("0.5", "0.4", "95", "1")
    assert "Signal-to-noise ratio" in said.out
    assert row(said, "all")[0] == f"{float(row(said, 'all')[0]):.3f}"
    names = sorted(file.name for file in (tmp_path / "drawn").iterdir())
    task = json.loads(file.read_text())["task"]
    assert names == [f"{task}-deviations.svg", f"{task}-training.svg"]
    again = bench(*given)
    assert again.err.splitlines() == ["4 results are there already"]
    assert again.out == said.out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["images", "mnist-tide"], "Unknown task 'mnist-tide'. Did you mean 'mnist-tied'? Tasks:"),
        (["images", "imdb-tied"], "'imdb-tied' is a task of python -m benchmarks text."),
        (["text", "mnist-tied"], "'mnist-tied' is a task of python -m benchmarks images."),
        (["text", "imbd-tied"], "Unknown task 'imbd-tied'. Did you mean 'imdb-tied'?"),
        (["images", "mnist-tied", "--seed", "1"], "The task 'mnist-tied' has no --seed; it takes"),
        (["images", "mnist-fnn", "--pictures", "p"], "The task 'mnist-fnn' has no --pictures;"),
        (["images", "cifar10-preact", "--fused"], "The task 'cifar10-preact' has no --fused;"),
        (["images", "fashion-preact", "--methods", "maap"], "Unknown method 'maap'. Did you mean"),
        (["images", "fashion-noisy", "--methods", "map"], "Unknown method 'map'. Methods: adam,"),
        (["images", "fashion-noisy", "--pictures", "p"], "'fashion-noisy' has no --pictures;"),
        (["images", "fashion-noisy", "--multipliers", "1"], "'fashion-noisy' has no --multipliers"),
        (["images", "mnist-tied", "--rates", "1"], "The task 'mnist-tied' has no --rates;"),
        (["images", "mnist-tied", "--device", "abacus"], "The device 'abacus' cannot be used"),
        (["images", "mnist-tied", "--num", "3"], "learns from batches of 25, but only 3 examples"),
        (["images", "mnist-tied", "--ranks", "0,x"], "--ranks: takes a whole number of at least 0"),
        (["images", "fashion-preact", "--temperatures", "0"], "takes a number above 0, from"),
    ],
)
def test_what_there_is_not_is_told_in_one_line(words: list[str], expected: str) -> None:
    said = bench(*words)
    assert expected in only_line(said)
    assert said.out == ""


def test_results_of_other_settings_are_not_mixed(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    assert bench(*TIED, "--ranks", "2", "--seeds", "0", "--out", file).code == 0
    before = file.read_bytes()
    other = bench(*TIED[:-2], "--marks", "11", "--out", file)
    assert "has trials with marks=[12], these are to have marks=[11]" in only_line(other)
    assert "holds results of mnist-tied, not of fashion-preact" in only_line(
        bench(*ELBO, "--out", file)
    )
    assert file.read_bytes() == before
