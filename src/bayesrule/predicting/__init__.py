"""Predictions from a posterior, and how good they are."""

from bayesrule.predicting.exporting import Exported, exported
from bayesrule.predicting.predict import Linearised, MonteCarlo, Probit, elbo, predict
from bayesrule.predicting.prediction import Prediction
from bayesrule.predicting.scales import (
    SignalToNoise,
    Spectrum,
    compress,
    compressed_parameters,
    spectrum,
)

__all__ = [
    "Exported",
    "Linearised",
    "MonteCarlo",
    "Prediction",
    "Probit",
    "SignalToNoise",
    "Spectrum",
    "compress",
    "compressed_parameters",
    "elbo",
    "exported",
    "predict",
    "spectrum",
]
