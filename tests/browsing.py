"""A headless Chromium for tests of what a person sees."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--window-size=1280,900 --force-prefers-reduced-motion"
)


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A session with a profile of its own, its log and its network log switched on."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (binary and driver and importlib.util.find_spec("selenium")):
        lacking = "needs selenium, and chromium and chromedriver on PATH"
        if os.environ.get("BAYESRULE_REQUIRE_BROWSER") == "1":
            pytest.fail(f"BAYESRULE_REQUIRE_BROWSER=1, but this test {lacking}.")
        pytest.skip(lacking)
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS.split(), f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    session = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield session
    finally:
        session.quit()
