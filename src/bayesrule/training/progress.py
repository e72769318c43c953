"""A progress bar on the terminal: rate, time left, loss and validation score."""

from __future__ import annotations

import sys
from typing import Any

from bayesrule.tensors import distributed


class Progress:
    """Shows how far a run is, on the first rank only.

    While nobody knows when the run ends `total` is None, and the bar counts steps. `show` is True,
    False or None: None shows a bar only on a terminal.
    """

    def __init__(self, total: int | None, done: int, title: str, show: bool | None) -> None:
        # Programs without a console have no stderr at all.
        wanted = sys.stderr is not None and sys.stderr.isatty() if show is None else show
        shown = wanted and distributed.is_main()
        self._bar = _tqdm(total=total, initial=done, desc=title) if shown else None
        self._notes: dict[str, str] = {}

    def ends_at(self, total: int) -> None:
        """Sets the number of steps after which the run ends."""
        if self._bar is not None:
            self._bar.total = total

    def advance(self, steps: int = 1) -> None:
        """Moves the bar; backwards where steps are taken again."""
        if self._bar is not None:
            self._bar.update(steps)

    def note(self, **figures: float | None) -> None:
        """Shows figures beside the bar."""
        if self._bar is not None:
            new = {name: f"{value:.4g}" for name, value in figures.items() if value is not None}
            self._notes.update(new)
            self._bar.set_postfix(self._notes, refresh=False)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *problem: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _tqdm(**options: Any) -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        print("A progress bar needs tqdm: pip install 'bayesrule[front]'.", file=sys.stderr)
        return None
    return tqdm(unit="step", dynamic_ncols=True, leave=False, file=sys.stderr, **options)
