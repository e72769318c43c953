"""Sums over paths against the enumeration of all of them."""

from __future__ import annotations

import itertools
import time

import pytest
import torch
from exact import DTYPE, close, randn
from torch import Tensor

from bayesrule.graphical import chains
from bayesrule.graphical.chains import Chain, best_path, smoothed


def chain(steps: int, states: int = 3, begins: tuple[int, ...] = (0,), seed: int = 0) -> Chain:
    """A chain of any numbers; nothing needs to be normalised, as in variational Bayes."""
    flags = torch.zeros(steps, dtype=torch.bool)
    flags[list(begins)] = True
    return Chain(
        randn(states, seed=seed),
        randn(states, states, seed=seed + 1),
        10.0 * randn(steps, states, seed=seed + 2),
        flags,
    )


def paths(one: Chain) -> tuple[Tensor, Tensor]:
    """All paths (P, T), and the logarithm of the weight of each (P,)."""
    num, k = one.emissions.shape
    found, weights = [], []
    for path in itertools.product(range(k), repeat=num):
        total = torch.zeros((), dtype=DTYPE)
        for t, state in enumerate(path):
            into = one.initial if one.begins[t] else one.transitions[path[t - 1]]
            total = total + into[state] + one.emissions[t, state]
        found.append(path)
        weights.append(total)
    return torch.tensor(found), torch.stack(weights)


CASES = pytest.mark.parametrize(
    "begins", [(0,), (0, 3), (0, 1, 2, 6)], ids=["one sequence", "two", "four"]
)


@CASES
@pytest.mark.parametrize("most", [16, 0], ids=["blocks", "step by step"])
def test_sums_are_those_over_all_paths(
    begins: tuple[int, ...], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains, "_MOST_STATES_IN_BLOCKS", most)
    one = chain(7, begins=begins)
    every, weights = paths(one)
    found, shares = smoothed(one), weights.softmax(0)
    close(found.evidence, weights.logsumexp(0), 1e-12)
    hot = torch.nn.functional.one_hot(every, 3).to(DTYPE)
    close(found.states, torch.einsum("p,ptk->tk", shares, hot))
    close(found.firsts, found.states[list(begins)].sum(0))
    inner = ~one.begins[1:]
    both = torch.einsum("p,pti,ptj->tij", shares, hot[:, :-1], hot[:, 1:])
    close(found.pairs, both[inner].sum(0))


@CASES
def test_the_best_path_is_the_best_of_all(begins: tuple[int, ...]) -> None:
    one = chain(7, begins=begins, seed=5)
    every, weights = paths(one)
    assert torch.equal(best_path(one), every[weights.argmax()])


def test_sums_up_to_a_step_are_those_of_shorter_chains() -> None:
    one = chain(11, begins=(0, 4, 9))
    found = chains.up_to(one)
    for num in range(1, 12):
        part = Chain(one.initial, one.transitions, one.emissions[:num], one.begins[:num])
        close(found[num - 1], smoothed(part).evidence, 1e-12)


def test_paths_that_are_hardly_possible_are_not_lost() -> None:
    # From left to right only, and the emissions want the other way by a thousand nats.
    forbidden = -torch.inf
    one = Chain(
        torch.tensor([0.0, forbidden], dtype=DTYPE),
        torch.tensor([[-0.7, -0.7], [forbidden, 0.0]], dtype=DTYPE),
        torch.tensor([[-1000.0, 0.0]] * 5 + [[0.0, -1000.0]] * 5, dtype=DTYPE),
        torch.arange(10) == 0,
    )
    every, weights = paths(one)
    found = smoothed(one)
    close(found.evidence, weights.logsumexp(0), 1e-12)
    assert torch.equal(best_path(one), every[weights.argmax()])
    assert bool(found.states.isfinite().all())


def test_long_chains_keep_their_precision_and_take_time_in_proportion() -> None:
    def timed(steps: int) -> float:
        one = chain(steps)
        begun = time.perf_counter()
        found = smoothed(one)
        seconds = time.perf_counter() - begun
        close(found.states.sum(1), torch.ones(steps, dtype=DTYPE), 1e-12)
        close(found.pairs.sum(), float(steps - 1), 1e-12)
        return seconds

    timed(1000)
    assert timed(100_000) < 40 * min(timed(10_000) for _ in range(3))
