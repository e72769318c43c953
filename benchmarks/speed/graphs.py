"""Steps of plain optimisers as CUDA graphs, for a fair comparison with ours."""

from __future__ import annotations

from collections.abc import Callable

from bayesrule.execution.graphs import captured

Step = Callable[[], object]


def graphed(step: Step) -> Step:
    """The step as a CUDA graph, like compiled and replayed steps."""
    graph, _ = captured(step, step)

    def replay() -> None:
        # This reference keeps the step's tensors alive as long as the graph.
        assert step is not None
        graph.replay()

    return replay
