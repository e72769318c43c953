"""The cost of a step, an epoch of many nets, or a prediction."""
