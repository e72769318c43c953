"""How good every method is at its defaults: tables, simulated data and images."""
