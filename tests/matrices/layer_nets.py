"""Rows of real networks, and their explicit curvature layer by layer."""

import torch
from curvature.brute_force import at_mean, problem_of
from exact import randn
from torch import Tensor, nn

from bayesrule.curvature import ExampleRows, Recording
from bayesrule.likelihoods import GaussianLikelihood
from bayesrule.matrices import Matrix
from bayesrule.matrices.layer_rows import Place
from bayesrule.types import Params


def rows_of(
    model: nn.Module, x: Tensor | tuple[Tensor, ...], vectors: int = 2, seed: int = 0
) -> ExampleRows:
    """Rows of random vectors, backpropagated from the outputs."""
    problem = problem_of(model, x)
    recording = Recording(problem, at_mean(problem))
    given = randn(vectors, *recording.outputs.shape, seed=seed)
    return recording.backward(given, gradient=False)[0]


def backward(model: nn.Module, x: Tensor, given: Tensor) -> ExampleRows:
    """Rows of the given vectors (V, n, *)."""
    problem = problem_of(model, x)
    recording = Recording(problem, at_mean(problem))
    return recording.backward(given, gradient=False)[0]


def ggn_rows(model: nn.Module, x: Tensor) -> ExampleRows:
    """Rows of the generalised Gauss-Newton matrix for unit noise."""
    problem = problem_of(model, x, likelihood=GaussianLikelihood(noise=1.0))
    recording = Recording(problem, at_mean(problem))
    given = problem.likelihood.fisher_vectors(recording.outputs.detach(), {})
    return recording.backward(given, gradient=False)[0]


def params_of(model: nn.Module) -> Params:
    """The parameters that are learned."""
    return {k: v.detach() for k, v in model.named_parameters() if v.requires_grad}


def jacobian(rows: ExampleRows) -> Tensor:
    """All rows, (n, V, P)."""
    table = rows.per_example().values()
    return torch.cat([one.flatten(start_dim=2) for one in table], dim=-1).transpose(0, 1)


def full(rows: ExampleRows) -> Tensor:
    """`Σ r rᵀ`, (P, P)."""
    flat = jacobian(rows).flatten(end_dim=1)
    return flat.mT @ flat


def block(matrix: Tensor, params: Params, a: Place, b: Place | None = None) -> Tensor:
    """A layer's block of a matrix (P, P), or that of two layers, by outputs and then inputs."""
    places = torch.arange(len(matrix)).split([v.numel() for v in params.values()])
    index = {k: part.reshape(v.shape) for (k, v), part in zip(params.items(), places, strict=True)}
    rows, columns = a.join(index).reshape(-1), (b or a).join(index).reshape(-1)
    return matrix[rows][:, columns]


def finite(matrix: Matrix, like: Params) -> bool:
    """Whether everything that a precision is asked for is finite."""
    found = [matrix.solve(like), matrix.inv_sqrt(like), matrix.inverse_diagonal()]
    tensors = [v for part in found for v in part.values()]
    return all(bool(v.isfinite().all()) for v in [*tensors, matrix.logdet()])
