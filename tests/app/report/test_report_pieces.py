"""The pieces a report is made of: numbers, ticks, limits, pictures, orders."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesrule.app.report.axes import Axis, limits, log_ticks, tick_label, ticks
from bayesrule.app.report.columns import METRICS, Metric, show
from bayesrule.app.report.contents import (
    Calibration,
    ClassificationPredictions,
    Curve,
    Statistic,
)
from bayesrule.app.report.markup import subsample
from bayesrule.app.report.svg import Plot, escape, look

NAN, INF = float("nan"), float("inf")
SVG = "{http://www.w3.org/2000/svg}"


def unit_plot() -> Plot:
    return Plot(Axis("x", 0, 1), Axis("y", 0, 1), "a test", width=200, height=100)


@given(
    st.floats(-1e12, 1e12, allow_nan=False),
    st.floats(1e-6, 1e12, allow_nan=False),
    st.integers(2, 12),
)
def test_ticks_are_inside_evenly_spaced_and_near_the_wanted_number(low, width, count):
    high = low + width
    if not width > 1e-6 * abs(low):
        return
    found = ticks(low, high, count)
    assert all(low - 1e-6 * width <= t <= high + 1e-6 * width for t in found)
    assert len(found) <= count + 1
    assert len(found) >= (count - 2) / 2.5
    if len(found) > 2:
        steps = np.diff(found)
        np.testing.assert_allclose(steps, steps[0], rtol=1e-4)


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (-3.1, -2.2, [-3.0, -2.8, -2.6, -2.4, -2.2]),
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (3, 3, [3]),
    ],
)
def test_ticks_are_round(low, high, wanted):
    assert ticks(low, high) == wanted


def test_log_ticks_are_powers_of_ten_or_fill_a_short_range():
    assert log_ticks(1e-3, 1e3) == pytest.approx([1e-3, 1e-2, 1e-1, 1, 10, 100, 1000])
    assert log_ticks(1, 60) == pytest.approx([1, 2, 5, 10, 20, 50])
    assert log_ticks(1.2, 1.4) == [1.2, 1.4]


def test_tick_labels_differ_from_each_other():
    for found in (ticks(0, 0.003), ticks(0, 10, 4), ticks(2.25, 3.25, 4), ticks(0, 3e6)):
        step = found[1] - found[0]
        assert len({tick_label(t, step) for t in found}) == len(found)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=20))
def test_limits_are_always_an_interval(values):
    low, high = limits(values, tail=0.02)
    assert math.isfinite(low)
    assert math.isfinite(high)
    assert low < high


def test_one_diverged_value_does_not_flatten_the_frame():
    low, high = limits([*np.linspace(0, 1, 99), 1e6], tail=0.02)
    assert high < 2
    assert low == pytest.approx(0, abs=0.1)
    assert limits([0.0, 1.0, 1.5], tail=0.02, pad=0) == (0.0, 1.5)


def test_a_point_lies_where_the_axes_say():
    plot = unit_plot()
    w, h = plot.inner
    x, y = plot.spot([0, 1, 0.5], [0, 1, 0.25])
    np.testing.assert_allclose(x, [0, w, w / 2])
    np.testing.assert_allclose(y, [h, 0, 0.75 * h])
    log = Axis("", 1, 100, log=True)
    np.testing.assert_allclose(log.place([1, 10, 100]), [0, 0.5, 1])
    assert np.isnan(log.place([0.0, -1.0, NAN])).all()


def test_lines_are_interrupted_and_points_left_out_where_values_are_not_finite():
    plot = unit_plot()
    plot.line([0, 0.1, 0.2, 0.3, 0.4], [0, 0.1, NAN, 0.3, INF])
    plot.points([0.1, NAN, 0.3], [0.1, 0.2, -INF], ["a", "b", "c"])
    plot.band([0, 0.5, 1], [0, NAN, 0], [1, 1, 1])
    plot.strokes([0, 1], [0, NAN], [1, 1], kind="interval", wide=2)
    plot.box((0, NAN), (0, 1))
    text = plot.render()
    assert "nan" not in text
    assert "inf" not in text
    root = ET.fromstring(text)
    path = next(p for p in root.iter(f"{SVG}path") if p.get("class") == "line")
    assert path.get("d").count("M") == 2
    assert len(list(root.iter(f"{SVG}circle"))) == 1
    assert not list(root.iter(f"{SVG}rect"))


@pytest.mark.parametrize("index", [0, 8, 16, 24])
def test_every_marker_shape_is_drawn_with_its_tooltip(index):
    plot = unit_plot()
    plot.points([0.5], [0.5], ["tip"], shape=look(index).shape, radius=4)
    root = ET.fromstring(plot.render())
    assert [t.text for t in root.iter(f"{SVG}title")] == ["tip"]


def test_thirty_two_methods_look_different():
    looks = {(look(i).colour, look(i).dash, look(i).shape) for i in range(32)}
    assert len(looks) == 32


def test_pictures_are_accessible_and_escaped():
    plot = Plot(Axis("<x>", 0, 1), Axis('"y" & z', 0, 1), 'a "picture" <of> things')
    plot.text(0.5, 0.5, "</svg><script>")
    root = ET.fromstring(plot.render())
    assert root.get("role") == "img"
    assert root.get("aria-label") == 'a "picture" <of> things'
    assert {"<x>", '"y" & z', "</svg><script>"} <= {t.text for t in root.iter(f"{SVG}text")}


def test_control_characters_cannot_break_the_markup():
    shown = ET.fromstring(f"<p>{escape('a' + chr(0) + chr(27) + 'b')}</p>").text or ""
    assert shown[:1] + shown[-1:] == "ab"


def test_values_are_shown_as_people_read_them():
    rmse = METRICS["rmse"]
    assert show(NAN, rmse, 2) == show(INF, rmse, 2) == show(-INF, rmse, 2) == "–"
    assert show(-1.5, rmse, 2) == "−1.50"
    assert show(0.0, rmse, 2) == "0.00"
    assert show(3e9, rmse, 2) == "3.0e+09"
    assert show(0.8765, METRICS["coverage_90"], 1) == "87.6 %"


def test_sort_key_and_badness_follow_the_direction():
    coverage = METRICS["coverage_90"]
    assert coverage.sort_key(0.95) == pytest.approx(0.05)
    assert coverage.badness(0.88) < coverage.badness(0.95) < coverage.badness(0.7)
    assert METRICS["accuracy"].badness(0.9) < METRICS["accuracy"].badness(0.8)
    assert METRICS["rmse"].badness(0.8) < METRICS["rmse"].badness(0.9)
    assert Metric("new", "new", "unknown", "auto", "").hint == ""


def test_statistic_of_values():
    s = Statistic.of([1.0, 2.0, 4.0])
    assert s.mean == pytest.approx(7 / 3)
    assert s.sem == pytest.approx(np.std([1, 2, 4], ddof=1) / np.sqrt(3))
    assert math.isnan(Statistic.of([3.0]).sem)
    assert math.isnan(Statistic.of([]).mean)
    assert math.isnan(Statistic.of([1.0, INF, 2.0]).sem)


def test_subsample_is_deterministic_even_and_keeps_the_ends():
    rows = subsample(10_000, 400)
    assert len(rows) == len(set(rows.tolist())) == 400
    assert (rows[0], rows[-1]) == (0, 9_999)
    assert set(np.diff(rows)) <= {25, 26}
    assert subsample(0, 400).tolist() == []


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="one length"):
        Calibration(np.zeros(3), np.zeros(4), np.zeros(3))
    with pytest.raises(ValueError, match="one length"):
        Curve(np.arange(3), np.zeros(3), np.zeros(2))
    bins = Calibration(np.zeros(1), np.zeros(1), np.zeros(1))
    two = np.zeros(2)
    with pytest.raises(ValueError, match="one column per class"):
        ClassificationPredictions(two, np.zeros((2, 3)), ("a", "b"), two, two, bins)
    with pytest.raises(ValueError, match="indices from 0 to 1"):
        ClassificationPredictions(two + 2, np.zeros((2, 2)), ("a", "b"), two, two, bins)
