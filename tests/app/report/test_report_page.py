"""The whole page: structure, escaping, odd sizes and values, and the way to the disk."""

from __future__ import annotations

import dataclasses
import os
import re
import stat
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pytest

from bayesrule.app.report import MethodResult, Statistic, render, write_report
from bayesrule.app.report.columns import METRICS, columns, order, primary
from bayesrule.app.report.contents import RegressionPredictions

NAN, INF = float("nan"), float("inf")
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Structure(HTMLParser):
    """Checks that tags nest, and collects them with their attributes and the visible text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open[-1:]):
            self.texts.append(data)


def structure(page: str) -> Structure:
    parser = Structure()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    ids = [attributes["id"] for _, attributes in parser.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    return parser


def pictures(page: str) -> list[ET.Element]:
    """Every plot, parsed as XML: a broken one raises."""
    found = re.findall(r'<svg class="plot.*?</svg></g></svg>', page, re.DOTALL)
    return [ET.fromstring(text) for text in found]


def best_cells(page: str) -> int:
    return page.count('<td class="best"')


@pytest.mark.parametrize("task", ["regression", "classification"])
@pytest.mark.parametrize(("methods", "rows"), [(1, 1), (1, 50), (5, 103), (25, 2000)])
def test_every_size_renders_and_stays_small(make_comparison, task, methods, rows):
    c = make_comparison(task, methods, rows=rows, splits=20 if methods == 25 else 2, epochs=300)
    page = render(c)
    structure(page)
    per_method = 2 if task == "regression" else 4
    scores = len(columns(c))
    assert len(pictures(page)) == 1 + scores + 2 + per_method * methods
    assert len(page.encode()) < 1_500_000
    assert not re.search(r'[ "](nan|-?inf)[ "]', page)


def test_forty_classes_are_joined_to_a_legible_matrix(make_comparison):
    page = render(make_comparison("classification", 25, classes=40, rows=3000))
    assert "most frequent of 40 classes" in page
    assert len(page.encode()) < 1_500_000
    structure(page)


def test_pictures_hold_at_most_four_hundred_points(make_comparison):
    for task in ("regression", "classification"):
        for picture in pictures(render(make_comparison(task, 2, rows=5000))):
            crosses = [len(e) for e in picture.iter() if e.get("class") == "cross"]
            circles = [e for e in picture.iter() if e.tag.endswith("circle")]
            assert sum(crosses) + len(circles) <= 400


def test_the_page_asks_for_nothing_outside(make_comparison):
    page = render(make_comparison())
    for tag, attributes in structure(page).tags:
        assert tag not in ("iframe", "object", "embed", "base")
        for name in ("src", "href", "srcset", "action"):
            value = attributes.get(name) or ""
            assert value == "" or value.startswith(("#", "data:")), (tag, name, value)
    assert "default-src 'none'" in page
    assert "url(" not in page
    assert "@import" not in page


def test_everything_from_outside_is_escaped(make_comparison):
    evil = '<script>alert("x")</script>&amp;\'"'
    c = make_comparison("classification", 2, classes=3)
    first = c.methods[0]
    marked = dataclasses.replace(
        first,
        name=evil,
        parts={evil: evil},
        metrics={**first.metrics, evil: Statistic(1.0)},
        predictions=dataclasses.replace(first.predictions, classes=(evil, "b", "c")),
    )
    lost = MethodResult(evil, error=f"{evil}\n{evil}")
    c = dataclasses.replace(
        c, title=evil, dataset=evil, summary=evil, command=evil, versions={evil: evil},
        machine=evil, notes=[evil], methods=[marked, c.methods[1], lost], validation_label=evil,
    )  # fmt: skip
    page = render(c)
    read = structure(page)
    assert sum(tag == "script" for tag, _ in read.tags) == 1
    assert "<script>alert" not in page
    assert "".join(read.texts).count(evil) >= 12
    assert all(picture is not None for picture in pictures(page))


def test_values_that_are_not_finite_are_shown_as_a_dash_and_come_last(make_comparison):
    c = make_comparison("regression", 4, failed=None)
    values = (NAN, -2.0, INF, -1.0)
    methods = [
        dataclasses.replace(
            m,
            metrics={**m.metrics, "log_likelihood": Statistic(v, NAN if v == NAN else 0.1, (v, v))},
            curves=[dataclasses.replace(k, train_loss=k.train_loss * v) for k in m.curves],
        )
        for m, v in zip(c.methods, values, strict=True)
    ]
    c = dataclasses.replace(c, methods=methods)
    assert order(c, primary(c)) == [3, 1, 0, 2]
    page = render(c)
    assert page.count('<td data-value="">–</td>') == 2
    assert len(pictures(page)) > 10
    broken = np.full(30, NAN)
    columns_ = (broken,) * 6
    lost = RegressionPredictions(*columns_, c.methods[0].predictions.calibration)
    methods[0] = dataclasses.replace(methods[0], predictions=lost)
    page = render(dataclasses.replace(c, methods=methods))
    assert not any(
        "nan" in value for p in pictures(page) for e in p.iter() for value in e.attrib.values()
    )
    assert not re.search(r'd="[^"]*(nan|inf)', page)


def test_a_failed_method_is_shown_and_hides_nobody(make_comparison):
    c = make_comparison("regression", 3, failed="Traceback\n  line 1\nRuntimeError: gone wrong")
    page = render(c)
    assert page.count("<tr") == 1 + 4
    assert "RuntimeError: gone wrong</summary>" in page
    only = dataclasses.replace(c, methods=[c.methods[-1]])
    page = render(only)
    structure(page)
    assert "No method finished with a score." in page


def test_a_method_that_failed_half_way_keeps_its_numbers_but_does_not_win(make_comparison):
    c = make_comparison("regression", 2, failed=None)
    half = dataclasses.replace(
        c.methods[1], metrics={"rmse": Statistic(0.001)}, error="OOM in split 3"
    )
    c = dataclasses.replace(c, methods=[c.methods[0], half])
    assert order(c, METRICS["rmse"]) == [0, 1]
    page = render(c)
    assert "OOM in split 3" in page
    assert "0.00" in page
    assert best_cells(page) == 0  # one method left in the race


def test_the_best_of_each_column_is_marked_by_its_direction(make_comparison):
    c = make_comparison("regression", 3, failed=None)
    table = {
        "rmse": (3.0, 2.0, 2.5),
        "log_likelihood": (-1.0, -2.0, -3.0),
        "coverage_90": (0.99, 0.7, 0.88),
        "mystery": (1.0, 2.0, 3.0),
        "seconds": (1.0, 2.0, 3.0),
    }
    methods = [
        dataclasses.replace(m, name=f"m{i}", metrics={k: Statistic(v[i]) for k, v in table.items()})
        for i, m in enumerate(c.methods)
    ]
    page = render(dataclasses.replace(c, methods=methods))
    rows = re.findall(r"<tr><th.*?</tr>", page)[1:]  # without the header
    marked = {row.split("<b>")[1][:2]: re.findall(r'class="best"[^>]*><span>(.*?)</span>', row)
              for row in rows}  # fmt: skip
    assert marked == {"m0": ["−1.00", "1.00"], "m1": ["2.00"], "m2": ["88.0 %"]}


def test_known_metrics_come_first_unknown_ones_are_shown_plainly(make_comparison):
    c = make_comparison("regression", 1, failed=None)
    m = dataclasses.replace(
        c.methods[0],
        metrics={"seconds": Statistic(3.0), "zeta": Statistic(1.0), "rmse": Statistic(2.0)},
    )
    c = dataclasses.replace(c, methods=[m])
    assert [metric.key for metric in columns(c)] == ["rmse", "zeta", "seconds"]
    assert primary(c).key == "rmse"
    assert ">zeta<" in render(c)


def test_methods_keep_their_colour_in_every_picture(make_comparison):
    page = render(make_comparison("regression", 4))
    found = set(re.findall(r'class="series (c\d)" data-method="(\d)"', page))
    assert found == {("c0", "0"), ("c1", "1"), ("c2", "2"), ("c3", "3")}


def test_writing_is_atomic(make_comparison, tmp_path, monkeypatch):
    target = tmp_path / "report.html"
    c = make_comparison("regression", 1)
    assert write_report(c, target) == target
    assert target.read_text(encoding="utf-8") == render(c)
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~mask

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(dataclasses.replace(c, title="new"), target)
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    assert target.read_text(encoding="utf-8") == render(c)


def test_a_missing_folder_and_a_wrong_task_are_named(make_comparison, tmp_path):
    c = make_comparison("regression", 1)
    with pytest.raises(FileNotFoundError, match="Create it"):
        write_report(c, tmp_path / "nowhere" / "report.html")
    with pytest.raises(ValueError, match="RegressionPredictions, but the task is classification"):
        dataclasses.replace(c, task="classification")
    with pytest.raises(ValueError, match="'regression' or 'classification'"):
        dataclasses.replace(c, task="ranking")


def test_the_same_comparison_gives_the_same_page(make_comparison):
    assert render(make_comparison()) == render(make_comparison())
