"""Compiled steps: the same numbers as `learner.step`."""

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.tensors import tree
from bayesrule.training.models import mlp

pytestmark = [
    pytest.mark.usefixtures("double_precision"),
    # torch's compiler uses parts of torch that torch itself deprecates.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Net(nn.Module):
    """A convolution, batch norm and a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2)
        self.second, self.head = nn.Conv2d(2, 2, 3, padding=1), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.first(x)).relu()
        return self.head((hidden + self.second(hidden)).mean((2, 3)))


def both(
    learner: br.Learner, batches: list[tuple[Tensor, Tensor]]
) -> tuple[br.types.State, br.types.State]:
    """The states after the same batches, plain and compiled."""
    # All but the compiler's own part, which would take most of the time.
    plain, fused, step = (
        learner.init(),
        learner.init(),
        br.execution.Compiled(learner, "aot_eager").step,
    )
    for batch in batches:
        plain, info = learner.step(plain, batch)
        fused, same = step(fused, batch)
        torch.testing.assert_close(same.loss, info.loss)
        torch.testing.assert_close(same.kl, info.kl)
    return plain, fused


def same(a: br.types.State, b: br.types.State) -> None:
    assert a.step == b.step
    for left, right in (
        (a.posterior.mean, b.posterior.mean),
        (a.posterior.variance(), b.posterior.variance()),
        (a.buffers, b.buffers),
        (a.likelihood, b.likelihood),
    ):
        assert left.keys() == right.keys()
        for name, value in left.items():
            torch.testing.assert_close(right[name], value, rtol=1e-10, atol=1e-12)


def test_a_net_with_buffers_and_batches_of_two_sizes() -> None:
    torch.manual_seed(0)
    learner = br.tagi(Net(), br.likelihoods.OneHotLikelihood(), num_data=20, gain=0.3)
    sizes = (6, 6, 4, 6)
    batches = [(torch.randn(n, 1, 4, 4), torch.randint(0, 3, (n,))) for n in sizes]
    same(*both(learner, batches))


def test_learned_noise_and_missing_targets() -> None:
    torch.manual_seed(0)
    learner = br.tagi(mlp(3, 2, (4,)), br.GaussianLikelihood(), num_data=20)
    batches = [(torch.randn(5, 3), torch.randn(5, 2)) for _ in range(3)]
    batches[1][1][2, 0] = torch.nan
    same(*both(learner, batches))


def test_noise_that_follows_a_schedule() -> None:
    torch.manual_seed(0)
    likelihood = br.GaussianLikelihood(noise=br.schedules.exponential(1.0, rate=0.5))
    learner = br.tagi(mlp(3, 2, (4,)), likelihood, num_data=20)
    same(*both(learner, [(torch.randn(5, 3), torch.randn(5, 2)) for _ in range(4)]))


def test_a_share_that_falls_with_the_length_of_training() -> None:
    """The rate of each step is an input of the compiled one, not a part of it."""
    torch.manual_seed(0)
    rule = br.rules.Conditioning(second_look=0.5).falling(3, 6)
    learner = br.tagi(mlp(3, 2, (4,)), br.GaussianLikelihood(noise=0.1), num_data=5, rule=rule)
    batches = [(torch.randn(5, 3), torch.randn(5, 2)) for _ in range(9)]
    plain, fused = both(learner, batches)
    same(plain, fused)
    # Without it, the variances are others.
    stayed, _ = both(learner.with_rule(br.rules.Conditioning(second_look=0.5)), batches)
    variances = plain.posterior.variance(), stayed.posterior.variance()
    assert all((variances[0][name] < value).any() for name, value in variances[1].items())


def test_the_old_state_is_kept_on_request() -> None:
    learner = br.tagi(nn.Linear(2, 1), br.GaussianLikelihood(noise=0.1), num_data=5)
    state, step = learner.init(), br.execution.Compiled(learner, "eager").step
    for _ in range(3):  # The first step is not compiled.
        before = tree.map_tensors(state, torch.clone)
        new, _ = step(state, (torch.ones(5, 2), torch.ones(5, 1)), donate=False)
        same(before, state)
        assert not torch.equal(new.posterior.mean["weight"], state.posterior.mean["weight"])
        state = new


def test_a_run_is_the_same() -> None:
    torch.manual_seed(0)
    data = torch.randn(30, 2), torch.randn(30, 1)
    learner = br.tagi(mlp(2, 1, (4,)), br.GaussianLikelihood(), num_data=30)
    runs = [br.fit(learner, data, epochs=2, batch_size=10, fused=fused) for fused in (False, True)]
    same(runs[0].state, runs[1].state)


def test_stacked_nets() -> None:
    torch.manual_seed(0)
    learner = br.tagi(mlp(3, 1, (4,)), br.GaussianLikelihood(), num_data=20)
    stack = br.execution.Stacked(learner, 3)
    plain, fused, step = stack.init(), stack.init(), br.execution.Compiled(stack, "aot_eager").step
    for _ in range(6):  # More examples than there are.
        batch = torch.randn(3, 5, 3), torch.randn(3, 5, 1)
        plain, info = stack.step(plain, batch)
        fused, other = step(fused, batch)
        torch.testing.assert_close(other.loss, info.loss)
        torch.testing.assert_close(other.kl, info.kl)
    same(plain, fused)


def test_what_cannot_be_compiled_is_refused() -> None:
    model, batch = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), (torch.ones(3, 2),) * 2
    with pytest.raises(TypeError, match=r"such as tagi; this one has the rule Natural"):
        br.execution.Compiled(br.vogn(model, br.GaussianLikelihood(), num_data=3))
    learner = br.tagi(model, br.GaussianLikelihood(), num_data=3)
    step = br.execution.Compiled(learner).step
    state, _ = step(learner.init(), batch)  # The first step is not compiled.
    with pytest.raises(ValueError, match="draws random numbers in training"):
        step(state, batch)
    uncertain = br.moments.uncertain(batch[0], 0.1), batch[1]
    with pytest.raises(TypeError, match="one plain tensor"):
        br.execution.Compiled(learner).step(learner.init(), uncertain)
