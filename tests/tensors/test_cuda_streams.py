"""Work beside each other: the same results in the same order, on a GPU too."""

import pytest
import torch
from torch import Tensor

from bayesrule.tensors.cuda_streams import side_by_side

NAMES = [f"layer{k}" for k in range(40)]


def _work(name: str, device: str) -> Tensor:
    start = torch.full((64, 64), float(name.removeprefix("layer")), device=device)
    return (start @ start).sqrt() / 8.0


def test_results_come_in_the_order_of_the_names() -> None:
    found = side_by_side(lambda name: _work(name, "cpu"), NAMES)
    assert list(found) == NAMES
    for number, value in enumerate(found.values()):
        torch.testing.assert_close(value, torch.full((64, 64), float(number)))
    assert side_by_side(len, []) == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_a_graph_waits_for_what_runs_beside_it() -> None:
    scale = torch.ones((), device="cuda")
    _work("layer1", "cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scale.mul_(2.0)
        found = side_by_side(lambda name: _work(name, "cuda") * scale, NAMES)
        total = torch.stack(list(found.values())).sum(0)
    for turn in (2.0, 4.0):
        graph.replay()
        torch.testing.assert_close(total, torch.full_like(total, turn * 40 * 39 / 2))
