"""Results written into the docs."""
