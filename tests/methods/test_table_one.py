"""The paper's table: every row has a name in the library, a page and a proof."""

from __future__ import annotations

import json
import operator
import re
from pathlib import Path

import pytest

import bayesrule as br
from bayesrule.__main__ import main
from bayesrule.methods import METHODS
from bayesrule.methods.table_one import TABLE_ONE, TableRow

ROOT = Path(__file__).resolve().parents[2]


def test_all_rows_of_the_paper_are_there() -> None:
    groups = [row.group for row in TABLE_ONE]
    counts = [groups.count(one) for one in dict.fromkeys(groups)]
    assert counts == [3, 7, 7]
    assert len({row.algorithm for row in TABLE_ONE}) == 17
    assert all("sec. " in row.where and "eq" in row.where for row in TABLE_ONE)


@pytest.mark.parametrize("row", TABLE_ONE, ids=lambda row: row.algorithm)
def test_names_pages_and_proofs_exist(row: TableRow) -> None:
    assert row.names
    for name in row.names:
        assert callable(operator.attrgetter(name)(br))
    page, _, section = row.page.partition("#")
    headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(), flags=re.MULTILINE)
    assert section in [re.sub(r"[^\w]+", "-", heading.lower()).strip("-") for heading in headings]
    file, _, test = row.proof.partition("::")
    assert re.search(rf"^def {test}\(", (ROOT / file).read_text(), flags=re.MULTILINE)


def test_methods_of_the_table_have_records() -> None:
    named = {name for row in TABLE_ONE for name in row.names if not name.startswith("graphical.")}
    assert named - {*METHODS} == {"find_minima"}


def test_the_command_prints_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    printed = capsys.readouterr().out
    assert main(["methods", "--paper"]) == 0
    table = capsys.readouterr().out
    assert table in printed
    for row in TABLE_ONE:
        assert row.algorithm in table
        assert row.where in table
        assert f"{row.page} " in table
        assert row.proof in table
    assert main(["methods", "--paper", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [one["algorithm"] for one in rows] == [row.algorithm for row in TABLE_ONE]
