"""What all scripts in this folder share: the output file, and `--help`."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any


def draw(picture: Callable[[], Any], words: str) -> None:
    """Write a picture, an svg or a matplotlib figure, to the file named on the command line."""
    name = Path(sys.argv[0]).stem
    parser = argparse.ArgumentParser(
        description=words, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path, default=Path(f"{name}.svg"))
    target = parser.parse_args().file
    drawn = picture()
    if isinstance(drawn, str):
        target.write_text(drawn, encoding="utf-8")
    else:
        text = StringIO()
        drawn.savefig(text, format="svg", metadata={"Date": None})
        target.write_text(_rounded(text.getvalue()), encoding="utf-8")
    print(target)


def _rounded(svg: str) -> str:
    """The svg with coordinates of two decimals, which is all that anyone sees."""
    places = re.compile(r' (?:d|x|y|transform)="[^"]*"')
    return places.sub(lambda match: re.sub(r"(\d\.\d\d)\d+", r"\1", match[0]), svg)
