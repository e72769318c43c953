"""Learning along series with recurrent states that are carried on, forecasting and smoothing."""

from bayesrule.sequences.online import Online, Place, Seen
from bayesrule.sequences.smoothing import Smoothed, rts_smoother

__all__ = ["Online", "Place", "Seen", "Smoothed", "rts_smoother"]
