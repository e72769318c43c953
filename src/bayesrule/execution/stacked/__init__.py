"""Many nets of one architecture, each with its own weights and data, stepped together."""
