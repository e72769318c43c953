"""Data sets of the benchmarks, loaded, cached and checked; tables of UCI are in the library."""

from benchmarks.data.cifar import cifar10
from benchmarks.data.images import Images, fashion_mnist, mnist
from benchmarks.data.imdb import Reviews, Vocabulary, encode, imdb, tokenize
from benchmarks.data.timeseries import TIMESERIES, Series, timeseries

__all__ = [
    "Images",
    "Reviews",
    "Series",
    "TIMESERIES",
    "Vocabulary",
    "cifar10",
    "encode",
    "fashion_mnist",
    "imdb",
    "mnist",
    "timeseries",
    "tokenize",
]
