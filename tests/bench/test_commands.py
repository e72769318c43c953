"""The grammar of the benchmarks: each command teaches, and documents name only what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from calling import bench, only_line

from benchmarks.__main__ import COMMANDS
from benchmarks.tables import documents

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted(str(file.relative_to(ROOT)) for file in (ROOT / "docs").rglob("*.md"))
KINDS = re.findall(r"^    (\w+)", bench("--help").out, flags=re.MULTILINE)


def test_the_help_lists_all_commands() -> None:
    assert len(KINDS) == len(COMMANDS)


@pytest.mark.parametrize("kind", KINDS)
def test_help_says_what_it_does_and_shows_examples(kind: str) -> None:
    said = bench(kind, "--help")
    assert said.code == 0
    assert f"usage: python -m benchmarks {kind}" in said.out
    for example in re.findall(r"^  (python -m benchmarks .*)$", said.out, flags=re.MULTILINE):
        options = set(re.findall(r"--[\w-]+", example))
        assert options <= set(re.findall(r"--[\w-]+", said.out.split("examples:")[0]))
    assert f"python -m benchmarks {kind}" in said.out.split("examples:")[1]


def test_a_wrong_word_is_answered_in_one_line() -> None:
    assert "'sped'" in only_line(bench("sped"))
    assert "--rouns" in only_line(bench("speed", "--rouns", "3"))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *DOCS])
def test_documents_name_commands_that_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    assert not re.search(r"bayesrule bench|python benchmarks/", text)
    for kind, options in re.findall(r"python -m benchmarks (\w+)([^`;]*)", text):
        assert kind in KINDS
        known = bench(kind, "--help").out
        assert [one for one in re.findall(r"--[\w-]+", options) if one not in known] == []


def test_tables_are_up_to_date_and_are_written_where_they_are_not(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for name in documents.DOCUMENTS:
        (tmp_path / name).write_text((ROOT / name).read_text())
    assert documents.write(tmp_path) == []
    page = tmp_path / "docs" / "uci.md"
    begin = "<!-- uci:begin -->"
    page.write_text(page.read_text().replace(begin, f"{begin}\nsomething old"))
    assert documents.write(tmp_path) == ["docs/uci.md"]
    assert page.read_text() == (ROOT / "docs" / "uci.md").read_text()
