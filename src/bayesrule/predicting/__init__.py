"""What a belief says of new inputs, and how good that is."""

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
    # predictions and the bound
    "Linearised", "MonteCarlo", "Prediction", "Probit", "elbo", "predict",
    # standard deviations and their gradients
    "SignalToNoise", "Spectrum", "compress", "compressed_parameters", "spectrum",
]  # fmt: skip
