"""What every named method must do; `tests/methods/test_methods.py` runs it over all of them."""

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule import Learner, methods
from bayesrule.likelihoods import Likelihood
from bayesrule.methods import Need, record
from bayesrule.methods.laplace import last_layer_names
from bayesrule.tensors import tree
from bayesrule.types import State

# Full steps of methods for linear models may overshoot where probabilities are close to 0 or 1, so
# their loss falls for certain in short ones.
SHORT = {"learning_rate": 0.3, "rate": 0.3}


@dataclass(frozen=True)
class Task:
    """An easy problem with a likelihood and a module that can solve it."""

    x: Tensor
    y: Tensor
    likelihood: Likelihood
    outputs: int

    def model(self, method: str) -> nn.Module:
        """An unmodified module, the same at each call."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            if Need.LINEAR_MODEL in record(method).needs:
                return nn.Linear(2, self.outputs)
            net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(inplace=True), nn.Linear(8, self.outputs))
            differentiated_twice = Need.SMOOTH_ACTIVATIONS in record(method).needs
            return br.smooth(net) if differentiated_twice else net


def regression_task() -> Task:
    """A line with a little noise."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 2, generator=generator)
    y = x.sum(1, keepdim=True) + 0.1 * torch.randn(64, 1, generator=generator)
    return Task(x, y, br.GaussianLikelihood(noise=0.3), 1)


def classification_task() -> Task:
    """Three classes that lines keep apart."""
    generator = torch.Generator().manual_seed(2)
    x = 2.0 * torch.randn(64, 2, generator=generator)
    corners = torch.tensor([[1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]])
    return Task(x, (x @ corners.mT).argmax(1), br.CategoricalLikelihood(), 3)


TASKS: dict[str, Callable[[], Task]] = {
    "regression": regression_task,
    "classification": classification_task,
}


class MethodContract:
    """The promises; a subclass says which method and which task."""

    name: str
    task: Task

    def learner(self, **options: object) -> Learner:
        """The method on the task, with its own defaults unless told otherwise."""
        model = self.task.model(self.name)
        return methods.METHODS[self.name](
            model, self.task.likelihood, num_data=len(self.task.x), **options
        )

    def run(self, learner: Learner, steps: int, state: State | None = None) -> State:
        """Some steps over batches of half the data."""
        now = learner.init(seed=0) if state is None else state
        for _ in range(steps):
            rows = slice(0, 32) if now.step % 2 else slice(32, 64)
            now, _ = learner.step(now, (self.task.x[rows], self.task.y[rows]))
        return now

    def loss(self, learner: Learner, state: State) -> float:
        """The mean negative log-likelihood at the mean of the belief."""
        outputs = learner.network(state.posterior.mean, state.buffers, self.task.x, training=False)
        found = self.task.likelihood.log_prob(outputs, self.task.y, state.likelihood)
        return -float(found.mean())

    def test_is_listed_and_exported(self) -> None:
        method = getattr(br, self.name)
        assert methods.METHODS[self.name] is method
        assert methods.find(self.name.upper().replace("_", "-")) is method

    def test_is_a_short_assignment_of_parts(self) -> None:
        (function,) = ast.parse(inspect.getsource(methods.METHODS[self.name])).body
        assert isinstance(function, ast.FunctionDef)
        assert ast.get_docstring(function), "it needs a docstring"
        assert ast.unparse(function.returns or ast.Constant(None)) == "Parts"
        body = function.body[1:]
        last = body[-1].end_lineno
        assert last is not None
        assert last - body[0].lineno + 1 <= 12

    def test_takes_module_likelihood_and_keywords(self) -> None:
        parameters = inspect.signature(methods.METHODS[self.name]).parameters
        kinds = [p.kind for p in parameters.values()]
        assert list(parameters)[:2] == ["model", "likelihood"]
        assert set(kinds[2:]) == {inspect.Parameter.KEYWORD_ONLY}

    def test_the_loss_falls(self) -> None:
        linear = Need.LINEAR_MODEL in record(self.name).needs
        learner = self.learner(**(SHORT if linear else {}))
        before = self.loss(learner, learner.init(seed=0))
        state = self.run(learner, 60)
        assert self.loss(learner, state) < 0.8 * before

    def test_predictions_are_finite(self) -> None:
        learner = self.learner()
        state = self.run(learner, 10)
        state = learner.finish(state, [(self.task.x, self.task.y)])
        found = br.predict(learner, state, self.task.x)
        assert torch.isfinite(found.log_prob(self.task.y)).all()
        assert torch.isfinite(found.mean).all()
        assert torch.isfinite(found.variance).all()
        assert (found.variance >= 0).all()
        assert len(found.mean) == len(self.task.x)

    def test_the_belief_is_a_belief(self) -> None:
        learner = self.learner(**self._with_prior(2.0))
        state = self.run(learner, 10)
        names = [name for name, _ in learner.model.named_parameters()]
        assert list(state.posterior.mean) == names
        variance = state.posterior.variance()
        assert all(torch.isfinite(v).all() and (v >= 0).all() for v in variance.values())
        assert torch.isfinite(state.posterior.kl(learner.prior))

    def test_the_state_survives_a_round_trip(self) -> None:
        learner = self.learner()
        state = self.run(learner, 3)
        saved = {k: v.clone() if isinstance(v, Tensor) else v for k, v in tree.leaves(state)}
        blank = learner.init(seed=7)
        # A likelihood may learn the shape of its noise from the first batch.
        restored = tree.rebuild(blank, lambda name, old: saved[name])
        assert dict(tree.leaves(restored)).keys() == saved.keys()
        continued, again = self.run(learner, 3, restored), self.run(learner, 3, state)
        for (name, got), (_, want) in zip(tree.leaves(continued), tree.leaves(again), strict=True):
            assert torch.equal(torch.as_tensor(got), torch.as_tensor(want)), name

    def test_takes_the_common_settings(self) -> None:
        with_prior = self._with_prior(3.0)
        learner = self.learner(**with_prior, temperature=0.5, shared_draws=True)
        assert (learner.temperature, learner.shared_draws) == (0.5, True)
        assert not with_prior or learner.prior_precision == 3.0
        assert learner.weight == 128.0
        assert torch.isfinite(self.run(learner, 2).posterior.mean[self._some(learner)]).all()

    def test_a_learning_rate_of_zero_leaves_the_mean(self) -> None:
        if "learning_rate" not in inspect.signature(methods.METHODS[self.name]).parameters:
            with pytest.raises(TypeError, match="learning_rate"):
                self.learner(learning_rate=0.0)
            return
        learner = self.learner(learning_rate=0.0)
        name = self._some(learner)
        start = learner.init().posterior.mean[name]
        # Up to rounding: a mean may be kept in other bases, which change.
        torch.testing.assert_close(self.run(learner, 2).posterior.mean[name], start)
        scheduled = self.learner(learning_rate=br.schedules.linear(0.0, 0.1, steps=1))
        once = self.run(scheduled, 1)
        torch.testing.assert_close(once.posterior.mean[name], start)
        assert not torch.allclose(self.run(scheduled, 1, once).posterior.mean[name], start)

    def test_says_what_it_is_made_of(self) -> None:
        parts = self.learner().parts()
        assert list(parts) == ["posterior", "expectation", "curvature", "rule"]
        rooms = {"posterior": (br.posteriors, br.matrices), "expectation": (br.expectations,)}
        rooms |= {"curvature": (br.curvature,), "rule": (br.rules,)}
        for kind, words in parts.items():
            assert any(hasattr(room, words.partition(" ")[0]) for room in rooms[kind])

    def _with_prior(self, precision: float) -> dict[str, float]:
        """The option, for methods whose prior has a precision."""
        names = methods.option_names(methods.METHODS[self.name])
        return {"prior_precision": precision} if "prior_precision" in names else {}

    def _some(self, learner: Learner) -> str:
        """A parameter of the last layer, which every belief is about."""
        return last_layer_names(learner.model)[0]
