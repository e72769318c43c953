"""Steps of plain optimisers as CUDA graphs, so that they are compared with ours on equal terms."""

from __future__ import annotations

from collections.abc import Callable

from bayesrule.execution.graphs import captured

Step = Callable[[], object]


def graphed(step: Step) -> Step:
    """The step as a CUDA graph, as compiled and replayed steps are."""
    graph, _ = captured(step, step)

    def replay() -> None:
        # The step is named here so that its tensors live as long as the graph does.
        assert step is not None
        graph.replay()

    return replay
