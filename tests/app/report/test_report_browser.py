"""The report as a person meets it: in a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import chromium

from bayesrule.app.report import write_report

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Headless Chromium with a profile of its own."""
    with chromium(tmp_path_factory.mktemp("profile")) as session:
        yield session


@pytest.fixture(params=["regression", "classification"])
def page(request: pytest.FixtureRequest, browser: Any, make_comparison: Any, tmp_path: Path) -> Any:
    """The browser with a fresh report open; the log must be empty when the test ends."""
    report = write_report(make_comparison(request.param, 5), tmp_path / "report.html")
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(report.as_uri())
    yield browser
    assert browser.get_log("browser") == []


def script(page: Any, text: str) -> Any:
    return page.execute_script(f"return {text}")


def method_names(page: Any) -> list[str]:
    return script(page, "[...document.querySelectorAll('tbody th b')].map(e => e.textContent)")


def header(page: Any, name: str) -> Any:
    return page.find_element("xpath", f"//thead//th[.//span[text()='{name}']]")


def test_nothing_is_fetched(page: Any) -> None:
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    sent = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
    asked = {e["request"]["url"] for e in sent if e["documentURL"] == page.current_url}
    assert asked - {"data:,"} == {page.current_url}  # data:, is the empty icon


def test_a_click_sorts_and_a_second_one_reverses(page: Any) -> None:
    column = header(page, "Training seconds")
    assert column.get_attribute("aria-sort") == "none"
    button = column.find_element("tag name", "button")
    before = method_names(page)
    button.click()
    rising = method_names(page)
    assert column.get_attribute("aria-sort") == "ascending"
    button.click()
    falling = method_names(page)
    assert column.get_attribute("aria-sort") == "descending"
    # The failed method has no value and stays last in both directions.
    assert rising[-1] == falling[-1] == "newton"
    assert falling[:-1] == rising[:-1][::-1]
    assert sorted(before) == sorted(rising)
    assert falling != before
    sorts = script(
        page, "[...document.querySelectorAll('thead th')].filter(t => t.ariaSort != 'none').length"
    )
    assert sorts == 1


def test_the_first_click_puts_the_best_first_and_the_keyboard_sorts_too(page: Any) -> None:
    names = script(page, "[...document.querySelectorAll('thead .name')].map(e => e.textContent)")
    for name in names[1:]:
        button = header(page, name).find_element("tag name", "button")
        if header(page, name).get_attribute("aria-sort") == "none":
            button.send_keys("\ue007")  # Enter
        column = names.index(name)
        first = script(
            page, f"document.querySelector('tbody tr').cells[{column}].classList.contains('best')"
        )
        assert first, name


def test_pictures_are_there_with_marks_that_have_a_size(page: Any) -> None:
    shown = script(
        page,
        """[...document.querySelectorAll('svg.plot')]
            .filter(s => s.checkVisibility())
            .map(s => ({
                box: s.getBoundingClientRect().toJSON(),
                marks: [...s.querySelectorAll('.frame :is(path, circle, rect)')]
                    .filter(m => { const b = m.getBoundingClientRect();
                                   return b.width > 0 || b.height > 0; }).length,
                label: s.getAttribute('aria-label'),
            }))""",
    )
    regression = "Concrete" in page.title
    assert len(shown) == (6 if regression else 8)
    for picture in shown:
        assert picture["box"]["width"] > 200, picture
        assert picture["box"]["height"] > 100, picture
        assert picture["marks"] >= 5, picture
        assert picture["label"]


COLOURED = """[...new Set([...document.querySelectorAll('.compared .series')]
    .filter(e => !e.classList.contains('behind')).map(e => e.dataset.method))]"""


def test_the_legend_puts_a_method_behind_and_back_in_colour(page: Any) -> None:
    chip = page.find_element("css selector", '.chip[data-toggles="1"]')
    before = script(page, COLOURED)
    chip.click()
    assert chip.get_attribute("aria-pressed") == "false"
    assert sorted([*script(page, COLOURED), "1"]) == sorted(before)
    grey = "getComputedStyle(document.querySelector('.compared .series.behind')).color"
    own = script(page, f"[{grey}, getComputedStyle(document.querySelector('.c1')).color]")
    assert own[0] != own[1]
    chip.click()
    assert sorted(script(page, COLOURED)) == sorted(before)
    # What has a colour lies on top.
    last = "[...document.querySelectorAll('#learning .frame')].map(f => f.lastChild.dataset.method)"
    assert set(script(page, last)) == {"1"}
    page.find_element("css selector", '[data-all="false"]').click()
    assert script(page, COLOURED) == []
    page.find_element("css selector", '[data-all="true"]').click()
    assert sorted(script(page, COLOURED)) == sorted(before)


def shown_panels(page: Any, group: str) -> list[str]:
    return script(
        page,
        f"[...document.querySelectorAll('#{group} > .panel')]"
        ".filter(p => p.checkVisibility()).map(p => p.dataset.panel)",
    )


def test_selectors_change_the_shown_pictures(page: Any) -> None:
    from selenium.webdriver.support.ui import Select

    assert shown_panels(page, "closer") == ["0"]
    choice = page.find_element("id", "closer-choice")
    Select(choice).select_by_value("3")
    assert shown_panels(page, "closer") == ["3"]
    page.find_element("css selector", '[data-step="1"]').click()
    assert shown_panels(page, "closer") == ["4"]
    page.find_element("css selector", '[data-step="1"]').click()
    assert shown_panels(page, "closer") == ["0"]
    metric = page.find_element("css selector", '[data-picks="scores"]')
    Select(metric).select_by_value("seconds")
    assert shown_panels(page, "scores") == ["seconds"]


def test_a_name_in_the_table_leads_to_the_method(page: Any) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    link = page.find_element("css selector", 'tbody a[href="#method-2"]')
    # A page that scrolls smoothly would move under the mouse.
    page.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", link)
    link.click()
    # The browser tells the page of a new address a moment later.
    WebDriverWait(page, 20).until(lambda _: shown_panels(page, "closer") == ["2"])


def test_resting_on_a_mark_tells_its_value(page: Any) -> None:
    from selenium.webdriver import ActionChains

    mark = page.find_element("css selector", "#scores .panel:not([hidden]) .point circle")
    # A scroll hides the tip; its event comes a frame later.
    page.execute_async_script(
        "arguments[0].scrollIntoView({block: 'center'});"
        "requestAnimationFrame(() => requestAnimationFrame(arguments[1]))",
        mark,
    )
    ActionChains(page).move_to_element(mark).perform()
    tip = page.find_element("id", "tip")
    assert tip.is_displayed()
    assert tip.text.startswith("noisy_kfac: ")


def test_light_and_dark_differ_and_can_be_chosen(page: Any) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    first = script(page, ground)
    page.find_element("id", "theme").click()
    assert script(page, ground) != first
    page.find_element("id", "theme").click()
    assert script(page, ground) == first


def test_a_phone_needs_no_sideways_scrolling(page: Any) -> None:
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        assert script(page, "document.documentElement.scrollWidth") == 390
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
