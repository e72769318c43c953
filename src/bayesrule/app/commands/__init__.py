"""One module for each command; each has `add(commands)` for its grammar and `run(args)`."""
