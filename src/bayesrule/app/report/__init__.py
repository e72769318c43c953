"""A self-contained HTML report of a comparison of methods."""

from .columns import METRICS, Metric
from .contents import (
    CalibrationBins,
    ClassificationPredictions,
    Comparison,
    CoverageCurve,
    Curve,
    MethodResult,
    Predictions,
    RegressionPredictions,
    Statistic,
)
from .page import render, write_report

__all__ = [
    "METRICS",
    "Metric",
    "CalibrationBins",
    "ClassificationPredictions",
    "Comparison",
    "CoverageCurve",
    "Curve",
    "MethodResult",
    "Predictions",
    "RegressionPredictions",
    "Statistic",
    "render",
    "write_report",
]
