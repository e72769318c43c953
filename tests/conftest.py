"""One core for each process of the suite: they run side by side, and rounding follows threads."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from hypothesis import settings

torch.set_num_threads(1)

# The same examples each time: what a change breaks is its own.
settings.register_profile("same", derandomize=True, deadline=None, database=None)
settings.load_profile("same")
