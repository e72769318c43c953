"""Random streams depend on (seed, step, stream) alone and do not repeat within a run."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesrule.tensors import seeds

stable = settings(max_examples=200, deadline=None, derandomize=True, database=None)
words = st.integers(0, 2**32 - 1)


def draw(*key: int) -> list[float]:
    return torch.randn(3, generator=seeds.generator("cpu", *key)).tolist()


def test_same_key_same_stream() -> None:
    assert draw(1, 2, 3) == draw(1, 2, 3)


def test_every_part_of_the_key_counts() -> None:
    streams = [draw(0, 0, 0), draw(1, 0, 0), draw(0, 1, 0), draw(0, 0, 1)]
    assert len({tuple(stream) for stream in streams}) == 4


def test_no_key_repeats_within_a_run() -> None:
    found = {seeds.key(3, step, stream) for step in range(20_000) for stream in range(6)}
    assert len(found) == 120_000
    far = {seeds.key(3, step, stream) for step in range(2**20 - 50, 2**20) for stream in range(6)}
    assert len(far) == 300
    assert not far & found


@stable
@given(words, words)
def test_mixing_is_one_to_one(a: int, b: int) -> None:
    assert 0 <= seeds._mix(a) < 2**32
    assert (seeds._mix(a) == seeds._mix(b)) == (a == b)


@stable
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**20 - 1), st.integers(0, 4095))
def test_keys_are_words(seed: int, step: int, stream: int) -> None:
    assert 0 <= seeds.key(seed, step, stream) < 2**32


def test_seeds_near_each_other_share_no_stream() -> None:
    """Of 40 runs of 500 steps, as they are used: no two streams coincide."""
    found = {seeds.key(seed, step, 2) for seed in range(40) for step in range(500)}
    assert len(found) == 20_000


def test_negative_seeds_are_seeds_of_their_own() -> None:
    assert len({seeds.key(seed, 0) for seed in range(-50, 50)}) == 100


def test_neighbouring_steps_are_not_correlated() -> None:
    one = torch.stack(
        [torch.randn(400, generator=seeds.generator("cpu", 0, step)) for step in range(40)]
    )
    overlap = torch.corrcoef(one) - torch.eye(40)
    assert float(overlap.abs().max()) < 6 / 400**0.5


def test_the_global_generator_is_not_touched() -> None:
    before = torch.get_rng_state()
    draw(0, 0, 0)
    assert torch.equal(before, torch.get_rng_state())
