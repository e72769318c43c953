"""Laplace approximations as laplace-torch has them.

Runs after `pip install --no-deps -r tests/peers/requirements.txt`.
"""

import sys
import warnings
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
from exact import dense, flat, mlp, randn
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesrule as br
from bayesrule.likelihoods import Likelihood
from bayesrule.matrices import Dense, Diagonal, Kronecker, Matrix, Structure
from bayesrule.posteriors import Gaussian, Product, evidence
from bayesrule.predicting.predict import linearised_outputs
from bayesrule.types import State
from peers.cases import agree


def _laplace_torch() -> Any:
    """The library, with an empty stand-in for torchmetrics, which only its grid search needs."""
    stand_in = ModuleType("torchmetrics")
    vars(stand_in)["Metric"] = nn.Module
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setitem(sys.modules, "torchmetrics", stand_in)
        return pytest.importorskip("laplace")


laplace = _laplace_torch()
backends = pytest.importorskip("laplace.curvature")

# Its forward derivatives make torch compile functions in a way that torch itself gives up.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
NUM_DATA, PRIOR, NOISE = 24, 0.7, 0.4
STRUCTURES: dict[str, Structure] = {"full": Dense(), "diag": Diagonal(), "kron": Kronecker()}
LIKELIHOODS: dict[str, Likelihood] = {
    "classification": br.CategoricalLikelihood(),
    "regression": br.GaussianLikelihood(noise=NOISE),
}


@dataclass(frozen=True)
class Pair:
    """The same approximation by both libraries."""

    learner: br.Learner
    state: State
    theirs: Any
    log_likelihood: float

    @property
    def precision(self) -> Matrix:
        assert isinstance(self.state.posterior, Gaussian | Product)
        return self.state.posterior.precision

    @property
    def curvature(self) -> Matrix:
        """The precision without the prior's."""
        return self.precision.damped(-PRIOR)


@pytest.fixture(params=LIKELIHOODS)
def task(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=STRUCTURES)
def structure(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["all", "last_layer"])
def weights(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _without_biases(model: nn.Sequential) -> nn.Sequential:
    for module in model:
        if isinstance(module, nn.Linear):
            module.register_parameter("bias", None)
    return model


@pytest.fixture
def pair(task: str, structure: str, weights: str) -> Pair:
    """Both at the same weights, from three batches."""
    # Their Kronecker factors keep weights and biases apart; here a layer has one block for both.
    model = _without_biases(mlp(3, 5, 3)) if structure == "kron" else mlp(3, 5, 3)
    likelihood, x, y = LIKELIHOODS[task], randn(NUM_DATA, 3, seed=7), randn(NUM_DATA, 3, seed=8)
    y = y.argmax(-1) if task == "classification" else y
    learner = br.laplace(
        model,
        likelihood,
        num_data=NUM_DATA,
        structure=STRUCTURES[structure],
        last_layer=weights == "last_layer",
        empirical_prior=False,
        temperature=1.0,
        prior_precision=PRIOR,
    )
    batches = [(x[i : i + 10], y[i : i + 10]) for i in range(0, NUM_DATA, 10)]
    state = learner.finish(learner.init(), batches)
    options = {"prior_precision": PRIOR, "backend": backends.CurvlinopsGGN}
    options |= {"sigma_noise": NOISE} if task == "regression" else {}
    theirs = laplace.Laplace(model, task, weights, structure, **options)
    theirs.fit(DataLoader(TensorDataset(x, y), batch_size=10))
    fit = likelihood.log_prob(model(x), y, state.likelihood).sum()
    return Pair(learner, state, theirs, float(fit.detach()))


def test_precisions_and_covariances_agree(pair: Pair, structure: str) -> None:
    found, theirs = pair.precision, pair.theirs
    uncertain = {name: pair.state.posterior.mean[name] for name in found.diagonal()}
    if structure == "diag":
        agree(flat(found.diagonal()), theirs.posterior_precision)
        agree(flat(found.inverse_diagonal()), theirs.posterior_variance)
        return
    whole = theirs.posterior_precision
    whole = whole.to_matrix() if structure == "kron" else whole
    agree(dense(found, uncertain), whole)
    agree(flat(found.inverse_diagonal()), torch.linalg.inv(whole).diagonal())


def test_functional_variances_agree(pair: Pair) -> None:
    """`J S⁻¹ Jᵀ` at new inputs, near and far from the data."""
    x = 2.0 * randn(9, 3, seed=9)
    mean, covariance = linearised_outputs(pair.learner, pair.state, x)
    functions = pair.theirs._glm_predictive_distribution(x)
    agree(mean, functions[0])
    agree(covariance, functions[1])


def test_predictions_agree(pair: Pair, task: str) -> None:
    """Classes by the probit link; real numbers by their epistemic variance."""
    x = 2.0 * randn(9, 3, seed=9)
    found = br.predict(pair.learner, pair.state, x)
    if task == "classification":
        agree(found.mean, pair.theirs(x, pred_type="glm", link_approx="probit"))
    else:
        mean, covariance = pair.theirs(x, pred_type="glm")
        agree(found.mean, mean)
        agree(found.epistemic, covariance.diagonal(dim1=-2, dim2=-1))


@pytest.mark.parametrize("prior", [0.1, PRIOR, 4.0])
def test_log_evidences_agree(pair: Pair, prior: float) -> None:
    rest = evidence.log_evidence(pair.curvature, pair.state.posterior.mean, prior)
    want = pair.theirs.log_marginal_likelihood(prior_precision=torch.tensor(prior))
    agree(torch.tensor(pair.log_likelihood + rest), want.detach())


def test_the_prior_of_largest_evidence_is_theirs(pair: Pair) -> None:
    """Where our search ends, their evidence does not change with the logarithm of the prior."""
    mean = pair.state.posterior.mean
    found = evidence.prior_precision(pair.curvature, mean, steps=10_000, tolerance=1e-13)
    slopes = [_slope(pair.theirs, prior) for prior in (found, PRIOR)]
    assert abs(slopes[0]) < 1e-10 * abs(slopes[1])


def _slope(theirs: Any, prior: float) -> float:
    log = torch.tensor(prior).log().requires_grad_()
    (found,) = torch.autograd.grad(theirs.log_marginal_likelihood(prior_precision=log.exp()), log)
    return float(found)
