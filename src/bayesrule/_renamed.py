"""Names of the version before, which still work and warn: where each thing lives now."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

# Modules and names that moved: from the version before to this one.
_ROOMS = {
    "bayesrule.app": ("compare", "data", "recipe", "report", "saved"),
    "bayesrule.curvature": (
        *("Curvature", "ExpectedLoss", "Innovations", "NoCurvature", "Pathwise", "SecondOrder"),
        "SquaredGradient",
    ),
    "bayesrule.execution": ("Compiled", "Replayed", "Stacked", "keep_memory"),
    "bayesrule.expectations": ("Expectation",),
    "bayesrule.explore": (
        *("ActiveRun", "Attack", "BALD", "Criterion", "EPIG", "Inferred", "InferredInputs"),
        *("LargestVariance", "Optimised", "Random", "Search", "active_learning", "attack"),
        *("infer_hidden", "infer_inputs", "minimise", "optimise_inputs"),
    ),
    "bayesrule.hmc": ("Samples",),
    "bayesrule.likelihoods": (
        *("HierarchicalLikelihood", "Likelihood", "OneHotLikelihood", "RemaxLikelihood"),
        "SoftmaxLikelihood",
    ),
    "bayesrule.matrices": ("BlockTridiagonal", "Isotropic", "Matrix", "Structure"),
    "bayesrule.methods": ("METHODS",),
    "bayesrule.moments": ("uncertain",),
    "bayesrule.posteriors": (
        *("Factorised", "Family", "FanIn", "Gaussian", "KTied", "MeanField", "Posterior"),
        *("Rotated", "RotatedFamily"),
    ),
    "bayesrule.predicting": (
        *("MonteCarlo", "Prediction", "Probit", "SignalToNoise", "Spectrum", "compress"),
        *("compressed_parameters", "elbo", "evaluate", "spectrum"),
    ),
    "bayesrule.rules": ("HeavyBall", "Rule", "Velocity"),
    "bayesrule.sequences": ("Online", "Smoothed", "rts_smoother"),
    "bayesrule.tensors": ("distributed", "network", "tree", "vectors"),
    "bayesrule.training": ("Run", "TrainingError", "batches", "checkpoint", "progress"),
    "bayesrule.types": ("Batch", "Derivatives", "Info", "Params", "State"),
}
_PLACES = {name: room for room, names in _ROOMS.items() for name in names}


def renamed(name: str) -> Any:
    """What a name of the version before stands for; an AttributeError for one that never was."""
    if name == "Fused":
        return _moved(name, "bayesrule.execution", "Compiled")
    if name in {"Noisy", "Subset"}:
        warnings.warn(_GONE[name], DeprecationWarning, stacklevel=3)
        return globals()[f"_{name.lower()}"]
    if name in _PLACES:
        return _moved(name, _PLACES[name], name)
    raise AttributeError(f"module 'bayesrule' has no attribute {name!r}")


def _moved(name: str, room: str, now: str) -> Any:
    warnings.warn(
        f"bayesrule.{name} is {room}.{now} now; the old name goes with the next release.",
        DeprecationWarning,
        stacklevel=4,
    )
    home = importlib.import_module(room)
    return getattr(home, now, None) or importlib.import_module(f"{room}.{now}")


_GONE = {
    "Noisy": "bayesrule.Noisy(...) is bayesrule.Natural(..., prior_at_draws=True) now; the old "
    "name goes with the next release.",
    "Subset": "bayesrule.Subset(structure, names) is the family bayesrule.PerGroup({'a|b': "
    "GaussianFamily(structure), '*': PointEstimate()}) now; the old name goes with the next "
    "release.",
}


def _noisy(*args: Any, **options: Any) -> Any:
    """The noisy natural gradient, as the version before had it."""
    from bayesrule.rules import Natural

    names = (
        "learning_rate",
        "rate",
        "momentum",
        "square_root",
        "damped_root",
        "damping",
        "kl_clip",
    )
    given = {**dict(zip(names, args, strict=False)), **options}
    first = {"learning_rate": 1e-2, "epsilon": 0.0, "prior_at_draws": True}
    return Natural(**{**first, **given})


def _subset(inner: Any, names: tuple[str, ...]) -> Any:
    """The structure over the named parameters only; all others are held as known."""
    from bayesrule.matrices import Blocks, Known

    return Blocks({"|".join(names): inner, "*": Known()})
