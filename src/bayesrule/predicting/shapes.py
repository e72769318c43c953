"""Tensors of predictions and targets brought to one dtype and shape, or refused by name."""

from functools import reduce

import torch
from torch import Tensor


def floats(**tensors: Tensor) -> list[Tensor]:
    """The tensors in the one float dtype, float32 or float64, that holds them all."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            kind = type(tensor).__name__
            raise TypeError(f"{name} must be a torch tensor, got {kind}; use torch.as_tensor.")
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in tensors.values()))
    dtype = dtype if dtype in (torch.float32, torch.float64) else torch.float32
    return [tensor.to(dtype) for tensor in tensors.values()]


def aligned(drawn: tuple[str, ...] = (), **tensors: Tensor) -> list[Tensor]:
    """The tensors in one float dtype and one shape; those named in ``drawn`` keep a leading K."""
    lead = [int(name in drawn) for name in tensors]
    pairs = list(zip(floats(**tensors), lead, strict=True))
    points = [tuple(t.shape[k:]) for t, k in pairs]
    base = min(points, key=len)
    agree = all(shape in (base, (*base, 1)) for shape in points)
    if not agree or any(t.ndim < k or t.numel() == 0 for t, k in pairs):
        got = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        rule = " after the leading draws (K, ...)" if drawn else ""
        raise ValueError(f"Shapes must be equal and not empty{rule}, got {got}; reshape or expand.")
    return [t.reshape(t.shape[:k] + base) for t, k in pairs]


def simplex(probs: Tensor, shape: str) -> Tensor:
    """Probabilities of ``shape``, "(n, C)" or "(K, n, C)", refused when they look like logits."""
    (probs,) = aligned(probs=probs)
    if probs.ndim != shape.count(",") + 1:
        raise ValueError(f"probs must be {shape}, got {tuple(probs.shape)}.")
    # A mean of half-precision softmaxes is off by a few 1e-3; logits are off by far more. A graph
    # that is being exported has no values to test.
    if not torch.compiler.is_exporting() and not (
        (probs >= 0).all() and ((probs.sum(-1) - 1).abs() < 1e-2).all()
    ):
        raise ValueError(
            f"probs must be 0 or more and sum to 1 over the last dimension, got values from "
            f"{probs.min():.3g} to {probs.max():.3g}; for logits use logits.softmax(-1)."
        )
    return probs


def classes(probs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities (n, C) with integer labels (n,)."""
    probs = simplex(probs, "(n, C)")
    n, number = probs.shape
    floats(y=y)  # refuses what is not a tensor
    if tuple(y.shape) not in ((n,), (n, 1)) or y.is_floating_point():
        raise ValueError(
            f"y must be integer labels of shape ({n},) for probs {tuple(probs.shape)}, got "
            f"{y.dtype} of shape {tuple(y.shape)}; use y.long(), or y.argmax(-1) if one-hot."
        )
    y = y.reshape(n).long()
    if y.min() < 0 or y.max() >= number:
        got = f"{int(y.min())}..{int(y.max())}"
        raise ValueError(f"Labels for {number} classes lie in 0..{number - 1}, got {got}.")
    return probs, y
