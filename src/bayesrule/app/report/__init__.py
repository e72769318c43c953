"""A self-contained HTML report of a comparison of methods."""

from .columns import METRICS, Metric
from .contents import Comparison, Curve, MethodResult, Predictions, Statistic
from .page import render, write_report
from .recommendation import Recommendation, recommend

__all__ = [
    "METRICS", "Comparison", "Curve", "MethodResult", "Metric", "Predictions",
    "Recommendation", "Statistic", "recommend", "render", "write_report",
]  # fmt: skip
