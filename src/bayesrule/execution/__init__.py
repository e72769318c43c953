"""How a step runs: eagerly, for many nets at once, compiled, or replayed as a CUDA graph."""
