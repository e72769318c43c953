"""The gallery of the site: every example with its picture, what it shows, and its code."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES, PICTURES = ROOT / "examples", ROOT / "docs" / "pictures"


def gallery_page() -> str:
    """The page of all examples, the README's first."""
    lines = [
        "# Gallery",
        "",
        "The programs of `examples/`, each with the picture that it draws.",
        "",
        '<div class="gallery">',
        *map(_thumbnail, examples()),
        "</div>",
        "",
    ]
    for file in examples():
        lines += [_entry(file), ""]
    return "\n".join(lines)


def examples() -> list[Path]:
    """The examples that draw a picture, the one of the README first."""
    scripts = (file for file in EXAMPLES.glob("[!_]*.py") if "[FILE.svg]" in file.read_text())
    return sorted(scripts, key=lambda file: (file.stem != "one_dimension", file.stem))


def _thumbnail(file: Path) -> str:
    """A small picture that links to its entry."""
    name = file.stem.replace("_", " ")
    picture = f'<img src="pictures/{file.stem}.svg" alt="" loading="lazy">'
    return f'<a href="#{file.stem}">{picture}<span>{name}</span></a>'


def _entry(file: Path) -> str:
    code = file.read_text(encoding="utf-8")
    title, command, *words = (ast.get_docstring(ast.parse(code)) or "").split("\n\n")
    head, text = title.rstrip(".").removesuffix(", as a picture"), "\n\n".join(words)
    picture = f"![{head}](pictures/{file.stem}.svg)"
    indented = "\n".join(f"    {line}".rstrip() for line in code.splitlines())
    source = f'??? example "examples/{file.name}"\n\n    ```python\n{indented}\n    ```\n'
    return (
        f"## {head} {{: #{file.stem} }}\n\n{picture}\n\n{text}\n\n`{command.strip()}`\n\n{source}"
    )
