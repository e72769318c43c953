"""The generated parts of the site: its navigation, the API and all kept results."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

from benchmarks.gallery import gallery_page
from benchmarks.tables.calls import call

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"
MOST_ROWS = 60
# The place of a table that another page has between its markers.
_TABLE = re.compile(r"<!-- table: (\S+) of (\S+) -->")
# Pages by section; a pattern takes all pages that no section has named.
SECTIONS: dict[str, list[str]] = {
    "Start here": ["index.md", "start/index.md", "start/*.md", "tour.md"],
    "Choosing a method": ["choosing.md", "defaults.md", "methods.md"],
    "How-to": ["how-to/index.md", "how-to/*.md", "clusters.md", "add-a-method.md"],
    "Gallery": ["gallery.md"],
    "Understanding": ["architecture.md", "papers/*.md", "*.md"],
    "API": ["api/*.md"],
    "Benchmarks": ["speed.md", "images.md", "transformers.md", "uci.md", "results.md"],
}


def navigation(pages: set[str]) -> list[dict[str, list[str]]]:
    """The sections with their pages, which are found in docs/."""
    named = {name for names in SECTIONS.values() for name in names}
    nav = []
    for title, patterns in SECTIONS.items():
        found = []
        for pattern in patterns:
            if "*" not in pattern:
                found += [pattern] if pattern in pages else []
                continue
            folder = pattern.rpartition("/")[0]
            found += sorted(name for name in pages - named if name.rpartition("/")[0] == folder)
        nav.append({title: found})
    return nav


def api_pages() -> dict[str, str]:
    """A page for the top of the library and one for each namespace, each name by its docstring."""
    top = importlib.import_module("bayesrule")
    rooms = [name for name in top.__all__ if inspect.ismodule(getattr(top, name))]
    extra = ["likelihoods", "expectations", "rules", "predicting", "training", "sklearn"]
    extra += ["families", "hmc", "integrations.hugging_face", "integrations.lightning"]
    pages = {"api/bayesrule.md": _api("bayesrule", top, set(rooms))}
    for room in dict.fromkeys([*rooms, *extra]):
        module = importlib.import_module(module_of(room))
        pages[f"api/{room}.md"] = _api(f"bayesrule.{room}", module, set())
    return pages


def module_of(room: str) -> str:
    """The module that a page of the API is about."""
    return {"bayesrule": room, "metrics": "bayesrule.predicting.metrics"}.get(
        room, f"bayesrule.{room}"
    )


def public(module: Any) -> list[str]:
    """The names that a module offers: those it lists, or those it defines."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]


def _api(title: str, module: Any, rooms: set[str]) -> str:
    lines = [f"# {title}", "", inspect.getdoc(module) or "", ""]
    for name in public(module):
        if name in rooms:
            continue
        value = getattr(module, name)
        home = getattr(value, "__module__", None)
        if not str(home).startswith("bayesrule") or not hasattr(value, "__qualname__"):
            lines += [f"## {name}", "", f"A value: `{str(value)[:80]}`.", ""]
        elif value.__name__ in public(module) and value.__name__ != name:
            lines += [f"## {name}", "", f"Another name of `{value.__name__}`.", ""]
        else:
            lines += [f"::: {home}.{value.__qualname__}", ""]
    return "\n".join(lines)


def results_page() -> str:
    """Every kept result with its command, machine and figures."""
    lines = [
        "# All results",
        "",
        "Every file of `benchmarks/results/`, with the command that made it. Nested numbers are "
        "in the files.",
        "",
    ]
    for file in sorted(RESULTS.glob("*.json")):
        result = json.loads(file.read_text())
        torch = result.get("versions", {}).get("torch", "?")
        lines += [f"## {file.stem}", "", f"`{call(result)}`", ""]
        lines += [f"torch {torch}, {result.get('machine', '?')}. {result.get('note', '')}", ""]
        lines += [_table(_rows(result)), ""]
    return "\n".join(lines)


def _rows(result: dict[str, Any]) -> list[dict[str, str]]:
    """The figures of a result as rows of plain cells."""
    found = next((result[k] for k in ("results", "history", "references") if k in result), None)
    if isinstance(found, list) and found and isinstance(found[0], dict):
        return [_cells(row) for row in found]
    if isinstance(found, dict):
        return [{"what": key, **_cells(row)} for key, row in found.items()]
    return [{"what": k, "found": v} for k, v in _cells(result).items()]


def _cells(row: Any) -> dict[str, str]:
    """Numbers and words of a row; nested ones have joined names."""
    if not isinstance(row, dict):
        return {"value": _shown(row)}
    cells: dict[str, str] = {}
    for key, value in row.items():
        if key in ("command", "machine", "versions", "note", "remarks"):
            continue
        if isinstance(value, dict):
            inner = {k: v for k, v in value.items() if isinstance(v, int | float | str)}
            cells |= {f"{key}: {k}": _shown(v) for k, v in list(inner.items())[:12]}
        elif isinstance(value, int | float | str):
            cells[key] = _shown(value)
    return cells


def _shown(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "/").replace("\n", " ")[:80]


def _table(rows: list[dict[str, str]]) -> str:
    heads = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(row.get(h, "") for h in heads) + " |" for row in rows[:MOST_ROWS]]
    more = len(rows) - MOST_ROWS
    return "\n".join([*lines, *([f"\n{more} more rows are in the file."] if more > 0 else [])])


def with_tables(text: str, depth: int = 0) -> str:
    """A page with the tables of other pages filled in, so that figures are kept in one place.

    `depth` is how many folders the page is below docs/, to which the tables' links are relative.
    """

    def table(found: re.Match[str]) -> str:
        marker, page = found.groups()
        whole = (DOCS / page).read_text(encoding="utf-8")
        found_table = whole.split(f"<!-- {marker}:begin -->")[1].split(f"<!-- {marker}:end -->")[0]
        return re.sub(r"\]\((?!https?:)", "](" + "../" * depth, found_table.strip())

    return _TABLE.sub(table, text)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fills in a page's tables; called by MkDocs."""
    return with_tables(markdown, page.file.src_uri.count("/"))


def on_files(files: Any, config: Any) -> Any:
    """Adds the generated pages and the navigation; called by MkDocs."""
    from mkdocs.structure.files import File

    made = {**api_pages(), "results.md": results_page(), "gallery.md": gallery_page()}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    config.nav = navigation({file.src_uri for file in files.documentation_pages()})
    return files
