"""One core for each process of the suite: they run side by side, and rounding follows threads."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import torch

torch.set_num_threads(1)
