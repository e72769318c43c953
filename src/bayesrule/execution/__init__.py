"""How a step runs: eagerly, for many nets at once, compiled, or replayed as a CUDA graph."""

from bayesrule.execution.compiled import Compiled
from bayesrule.execution.memory import keep_memory
from bayesrule.execution.replayed import Replayed
from bayesrule.execution.stacked.stack import Stacked
from bayesrule.tensors.outputs import Output

__all__ = ["Compiled", "Output", "Replayed", "Stacked", "keep_memory"]
