"""Bulk normal numbers are normal, repeatable and never infinite."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from bayesrule.tensors import randomness

CPU = torch.device("cpu")


def draw(size: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return randomness.normal(size, generator, dtype=dtype, device=CPU)


@pytest.mark.parametrize("size", [1, 100, randomness._BULK, 300_001])
def test_moments_and_distribution(size: int) -> None:
    x = torch.cat([draw(size, seed).double() for seed in range(max(1, 300_000 // size))])[:300_000]
    n = len(x)
    assert abs(float(x.mean())) < 5 / n**0.5
    assert abs(float(x.var()) - 1.0) < 5 * (2 / n) ** 0.5
    assert abs(float((x**4).mean()) - 3.0) < 5 * (96 / n) ** 0.5
    assert stats.kstest(x[:100_000].numpy(), "norm").pvalue > 1e-4


def test_neighbours_and_streams_are_independent() -> None:
    a, b = draw(200_000, 1).double(), draw(200_000, 2).double()
    for first, second in ((a[1:], a[:-1]), (a[2:], a[:-2]), (a, b), (a**2 - 1, b**2 - 1)):
        scale = float(first.var() * second.var()) ** 0.5
        assert abs(float((first * second).mean())) < 5 * scale / len(a) ** 0.5


def test_the_same_seed_gives_the_same_numbers_whatever_the_threads() -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = draw(100_000, 3)
        torch.set_num_threads(2)
        two = draw(100_000, 3)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(one, two)
    assert not torch.equal(one, draw(100_000, 4))


def test_two_draws_of_one_generator_differ() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (randomness.normal(20_000, generator, dtype=torch.float32, device=CPU) for _ in range(2))
    assert not torch.equal(a, b)


def test_the_ends_are_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = torch.tensor([-(2**31), 2**31 - 1], dtype=torch.int32)
    block = ends.repeat(randomness._BULK // 2).view(torch.int64)
    monkeypatch.setattr(randomness, "words", lambda *_: iter([block]))
    low, high = draw(randomness._BULK).unique().tolist()
    assert 5.2 < high == -low < 5.5


def test_other_types_come_from_torch() -> None:
    assert draw(50_000, dtype=torch.float64).dtype == torch.float64


def split_mix(num: int, seed: int, gamma: int) -> list[int]:
    """The generator as it is printed, word by word."""
    every, found = (1 << 64) - 1, []
    for _ in range(num):
        seed = (seed + gamma) & every
        z = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & every
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & every
        found.append(z ^ (z >> 31))
    return found


@pytest.mark.parametrize("num", [5, 64, 150])
def test_words_are_those_of_the_paper(num: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(randomness, "_BLOCK", 64)
    seed, gamma = 0x123456789ABCDEF0, 0x9E3779B97F4A7C15
    blocks = [block.clone() for block in randomness.words(num, seed, gamma)]
    found = [word & ((1 << 64) - 1) for word in torch.cat(blocks).tolist()]
    assert found == split_mix(num, seed, gamma)


def test_the_first_words_of_a_known_seed() -> None:
    # As published with the generator, for seed 1234567 and the golden step.
    (block,) = randomness.words(3, 1234567, 0x9E3779B97F4A7C15)
    assert [word & ((1 << 64) - 1) for word in block.tolist()] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_steps_are_odd_and_change_their_bits_often() -> None:
    steps = [randomness.gamma_of(k) for k in range(2000)]
    assert all(step % 2 for step in steps)
    assert min((step ^ (step >> 1)).bit_count() for step in steps) >= 24
    assert len(set(steps)) > 1990


@pytest.mark.parametrize("size", [2 * randomness._BLOCK, 2 * randomness._BLOCK + 1])
def test_the_ends_of_blocks_are_filled(size: int) -> None:
    x = draw(size)
    assert x.shape == (size,)
    assert x.isfinite().all()
    assert len(x.unique()) > 0.98 * len(x)
