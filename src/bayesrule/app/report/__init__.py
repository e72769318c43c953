"""A self-contained HTML report of a comparison of methods."""

from .columns import METRICS, Metric
from .contents import Comparison, Curve, MethodResult, Predictions, Statistic
from .page import render, write_report

__all__ = [
    "METRICS", "Comparison", "Curve", "MethodResult", "Metric", "Predictions", "Statistic",
    "render", "write_report",
]  # fmt: skip
