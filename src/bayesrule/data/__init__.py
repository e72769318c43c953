"""Real data sets, loaded, cached and checked; tables of one's own, turned into tensors."""

from bayesrule.data.cache import cache_folder, data_folder, locate
from bayesrule.data.cifar import cifar10
from bayesrule.data.embedded import EMBEDDED, embedded, open_table
from bayesrule.data.errors import DataError
from bayesrule.data.files import read_table
from bayesrule.data.images import Images, fashion_mnist, mnist
from bayesrule.data.imdb import Reviews, Vocabulary, encode, imdb, tokenize
from bayesrule.data.split import split_rows
from bayesrule.data.table import Table
from bayesrule.data.tabular import Encoder
from bayesrule.data.task import Task
from bayesrule.data.timeseries import TIMESERIES, Series, timeseries
from bayesrule.data.uci import UCI, RegressionSplit, uci

__all__ = [
    # where files are found
    "DataError",
    "cache_folder",
    "data_folder",
    "locate",
    # benchmark sets
    "Images",
    "RegressionSplit",
    "Reviews",
    "Series",
    "TIMESERIES",
    "UCI",
    "Vocabulary",
    "cifar10",
    "encode",
    "fashion_mnist",
    "imdb",
    "mnist",
    "timeseries",
    "tokenize",
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
