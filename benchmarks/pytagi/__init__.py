"""Scripts for an environment that has pytagi: its speed, and values that tests compare with."""
