"""Graphical models: conjugate Bayes, EM, SVI and message passing as one update."""

from bayesrule.graphical._base import FitWarning, Model, NotFittedError, Report
from bayesrule.graphical.inference import EM, SVI, VB, Inference

__all__ = [
    "EM",
    "FitWarning",
    "Inference",
    "Model",
    "NotFittedError",
    "Report",
    "SVI",
    "VB",
]
