"""Fixtures for tests of defaults: the real data."""

from data_places import real_data

__all__ = ["real_data"]
