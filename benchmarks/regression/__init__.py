"""Regression: the UCI tables of published methods, active learning, noise that depends on x."""
