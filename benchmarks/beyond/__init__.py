"""Posteriors beyond one Gaussian: several minima, dropout, binary weights."""
