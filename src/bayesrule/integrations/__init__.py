"""Callbacks for other trainers: `hugging_face` and `lightning`, each imported by name.

Neither is loaded with the library; each needs its own package.
"""
