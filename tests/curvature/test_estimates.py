"""Each curvature against its closed form, or against its limit where it is an estimate."""

import pytest
import torch
from torch import Tensor, nn

from bayesrule.curvature import (
    GGN,
    Curvature,
    Fisher,
    Here,
    Hessian,
    NoCurvature,
    PerExample,
    Price,
    Problem,
    SquaredGradient,
)
from bayesrule.expectations import Draws
from bayesrule.likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    GaussianLikelihood,
    HeteroscedasticLikelihood,
    Likelihood,
    PoissonLikelihood,
)
from bayesrule.matrices import (
    BlockMatrix,
    Blocks,
    Dense,
    DenseMatrix,
    Diagonal,
    Isotropic,
    Known,
    Matrix,
    Structure,
)
from bayesrule.posteriors import Gaussian
from bayesrule.tensors import seeds, vectors
from bayesrule.types import Derivatives
from curvature.brute_force import at_mean, example_rows, flat, ggn, loss_of_flat, problem_of

LIKELIHOODS: dict[str, Likelihood] = {
    "gaussian": GaussianLikelihood(noise=0.3),
    "learned noise": GaussianLikelihood(),
    "categorical": CategoricalLikelihood(),
    "bernoulli": BernoulliLikelihood(),
    "poisson": PoissonLikelihood(),
    "heteroscedastic": HeteroscedasticLikelihood(),
}
GLMS = [name for name in LIKELIHOODS if name != "heteroscedastic"]
EVERY = [NoCurvature(), SquaredGradient(), PerExample(), Fisher(), GGN(), Hessian()]


def _problem(name: str) -> Problem:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 4))
    x, likelihood = torch.randn(5, 2), LIKELIHOODS[name]
    targets = {
        "categorical": torch.tensor([0, 3, 1, 2, 0]),
        "bernoulli": torch.randint(2, (5, 4)).double(),
        "poisson": torch.randint(6, (5, 4)).double(),
        "heteroscedastic": torch.randn(5, 2),
    }.get(name, torch.randn(5, 4))
    learned = {"a": torch.tensor(7.0), "b": torch.tensor([2.0, 3.0, 4.0, 5.0])}
    noise = learned if name == "learned noise" else {}
    return problem_of(model, x, targets, likelihood, noise=noise)


def _dense(curvature: Curvature, problem: Problem) -> Tensor:
    point = at_mean(problem)
    structure = Dense()
    belief = Gaussian(point.params, structure.identity(point.params, 1.0))
    local = curvature.local(problem, Here(point, structure, belief))
    assert isinstance(local.curvature, DenseMatrix)
    return local.curvature.values


def _outputs(problem: Problem) -> Tensor:
    return problem.forward(problem.network.params())


def _output_hessians(problem: Problem) -> Tensor:
    """The Hessian of −log p in the outputs of each example, by autograd, (n, K, K)."""
    outputs = _outputs(problem)

    def one(i: int) -> Tensor:
        def nll(f: Tensor) -> Tensor:
            return problem.nll(torch.cat([outputs[:i], f[None], outputs[i + 1 :]]), problem.y)

        return torch.autograd.functional.hessian(nll, outputs[i])

    return torch.stack([one(i) for i in range(len(outputs))])


def _heteroscedastic_fisher(problem: Problem) -> Tensor:
    log_variance = _outputs(problem)[:, 2:]
    diagonal = torch.cat([torch.exp(-log_variance), torch.full_like(log_variance, 0.5)], dim=1)
    return torch.diag_embed(diagonal)


@pytest.mark.parametrize("name", GLMS)
def test_ggn_is_jacobian_hessian_jacobian(name: str) -> None:
    problem = _problem(name)
    want = ggn(problem, _output_hessians(problem))
    torch.testing.assert_close(_dense(GGN(), problem), want, rtol=1e-10, atol=1e-10)


def test_ggn_of_a_heteroscedastic_likelihood_has_its_fisher_information() -> None:
    problem = _problem("heteroscedastic")
    want = ggn(problem, _heteroscedastic_fisher(problem))
    torch.testing.assert_close(_dense(GGN(), problem), want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_sampled_fisher_has_the_ggn_as_its_mean(name: str) -> None:
    problem = _problem(name)
    estimates = torch.stack([_dense(Fisher(4), problem) for _ in range(250)])
    want = _dense(GGN(), problem)
    error = estimates.mean(0) - want
    z = error / (estimates.std(0) / len(estimates) ** 0.5).clamp_min(1e-12)
    assert z.abs().max() < 5.0
    # Not because the errors are large: the estimate is within a tenth of the truth.
    assert error.norm() < 0.1 * want.norm()


def test_fisher_needs_a_sample() -> None:
    with pytest.raises(ValueError, match="at least one sample, got 0"):
        Fisher(0)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_per_example_is_the_sum_of_outer_products(name: str) -> None:
    problem = _problem(name)
    _, slope = problem.loss(_outputs(problem))
    rows = flat(example_rows(problem, slope[None]), leading=2)[0]
    want = rows.mT @ rows
    torch.testing.assert_close(_dense(PerExample(), problem), want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_hessian_is_the_hessian(name: str) -> None:
    problem = _problem(name)
    start = flat(problem.network.params())
    want = torch.autograd.functional.hessian(lambda v: loss_of_flat(problem, v), start)
    torch.testing.assert_close(_dense(Hessian(), problem), want, rtol=1e-10, atol=1e-10)


def test_hessian_of_an_unused_parameter_is_zero() -> None:
    model = nn.Linear(2, 1)
    model.register_parameter("idle", nn.Parameter(torch.ones(2)))
    problem = problem_of(model, torch.randn(4, 2), torch.randn(4, 1))
    matrix = _dense(Hessian(), problem)
    idle = flat({k: torch.full_like(v, k == "idle") for k, v in problem.network.params().items()})
    assert matrix[idle.bool()].abs().max() == 0.0
    assert matrix[~idle.bool()].abs().max() > 0.0


def test_hessian_refuses_a_large_net() -> None:
    with pytest.raises(ValueError, match=r"of 25 parameters.*is 10.*Hessian\(limit=25\)"):
        _dense(Hessian(limit=10), _problem("gaussian"))


@pytest.mark.parametrize("curvature", EVERY, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_loss_and_gradient_are_sums_over_the_batch(curvature: Curvature, name: str) -> None:
    problem = _problem(name)
    point = at_mean(problem)
    structure = Diagonal()
    belief = Gaussian(point.params, structure.identity(point.params, 1.0))
    local = curvature.local(problem, Here(point, structure, belief))
    start = flat(point.params)
    loss, gradient = (
        loss_of_flat(problem, start),
        torch.func.grad(lambda v: loss_of_flat(problem, v))(start),
    )
    torch.testing.assert_close(local.loss, loss, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(flat(local.gradient), gradient, rtol=1e-10, atol=1e-10)
    assert not local.loss.requires_grad
    assert not any(v.requires_grad for v in local.gradient.values())


@pytest.mark.parametrize("structure", [Diagonal(), Dense(), Isotropic()], ids=repr)
def test_squared_gradient_is_n_times_the_square_of_the_mean(structure: Structure) -> None:
    mean = {"a": torch.randn(2, 2), "b": torch.randn(3)}
    weight = 50.0
    whole = Derivatives(torch.zeros(()), vectors.scale(mean, weight), None, weight)
    done = SquaredGradient().complete(whole, structure)
    outer = weight * torch.outer(flat(mean), flat(mean))
    want = structure.project(outer, mean)
    assert done.curvature is not None
    torch.testing.assert_close(flat(done.curvature.diagonal()), flat(want.diagonal()))
    assert done.gradient is whole.gradient


PRICED: dict[str, Structure] = {
    "isotropic": Isotropic(),
    "diagonal": Diagonal(),
    "dense": Dense(),
    "bias alone": Blocks({"bias": Diagonal(), "*": Known()}),
    "weight alone, dense": Blocks({"weight": Dense(), "*": Known()}),
    "both, apart": Blocks({"weight": Dense(), "bias": Isotropic()}),
}


def _price_problem(likelihood: Likelihood) -> Problem:
    torch.manual_seed(1)
    x = torch.randn(6, 2)
    return problem_of(nn.Linear(2, 1), x, torch.randint(4, (6, 1)).double(), likelihood)


def _belief(structure: Structure, problem: Problem) -> Gaussian:
    """A belief of the structure whose precision is not the identity."""
    params = problem.network.params()
    root = torch.randn(3, 3, generator=torch.Generator().manual_seed(4))
    return Gaussian(params, structure.project(4.0 * torch.eye(3) + root @ root.mT, params))


def _exact_hessian(problem: Problem, belief: Gaussian) -> Tensor:
    """`E_q[∇²ℓ]` of a linear model in closed form, (P, P)."""
    assert isinstance(problem.x, Tensor)
    design = torch.cat([problem.x, torch.ones(len(problem.x), 1)], dim=1)
    if isinstance(problem.likelihood, GaussianLikelihood):
        assert problem.likelihood.noise is not None
        rate = torch.full((len(design),), problem.likelihood.noise**-2)
    else:
        basis = [belief.precision.inv_sqrt(_unit(i, belief)) for i in range(3)]
        spread = design @ torch.stack([flat(b) for b in basis], dim=1)
        rate = torch.exp(design @ flat(belief.mean) + 0.5 * spread.square().sum(1))
    return design.mT @ (rate[:, None] * design)


def _unit(i: int, belief: Gaussian) -> dict[str, Tensor]:
    unit = torch.eye(3)[i]
    return {"weight": unit[:2].reshape(1, 2), "bias": unit[2:]} if belief.mean else {}


@pytest.mark.parametrize("likelihood", [GaussianLikelihood(0.8), PoissonLikelihood()], ids=repr)
@pytest.mark.parametrize("structure", PRICED.values(), ids=PRICED)
def test_price_averages_to_the_expected_hessian(
    structure: Structure, likelihood: Likelihood
) -> None:
    problem = _price_problem(likelihood)
    belief = _belief(structure, problem)
    points = Draws(2000, antithetic=True).points(belief, seeds.generator("cpu", 0, 0))
    found = [Price().local(problem, Here(point, structure, belief)) for point in points]
    # The two draws of a pair are not independent, so pairs are what is counted.
    pairs = torch.stack([_entries(one.curvature) for one in found]).unflatten(0, (-1, 2)).mean(1)
    want = _entries(structure.project(_exact_hessian(problem, belief), belief.mean))
    deviation = pairs.std(0) / len(pairs) ** 0.5
    assert ((pairs.mean(0) - want) / deviation).abs().max() < 4.5
    # The bound is sharp enough to see a quarter too much or too little.
    assert (0.25 * want / deviation).abs().max() > 4.5


def _entries(matrix: Matrix | None) -> Tensor:
    if isinstance(matrix, BlockMatrix):
        parts = [_entries(block) for block in matrix.blocks.values() if block.diagonal()]
        return torch.cat(parts)
    if isinstance(matrix, DenseMatrix):
        return matrix.values.flatten()
    assert matrix is not None
    return flat(matrix.diagonal())
