"""Tests of promises: generated data, devices, damaged folders, and a hostile user."""
