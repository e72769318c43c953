"""What rows and curvatures must equal, computed the slow way: an example at a time."""

import torch
from torch import Tensor, nn

from bayesrule.curvature import Problem
from bayesrule.likelihoods import GaussianLikelihood, Likelihood
from bayesrule.posteriors import Point
from bayesrule.tensors.network import Inputs, Network, num_examples, take
from bayesrule.types import Params


def problem_of(
    model: nn.Module,
    x: Inputs,
    y: Tensor | None = None,
    likelihood: Likelihood | None = None,
    *,
    noise: Params | None = None,
    training: bool = False,
    seed: int = 0,
) -> Problem:
    """A problem on an unmodified module, at its own buffers."""
    network = Network(model)
    targets = torch.zeros(num_examples(x)) if y is None else y
    return Problem(
        network,
        likelihood or GaussianLikelihood(noise=0.5),
        noise or {},
        network.buffers(),
        x,
        targets,
        torch.Generator().manual_seed(seed),
        training=training,
    )


def at_mean(problem: Problem) -> Point:
    """The module's own parameters as a point."""
    return Point(problem.network.params())


def example_rows(problem: Problem, vectors: Tensor) -> Params:
    """Rows {name: (V, n, *shape)}: a forward and a backward pass for each example and vector."""
    params = problem.network.params()
    rows = [
        [_one_row(problem, params, i, vector[i : i + 1]) for i in range(num_examples(problem.x))]
        for vector in vectors
    ]
    return {
        name: torch.stack([torch.stack([one[name] for one in each]) for each in rows])
        for name in params
    }


def _one_row(problem: Problem, params: Params, i: int, vector: Tensor) -> Params:
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    buffers = {name: value.clone() for name, value in problem.buffers.items()}
    x = take(problem.x, slice(i, i + 1))
    outputs = problem.network(leaves, buffers, x, training=problem.training)
    loss = (outputs * vector).sum()
    found = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def flat(params: Params, leading: int = 0) -> Tensor:
    """All parameters as one vector, (*leading, P)."""
    return torch.cat([v.flatten(start_dim=leading) for v in params.values()], dim=leading)


def unflat(vector: Tensor, like: Params) -> Params:
    """One vector (P,) as parameters."""
    parts = vector.split([v.numel() for v in like.values()])
    return {k: p.reshape(v.shape) for (k, v), p in zip(like.items(), parts, strict=True)}


def loss_of_flat(problem: Problem, vector: Tensor) -> Tensor:
    """The summed negative log-likelihood as a function of one vector of weights."""
    outputs = problem.forward(unflat(vector, problem.network.params()))
    return problem.nll(outputs, problem.y)


def jacobian(problem: Problem) -> Tensor:
    """`df/dθ` at the module's own parameters, (n, K, P) with K outputs for each example."""
    params = problem.network.params()

    def outputs(vector: Tensor) -> Tensor:
        return problem.forward(unflat(vector, params)).flatten(start_dim=1)

    found = torch.autograd.functional.jacobian(outputs, flat(params))
    assert isinstance(found, Tensor)
    return found


def ggn(problem: Problem, output_hessian: Tensor) -> Tensor:
    """`Σ_n Jᵀ H J`, (P, P), for the information of the outputs H (n, K, K)."""
    slopes = jacobian(problem)
    return torch.einsum("nkp,nkl,nlq->pq", slopes, output_hessian, slopes)
