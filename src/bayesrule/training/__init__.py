"""Training from the first batch to the last: epochs, validation, checkpoints, many nets."""
