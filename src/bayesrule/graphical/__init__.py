"""Graphical models: conjugate Bayes, EM, SVI and message passing as one update."""

from bayesrule.graphical._base import FitWarning, Model, NotFittedError, Report
from bayesrule.graphical._series_parts import Level, Part, Season, Trend
from bayesrule.graphical.emissions import CategoricalEmissions, GaussianEmissions
from bayesrule.graphical.factor import PPCA, FactorAnalysis
from bayesrule.graphical.gp import GP
from bayesrule.graphical.hmm import HMM
from bayesrule.graphical.inference import EM, SVI, VB, Inference, OnlineEM
from bayesrule.graphical.kalman import Kalman
from bayesrule.graphical.kernels import RBF, Kernel, Linear, Matern, Periodic
from bayesrule.graphical.lda import LDA
from bayesrule.graphical.linear import LinearRegression
from bayesrule.graphical.logistic import LogisticRegression
from bayesrule.graphical.mixture import GaussianMixture

__all__ = [
    "CategoricalEmissions",
    "EM",
    "FactorAnalysis",
    "FitWarning",
    "GP",
    "GaussianEmissions",
    "GaussianMixture",
    "HMM",
    "Inference",
    "Kalman",
    "Kernel",
    "LDA",
    "Level",
    "Linear",
    "LinearRegression",
    "LogisticRegression",
    "Matern",
    "Model",
    "NotFittedError",
    "OnlineEM",
    "PPCA",
    "Part",
    "Periodic",
    "RBF",
    "Report",
    "SVI",
    "Season",
    "Trend",
    "VB",
]
