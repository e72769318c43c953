"""Normal numbers: in bulk, and for many nets at once as each has them alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import torch
from torch import Generator, Tensor

# Below this many numbers the way around costs more than it saves.
_BULK = 1 << 14
# So many words of 64 bits are worked on at a time: they stay in a core's own cache.
_BLOCK = 1 << 16
_ALL = (1 << 64) - 1
# A little less than 2⁻³¹, so that no number of 32 bits gets to an end, where the inverse is
# infinite.
_STEP = 2.0**-31 * (1.0 - 2.0**-24)


def normal(size: int, generator: Generator, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`size` standard normal numbers.

    torch's generator on the CPU is a Mersenne twister that works on one core. In bulk and single
    precision it only seeds a generator that works on all of them; what comes out is made normal by
    the inverse error function: `√2 erf⁻¹(u)`, u a whole number of 32 bits over a little more than
    2³¹, in single precision: within ±(1 − 2⁻²⁴), so within ±5.4.
    """
    if device.type != "cpu" or dtype != torch.float32 or size < _BULK:
        return torch.empty(size, dtype=dtype, device=device).normal_(generator=generator)
    found = torch.empty(size, dtype=dtype)
    seed, gamma = torch.randint(1 << 62, (2,), generator=generator).tolist()
    blocks = words(-(-size // 2), seed, gamma_of(gamma))
    for part, bits in zip(found.split(2 * _BLOCK), blocks, strict=True):
        part.copy_(bits.view(torch.int32)[: len(part)]).mul_(_STEP).erfinv_().mul_(2.0**0.5)
    return found


def words(num: int, seed: int, gamma: int) -> Iterator[Tensor]:
    """Random words of 64 bits, a block at a time, each in the place of the one before.

    SplitMix64: `seed + i gamma` for the i-th of them, mixed; Steele, Lea & Flood (2014), fig. 17.
    Unlike a recurrence it can be worked out for all at once.
    """
    steps = torch.arange(1, min(num, _BLOCK) + 1).mul_(_signed(gamma))
    word, part = torch.empty_like(steps), torch.empty_like(steps)
    for begun in range(0, num, _BLOCK):
        size = min(num - begun, _BLOCK)
        steps, word, part = steps[:size], word[:size], part[:size]
        torch.add(steps, _signed(seed + begun * gamma), out=word)
        _fold(word, 30, part).mul_(_signed(0xBF58476D1CE4E5B9))
        _fold(word, 27, part).mul_(_signed(0x94D049BB133111EB))
        yield _fold(word, 31, part)


def _fold(word: Tensor, bits: int, part: Tensor) -> Tensor:
    """`word ^ (word >> bits)` in the word's place, with zeros shifted in."""
    torch.bitwise_right_shift(word, bits, out=part)
    return word.bitwise_xor_(part.bitwise_and_((1 << (64 - bits)) - 1))


def _signed(word: int) -> int:
    """The same 64 bits as a number with a sign."""
    word &= _ALL
    return word - (1 << 64) if word >> 63 else word


def gamma_of(word: int) -> int:
    """An odd step whose bits change often, so that streams of other steps are other streams.

    Steele, Lea & Flood (2014), fig. 16.
    """
    word = ((word ^ (word >> 33)) * 0xFF51AFD7ED558CCD) & _ALL
    word = ((word ^ (word >> 33)) * 0xC4CEB9FE1A85EC53) & _ALL
    word = (word ^ (word >> 33)) | 1
    return word if (word ^ (word >> 1)).bit_count() >= 24 else word ^ 0xAAAAAAAAAAAAAAAA


def normal_like(x: Tensor, generator: Generator | Generators) -> Tensor:
    """Standard normal numbers in the shape of x."""
    if isinstance(generator, Generators):
        return generator.like(x)
    return torch.empty_like(x).normal_(generator=generator)


class Generators:
    """A generator for each net of a stack: every net gets the numbers that it would get alone.

    `keys` gives their seeds, when a number is first asked for. `own` (num, n) tells the examples of
    each net from those that only fill up, for which no numbers are drawn.
    """

    def __init__(
        self, device: torch.device, keys: Callable[[], Sequence[int]], own: Tensor | None = None
    ) -> None:
        self._device, self._keys, self._own = device, keys, own

    @cached_property
    def _each(self) -> list[Generator]:
        return [Generator(self._device).manual_seed(key) for key in self._keys()]

    def rows(self, size: int, dtype: torch.dtype) -> Tensor:
        """`size` numbers for each net, (num, size)."""
        found = torch.empty(len(self._each), size, dtype=dtype, device=self._device)
        for row, generator in zip(found.unbind(), self._each, strict=True):
            if size < _BULK:
                row.normal_(generator=generator)
            else:
                row.copy_(normal(size, generator, dtype=dtype, device=self._device))
        return found

    def like(self, x: Tensor) -> Tensor:
        """Numbers in the shape of x, (num · n, *), the examples of one net after another's."""
        num, each = len(self._each), x[0].numel()
        if self._own is None:
            return self.rows(x.numel() // num, x.dtype).view(x.shape)
        found = x.new_zeros(num, len(x) // num, each)
        for row, own, generator in zip(found, self._own, self._each, strict=True):
            count = int(own.sum())
            row[own] = row.new_empty(count, each).normal_(generator=generator)
        return found.view(x.shape)

    def several(self, draws: int, size: int, dtype: torch.dtype) -> Tensor:
        """The numbers of as many calls of `rows`, (num, draws, size)."""
        return torch.stack([self.rows(size, dtype) for _ in range(draws)], 1)

    def again(self, num: int, draws: int) -> Generators:
        """The numbers for several draws of num nets at once, as for one after another."""
        return Again(self, num, draws)


class Again(Generators):
    """The numbers for several draws, (num · draws · n, *): those of `given`, asked for each draw.

    Each net gets the numbers that it would get for one draw after another.
    """

    def __init__(self, given: Generators, num: int, draws: int) -> None:
        self._given, self._num, self._draws = given, num, draws

    def like(self, x: Tensor) -> Tensor:
        one = x[: len(x) // self._draws]
        found = [self._given.like(one) for _ in range(self._draws)]
        apart = [part.unflatten(0, (self._num, -1)) for part in found]
        return torch.stack(apart, 1).view(x.shape)


class OneForAll(Generators):
    """Numbers for all nets of a stack from one generator, which goes on from step to step."""

    def __init__(self, generator: Generator, num: int) -> None:
        super().__init__(generator.device, list)
        self._generator, self._num = generator, num

    def rows(self, size: int, dtype: torch.dtype) -> Tensor:
        return self.several(1, size, dtype).squeeze(1)

    def like(self, x: Tensor) -> Tensor:
        return torch.empty_like(x).normal_(generator=self._generator)

    def several(self, draws: int, size: int, dtype: torch.dtype) -> Tensor:
        found = torch.empty(self._num, draws, size, dtype=dtype, device=self._device)
        return found.normal_(generator=self._generator)

    def again(self, num: int, draws: int) -> Generators:
        return self  # There is no order to keep.
