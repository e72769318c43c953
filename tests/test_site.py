"""The site as it is built, and as a person meets it: links, size, pictures, search, two widths."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import cache, partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from browsing import chromium

from benchmarks import site

ROOT = Path(__file__).resolve().parents[1]
LARGEST = 15e6
PAGES = ("index.html", "gallery.html", "choosing.html", "how-to/weights.html", "results.html")
WIDTHS = {"desktop": (1280, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a site that was built without a warning."""
    if not importlib.util.find_spec("mkdocs"):
        pytest.skip("needs mkdocs-material")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [*command, str(folder)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder


# The files


class Links(HTMLParser):
    """Where a page leads, what it shows, and the places in it that others may lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.to: set[str] = set()
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.to.add(value)
            elif value and name in ("id", "name"):
                self.places.add(value)


@cache
def links(page: Path) -> Links:
    return Links(page.read_text(encoding="utf-8"))


def broken(page: Path, link: str, folder: Path) -> bool:
    """Whether a link within the site leads nowhere."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return False
    path = unquote(parts.path)
    start = folder if path.startswith("/") else page.parent
    target = (start / path.lstrip("/")).resolve() if path else page
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return True
    place = unquote(parts.fragment)
    return bool(place) and target.suffix == ".html" and place not in links(target).places


def test_no_link_within_the_site_is_broken(built: Path) -> None:
    pages = sorted(page for page in built.rglob("*.html") if page.name != "404.html")
    assert len(pages) > 40
    wrong = [
        f"{page.relative_to(built)} -> {link}"
        for page in pages
        for link in sorted(links(page).to)
        if broken(page, link, built)
    ]
    assert wrong == []


def test_a_broken_link_would_be_seen(tmp_path: Path) -> None:
    page, other = tmp_path / "one.html", tmp_path / "other.html"
    page.write_text('<a href="other.html#there"></a><img src="no.svg"><a href="other.html#no">')
    other.write_text('<h2 id="there">')
    found = {link for link in links(page).to if broken(page, link, tmp_path)}
    assert found == {"no.svg", "other.html#no"}


def test_the_site_is_small(built: Path) -> None:
    assert sum(file.stat().st_size for file in built.rglob("*") if file.is_file()) < LARGEST


def test_every_public_name_has_a_place_on_the_site(built: Path) -> None:
    for page in site.api_pages():
        room = Path(page).stem
        module = importlib.import_module(site.module_of(room))
        places = links(built / "api" / f"{room}.html").places
        heads = {place.rpartition(".")[2].lower() for place in places}
        assert [name for name in site.public(module) if name.lower() not in heads] == [], room


# In a browser


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(built: Path) -> Iterator[str]:
    """Where the site is served."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(built)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as session:
        yield session


@pytest.fixture(params=WIDTHS)
def window(request: pytest.FixtureRequest, browser: Any) -> Iterator[Any]:
    """The browser at one width, with an empty log; nothing may be in it when the test ends."""
    width, height = WIDTHS[request.param]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get_log("browser")
    browser.get_log("performance")
    yield browser
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def opened(browser: Any, url: str, scheme: str = "light") -> None:
    """A page as someone meets it whose system is light or dark, with all its pictures asked for."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(url)
    if browser.execute_script("return localStorage.length"):  # What an earlier page chose.
        browser.execute_script("localStorage.clear()")
        browser.refresh()
    browser.execute_script("document.querySelectorAll('img').forEach(i => i.loading = 'eager')")
    until(browser, "[...document.images].every(i => i.complete)")


def until(browser: Any, condition: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 20).until(lambda b: b.execute_script(f"return {condition}"))


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_looks_right(page: str, scheme: str, address: str, window: Any) -> None:
    opened(window, f"{address}/{page}", scheme)
    empty = "[...document.images].filter(i => i.naturalWidth == 0).map(i => i.src)"
    assert window.execute_script(f"return {empty}") == []
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert window.execute_script(f"return {wide}") == 0
    shown = "document.body.getAttribute('data-md-color-scheme')"
    assert window.execute_script(f"return {shown}") == {"light": "default", "dark": "slate"}[scheme]
    assert {
        url for url in asked(window) if not url.startswith((address, "data:", "blob:"))
    } == set()


def asked(browser: Any) -> set[str]:
    """Every address that the page asked for."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
    return {e["request"]["url"] for e in sent if e["documentURL"].startswith("http")}


@pytest.mark.browser
def test_search_finds_a_method(address: str, window: Any) -> None:
    opened(window, f"{address}/index.html")
    window.execute_script("document.querySelector('[data-md-toggle=search]').click()")
    field = window.find_element("css selector", "[data-md-component=search-query]")
    until(window, "document.querySelector('[data-md-component=search-query]').checkVisibility()")
    field.send_keys("vogn")
    found = "document.querySelectorAll('.md-search-result__item').length"
    until(window, f"{found} > 3")
    texts = "[...document.querySelectorAll('.md-search-result__item')].map(e => e.innerText)"
    assert any("vogn" in text for text in window.execute_script(f"return {texts}"))
