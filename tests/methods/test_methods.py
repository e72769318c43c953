"""Every named method keeps the promises of the contract, and names are found."""

import pytest
import torch
from contracts.method import TASKS, MethodContract
from torch import nn

import bayesrule as br
from bayesrule import methods
from bayesrule.methods.laplace import last_layer_names

CASES = [(name, task) for name in methods.METHODS for task in TASKS]


class TestEveryMethod(MethodContract):
    """All tests of the contract for each method and task."""

    @pytest.fixture(params=CASES, ids="-".join, autouse=True)
    def case(self, request: pytest.FixtureRequest) -> None:
        """The method and the task of one round of tests."""
        self.name, task = request.param
        self.task = TASKS[task]()


def test_every_function_with_a_likelihood_is_listed() -> None:
    own = {
        name
        for name, value in vars(methods).items()
        if str(getattr(value, "__module__", "")).startswith(methods.__name__)
        and list(getattr(value, "__annotations__", {}))[:2] == ["model", "likelihood"]
    }
    assert own == set(methods.METHODS)


@pytest.mark.parametrize("name", ["VOGN", " vogn ", "Vogn"])
def test_names_are_found_however_they_are_written(name: str) -> None:
    assert methods.find(name) is br.vogn


def test_an_unknown_name_gets_a_hint() -> None:
    with pytest.raises(ValueError, match=r"Unknown method 'adamm'. Did you mean 'adam'\? Methods:"):
        methods.find("adamm")
    with pytest.raises(ValueError, match=r"Unknown method 'zzz'. Methods: sgd, "):
        methods.find("zzz")


def test_the_last_layer_is_the_last_that_has_trainable_parameters() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1), nn.ReLU(), nn.Linear(1, 1))
    model[3].requires_grad_(False)
    assert last_layer_names(model) == ("1.weight", "1.bias")
    model[1].weight.requires_grad_(False)
    assert last_layer_names(model) == ("1.bias",)
    with pytest.raises(ValueError, match="no trainable parameters, so it has no last layer"):
        last_layer_names(model.requires_grad_(False))


def test_plain_optimisers_have_no_prior_unless_given_one() -> None:
    model, likelihood = nn.Linear(2, 1), br.GaussianLikelihood(noise=1.0)
    for method in (br.sgd, br.rmsprop, br.adam):
        assert method(model, likelihood, num_data=5).prior_precision == 0.0
        assert method(model, likelihood, num_data=5, prior_precision=2.0).prior_precision == 2.0
        given = method(model, likelihood, num_data=5, prior=br.GaussianPrior(3.0))
        assert given.prior_precision == 3.0
        with pytest.raises(ValueError, match="not both"):
            method(model, likelihood, num_data=5, prior=given.prior, prior_precision=2.0)
    assert br.map(model, likelihood, num_data=5).prior_precision == 1.0


def test_an_improper_prior_is_infinitely_far() -> None:
    learner = br.adam(nn.Linear(2, 1), br.GaussianLikelihood(noise=1.0), num_data=5)
    _, info = learner.step(learner.init(), (torch.randn(5, 2), torch.randn(5, 1)))
    assert info.kl == torch.inf
    assert torch.isfinite(info.loss)
