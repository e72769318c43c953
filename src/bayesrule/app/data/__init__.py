"""Tables as tensors: reading, splitting and encoding; scikit-learn's data sets as examples."""

from bayesrule.app.data.errors import DataError
from bayesrule.app.data.sources import EMBEDDED, embedded, open_table, read_table
from bayesrule.app.data.split import split_rows, train_and_test
from bayesrule.app.data.table import Table
from bayesrule.app.data.tabular import Encoder
from bayesrule.app.data.task import Task

__all__ = [
    "EMBEDDED", "DataError", "Encoder", "Table", "Task",
    "embedded", "open_table", "read_table", "split_rows", "train_and_test",
]  # fmt: skip
