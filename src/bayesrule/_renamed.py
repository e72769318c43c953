"""Top-level names of the previous version, which still work but warn."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

# Which names each folder holds that the previous version had at the top.
_FOLDERS = {
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
_PLACES = {
    name: f"bayesrule.{folder}" for folder, names in _FOLDERS.items() for name in names.split()
}


def renamed(name: str) -> Any:
    """The object that an old name stands for; an AttributeError for a name that never existed."""
    if name in _GONE:
        change, replacement = _GONE[name]
        _warn(f"bayesrule.{name}{change}")
        return replacement
    if name not in _PLACES:
        raise AttributeError(f"module 'bayesrule' has no attribute {name!r}")
    folder, new_name = _PLACES[name], "Compiled" if name == "Fused" else name
    _warn(f"bayesrule.{name} is {folder}.{new_name} now")
    module = importlib.import_module(folder)
    return getattr(module, new_name, None) or importlib.import_module(f"{folder}.{new_name}")


def _warn(change: str) -> None:
    text = f"{change}; the old name goes with the next release."
    warnings.warn(text, DeprecationWarning, stacklevel=4)


def _noisy(*args: Any, **options: Any) -> Any:
    """The rule `Noisy` of the previous version."""
    from bayesrule.rules import Natural

    names = ("learning_rate", "rate", "momentum", "square_root", "damped_root", "damping")
    given = {**dict(zip((*names, "kl_clip"), args, strict=False)), **options}
    defaults = {"learning_rate": 1e-2, "epsilon": 0.0, "prior_at_draws": True}
    return Natural(**{**defaults, **given})


def _subset(inner: Any, names: tuple[str, ...]) -> Any:
    """The structure over the named parameters only; all others have no variance."""
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
