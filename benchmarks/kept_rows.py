"""The rows in an earlier result of a benchmark."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bayesrule.training.checkpoint import CheckpointError


def kept_rows(
    file: Path,
    benchmark: str,
    plan: Mapping[str, Any],
    *,
    rows: str,
    key: Callable[[dict[str, Any]], object],
) -> list[dict[str, Any]]:
    """The rows under the name `rows`; none if there is no file.

    A file of another benchmark or plan is refused, so that results of two settings are never mixed.
    `key` returns the key of a row.
    """
    if not file.exists():
        return []
    try:
        found = json.loads(file.read_text())
        known, other = list(found[rows]), found["benchmark"] != benchmark
        for one in known:
            key(one)
    except (ValueError, KeyError, TypeError) as problem:
        raise _refused(file, "holds no result of this benchmark") from problem
    if other:
        raise _refused(file, "holds the result of another benchmark")
    facts = found.get("plan", found)
    for name, mine in plan.items():
        if facts.get(name) != mine:
            theirs = facts.get(name)
            raise _refused(file, f"was made with {name}={theirs}, this is to have {name}={mine}")
    return known


def _refused(file: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"'{file}' {why}, so it is left as it is. Choose another file with --out."
    )
