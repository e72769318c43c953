"""The real data, where there are any."""

from data_places import real_data

__all__ = ["real_data"]
