"""The recommendation: what to take, how sure the splits are, and how good the baselines are."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from bayesrule.app.report import Comparison, MethodResult, Statistic, recommend, render
from bayesrule.app.report.columns import METRICS
from bayesrule.app.report.recommendation import lead

Make = Callable[..., Comparison]
LIKELIHOOD = METRICS["log_likelihood"]
BASE = np.array([-2.0, -1.5, -2.5, -1.8])


def one(
    name: str, values: Sequence[float] | np.ndarray, seconds: float = 1.0, **more: Any
) -> MethodResult:
    scores = {"log_likelihood": Statistic.of(values), "seconds": Statistic(seconds)}
    return MethodResult(name, metrics=scores, **more)


@pytest.fixture
def of(make_comparison: Make) -> Callable[..., Comparison]:
    """A comparison of the given results."""

    def build(*methods: MethodResult) -> Comparison:
        splits = len(methods[0].statistic("log_likelihood").values) if methods else 1
        return dataclasses.replace(
            make_comparison("regression", 0), methods=methods, splits=max(splits, 1)
        )

    return build


def test_a_clear_best_is_taken_and_the_splits_are_sure(of: Make) -> None:
    noise = np.array([0.01, -0.01, 0.02, 0.0])
    advice = recommend(of(one("worse", BASE - 0.5 + noise), one("good", BASE, seconds=9.0)))
    assert advice.take == "good"
    assert advice.sentences[0].startswith("Take good: its log-likelihood −1.95 is the best of 2")
    assert "The 4 splits are sure of it" in advice.text


def test_of_tied_methods_the_cheapest_is_taken(of: Make) -> None:
    """Thirteen of nineteen methods may tie; the report still says which one to take."""
    noise = np.array([0.02, -0.03, 0.02, -0.01])
    tied = [one(f"m{i}", BASE - 0.001 * i + noise * i, seconds=20.0 - i) for i in range(13)]
    advice = recommend(of(*tied))
    assert advice.take == "m12"
    assert "cannot be told from that of m0" in advice.sentences[0]
    assert "it trains in 8 s instead of 20 s" in advice.sentences[0]
    assert "not sure of it: the difference to m0, m1, m2 and 9 others" in advice.text


def test_scores_are_compared_in_pairs() -> None:
    # Splits differ a lot, but the second is always 0.1 better: pairs tell, means alone do not.
    other = BASE + np.array([0.1, 0.11, 0.09, 0.1])
    paired = lead(LIKELIHOOD, Statistic.of(other), Statistic.of(BASE))
    assert paired.sure
    assert not paired.unsure
    means = [Statistic(s.mean, s.sem) for s in (Statistic.of(other), Statistic.of(BASE))]
    assert lead(LIKELIHOOD, *means).unsure
    lower = lead(METRICS["nll"], Statistic.of(other), Statistic.of(BASE))
    assert lower.gap == pytest.approx(-paired.gap)


def test_a_method_that_went_astray_once_is_not_tied(of: Make) -> None:
    """One split far off makes the standard error as large as the difference itself."""
    astray = BASE + np.array([0.3, 0.3, 0.3, -40.0])
    assert abs(lead(LIKELIHOOD, Statistic.of(BASE), Statistic.of(astray)).gap) < 10.1
    assert recommend(of(one("good", BASE, 9.0), one("astray", astray, 0.1))).take == "good"


def test_one_split_says_nothing_of_chance(of: Make) -> None:
    advice = recommend(of(one("a", [-1.0]), one("b", [-1.1], seconds=0.1)))
    assert advice.take == "a"
    assert "One split cannot show how much of this is chance" in advice.text


def test_a_better_baseline_is_said_first(of: Make) -> None:
    forest = one("random forest", BASE + 0.2 + 0.02 * np.arange(4), baseline=True)
    advice = recommend(of(one("vogn", BASE), one("map", BASE - 1.0), forest))
    assert advice.take == "random forest"
    assert advice.sentences[0] == (
        "A baseline is better than every method here: take scikit-learn's random forest, with "
        "log-likelihood −1.72 against −1.95 of vogn."
    )
    assert advice.sentences[1].startswith("Of the methods here, take vogn")


def test_a_baseline_that_is_as_good_is_said(of: Make) -> None:
    equal = one("bayesian ridge", BASE + np.array([0.01, -0.02, 0.01, 0.0]), baseline=True)
    constant = one("constant", BASE - 0.9, baseline=True)
    advice = recommend(of(one("vogn", BASE), one("map", BASE - 1.0), equal, constant))
    assert advice.take == "vogn"
    assert "A baseline of scikit-learn is as good: bayesian ridge (log-lik" in advice.text
    assert "constant" not in advice.text


def test_worse_baselines_are_said_to_be_worse(of: Make) -> None:
    worse = one("constant", BASE - 0.9 + 0.01 * np.arange(4), baseline=True)
    advice = recommend(of(one("vogn", BASE), worse))
    assert "No baseline is as good; the best, scikit-learn's constant, has" in advice.text


def test_failed_methods_are_not_recommended(of: Make) -> None:
    failed = one("half", BASE + 5.0, error="in 1 of 4 splits: it failed")
    assert recommend(of(failed, one("vogn", BASE))).take == "vogn"
    nothing = recommend(of(failed, one("constant", BASE, baseline=True)))
    assert nothing.take == "constant"
    assert nothing.sentences[0].startswith("No method finished with a score")
    assert recommend(of(failed)).take is None


def blind(c: Comparison, names: Sequence[str]) -> Comparison:
    """The same, where some methods predict the first class everywhere."""

    def changed(m: MethodResult) -> MethodResult:
        if m.name not in names or m.predictions is None:
            return m
        probabilities = np.zeros_like(m.predictions.probabilities)
        probabilities[:, 0] = 1.0
        found = dataclasses.replace(m.predictions, probabilities=probabilities)
        return dataclasses.replace(m, predictions=found)

    return dataclasses.replace(c, methods=[changed(m) for m in c.methods])


def test_one_class_for_every_row_is_a_warning(make_comparison: Make) -> None:
    c = make_comparison("classification", 3, failed=None)
    names = [m.name for m in c.methods]
    assert "Warning" not in recommend(c).text
    assert "Warning" not in recommend(blind(c, names[2:])).text
    text = recommend(blind(c, names)).text
    assert "Warning: every method predicts the class 'class 0' for all test rows" in text
    assert "balanced accuracy, AUROC" in text
    assert f"Warning: {names[0]} predicts" in recommend(blind(c, names[:1])).text


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_the_report_opens_with_it(make_comparison: Make, task: str) -> None:
    c = make_comparison(task, 3)
    page = render(c)
    first = html.escape(recommend(c).sentences[0], quote=True)
    assert page.index("<h1>") < page.index(first) < page.index("<h2>Leaderboard</h2>")


def test_baselines_are_marked_in_the_report(make_comparison: Make) -> None:
    c = make_comparison("regression", 3, failed=None)
    first, *rest = c.methods
    page = render(
        dataclasses.replace(c, methods=[dataclasses.replace(first, baseline=True), *rest])
    )
    assert page.count('<span class="tag">baseline</span>') == 1
    assert f"<b>{first.name}</b></a> <span" in page


def test_at_most_six_curves_have_a_colour(make_comparison: Make) -> None:
    """Nineteen curves in one plot cannot be told apart."""
    page = render(make_comparison("regression", 19, failed=None))
    for section, end in (("Coverage", "Scores"), ("Training loss", "Validation")):
        part = page[page.index(f"<h3>{section}</h3>") : page.index(f"<h3>{end}</h3>")]
        groups = [part[i : i + 60] for i in range(len(part)) if part.startswith('class="series', i)]
        coloured = {g.split('data-method="')[1].split('"')[0] for g in groups if "behind" not in g}
        assert len(coloured) == 6, section
        assert any("behind" in group for group in groups)
        # The grey ones lie behind the others.
        assert "behind" in groups[0]
        assert "behind" not in groups[-1]
    assert page.count('class="chip" aria-pressed="true"') == 6
    assert page.count('class="chip" aria-pressed="false"') == 13


def test_seconds_mean_one_thing(make_comparison: Make) -> None:
    """The training time of one split, in the table and everywhere else of the report."""
    c = make_comparison("regression", 2, failed=None)
    page = render(c)
    assert METRICS["seconds"].label == "Training seconds"
    assert "Time to train on one split, on one core" in page
    assert "<dt>Whole comparison</dt>" in page
    assert not hasattr(c.methods[0], "seconds")
