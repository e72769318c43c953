"""States on disk: written atomically, read with safetensors, never unpickled."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesrule.learner import Learner
from bayesrule.predicting.outputs import CALIBRATION
from bayesrule.tensors import tree
from bayesrule.types import State

Place = str | os.PathLike[str]
OtherForm = tuple[State, Callable[[State], State]]

Epoch = dict[str, float]
"""Figures of one epoch: epoch, step, loss (per example), validation, seconds."""


HALF_WRITTEN = ".bayesrule.part"
"""The end of the name of a file that is still being written."""


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or read; what was there before is untouched."""


def save(path: Place, state: State, **facts: Any) -> Path:
    """Writes a state and some json-able facts to one file; readers see the old file or the new one.

    The bytes go to a temporary file beside it, reach the disk, and only then take the given name.
    """
    write_atomically(Path(path), payload(state, **facts))
    return Path(path)


def payload(state: State, **facts: Any) -> bytes:
    """The bytes of a state and some json-able facts."""
    leaves = dict(tree.leaves(state))
    tensors = {k: v.detach().contiguous() for k, v in leaves.items() if isinstance(v, Tensor)}
    numbers = {k: v for k, v in leaves.items() if k not in tensors}
    metadata = {"numbers": json.dumps(numbers), "facts": json.dumps(facts)}
    return _safetensors().save({k: v.clone() for k, v in tensors.items()}, metadata)


# Files of former versions lack these.
_ADDED = ("rule/seen", "posterior/bounded")


def load(
    path: Place, template: State, other_form: OtherForm | None = None
) -> tuple[State, dict[str, Any]]:
    """The state in a file and its facts; `template` is any state of the same learner.

    A method may keep its posterior in another form on another device; a state in that form is
    converted by `other_form(learner)`.
    """
    tensors, metadata = read(Path(path))
    numbers, facts = metadata["numbers"], metadata["facts"]
    if other_form is not None:
        first, adopted = other_form
        if set(_names_in_file(first, tensors).values()) == set(tensors):
            return adopted(_filled(path, tensors, numbers, first)), facts
    return _filled(path, tensors, numbers, template), facts


def other_form(learner: Learner, seed: int = 0) -> OtherForm | None:
    """An initial state in the form that it has on another device, and the conversion from it.

    None where the form is the same on all devices.
    """
    family = learner.family.other_form()
    if family is None:
        return None
    weight = learner.weight
    posterior = family.init(learner.network.params(), weight=weight, prior=learner.prior)
    memory = learner.rule.init(family, posterior, weight)

    def adopted(state: State) -> State:
        posterior, turn = learner.family.adopted(state.posterior)
        memory = learner.rule.adopted(state.rule, turn, posterior, weight)
        return replace(state, posterior=posterior, rule=memory)

    return replace(learner.init(seed), posterior=posterior, rule=memory), adopted


def _filled(
    path: Place, tensors: dict[str, Tensor], numbers: dict[str, Any], template: State
) -> State:
    """The template, filled with the tensors and numbers of a file."""
    # Calibration is learned at the end of training, so no first state has it.
    like = template.posterior.any_tensor
    learned = {k: like.new_zeros(()) for k in CALIBRATION if f"likelihood/{k}" in tensors}
    template = replace(template, likelihood={**template.likelihood, **learned})
    names = _names_in_file(template, tensors)

    def leaf(name: str, old: Any) -> Any:
        written: dict[str, Any] = tensors if isinstance(old, Tensor) else numbers
        if name in _ADDED and names.get(name, name) not in written:
            return old
        if names.get(name, name) not in written:
            raise _mismatch(path, f"{name!r} is missing")
        if not isinstance(old, Tensor):
            return _number(path, name, numbers[name], type(old))
        # Copied into memory that torch aligns: how products round may depend on the alignment.
        new = tensors[names[name]].clone().to(old.device)
        # What a likelihood learns may get its shape from the first batch.
        if new.shape != old.shape and not name.startswith("likelihood/"):
            shape, wanted = tuple(new.shape), tuple(old.shape)
            raise _mismatch(path, f"{name!r} is {shape} and should be {wanted}")
        if new.dtype != old.dtype:
            raise _mismatch(path, f"{name!r} is {new.dtype} and should be {old.dtype}")
        return new

    if extra := sorted(set(tensors) - set(names.values())):
        raise _mismatch(path, f"it also holds {extra[0]!r}")
    return tree.rebuild(template, leaf)


def _number(path: Place, name: str, value: Any, kind: type) -> Any:
    """A number from a file; raises unless it has the expected type and is in range."""
    fits = type(value) in ((int, float) if kind is float else (kind,))
    # Comparisons with NaN are false.
    if not fits or not (0 if name == "step" else -(2**63)) <= value < 2**64:
        raise damaged(path, f"its {name!r} is {str(value)[:40]!r}")
    return kind(value)


# Patterns in the names of tensors, and what the former version wrote in their place.
_FORMER_NAMES = (
    (r"^likelihood/", "noise/"),
    (r"^rule/momentum/", "rule/gradient/"),
    (r"/blocks/\*/values/", "/rest/"),
    (r"/blocks/", "/layers/"),
    (r"^posterior/parts/[^/]*/(mean|scales)/", r"posterior/\1/"),
    (r"^posterior/parts/[^/]*/precision/", "posterior/precision/inner/"),
)


def _names_in_file(template: State, tensors: dict[str, Tensor]) -> dict[str, str]:
    """The name in a file of each tensor of a state: its present name, or the former one."""
    names = [name for name, old in tree.leaves(template) if isinstance(old, Tensor)]
    former = {name: [re.sub(new, old, name) for new, old in _FORMER_NAMES] for name in names}
    return {
        name: next((key for key in (name, *former[name]) if key in tensors), name) for name in names
    }


def facts(path: Place) -> dict[str, Any]:
    """The facts of a file."""
    return read(Path(path))[1]["facts"]


def write_atomically(
    target: Path, payload: bytes, before: Callable[[], None] | None = None
) -> None:
    """Writes bytes so that the file always holds either the old content or the new one.

    A link stays a link, and an existing file keeps its permissions. `before` is called once the
    bytes are on the disk, just before they take the name.
    """
    target = Path(os.path.realpath(target))
    temporary = target.with_name(f".{target.name}.{os.getpid()}{HALF_WRITTEN}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            os.chmod(temporary, stat.S_IMODE(target.stat().st_mode))
        if before is not None:
            before()
        os.replace(temporary, target)
    except OSError as problem:
        kept = " The file that was there is untouched." if target.exists() else ""
        raise CheckpointError(
            f"Cannot write {target} ({len(payload):,} bytes): {problem.strerror or problem}.{kept} "
            "Free some space or choose another folder, then start again: the run resumes."
        ) from problem
    finally:
        # A failure here must not hide the one above.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def is_checkpoint(path: Path) -> bool:
    """Whether a file has the header that `save` writes."""
    try:
        return _metadata(path).keys() >= {"numbers", "facts"}
    except CheckpointError:
        return False


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, dict[str, Any]]]:
    """The tensors of a file, and its `numbers` and `facts`."""
    if not path.is_file():
        raise CheckpointError(f"There is no checkpoint {path}.")
    written = _metadata(path)
    with _readable(path):
        metadata = {name: json.loads(written[name]) for name in ("numbers", "facts")}
        tensors = _safetensors().load_file(path)
    for name, table in metadata.items():
        if not isinstance(table, dict):
            raise damaged(path, f"its {name} are {type(table).__name__}, not a table")
    return tensors, metadata


def _metadata(path: Path) -> dict[str, str]:
    _safetensors()
    from safetensors import safe_open

    with _readable(path), safe_open(path, framework="pt") as file:
        return file.metadata() or {}


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turns what a damaged file raises into a `CheckpointError`."""
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
        raise damaged(path, problem) from problem


def damaged(path: Place, what: object) -> CheckpointError:
    """The error for a file that no run can have written."""
    return CheckpointError(
        f"{path} is not a whole checkpoint ({what}). Nothing was changed; remove the file to start "
        "over, or restore it from a copy."
    )


def _mismatch(path: Place, what: str) -> CheckpointError:
    return CheckpointError(
        f"{path} was written by another model or method: {what}. Use the same model and method, or "
        "another folder."
    )


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as problem:
        raise ImportError(
            "Checkpoints need safetensors: pip install 'bayesrule[front]'."
        ) from problem
    return safetensors.torch


def same(a: State, b: State) -> bool:
    """Whether two states are equal bit for bit."""
    return _bits(a) == _bits(b)


def _bits(state: State) -> dict[str, Any]:
    """Tensors as type, shape and bytes, so that NaN equals itself and 0 differs from −0."""
    leaves: dict[str, Any] = dict(tree.leaves(state))
    for name, leaf in leaves.items():
        if isinstance(leaf, Tensor):
            flat = leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            leaves[name] = leaf.dtype, leaf.shape, flat.numpy().tobytes()
    return leaves
