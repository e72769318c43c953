"""Callbacks for trainers, each skipped where its package is missing."""
