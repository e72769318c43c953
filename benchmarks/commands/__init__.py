"""One module for each benchmark's command line; each has `add(kinds)` and what it runs."""
