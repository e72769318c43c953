"""Tests of benchmarks/explore."""
