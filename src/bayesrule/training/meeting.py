"""Functions that run side by side, whose trainings take their steps together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class Trainings(Protocol):
    """Trainings that a function asks for; those with equal `terms` can be one."""

    @property
    def terms(self) -> object: ...

    def joined(self, others: Sequence[Trainings]) -> Trainings:
        """These trainings and others as one."""
        ...

    def run(self) -> None: ...


@dataclass(eq=False)
class _Asked:
    """What one function waits for; `good` says whether it went well, None before it was tried."""

    trainings: Trainings
    good: bool | None = None


class _Over(BaseException):
    """Ends a function whose trainings will never run, since another error or Ctrl-C came first."""


class Meeting:
    """Functions in threads, of which one runs at a time: until it asks for trainings, or ends.

    Once all of them wait, their trainings run as one in the thread that opened the meeting.
    """

    def __init__(self) -> None:
        self._turn = Condition()
        self._active, self._over = 0, False
        self._waiting: list[_Asked] = []

    def train(self, trainings: Trainings) -> bool:
        """Waits until these trainings have run; False where they have to be made and run again.

        That is so if any of those that ran together failed.
        """
        asked = _Asked(trainings)
        self._waiting.append(asked)
        self._turn.notify_all()
        while asked.good is None:
            if self._over:
                raise _Over
            self._turn.wait()
        return asked.good

    def hold(self, works: Sequence[Callable[[], Result]]) -> list[Result]:
        """Runs all functions; the first error is raised after the last one has ended."""
        results: dict[int, Result] = {}
        errors: dict[int, BaseException] = {}

        def attend(number: int, work: Callable[[], Result]) -> None:
            with self._turn:
                present.set(self)
                try:
                    results[number] = work()
                except BaseException as problem:
                    errors[number] = problem
                finally:
                    self._active -= 1
                    self._turn.notify_all()

        threads = [
            Thread(target=copy_context().run, args=(attend, *pair), daemon=True)
            for pair in enumerate(works)
        ]
        self._active = len(threads)
        for thread in threads:
            thread.start()
        try:
            with self._turn:
                while self._active:
                    self._turn.wait_for(lambda: len(self._waiting) == self._active)
                    self._train()
        except BaseException:
            self._over = True
            raise
        finally:
            with self._turn:
                self._turn.notify_all()
            for thread in threads:
                thread.join()
        for problem in errors.values():
            raise problem
        return [results[number] for number in range(len(works))]

    def _train(self) -> None:
        """Runs what all functions wait for, those with equal terms as one."""
        waiting, self._waiting = self._waiting, []
        groups: dict[object, list[_Asked]] = {}
        for asked in waiting:
            groups.setdefault(asked.trainings.terms, []).append(asked)
        for first, *others in groups.values():
            try:
                first.trainings.joined([one.trainings for one in others]).run()
                good = True
            except Exception:  # Each makes and runs its own again, and meets its own error.
                good = False
            for one in (first, *others):
                one.good = good
        self._turn.notify_all()


present: ContextVar[Meeting | None] = ContextVar("present", default=None)
"""The meeting in which this function takes part."""


def side_by_side(works: Sequence[Callable[[], Result]]) -> list[Result]:
    """The results of functions that train nets with `fit_many`, in the order of the functions.

    Nets that are alike take their steps together even if different functions ask for them, as if
    they had been given to one call of `fit_many`: small nets then take less than half of the time.
    """
    return Meeting().hold(works) if len(works) > 1 else [work() for work in works]
