"""Fixtures for tests of loaders: a web server, an empty cache, the real data."""

from data_places import cache, real_data, site

__all__ = ["cache", "real_data", "site"]
