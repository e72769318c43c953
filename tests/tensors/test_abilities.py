"""Abilities of a whole, from those of its parts."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from bayesrule.tensors.abilities import derived, every, some


class Base:
    strong: bool = False


@dataclass(frozen=True)
class Part(Base):
    size: int

    @derived
    def strong(self) -> bool:
        return self.size > 1


@dataclass(frozen=True)
class Whole(Base):
    parts: dict[str, Part]

    strong = every("parts", "strong")
    partly = some("parts", "strong")


@pytest.mark.parametrize(
    ("sizes", "all_of_them", "any_of_them"),
    [((2, 3), True, True), ((1, 3), False, True), ((1, 1), False, False)],
)
def test_a_whole_asks_its_parts(
    sizes: tuple[int, ...], all_of_them: bool, any_of_them: bool
) -> None:
    whole = Whole({str(i): Part(size) for i, size in enumerate(sizes)})
    assert (whole.strong, whole.partly) == (all_of_them, any_of_them)


def test_a_derived_ability_stands_in_the_place_of_the_attribute() -> None:
    assert [Part(1).strong, Part(2).strong, Base().strong] == [False, True, False]
    assert repr(Part(2)) == "Part(size=2)"
