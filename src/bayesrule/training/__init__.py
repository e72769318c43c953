"""Training from the first batch to the last: epochs, validation, checkpoints, many nets."""

from bayesrule.training.many import fit_many
from bayesrule.training.train import Run, TrainingError, TrainingWarning, fit, load_run

__all__ = ["Run", "TrainingError", "TrainingWarning", "fit", "fit_many", "load_run"]
