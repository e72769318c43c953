"""Trains many nets of one architecture together, each with its own weights and data."""
