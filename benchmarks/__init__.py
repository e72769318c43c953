"""Benchmarks that the command line runs; results are json with command, versions and machine."""
