"""Results drawn as svg files."""
