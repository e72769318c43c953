"""A hostile user: odd tables, odd options, and many threads at once."""
