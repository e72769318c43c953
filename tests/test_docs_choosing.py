"""The page on which method to take: it speaks of what there is, and of all that compare trains."""

import re
from pathlib import Path

import pytest

from bayesrule.methods import METHODS, Need, record

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = (DOCS / "choosing.md").read_text()
ADVICE = PAGE.split("## ")[0]
TAKE = [row.split("|")[2] for row in ADVICE.splitlines() if row.startswith("| ")][1:]
NAMED = {name for cell in TAKE for name in re.findall(r"`(\w+)`", cell)} & {*METHODS}


def test_the_readme_leads_to_it() -> None:
    assert "(docs/choosing.md)" in (DOCS.parent / "README.md").read_text()


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_there_or_has_a_relative_that_is(name: str) -> None:
    if Need.SCALED_LAYERS in record(name).needs:
        pytest.skip("not for the nets of tables")
    assert {name, record(name).represented_by} & NAMED
