"""Online learning, forecasting and smoothing of series with recurrent modules."""

from bayesrule.sequences.online import Online, SeriesState, SeriesStep
from bayesrule.sequences.smoothing import Smoothed, rts_smoother

__all__ = ["Online", "SeriesState", "SeriesStep", "Smoothed", "rts_smoother"]
