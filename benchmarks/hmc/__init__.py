"""Predictive variances compared with those of the No-U-Turn sampler."""
