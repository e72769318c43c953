"""Steps of plain optimisers as CUDA graphs, so that they are compared with ours on equal terms."""

from __future__ import annotations

from collections.abc import Callable

import torch

Step = Callable[[], object]


def graphed(step: Step) -> Step:
    """The step as a CUDA graph, as compiled and replayed steps are."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay() -> None:
        # The step is named here so that its tensors live as long as the graph does.
        assert step is not None
        graph.replay()

    return replay
