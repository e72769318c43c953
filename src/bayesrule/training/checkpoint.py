"""States on disk: written atomically, read with safetensors, never unpickled."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesrule.learner import Learner
from bayesrule.tensors import tree
from bayesrule.types import State

OtherForm = tuple[State, Callable[[State], State]]


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or read; what was there before is untouched."""


def save(path: str | os.PathLike[str], state: State, **facts: Any) -> Path:
    """Writes a state and some json-able facts to one file; readers see the old file or the new one.

    Under the given name there is always a whole file: the bytes go to a temporary file beside it,
    reach the disk, and only then take the name.
    """
    target = Path(path)
    tensors, numbers = {}, {}
    for name, leaf in tree.leaves(state):
        if isinstance(leaf, Tensor):
            tensors[name] = leaf.detach().contiguous()
        else:
            numbers[name] = leaf
    metadata = {"numbers": json.dumps(numbers), "facts": json.dumps(facts)}
    payload = _safetensors().save({k: v.clone() for k, v in tensors.items()}, metadata)
    write_atomically(target, payload)
    return target


def load(
    path: str | os.PathLike[str], template: State, other_form: OtherForm | None = None
) -> tuple[State, dict[str, Any]]:
    """The state in a file and its facts; `template` is any state of the same learner.

    `other_form` is that of the learner: a method may keep its belief in another form on another
    device, which is then taken over.
    """
    tensors, metadata = _read(Path(path))
    if other_form is not None and _fits(tensors, other_form[0]):
        first, adopted = other_form
        return adopted(_filled(path, tensors, metadata["numbers"], first)), metadata["facts"]
    return _filled(path, tensors, metadata["numbers"], template), metadata["facts"]


def other_form(learner: Learner, seed: int = 0) -> OtherForm | None:
    """A first state as a method has it on another device, and how to take such a one over.

    None where the method is the same on all devices.
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


def _fits(tensors: dict[str, Tensor], template: State) -> bool:
    """Whether a file holds what a state does, by name."""
    names = [name for name, old in tree.leaves(template) if isinstance(old, Tensor)]
    found = {_name_in_file(name, tensors) for name in names}
    return None not in found and found == set(tensors)


def _filled(
    path: str | os.PathLike[str],
    tensors: dict[str, Tensor],
    numbers: dict[str, Any],
    template: State,
) -> State:
    """The template with the tensors and numbers of a file in it."""

    def leaf(name: str, old: Any) -> Any:
        if isinstance(old, Tensor):
            return _tensor(tensors, name, old, path)
        if name not in numbers:
            raise CheckpointError(_mismatch(path, f"{name!r} is missing"))
        return type(old)(numbers[name])

    wanted = {
        _name_in_file(name, tensors)
        for name, old in tree.leaves(template)
        if isinstance(old, Tensor)
    }
    extra = sorted(set(tensors) - wanted)
    if extra:
        raise CheckpointError(_mismatch(path, f"it also holds {extra[0]!r}"))
    return tree.rebuild(template, leaf)


# Names of this version, and what the version before called the same tensors.
_FORMER_NAMES = (
    (r"^likelihood/", "noise/"),
    (r"^rule/momentum/", "rule/gradient/"),
    (r"/blocks/\*/values/", "/rest/"),
    (r"/blocks/", "/layers/"),
    (r"^posterior/parts/[^/]*/(mean|scales)/", r"posterior/\1/"),
    (r"^posterior/parts/[^/]*/precision/", "posterior/precision/inner/"),
)


def _name_in_file(name: str, tensors: dict[str, Tensor]) -> str | None:
    """The name under which a file holds a tensor: its own, or that of the version before."""
    former = (re.sub(new, old, name) for new, old in _FORMER_NAMES)
    return next((one for one in (name, *former) if one in tensors), None)


def facts(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Only the facts of a file."""
    return _read(Path(path))[1]["facts"]


def write_atomically(target: Path, payload: bytes) -> None:
    """Writes bytes so that the name holds either the old content or the new one."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as problem:
        kept = " The file that was there is untouched." if target.exists() else ""
        raise CheckpointError(
            f"Cannot write {target} ({len(payload):,} bytes): {problem.strerror or problem}.{kept} "
            "Free some space or choose another folder, then start again: the run resumes."
        ) from problem
    finally:
        # What went wrong above is what the caller must hear of.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, dict[str, Any]]]:
    """The tensors of a file, and its `numbers` and `facts`."""
    if not path.is_file():
        raise CheckpointError(f"There is no checkpoint {path}.")
    library = _safetensors()
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            written = file.metadata() or {}
        metadata = {name: json.loads(written[name]) for name in ("numbers", "facts")}
        return library.load_file(path), metadata
    except (SafetensorError, OSError, ValueError, KeyError) as problem:
        raise CheckpointError(
            f"{path} is not a whole checkpoint ({problem}). Nothing was changed; remove the file "
            "to start over, or restore it from a copy."
        ) from problem


def _tensor(
    tensors: dict[str, Tensor], name: str, old: Tensor, path: str | os.PathLike[str]
) -> Tensor:
    held = _name_in_file(name, tensors)
    if held is None:
        raise CheckpointError(_mismatch(path, f"{name!r} is missing"))
    # Copied into memory that torch has aligned: products may round by where their tensors lie.
    new = tensors[held].clone().to(old.device)
    # What a likelihood learns may get its shape from the first batch.
    if new.shape != old.shape and not name.startswith("likelihood/"):
        found, wanted = tuple(new.shape), tuple(old.shape)
        raise CheckpointError(_mismatch(path, f"{name!r} is {found} and should be {wanted}"))
    if new.dtype != old.dtype:
        what = f"{name!r} is {new.dtype} and should be {old.dtype}"
        raise CheckpointError(_mismatch(path, what))
    return new


def _mismatch(path: str | os.PathLike[str], what: str) -> str:
    return (
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
    first, second = dict(tree.leaves(a)), dict(tree.leaves(b))
    return first.keys() == second.keys() and all(
        _same_bits(v, second[k]) if isinstance(v, Tensor) else v == second[k]
        for k, v in first.items()
    )


def _same_bits(a: Tensor, b: Any) -> bool:
    if not isinstance(b, Tensor) or a.dtype != b.dtype or a.shape != b.shape:
        return False
    # As bytes NaN equals itself, and 0 differs from −0.
    x, y = (v.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for v in (a, b))
    return torch.equal(x, y)
