"""Learning along series with recurrent states that are carried on, forecasting and smoothing."""

from bayesrule.sequences.online import Online, SeriesState, SeriesStep
from bayesrule.sequences.smoothing import Smoothed, rts_smoother

__all__ = ["Online", "SeriesState", "SeriesStep", "Smoothed", "rts_smoother"]
