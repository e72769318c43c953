"""Names of the version before, which still work and warn: where each thing lives now."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

# The modules and names of each folder that stood at the top in the version before.
_ROOMS = {
    "app": "compare data recipe report saved",
    "curvature": "Curvature ExpectedLoss Innovations NoCurvature Pathwise SecondOrder "
    "SquaredGradient",
    "execution": "Compiled Fused Replayed Stacked keep_memory",
    "expectations": "Expectation",
    "explore": "ActiveRun Attack BALD Criterion EPIG Inferred InferredInputs LargestVariance "
    "Optimised Random Search active_learning attack infer_hidden infer_inputs minimise "
    "optimise_inputs",
    "hmc": "Samples",
    "likelihoods": "HierarchicalLikelihood Likelihood OneHotLikelihood RemaxLikelihood "
    "SoftmaxLikelihood",
    "matrices": "BlockTridiagonal Isotropic Matrix Structure",
    "methods": "METHODS",
    "posteriors": "Factorised Family FanIn Gaussian KTied MeanField Posterior Rotated "
    "RotatedFamily",
    "predicting": "MonteCarlo Prediction Probit SignalToNoise Spectrum compress "
    "compressed_parameters elbo evaluate spectrum",
    "rules": "HeavyBall Rule Velocity",
    "sequences": "Online Smoothed rts_smoother",
    "tensors": "distributed network tree vectors",
    "training": "Run TrainingError batches checkpoint progress",
    "types": "Batch Derivatives Info Params State",
}
_PLACES = {name: f"bayesrule.{room}" for room, names in _ROOMS.items() for name in names.split()}


def renamed(name: str) -> Any:
    """What a name of the version before stands for; an AttributeError for one that never was."""
    if name in _GONE:
        now, made = _GONE[name]
        _warn(f"bayesrule.{name}{now}")
        return made
    if name not in _PLACES:
        raise AttributeError(f"module 'bayesrule' has no attribute {name!r}")
    room, now = _PLACES[name], "Compiled" if name == "Fused" else name
    _warn(f"bayesrule.{name} is {room}.{now} now")
    home = importlib.import_module(room)
    return getattr(home, now, None) or importlib.import_module(f"{room}.{now}")


def _warn(change: str) -> None:
    text = f"{change}; the old name goes with the next release."
    warnings.warn(text, DeprecationWarning, stacklevel=4)


def _noisy(*args: Any, **options: Any) -> Any:
    """The noisy natural gradient, as the version before had it."""
    from bayesrule.rules import Natural

    names = ("learning_rate", "rate", "momentum", "square_root", "damped_root", "damping")
    given = {**dict(zip((*names, "kl_clip"), args, strict=False)), **options}
    first = {"learning_rate": 1e-2, "epsilon": 0.0, "prior_at_draws": True}
    return Natural(**{**first, **given})


def _subset(inner: Any, names: tuple[str, ...]) -> Any:
    """The structure over the named parameters only; all others are held as known."""
    from bayesrule.matrices import Blocks, Known

    return Blocks({"|".join(names): inner, "*": Known()})


_GONE = {
    "Noisy": ("(...) is bayesrule.Natural(..., prior_at_draws=True) now", _noisy),
    "Subset": (
        "(structure, names) is the family bayesrule.PerGroup({'a|b': GaussianFamily(structure), "
        "'*': PointEstimate()}) now",
        _subset,
    ),
}
