"""Callbacks for other people's trainers: `hugging_face` and `lightning`, each imported by name.

Neither is loaded with the library, and each needs its own package to be installed.
"""
