"""Named tensors and trees of them, modules as functions, randomness, distributed ranks."""
