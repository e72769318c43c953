"""What a step, an epoch of many nets or a prediction costs."""
