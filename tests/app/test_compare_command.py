"""`bayesrule compare`: the table, the json, the report, also in a browser."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest
from calling import call, only_line, table

pytest.importorskip("pandas")
pytest.importorskip("joblib")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return table(tmp_path, "small.csv", drop=("kind", "colour"))


def words(file: Path, *more: str) -> list[str]:
    fixed = ["--target", "price", "--epochs", "1", "--splits", "2", "--jobs", "1", "--no-baselines"]
    return ["compare", str(file), *fixed, "--out", str(file.parent / "out"), *more]


def test_a_table_and_a_report(file: Path) -> None:
    said = call(*words(file, "--methods", "map,vogn,ridge"))
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("method "))
    # One step of ridge regression is the answer for data like these; the best stands first.
    assert lines[head + 1].startswith("ridge ")
    report = file.parent / "out" / "report.html"
    assert f"Report: {report}" in lines[-3]
    assert lines[-1].startswith("Take ridge: ")
    page = report.read_text()
    assert "bayesrule compare" in page
    assert "--methods map,vogn,ridge" in page


def test_json_ranks_the_methods(file: Path) -> None:
    document = json.loads(call(*words(file, "--methods", "map,ridge", "--json")).out)
    assert [method["method"] for method in document["methods"]] == ["ridge", "map"]
    assert document["splits"] == 2
    assert Path(document["report"]).is_file()
    likelihoods = [m["metrics"]["log_likelihood"]["mean"] for m in document["methods"]]
    assert likelihoods == sorted(likelihoods, reverse=True)


def test_all_methods_failing_is_a_failure(file: Path) -> None:
    said = call(*words(file, "--methods", "map,adam", "--learning-rate", "1e30"))
    assert "No method ran on every split" in only_line(said, code=1)
    assert "map failed in 2 of 2 splits" in said.out
    assert (file.parent / "out" / "report.html").is_file()


def test_scores_are_shown_even_if_the_report_cannot_be_written(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "report.html")

    monkeypatch.setattr("bayesrule.app.commands.compare.write_report", full)
    said = call(*words(file, "--methods", "map"))
    assert "log-likelihood" in said.out
    assert only_line(said) == "bayesrule: 'report.html': No space left on device."


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("--methods mop", "Did you mean 'map'?"),
        ("--methods ,", "--methods: takes names"),
        ("--splits 0", "--splits: takes a whole number"),
        ("--jobs 0", "--jobs: takes a whole number"),
        ("--test-fraction 0", "--test-fraction: takes a number strictly between"),
        ("--test-fraction 0.999", "leaves 1 of them to learn from"),
    ],
)
def test_faults_of_the_call_are_one_line(more: str, expected: str, file: Path) -> None:
    said = call(*words(file, *more.split()))
    assert expected in only_line(said)
    assert said.out == ""


# The report of a real run, in a browser


def _browser_tests() -> Any:
    place = Path(__file__).parent / "report" / "test_report_browser.py"
    spec = importlib.util.spec_from_file_location("report_in_a_browser", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_REPORT = _browser_tests()
browser = _REPORT.browser


@pytest.mark.browser
@pytest.mark.parametrize(("target", "other"), [("price", "kind"), ("kind", "price")])
def test_the_report_of_a_real_run(target: str, other: str, tmp_path: Path, browser: Any) -> None:
    data = table(tmp_path, drop=(other,))
    options = ("--methods", "map,vogn,newton", "--epochs", "5", "--jobs", "1", "--no-baselines")
    assert call("compare", data, "--target", target, *options, "--out", tmp_path).code == 0
    browser.get_log("browser")
    browser.get((tmp_path / "report.html").as_uri())
    button = _REPORT.header(browser, "Training seconds").find_element("tag name", "button")
    button.click()
    rising = _REPORT.method_names(browser)
    button.click()
    assert _REPORT.method_names(browser) == rising[::-1]
    assert sorted(rising) == ["map", "newton", "vogn"]
    sizes = _REPORT.script(
        browser,
        "[...document.querySelectorAll('svg.plot')].filter(s => s.checkVisibility())"
        ".map(s => [s.getBoundingClientRect().width, s.querySelectorAll('path, circle').length])",
    )
    assert len(sizes) >= 6
    assert all(width > 200 and marks >= 3 for width, marks in sizes)
    assert browser.get_log("browser") == []


# What a newcomer asks: which one should I take?


@pytest.fixture
def imbalanced(tmp_path: Path) -> Path:
    """Thirty rows of a hundred would be enough to see the rare class; three are not."""
    rows = [f"{(7 * i) % 13},{(5 * i) % 11},{'yes' if i % 33 == 0 else 'no'}" for i in range(100)]
    path = tmp_path / "rare.csv"
    path.write_text("\n".join(["a,b,churn", *rows]))
    return path


def test_the_command_says_what_to_take_and_names_the_baselines(file: Path) -> None:
    names = [word for word in words(file, "--methods", "map,vogn") if word != "--no-baselines"]
    said = call(*names)
    assert said.code == 0
    lines = said.out.splitlines()
    table_rows = [line for line in lines if "(baseline)" in line]
    assert [row.split(" (baseline)")[0] for row in table_rows].count("random forest") == 1
    assert len(table_rows) == 5
    # One epoch of a net is no match for a line where the target is one.
    assert lines[-1].startswith("A baseline is better than every method here: take scikit-learn's")
    page = (file.parent / "out" / "report.html").read_text()
    assert page.count('<span class="tag">baseline</span>') == 5
    assert page.index("A baseline is better") < page.index("<h2>Leaderboard</h2>")
    document = json.loads(call(*names, "--json").out)
    marked = {m["method"]: m["baseline"] for m in document["methods"]}
    assert marked["map"] is False
    assert marked["gradient boosting"] is True
    take, text = (document["recommendation"][key] for key in ("take", "text"))
    assert marked[take] is True
    assert text == lines[-1]


def test_one_class_for_all_rows_is_not_unnoticed(imbalanced: Path) -> None:
    said = call("compare", imbalanced, "--target", "churn", "--methods", "map,vogn", "--splits",
                "2", "--epochs", "20", "--jobs", "1", "--no-baselines", "--out",
                imbalanced.parent)  # fmt: skip
    assert said.code == 0
    assert "Warning: every method predicts the class 'no' for all test rows" in said.out
    head = next(line for line in said.out.splitlines() if line.startswith("method "))
    assert "balanced accuracy" in head
    assert "auroc" in head
    page = (imbalanced.parent / "report.html").read_text()
    assert page.index("Warning: every method") < page.index("<h2>Leaderboard</h2>")
    assert "Avg. precision" in page


def test_methods_left_out_are_named_with_the_way_to_run_them(file: Path) -> None:
    said = call(*words(file, "--splits", "1"))
    assert said.code == 0
    assert "noisy_full" in said.out
    assert "--all runs every method" in said.out
    ran = [line.split()[0] for line in said.out.splitlines() if " ± " in line or "  " in line]
    assert "noisy_full" not in ran
    assert "adam" not in ran


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("--all --methods map", "--all is for every method"),
        ("--noise some", "--noise: invalid choice: 'some'"),
    ],
)
def test_choices_that_exclude_each_other(more: str, expected: str, file: Path) -> None:
    assert expected in only_line(call(*words(file, *more.split())))


def test_noise_by_row_is_for_numbers(imbalanced: Path) -> None:
    said = call("compare", imbalanced, "--target", "churn", "--noise", "by-row")
    assert "--noise by-row is for regression" in only_line(said)
