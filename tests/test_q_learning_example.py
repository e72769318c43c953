"""The example of Q-learning: draws that learn are the posterior; it goes on where it was ended."""

from __future__ import annotations

import json
import runpy
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import bayesrule as br

pytest.importorskip("gymnasium")
from benchmarks.explore.q_learning import example

Q: Any = example()
SMALL = replace(Q.SETTINGS["DeepSea-v0"], steps=600, nets=4, memory=500)


def test_noise_of_their_own_makes_draws_that_learn_exact_draws() -> None:
    """Means of a belief conditioned on noisy copies of the targets have its covariance."""
    torch.manual_seed(0)
    nets, noise, n = 4000, 0.5, 6
    learner = br.tagi(
        torch.nn.Linear(3, 1, bias=False),
        br.GaussianLikelihood(noise=noise),
        num_data=n,
        rule=br.Conditioning(second_look=0.0),
    )
    stack = br.execution.Stacked(learner, nets)
    state = stack.init()
    prior = state.posterior.variance()["weight"][0, 0].clone()
    # First weights are uniform; here they are draws of the prior.
    state.posterior.mean["weight"].copy_(prior.sqrt() * torch.randn(nets, 1, 3))
    x, y = torch.eye(3).repeat(2, 1), torch.tensor([1.0, -1.0, 0.5, 0.8, -0.7, 0.0])
    for row in range(n):
        noisy = y[row] + noise * torch.randn(nets, 1, 1)
        state, _ = stack.step(state, (x[row].expand(nets, 1, 3), noisy))
    precision = 1 / prior + 2 / noise**2
    mean = (y[:3] + y[3:]) / noise**2 / precision
    found = state.posterior.mean["weight"][:, 0]
    torch.testing.assert_close(state.posterior.variance()["weight"][0, 0], 1 / precision)
    spread = (1 / precision / nets).sqrt()
    assert ((found.mean(0) - mean).abs() < 4 * spread).all()
    assert ((found.var(0) * precision - 1).abs() < 0.1).all()


def test_deep_sea_pays_only_for_going_right_all_the_way() -> None:
    env = Q.DeepSea(5, seed=3)

    def play(right: list[bool]) -> tuple[float, int]:
        env.reset()
        earned, rows = 0.0, 0
        for wanted in right:
            action = env.right[env.row][env.column]
            x, reward, ended, cut, _ = env.step(action if wanted else 1 - action)
            earned, rows = earned + reward, rows + 1
            assert not cut
            assert ended == (rows == 5)
            assert x.sum() == (0 if ended else 5)
        return earned, rows

    assert play([True] * 5)[0] == pytest.approx(0.99)
    assert play([False] * 5)[0] == 0
    assert play([True] * 4 + [False])[0] == pytest.approx(-0.008)
    assert play([False] + [True] * 4)[0] == pytest.approx(-0.008)


def test_nets_find_the_treasure() -> None:
    """By chance one episode in 64 finds it; those of the last hundred do."""
    settings = replace(SMALL, steps=1800, nets=10)
    log = Q.train("DeepSea-v0", settings, size=6, judgements=2, of_each=1, progress=lambda _: None)
    assert log.judged[-1][1] == pytest.approx(0.99)
    assert sum(earned > 0.5 for _, earned in log.episodes[-50:]) > 40


def test_targets_sum_the_next_rewards_until_the_end_of_the_episode() -> None:
    settings = replace(SMALL, scale=1.0, discount=0.5, returns=3, start=10**9)
    agent = Q.Agent(2, 2, settings, seed=0)

    def play(rewards: list[float], *, ended: bool) -> None:
        agent.follow()
        for step, reward in enumerate(rewards):
            last = ended and step == len(rewards) - 1
            at, after = torch.full((2,), float(step)), torch.full((2,), step + 1.0)
            agent.observe(at, step % 2, reward, after, last)

    play([1.0, 2.0, 4.0, 8.0], ended=True)
    play([1.0, 2.0, 4.0, 8.0], ended=False)  # cut off: the last two steps lack rewards
    memory, count = agent.memory, agent.memory.seen
    assert memory.reward[:count].tolist() == [3.0, 6.0, 8.0, 8.0, 3.0, 6.0]
    assert memory.discount[:count].tolist() == [0.125, 0.0, 0.0, 0.0, 0.125, 0.125]
    assert memory.x[:count, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 0.0, 1.0]
    assert memory.after[:count, 0].tolist() == [3.0, 4.0, 4.0, 4.0, 3.0, 4.0]
    assert memory.action[:count].tolist() == [0, 1, 0, 1, 0, 1]


def test_an_episode_is_decided_by_one_draw_of_the_leading_nets_weights() -> None:
    """With a spread of one, the values that decide have the posterior's moments."""
    agent = Q.Agent(3, 2, replace(SMALL, nets=1, spread=1.0), seed=0)
    seen: list[torch.Tensor] = []
    values = agent.values
    agent.values = lambda weights, x: seen.append(values(weights, x)) or seen[-1]
    x = torch.tensor([1.0, -2.0, 0.5])
    for _ in range(4000):
        agent.follow()
        agent.act(x)
    agent.act(x)
    assert torch.equal(seen[-1], seen[-2])  # nothing was learned, and the episode is the same
    drawn = torch.stack(seen[:-1]).squeeze()
    mean, variance = agent.state.posterior.mean, agent.state.posterior.variance()
    weight, bias = (variance[name][0] for name in variance)
    spread = weight @ x.square() + bias
    centre = values(dict(mean), x[None, None]).squeeze()
    assert ((drawn.mean(0) - centre).abs() < 4 * (spread / 4000).sqrt()).all()
    assert ((drawn.var(0) / spread - 1).abs() < 0.1).all()


def test_it_goes_on_as_if_it_had_not_been_ended(tmp_path: Path) -> None:
    how: dict[str, Any] = {"size": 5, "judgements": 4, "of_each": 1}
    whole = Q.train("DeepSea-v0", SMALL, **how, progress=lambda _: None)

    def ended(_: str) -> None:
        seen.append(_)
        if len(seen) == 3:
            raise KeyboardInterrupt

    seen: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        Q.train("DeepSea-v0", SMALL, **how, out=tmp_path, progress=ended)
    again = Q.train("DeepSea-v0", SMALL, **how, out=tmp_path, progress=lambda _: None)
    assert again.episodes == whole.episodes
    assert again.judged == whole.judged
    assert len(seen) == 3
    kept = json.loads((tmp_path / "log.json").read_text())
    assert [tuple(one) for one in kept["episodes"]] == whole.episodes
    assert ElementTree.fromstring((tmp_path / "picture.svg").read_text()).tag.endswith("svg")
    with pytest.raises(SystemExit, match="another call"):
        Q.train("DeepSea-v0", SMALL, **{**how, "size": 6}, out=tmp_path)


def test_the_command_line_says_what_was_reached(capsys: pytest.CaptureFixture[str]) -> None:
    Q.main(["DeepSea-v0", "--size", "3", "--steps", "200"])
    assert "The mean over all nets earns" in capsys.readouterr().out


def test_a_missing_gymnasium_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(SystemExit, match=r"pip install 'bayesrule\[explore\]'"):
        runpy.run_path(Q.__file__)
