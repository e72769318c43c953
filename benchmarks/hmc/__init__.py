"""Predictive variances beside those of the No-U-Turn sampler."""
