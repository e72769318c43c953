"""Benchmark data sets, downloaded, cached and checked; the user's tables as tensors."""

from bayesrule.app.data.cache import cache_folder, data_folder, locate
from bayesrule.app.data.embedded import EMBEDDED, embedded, open_table
from bayesrule.app.data.errors import DataError
from bayesrule.app.data.files import read_table
from bayesrule.app.data.split import split_rows
from bayesrule.app.data.table import Table
from bayesrule.app.data.tabular import Encoder
from bayesrule.app.data.task import Task
from bayesrule.app.data.uci import UCI, RegressionSplit, uci

__all__ = [
    # where files are
    "DataError",
    "cache_folder",
    "data_folder",
    "locate",
    # benchmark sets
    "RegressionSplit",
    "UCI",
    "uci",
    # tables
    "EMBEDDED",
    "Encoder",
    "Table",
    "Task",
    "embedded",
    "open_table",
    "read_table",
    "split_rows",
]
