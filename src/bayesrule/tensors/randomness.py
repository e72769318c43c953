"""Random numbers, normal ones in bulk, and for many nets at once with each net's own streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import torch
from torch import Generator, Tensor

# A method of tensors that draws their numbers in place, such as Tensor.normal_.
Fill = Callable[..., Tensor]
# Below this many numbers, the bulk generator costs more than it saves.
_BULK = 1 << 14
# 64-bit words processed at a time, which stay in a core's own cache.
_BLOCK = 1 << 16
_ALL = (1 << 64) - 1
# A little less than 2⁻³¹, so that no 32-bit number maps to ±1, where the inverse is infinite.
_STEP = 2.0**-31 * (1.0 - 2.0**-24)


def normal(size: int, generator: Generator, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`size` standard normal numbers.

    torch's CPU generator is a Mersenne twister that runs on one core. For many float32 numbers it
    only seeds a generator that runs on all cores; its words become normal by the inverse error
    function, `√2 erf⁻¹(u)`. Here u is a 32-bit integer divided by a little more than 2³¹, in single
    precision: within ±(1 − 2⁻²⁴), so the normal numbers are within ±5.4.
    """
    if device.type != "cpu" or dtype != torch.float32 or size < _BULK:
        return torch.empty(size, dtype=dtype, device=device).normal_(generator=generator)
    numbers = torch.empty(size, dtype=dtype)
    seed, gamma = torch.randint(1 << 62, (2,), generator=generator).tolist()
    blocks = words(-(-size // 2), seed, gamma_of(gamma))
    for part, bits in zip(numbers.split(2 * _BLOCK), blocks, strict=True):
        part.copy_(bits.view(torch.int32)[: len(part)]).mul_(_STEP).erfinv_().mul_(2.0**0.5)
    return numbers


def words(num: int, seed: int, gamma: int) -> Iterator[Tensor]:
    """Random 64-bit words, block by block; each block overwrites the one before.

    SplitMix64: the i-th word is `seed + i gamma`, mixed; Steele, Lea & Flood (2014), fig. 17.
    Unlike a recurrence, it can be computed for all words at once.
    """
    steps = torch.arange(1, min(num, _BLOCK) + 1).mul_(_signed(gamma))
    word, buffer = torch.empty_like(steps), torch.empty_like(steps)
    for start in range(0, num, _BLOCK):
        size = min(num - start, _BLOCK)
        steps, word, buffer = steps[:size], word[:size], buffer[:size]
        torch.add(steps, _signed(seed + start * gamma), out=word)
        _fold(word, 30, buffer).mul_(_signed(0xBF58476D1CE4E5B9))
        _fold(word, 27, buffer).mul_(_signed(0x94D049BB133111EB))
        yield _fold(word, 31, buffer)


def _fold(word: Tensor, bits: int, buffer: Tensor) -> Tensor:
    """`word ^ (word >> bits)`, in place, with zeros shifted in."""
    torch.bitwise_right_shift(word, bits, out=buffer)
    return word.bitwise_xor_(buffer.bitwise_and_((1 << (64 - bits)) - 1))


def _signed(word: int) -> int:
    """The same 64 bits as a signed integer."""
    word &= _ALL
    return word - (1 << 64) if word >> 63 else word


def gamma_of(word: int) -> int:
    """An odd increment with many bit changes, so that different increments give distinct streams.

    Steele, Lea & Flood (2014), fig. 16.
    """
    word = ((word ^ (word >> 33)) * 0xFF51AFD7ED558CCD) & _ALL
    word = ((word ^ (word >> 33)) * 0xC4CEB9FE1A85EC53) & _ALL
    word = (word ^ (word >> 33)) | 1
    return word if (word ^ (word >> 1)).bit_count() >= 24 else word ^ 0xAAAAAAAAAAAAAAAA


def normal_like(x: Tensor, generator: Generator | Generators) -> Tensor:
    """Standard normal numbers in the shape of x."""
    return _filled_like(x, generator, Tensor.normal_)


def exponential_like(x: Tensor, generator: Generator | Generators) -> Tensor:
    """Exponential numbers of rate one in the shape of x."""
    return _filled_like(x, generator, Tensor.exponential_)


def _filled_like(x: Tensor, generator: Generator | Generators, fill: Fill) -> Tensor:
    if isinstance(generator, Generators):
        return generator.like(x, fill)
    return fill(torch.empty_like(x), generator=generator)


class Generators:
    """A generator for each net of a stack: every net gets the numbers it would get alone.

    `keys` returns their seeds; it is called when numbers are first needed. `present` (num, n) marks
    each net's own examples; the others are padding, for which no numbers are drawn.
    """

    def __init__(
        self, device: torch.device, keys: Callable[[], Sequence[int]], present: Tensor | None = None
    ) -> None:
        self._device, self._keys, self._present = device, keys, present

    @cached_property
    def _each(self) -> list[Generator]:
        return [Generator(self._device).manual_seed(key) for key in self._keys()]

    def rows(self, size: int, dtype: torch.dtype) -> Tensor:
        """`size` numbers for each net, (num, size)."""
        numbers = torch.empty(len(self._each), size, dtype=dtype, device=self._device)
        for row, generator in zip(numbers.unbind(), self._each, strict=True):
            if size < _BULK:
                row.normal_(generator=generator)
            else:
                row.copy_(normal(size, generator, dtype=dtype, device=self._device))
        return numbers

    def like(self, x: Tensor, fill: Fill = Tensor.normal_) -> Tensor:
        """Numbers in the shape of x, (num · n, *), net after net; `fill` draws them in place."""
        num, width = len(self._each), x[0].numel()
        if self._present is None and fill is Tensor.normal_:
            return self.rows(x.numel() // num, x.dtype).view(x.shape)
        numbers = x.new_zeros(num, len(x) // num, width)
        present = [slice(None)] * num if self._present is None else self._present
        for row, own, generator in zip(numbers, present, self._each, strict=True):
            row[own] = fill(torch.empty_like(row[own]), generator=generator)
        return numbers.view(x.shape)

    def several(self, draws: int, size: int, dtype: torch.dtype) -> Tensor:
        """The numbers of `draws` calls of `rows`, (num, draws, size)."""
        return torch.stack([self.rows(size, dtype) for _ in range(draws)], 1)

    def again(self, num: int, draws: int) -> Generators:
        """Generators for several draws of num nets at once, with the numbers of single draws."""
        return Again(self, num, draws)


class Again(Generators):
    """The numbers for several draws at once, (num · draws · n, *).

    Each net gets the numbers that `generators` would give it for one draw after another.
    """

    def __init__(self, generators: Generators, num: int, draws: int) -> None:
        self._generators, self._num, self._draws = generators, num, draws

    def like(self, x: Tensor, fill: Fill = Tensor.normal_) -> Tensor:
        single = x[: len(x) // self._draws]
        numbers = [self._generators.like(single, fill) for _ in range(self._draws)]
        by_net = [part.unflatten(0, (self._num, -1)) for part in numbers]
        return torch.stack(by_net, 1).view(x.shape)


class OneForAll(Generators):
    """Numbers for all nets of a stack from one generator that continues from step to step."""

    def __init__(self, generator: Generator, num: int) -> None:
        super().__init__(generator.device, list)
        self._generator, self._num = generator, num

    def rows(self, size: int, dtype: torch.dtype) -> Tensor:
        return self.several(1, size, dtype).squeeze(1)

    def like(self, x: Tensor, fill: Fill = Tensor.normal_) -> Tensor:
        return fill(torch.empty_like(x), generator=self._generator)

    def several(self, draws: int, size: int, dtype: torch.dtype) -> Tensor:
        numbers = torch.empty(self._num, draws, size, dtype=dtype, device=self._device)
        return numbers.normal_(generator=self._generator)

    def again(self, num: int, draws: int) -> Generators:
        return self  # Any order of the numbers will do.
