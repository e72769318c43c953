"""The worked examples of docs/add-a-method.md run, are right, and have the figures that it says."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from curvature.brute_force import example_rows, problem_of
from exact import close
from torch import Tensor, nn

import bayesrule as br
from bayesrule.curvature import Here, PerExample, Problem
from bayesrule.execution import Stacked
from bayesrule.matrices import Matrix, Structure
from bayesrule.methods import _record
from bayesrule.posteriors import Point

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "add-a-method.md").read_text()
METHOD, CURVATURE, USE = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
MODELS: dict[str, nn.Module] = {
    "layers": nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)),
    "norm": nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)),
}


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the examples define, as in a module, without a trace in the library."""
    monkeypatch.setattr(_record, "RECORDS", dict(_record.RECORDS))
    module = ModuleType("add_a_method")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in (METHOD, CURVATURE):
        exec(compile(block, "add-a-method.md", "exec"), vars(module))
    return vars(module)


def learner_of(names: dict[str, Any], structure: Structure) -> br.Learner:
    """The learner of the last example, with any structure."""
    given = {**names, "Learner": br.Learner, "nn": nn, "structure": structure}
    given["likelihood"] = br.CategoricalLikelihood()
    exec(compile(USE.replace("LowRank(2)", "structure"), "add-a-method.md", "exec"), given)
    return given["learner"]


def problem(model: nn.Module) -> Problem:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 3, generator=generator).double()
    y = 3.0 * torch.randn(6, 2, generator=generator).double()
    return problem_of(model.double(), x, y, br.GaussianLikelihood(noise=0.7))


def slopes(one: Problem) -> Tensor:
    """`∂ℓ/∂f` of a Gaussian likelihood, (n, 2)."""
    return (one.forward(one.network.params()).detach() - one.y) / 0.7**2


def found(curvature: Any, one: Problem) -> Any:
    point = Point(one.network.params())
    belief = br.GaussianFamily().init(point.params, weight=1.0, prior=1.0)
    return curvature.local(one, Here(point, br.Dense(), belief))


def dense(matrix: Matrix) -> Tensor:
    return matrix.values  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", MODELS)
def test_clipped_squares_are_those_of_a_loop_over_examples(
    name: str, names: dict[str, Any]
) -> None:
    one, largest = problem(MODELS[name]), 8.0
    slope = slopes(one)
    norm = slope.norm(dim=1, keepdim=True)
    assert (norm > largest).any()
    assert (norm < largest).any()
    clipped = slope * (largest / norm).clamp_max(1.0)
    rows = example_rows(one, clipped[None])
    flat = torch.cat([value.flatten(2) for value in rows.values()], dim=2)[0]
    local = found(names["ClippedSquares"](largest), one)
    close(dense(local.curvature), flat.mT @ flat)
    plain = found(PerExample(), one)
    for key, value in plain.gradient.items():
        close(local.gradient[key], value)


def test_without_large_slopes_it_is_per_example(names: dict[str, Any]) -> None:
    one = problem(MODELS["layers"])
    close(
        dense(found(names["ClippedSquares"](1e6), one).curvature),
        dense(found(PerExample(), one).curvature),
    )


@pytest.mark.parametrize(
    "structure", [br.Diagonal(), br.Kronecker(), br.Dense(), br.LowRank(2)], ids=repr
)
def test_it_learns_with_every_structure(structure: Structure, names: dict[str, Any]) -> None:
    torch.manual_seed(0)
    learner = learner_of(names, structure)
    x, y = torch.randn(8, 3), torch.arange(8) % 2
    state, first = learner.step(learner.init(), (x, y))
    for _ in range(30):
        state, last = learner.step(state, (x, y))
    assert last.loss < first.loss


def test_many_nets_are_looked_at_together(names: dict[str, Any]) -> None:
    torch.manual_seed(0)
    learner = learner_of(names, br.Diagonal())
    stack = Stacked(learner, 2)
    x, y = torch.randn(2, 8, 3), torch.arange(16).reshape(2, 8) % 2
    begin = stack.init([3, 4])
    together, _ = stack.step(begin, (x, y))
    for i, one in enumerate(stack.unstack(begin)):
        alone, _ = learner.step(one, (x[i], y[i]))
        joint = stack.unstack(together)[i].posterior.variance()
        for name, value in alone.posterior.variance().items():
            close(joint[name], value, 1e-6)


def test_a_bound_that_is_none_is_refused(names: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"largest must be positive, got 0.0; use PerExample\(\)"):
        names["ClippedSquares"](0.0)


def test_the_composition_is_a_method(names: dict[str, Any]) -> None:
    slang = names["slang"]
    learner = slang(nn.Linear(3, 2), br.CategoricalLikelihood(), num_data=10, rank=2)
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    _, info = learner.step(learner.init(), (x, torch.arange(8) % 2))
    assert info.loss.isfinite()
    assert "how many directions of the precision are kept" in (inspect.getdoc(slang) or "")
    assert learner.parts()["posterior"] == "LowRank"


def test_figures_are_those_of_the_files() -> None:
    rows = [row for row in PAGE.splitlines() if row.startswith("| ") and ".py`" in row]
    assert len(rows) >= 2
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        for place, lines in ((cells[1], cells[2]), (cells[3], cells[4])):
            (name,) = re.findall(r"`([\w/]+\.py)`", place)
            if "below" in place:
                assert len(CURVATURE.splitlines()) == int(lines), name
            elif not place.startswith("one entry"):
                file = next(
                    one for one in (ROOT / name, ROOT / "src" / "bayesrule" / name) if one.is_file()
                )
                assert len(file.read_text().splitlines()) == int(lines), name
