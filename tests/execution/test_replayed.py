"""Replayed steps are those of `learner.step`; a graph here does its work again when replayed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

import bayesrule as br
from bayesrule import Learner
from bayesrule.execution import Replayed, Stacked, replayed
from bayesrule.execution.replayed import replay_obstacle
from bayesrule.posteriors.rotated import FactoredFamily
from bayesrule.rules import Average, HeavyBall, Velocity
from bayesrule.tensors import tree
from bayesrule.tensors.randomness import OneForAll
from bayesrule.training.models import mlp
from bayesrule.types import Info, State

pytestmark = pytest.mark.usefixtures("double_precision")
NUM, ROWS, STEPS = 3, 6, 9
Batch = tuple[Any, Tensor]


def captured(
    work: Callable[[], Tensor], rehearse: Callable[[], object], generators: Sequence[Generator]
) -> tuple[Any, Tensor]:
    """As on a GPU: rehearsed, noted down without being done, and done at each replay."""
    assert len(generators) == 2
    for _ in range(2):
        rehearse()
    loss = torch.empty(0)
    return SimpleNamespace(replay=lambda: loss.set_(work())), loss


class Numbers:
    """The random numbers of `step` for replayed steps: those of the state they start from."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.problem: Callable[[], Any] = lambda: None
        monkeypatch.setattr(replayed, "captured", captured)
        monkeypatch.setattr(replayed, "on_gpu", lambda y: True)
        monkeypatch.setattr(Replayed, "_streams", lambda _: self.streams())

    def streams(self) -> list[Any]:
        """New ones each time: rehearsals have used them up."""
        problem = self.problem()
        return [problem.targets, problem.draws]

    def step(self, steps: Replayed, state: State, batch: Batch, **options: Any) -> Any:
        """A replayed step with the numbers that the plain one would draw."""
        sizes = {k: v for k, v in options.items() if k == "sizes"}
        self.problem = lambda: steps._stepper.problem(state, batch, **sizes)
        return steps.step(state, batch, **options)


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> Numbers:
    return Numbers(monkeypatch)


def data(step: int, *first: int, outputs: int = 1) -> tuple[Tensor, Tensor]:
    """Another batch for each step, (*first, rows, 3)."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(*first, ROWS, 3, generator=generator)
    return x, torch.randn(*first, ROWS, outputs, generator=generator)


def same(found: tuple[State, Info], expected: tuple[State, Info]) -> None:
    """Whether two steps ended in the same numbers."""
    for name in ("loss", "kl", "elbo"):
        values = (getattr(info, name) for _, info in (found, expected))
        torch.testing.assert_close(*values, rtol=1e-9, atol=1e-9, msg=name)
    wanted = dict(tree.leaves(expected[0]))
    leaves = dict(tree.leaves(found[0]))
    assert leaves.keys() == wanted.keys()
    for name, value in leaves.items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-9, atol=1e-9, msg=name)


def follow(learner: Learner, numbers: Numbers, batches: Callable[[int], Batch] = data) -> State:
    """Replayed steps beside those of the learner."""
    steps, state = Replayed(learner), learner.init(3)
    other = learner.init(3)
    for step in range(STEPS):
        expected = learner.step(state, batches(step))
        found = numbers.step(steps, other, batches(step))
        same(found, expected)
        state, other = expected[0], found[0]
    assert steps._plans
    return other


def follow_stack(learner: Learner, numbers: Numbers, sizes: Sequence[int] | None = None) -> None:
    """Replayed steps of a stack beside its own."""
    stack = Stacked(learner, NUM, num_data=[20, 22, 35])
    steps, state, other = Replayed(stack), stack.init(3), stack.init(3)
    for step in range(STEPS):
        # Every other batch is not full.
        options = {"sizes": sizes if sizes is not None and step % 2 else [ROWS] * NUM}
        expected = stack.step(state, data(step, NUM), **options)
        found = numbers.step(steps, other, data(step, NUM), **options)
        same(found, expected)
        state, other = expected[0], found[0]
    assert steps._plans


METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("sgd", "rmsprop", "adam", "map", "ogn", "vogn", "ivon")},
    **{name: (name, {}) for name in ("laplace", "mean_field", "k_tied", "variational_laplace")},
    **{name: (name, {}) for name in ("noisy_adam",)},
    "schedules": ("vogn", {"learning_rate": br.schedules.cosine(0.1, 20), "draws": 2}),
    "annealed": ("mean_field", {"kl_weight": br.schedules.linear(0.0, 1.0, 6)}),
    "some known": ("mean_field", {"known": ("0.*",), "learning_rate": 0.05}),
    "antithetic": ("mean_field", {"expectation": br.Draws(2, antithetic=True)}),
    "local draws": ("mean_field", {"expectation": br.LocalDraws()}),
    "velocity": ("noisy_adam", {"momentum": Velocity(0.8), "damped_root": True}),
}


def method(name: str) -> Learner:
    """One of the methods, with learned noise."""
    made, options = METHODS[name]
    model = mlp(3, 1, hidden=(5, 4), activation=nn.Tanh)
    learner: Learner = getattr(br, made)(model, br.GaussianLikelihood(), num_data=20, **options)
    return learner


@pytest.mark.parametrize("name", METHODS)
def test_steps_are_those_of_the_learner(name: str, numbers: Numbers) -> None:
    follow(method(name), numbers)


@pytest.mark.parametrize("options", [{}, {"real": "*.bias"}], ids=["all", "real biases"])
@pytest.mark.parametrize("name", ["ste", "bayesbinn"])
def test_steps_of_binary_weights(name: str, options: dict[str, Any], numbers: Numbers) -> None:
    model = mlp(3, 1, hidden=(5, 4), activation=nn.Tanh)
    given = {"num_data": 20, "learning_rate": br.schedules.cosine(0.01, 20), **options}
    first = getattr(br, name)(model, br.GaussianLikelihood(), **given)
    state = follow(first, numbers)
    if name == "bayesbinn":
        # What was believed before is a prior for each weight.
        prior = {"prior": tree.map_tensors(state.posterior, torch.clone)}
        follow(br.bayesbinn(model, br.GaussianLikelihood(), **given, **prior), numbers)


@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"local draws"}))
def test_steps_of_stacks_are_those_of_the_stack(name: str, numbers: Numbers) -> None:
    follow_stack(method(name), numbers)
    follow_stack(method(name), numbers, sizes=(6, 1, 4))


RULES = {
    "every step": br.Natural(
        br.schedules.cosine(0.05, 30), 0.05, momentum=Average(0.9), prior_at_draws=True
    ),
    "some steps": br.Natural(0.05, 0.05, stats_every=2, inverse_every=6, kl_clip=1e-2),
    "not in step": br.Natural(0.05, 0.05, stats_every=3, inverse_every=2, prior_at_draws=True),
    "damped": br.Natural(
        0.05, 0.1, momentum=Velocity(0.5), damping=1e-2, stats_every=3, inverse_every=5
    ),
    "mean's prior": br.Natural(0.05, br.schedules.linear(0.5, 0.05, 5), Average(0.8), clip=0.5),
}


def natural(rule: br.rules.Rule, family: br.posteriors.Family | None = None) -> Learner:
    """Natural gradients; by default two factors for each layer, whose roots steps go on with."""
    return Learner(
        mlp(3, 1, hidden=(5,), activation=nn.Tanh),
        br.GaussianLikelihood(),
        num_data=20,
        posterior=family or br.GaussianFamily(br.Kronecker()),
        expectation=br.Draws(2),
        curvature=br.Fisher(),
        rule=rule,
    )


@pytest.mark.parametrize("rule", RULES)
def test_roots_are_carried_from_step_to_step(rule: str, numbers: Numbers) -> None:
    follow(natural(RULES[rule]), numbers)
    follow_stack(natural(RULES[rule]), numbers, sizes=(6, 5, 4))


@pytest.mark.parametrize("rule", RULES)
def test_the_form_that_noisy_kfac_has_on_a_gpu(rule: str, numbers: Numbers) -> None:
    follow(natural(RULES[rule], FactoredFamily(br.Kronecker())), numbers)
    follow_stack(natural(RULES[rule], FactoredFamily(br.Kronecker())), numbers)


@pytest.mark.parametrize("rule", [*RULES, "heavy ball", "debiased"])
def test_rules_of_independent_weights(rule: str, numbers: Numbers) -> None:
    rules = RULES | {
        "heavy ball": br.Natural(0.05, 0.1, HeavyBall(0.5), damping=1e-2),
        "debiased": br.Natural(0.01, 0.1, Average(0.9), square_root=True, debias=True),
    }
    follow(natural(rules[rule], br.GaussianFamily()), numbers)
    follow_stack(natural(rules[rule], br.GaussianFamily()), numbers, sizes=(6, 5, 4))


def test_batches_of_two_sizes_share_one_state(numbers: Numbers) -> None:
    def batches(step: int) -> Batch:
        x, y = data(step)
        return (x[:4], y[:4]) if step % 3 == 2 else (x, y)

    follow(method("vogn"), numbers, batches)


def test_several_inputs_and_buffers(numbers: Numbers) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Linear(5, 4), nn.BatchNorm1d(4)
            self.last = nn.Linear(4, 1)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.last(self.norm(self.first(torch.cat([a, b], 1))).tanh())

    def batches(step: int) -> Batch:
        x, y = data(step)
        return (x, x[:, :2].square()), y

    learner = br.mean_field(Two(), br.GaussianLikelihood(), num_data=20)
    state = follow(learner, numbers, batches)
    assert state.buffers["norm.num_batches_tracked"] == STEPS


def test_a_state_from_elsewhere_is_taken_up(numbers: Numbers) -> None:
    learner = natural(RULES["some steps"])
    steps, state = Replayed(learner), learner.init()
    for step in range(8):
        state, _ = numbers.step(steps, state, data(step))
    kept = tree.map_tensors(state, torch.clone)
    for start in (state, kept):
        wanted, other = tree.map_tensors(kept, torch.clone), start
        for step in range(5):
            wanted, _ = learner.step(wanted, data(step))
            other, _ = numbers.step(steps, other, data(step))
        for name, value in wanted.posterior.mean.items():
            torch.testing.assert_close(other.posterior.mean[name], value, rtol=1e-9, atol=1e-9)


def test_the_old_state_is_kept_on_request(numbers: Numbers) -> None:
    learner = method("mean_field")
    steps, state = Replayed(learner), learner.init()
    for step in range(3):
        before = tree.map_tensors(state, torch.clone)
        new, _ = numbers.step(steps, state, data(step), donate=False)
        for (name, value), (_, kept) in zip(tree.leaves(state), tree.leaves(before), strict=True):
            torch.testing.assert_close(value, kept, rtol=0.0, atol=0.0, msg=name)
        # What a graph has written may be written again: who keeps a state keeps a copy.
        state = tree.map_tensors(new, torch.clone)


def test_the_kl_of_a_state_that_was_changed_is_refused(numbers: Numbers) -> None:
    learner = method("vogn")
    steps, state = Replayed(learner), learner.init()
    for step in range(2):
        state, first = numbers.step(steps, state, data(step))
    numbers.step(steps, state, data(2))
    with pytest.raises(RuntimeError, match="A later step has changed"):
        _ = first.kl


def test_rehearsals_leave_the_state_as_it_is(numbers: Numbers) -> None:
    """The first replay starts from the state that was given, not from a rehearsed one."""
    learner = natural(RULES["damped"])
    steps = Replayed(learner)
    state, _ = numbers.step(steps, learner.init(), data(0))
    wanted = learner.step(state, data(1))
    same(numbers.step(steps, state, data(1)), wanted)


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        *((name, {}, None) for name in ("mean_field", "map", "noisy_adam", "vogn", "ogn", "ivon")),
        *((name, {}, None) for name in ("laplace", "ste", "bayesbinn")),
        ("mean_field", {"known": ("bias",)}, None),
        ("noisy_kfac", {"stats_every": 1, "inverse_every": 1}, None),
        ("noisy_ekfac", {}, "a belief that is kept in eigenbases"),
        ("noisy_full", {}, r"the structure Dense\(.*\)"),
        ("noisy_tridiagonal", {}, r"the structure BlockTridiagonal\(.*\)"),
        ("tagi", {}, "the rule Conditioning"),
    ],
)
def test_what_is_replayed(name: str, options: dict[str, Any], reason: str | None) -> None:
    make, net = getattr(br, name), nn.Linear(2, 1)
    learner = make(net, br.GaussianLikelihood(), num_data=10, **options)
    if reason is None:
        assert replay_obstacle(learner) is None
    else:
        with pytest.raises(TypeError, match=rf"replayed because of {reason}. Use its own"):
            Replayed(learner)


def test_noise_on_a_schedule_is_not_replayed() -> None:
    likelihood = br.GaussianLikelihood(noise=br.schedules.exponential(1.0, rate=0.9))
    learner = br.map(nn.Linear(2, 1), likelihood, num_data=10)
    assert replay_obstacle(learner) == "noise that follows a schedule"


def test_without_a_gpu_steps_are_those_of_the_learner() -> None:
    learner = method("vogn")
    stack = Stacked(learner, NUM)
    same(Replayed(learner).step(learner.init(), data(0)), learner.step(learner.init(), data(0)))
    batch, sizes = data(0, NUM), [6, 5, 4]
    expected = stack.step(stack.init(), batch, sizes=sizes)
    same(Replayed(stack).step(stack.init(), batch, sizes=sizes), expected)


def test_rates_that_no_step_changes_stay_numbers() -> None:
    rule = br.Elbo(br.schedules.linear(0.1, 0.2, 10), kl_weight=0.5)
    tensors = rule.rate_tensors(0, torch.device("cpu"))
    assert isinstance(tensors.learning_rate, Tensor)
    assert tensors.kl_weight == 0.5
    rule.refill(tensors, 10)
    torch.testing.assert_close(tensors.learning_rate, torch.tensor(0.2))
    changing = br.Elbo(0.1, kl_weight=br.schedules.linear(0.0, 1.0, 10))
    tensors = changing.rate_tensors(5, torch.device("cpu"))
    assert all(isinstance(rate, Tensor) for rate in tensors)
    torch.testing.assert_close(tensors.kl_weight, torch.tensor(0.5))
    natural = br.Natural(0.1, 0.2, Average(0.9)).rate_tensors(0, torch.device("cpu"))
    assert (natural.rate, natural.unbiased) == (0.2, 1.0)
    assert math.isclose(float(natural.seen), 0.1)


def test_one_generator_for_all_nets_goes_on() -> None:
    numbers = OneForAll(torch.Generator().manual_seed(0), 20)
    first, second = (numbers.several(50, 30, torch.float64) for _ in range(2))
    assert first.shape == (20, 50, 30)
    assert not torch.equal(first, second)
    assert abs(float(first.mean())) < 0.03
    assert abs(float(first.std()) - 1) < 0.03
    assert numbers.rows(7, torch.float32).shape == (20, 7)
    assert numbers.like(first[:, 0]).shape == (20, 30)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["vogn", "mean_field", "noisy_adam"])
def test_graphs_learn_as_steps_do(name: str) -> None:
    losses = []
    for replays in (True, False):
        net = mlp(3, 1, (5,)).float().cuda()
        stack = Stacked(getattr(br, name)(net, br.GaussianLikelihood(), num_data=50), NUM)
        step = Replayed(stack).step if replays else stack.step
        x, y = (part.float().cuda() for part in data(0, NUM))
        state = stack.init()
        for _ in range(200):
            state, info = step(state, (x, y), donate=True)
        assert state.step == 200
        losses.append(info.loss)
    torch.testing.assert_close(*losses, rtol=0.2, atol=0.2)
