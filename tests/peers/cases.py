"""What the comparisons share: small nets, losses under both names, and what counts as equal."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from curvature.brute_force import at_mean, problem_of
from torch import Tensor, nn

from bayesrule.curvature import Curvature, Here, Problem
from bayesrule.likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    GaussianLikelihood,
    Likelihood,
)
from bayesrule.matrices import Matrix, Structure
from bayesrule.posteriors import Gaussian

EXAMPLES, OUTPUTS = 7, 3
Net = Callable[[], tuple[nn.Module, Tensor]]


@dataclass(frozen=True)
class Task:
    """A likelihood, and the loss of torch with the same derivatives."""

    likelihood: Likelihood
    loss: Callable[[], nn.Module]
    targets: Callable[[], Tensor]


TASKS = {
    "classes": Task(
        CategoricalLikelihood(),
        lambda: nn.CrossEntropyLoss(reduction="sum"),
        lambda: torch.randint(OUTPUTS, (EXAMPLES,)),
    ),
    # The squared error is −log p of a Gaussian whose variance is a half.
    "numbers": Task(
        GaussianLikelihood(noise=0.5**0.5),
        lambda: nn.MSELoss(reduction="sum"),
        lambda: torch.randn(EXAMPLES, OUTPUTS),
    ),
    "yes or no": Task(
        BernoulliLikelihood(),
        lambda: nn.BCEWithLogitsLoss(reduction="sum"),
        lambda: torch.randint(2, (EXAMPLES, OUTPUTS)).double(),
    ),
}


def _flattened(layer: nn.Module, *shape: int) -> tuple[nn.Module, Tensor]:
    """A layer with all of its outputs before a linear one, and inputs of the given shape."""
    x = torch.randn(EXAMPLES, *shape)
    body = nn.Sequential(layer, nn.Tanh(), nn.Flatten())
    return nn.Sequential(*body, nn.Linear(body(x).shape[1], OUTPUTS)), x


def _batch_norm() -> tuple[nn.Module, Tensor]:
    norm = nn.BatchNorm1d(5)
    norm.running_mean, norm.running_var = torch.randn(5), 0.5 + torch.rand(5)
    layers = nn.Linear(3, 5), norm, nn.Tanh(), nn.Linear(5, OUTPUTS)
    return nn.Sequential(*layers), torch.randn(EXAMPLES, 3)


def _embedding() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.Linear(12, OUTPUTS))
    return model, torch.randint(6, (EXAMPLES, 3))


# Linear layers and convolutions without groups: all of their parameters have Kronecker factors.
LAYERED: dict[str, Net] = {
    "mlp": lambda: _flattened(nn.Sequential(nn.Linear(3, 5), nn.Sigmoid(), nn.Linear(5, 4)), 3),
    "shared linear": lambda: _flattened(nn.Linear(3, 5), 4, 3),
    "conv2d": lambda: _flattened(nn.Conv2d(2, 3, 2, stride=2, padding=1), 2, 4, 4),
    "two convolutions": lambda: _flattened(
        nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 2)), 2, 4, 4
    ),
}
NETS: dict[str, Net] = LAYERED | {
    "conv1d, all options": lambda: _flattened(
        nn.Conv1d(2, 4, 3, stride=2, padding=2, dilation=2, groups=2), 2, 6
    ),
    "conv2d, groups": lambda: _flattened(nn.Conv2d(2, 4, 2, groups=2), 2, 4, 4),
    "conv3d": lambda: _flattened(nn.Conv3d(2, 3, 2), 2, 3, 3, 3),
    "transposed conv": lambda: _flattened(nn.ConvTranspose2d(2, 3, 2), 2, 3, 3),
    "batch norm": _batch_norm,
    "embedding": _embedding,
}


def problem(net: Net, task: Task) -> Problem:
    """A net in evaluation mode, inputs and targets."""
    model, x = net()
    return problem_of(model.eval(), x, task.targets(), task.likelihood)


def curvature(given: Problem, kind: Curvature, structure: Structure) -> Matrix:
    """The curvature of a batch at the net's own weights."""
    point = at_mean(given)
    fitting = structure.for_model(given.network.model)
    belief = Gaussian(point.params, fitting.identity(point.params, 1.0))
    found = kind.local(given, Here(point, fitting, belief)).curvature
    assert found is not None
    return found


def agree(got: Tensor, want: Tensor, tolerance: float = 1e-12) -> None:
    """The largest difference is less than the tolerance, relative to the largest number."""
    assert got.dtype == want.dtype == torch.float64
    assert got.shape == want.shape
    error = (got - want).abs().max() / want.abs().max()
    assert float(error) < tolerance, f"a relative error of {float(error):.1e}"
