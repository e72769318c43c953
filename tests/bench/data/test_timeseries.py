"""Known series: their real content, their times, and what is said of unknown ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bayesrule.app.data import DataError
from benchmarks.data.timeseries import TIMESERIES, timeseries


@pytest.mark.data
@pytest.mark.parametrize("name", TIMESERIES)
def test_real_series(name: str, real_data: Path) -> None:
    entry, found = TIMESERIES[name], timeseries(name)
    assert found.values.shape == (entry.rows, entry.columns)
    assert found.values.dtype == np.float64
    assert len(found.columns) == entry.columns
    assert found.season == entry.season
    assert found.times.shape == (entry.rows,)
    assert (np.diff(found.times).astype(np.int64) > 0).all()
    missing = 59 if name == "mauna_loa_co2_weekly" else 0
    assert np.isnan(found.values).sum() == missing


@pytest.mark.data
def test_real_values_and_dates(real_data: Path) -> None:
    passengers = timeseries("airline_passengers")
    assert passengers.values.sum() == 40_363
    assert passengers.times[0] == np.datetime64("1949-01")
    assert passengers.times[-1] == np.datetime64("1960-12")
    elnino = timeseries("elnino")
    assert elnino.times[12] == np.datetime64("1951-01")
    assert elnino.values[12, 0] == 24.19
    assert timeseries("nile").times[-1] == np.datetime64("1970")
    assert timeseries("exchange_rate").values[1, 1] == 1.61
    load = timeseries("ETTh1")
    assert load.columns[-1] == "OT"
    assert (np.diff(load.times) == np.timedelta64(3600, "s")).all()


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(DataError, match=r"No series 'nil'\. Did you mean 'nile'\?"):
        timeseries("nil")


def test_a_series_without_an_address_says_where_to_put_it(cache: Path) -> None:
    with pytest.raises(DataError, match=r"timeseries/nile\.csv.*Set BAYESRULE_DATA"):
        timeseries("nile")


def test_another_file_of_the_same_name_is_refused(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "timeseries").mkdir()
    (tmp_path / "timeseries" / "nile.csv").write_text("year,volume\n1871.0,1.0\n")
    monkeypatch.setenv("BAYESRULE_DATA", str(tmp_path))
    with pytest.raises(DataError, match="not the expected file"):
        timeseries("nile")
