"""Data sets of the benchmarks: downloaded, cached and checked."""

from benchmarks.data.cifar import cifar10
from benchmarks.data.images import Images, fashion_mnist, mnist
from benchmarks.data.imdb import Reviews, Vocabulary, encode, imdb, tokenize
from benchmarks.data.timeseries import TIMESERIES, Series, timeseries
from benchmarks.data.uci import UCI, RegressionSplit, uci, uci_table

__all__ = [
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
    "uci_table",
]
