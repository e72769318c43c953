"""Well-known series: passengers, temperatures, sunspots, CO2, the Nile, exchange rates, loads."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesrule.app.data.errors import DataError, listing, nearest
from benchmarks.data.cache import locate, read_unpacked

_BROWNLEE = (
    "https://raw.githubusercontent.com/jbrownlee/Datasets/d20fcb6402ae34e653d4513b00f39257bb37ed7f"
)
_LAI = (
    "https://raw.githubusercontent.com/laiguokun/multivariate-time-series-data/"
    "7f402f185cc2435b5e66aed13a3b560ed142e023"
)


@dataclass(frozen=True)
class SeriesSet:
    """One known series: its file, its size, the steps of one season and the sum of its content."""

    name: str
    file: str
    rows: int
    columns: int
    season: int | None
    about: str
    sha256: str
    url: str = ""


@dataclass(frozen=True, eq=False)
class Series:
    """Values (n, d) float64 in their order, NaN where missing; ``times`` (n,), dates or numbers.

    ``season`` is the number of steps after which the series is about the same, if there is one.
    """

    name: str
    times: NDArray[Any]
    values: NDArray[np.float64]
    columns: tuple[str, ...]
    season: int | None


# The sums are those of the unpacked content.
_SETS = (
    SeriesSet("airline_passengers", "airline_passengers.csv", 144, 1, 12,
              "monthly airline passengers in thousands, 1949 to 1960",
              "8cb51be753a718d9be5d76d7e238cc224792754676adc21faa59e954b0201621",
              f"{_BROWNLEE}/airline-passengers.csv"),
    SeriesSet("daily_min_temperatures", "daily_min_temperatures.csv", 3650, 1, 365,
              "daily minimum temperatures in Melbourne, 1981 to 1990",
              "8b9de63ed6789492bf497625e7f9beb96a63d367b4b0a21754006f749fa5e5da",
              f"{_BROWNLEE}/daily-min-temperatures.csv"),
    SeriesSet("monthly_sunspots", "monthly_sunspots.csv", 2820, 1, 132,
              "monthly sunspots, 1749 to 1983",
              "c4ec8cc57d9f6fb6ecdb3e1f37f25b6f4badd5124c55931052b0cd2fc3bc71f3",
              f"{_BROWNLEE}/monthly-sunspots.csv"),
    SeriesSet("mauna_loa_co2_weekly", "mauna_loa_co2_weekly.csv", 2284, 1, 52,
              "weekly CO2 at Mauna Loa in ppm, 1958 to 2001, 59 weeks missing",
              "0e5e9a1d2c8f12081e5a26a8ff44e2f67ffeb6b387ecdb2802e2505ec04e69c7"),
    SeriesSet("sunspots", "sunspots.csv", 309, 1, 11, "yearly sunspots, 1700 to 2008",
              "4425242e45763740928ab4e1f7357fee786cd0780f0f3bf2673c0fe4211d6957"),
    SeriesSet("nile", "nile.csv", 100, 1, None, "yearly flow of the Nile, 1871 to 1970",
              "5bc2a189305d45958d08a37a52c37d35ab08667b6c8a4ab5c2c764a9bdd6b142"),
    SeriesSet("elnino", "elnino.csv", 732, 1, 12, "monthly sea temperatures, 1950 to 2010",
              "943c737c7430447b21cc819212e97c7e4aa895042043c129f8d4f04d465bff36"),
    SeriesSet("exchange_rate", "exchange_rate.txt.gz", 7588, 8, None,
              "eight daily exchange rates, 1990 to 2016",
              "0127465b51e3cd3c360f8eb2be30cfd294689a2a55903eb8245aafc396626c7f",
              f"{_LAI}/exchange_rate/exchange_rate.txt.gz"),
    SeriesSet("ETTh1", "ETTh1.csv.gz", 17420, 7, 24, "hourly load of a transformer, 2016 to 2018",
              "f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066"),
    SeriesSet("ETTh2", "ETTh2.csv.gz", 17420, 7, 24, "the same of another transformer",
              "a3dc2c597b9218c7ce1cd55eb77b283fd459a1d09d753063f944967dd6b9218b"),
)  # fmt: skip

TIMESERIES: Mapping[str, SeriesSet] = MappingProxyType({entry.name: entry for entry in _SETS})
"""The known series by name."""


def timeseries(name: str) -> Series:
    """Return a known series, from the data folder, the cache or by download."""
    if name not in TIMESERIES:
        raise DataError(
            f"No series '{name}'.{nearest(name, TIMESERIES)} There are {listing(TIMESERIES)}."
        )
    entry = TIMESERIES[name]
    path = locate(
        f"timeseries/{entry.file}",
        content=f"sha256:{entry.sha256}",
        urls=[entry.url] if entry.url else [],
    )
    times, values, columns = _parse(entry, read_unpacked(path).decode())
    return Series(name, times, values, columns, entry.season)


def _parse(
    entry: SeriesSet, text: str
) -> tuple[NDArray[Any], NDArray[np.float64], tuple[str, ...]]:
    rows = [row for row in csv.reader(io.StringIO(text)) if row]
    if entry.name == "exchange_rate":  # no header, no dates
        values = np.array(rows, dtype=np.float64)
        return np.arange(len(values)), values, tuple(f"rate {k}" for k in range(1, 9))
    header, body = rows[0], rows[1:]
    if entry.name == "elnino":  # a row for each year, a column for each month
        start = np.datetime64(f"{int(float(body[0][0]))}-01", "M")
        values = np.array([row[1:] for row in body], dtype=np.float64).reshape(-1, 1)
        return start + np.arange(len(values)), values, ("temperature",)
    values = np.array([[float(v) if v else np.nan for v in row[1:]] for row in body])
    # Years are written as 1700.0.
    times = np.array([row[0].removesuffix(".0") for row in body], dtype="datetime64")
    return times, values, tuple(header[1:])
