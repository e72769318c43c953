"""One module for each command: `add(commands)` adds its options and `run(args)` runs it."""
