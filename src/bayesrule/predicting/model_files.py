"""The files of an exported model: `.onnx` and `.pt2`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


def _write_program(program: Any, file: Path, notes: dict[str, str]) -> None:
    torch.export.save(program, file, extra_files=dict(notes))


def _write_onnx(program: Any, file: Path, notes: dict[str, str]) -> None:
    try:
        import onnxscript  # noqa: F401 - torch writes with it
    except ImportError as problem:
        raise ImportError("ONNX needs onnxscript: pip install 'bayesrule[onnx]'.") from problem
    names = list(program.call_spec.out_spec.context)
    with quiet():
        exported = torch.onnx.export(
            program, dynamo=True, verbose=False, custom_translation_table=_translations()
        )
    assert exported is not None
    graph = exported.model.graph
    for value in (value for node in graph for value in node.outputs):
        value.name = f"inner_{value.name}"
    for value, name in zip(graph.outputs, names, strict=True):
        value.name = name
    exported.model.metadata_props.update(notes)
    exported.save(file)


def _translations() -> dict[Any, Callable[..., Any]]:
    """ONNX forms of operations that overflow in the form that torch writes."""
    from onnxscript import opset18 as op

    def erfcx(x: Any) -> Any:
        # erfc(x) = t exp(−x² + P(t)) for x ≥ 0, to 1.2e-7; Press et al. (2007), sec. 6.2.2.
        size = op.Abs(x)
        t = op.Div(_like(op, 1.0, x), op.Add(_like(op, 1.0, x), op.Mul(_like(op, 0.5, x), size)))
        total = _like(op, _ERFC[-1], x)
        for number in _ERFC[-2::-1]:
            total = op.Add(op.Mul(total, t), _like(op, number, x))
        right = op.Mul(t, op.Exp(total))
        twice = op.Mul(_like(op, 2.0, x), op.Exp(op.Mul(x, x)))
        return op.Where(op.Less(x, _like(op, 0.0, x)), op.Sub(twice, right), right)

    return {torch.ops.aten.special_erfcx.default: erfcx}


def _like(op: Any, number: float, x: Any) -> Any:
    """A constant of the type of x."""
    return op.CastLike(op.Constant(value_float=number), x)


# Coefficients of P(t), from the constant on.
_ERFC = (-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806,
         0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277)  # fmt: skip


WRITERS: dict[str, Callable[[Any, Path, dict[str, str]], None]] = {
    ".onnx": _write_onnx,
    ".pt2": _write_program,
}
"""The functions that write a file, by its suffix."""


@contextmanager
def quiet() -> Iterator[None]:
    """Silences what torch logs about missing packages and its own deprecated names."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
