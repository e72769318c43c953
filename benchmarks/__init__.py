"""Benchmarks beside the library: `python -m benchmarks --help` lists them."""
