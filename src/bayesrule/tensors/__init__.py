"""Tensors by name, trees of them, a module as a function, randomness and ranks."""
