"""Delayed operations: in any order of events, each ends exactly once, as soon as it can."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from aiokcc.core.delayed import DelayedOperation, OperationState, Purgatory
from aiokcc.core.wheel import Wheel
from aiokcc.errors import UsageError

KEYS = "abc"


class ThePurgatory(RuleBasedStateMachine):
    """Each operation waits until its keys have together happened often enough. It gets every event but never the count."""

    @initialize()
    def begin(self) -> None:
        self.now = 0
        self.wheel: Wheel[Callable[[], object]] = Wheel(0)
        self.purgatory = Purgatory(self.wheel)
        self.counts = dict.fromkeys(KEYS, 0)
        self.operations: list[DelayedOperation] = []
        self.ended: list[list[bool]] = []
        self.wanted: list[tuple[frozenset[str], int, int]] = []

    def is_ready(self, number: int) -> bool:
        keys, goal, _ = self.wanted[number]
        return sum(self.counts[key] for key in keys) >= goal

    @rule(keys=st.frozensets(st.sampled_from(KEYS), min_size=1), more=st.integers(0, 3), ahead=st.integers(0, 20))
    def put(self, keys: frozenset[str], more: int, ahead: int) -> None:
        self.put_one(keys, more, ahead, lambda: None)

    def put_one(self, keys: frozenset[str], more: int, ahead: int, then: Callable[[], None]) -> None:
        number = len(self.ended)
        self.wanted.append((keys, sum(self.counts[key] for key in keys) + more, self.now + ahead))
        self.ended.append([])

        def done(expired: bool) -> None:
            self.ended[number].append(expired)
            then()

        operation = self.purgatory.put(lambda: self.is_ready(number), done, keys=keys, deadline=self.now + ahead)
        self.operations.append(operation)
        assert operation.waiting == (more > 0)

    @rule(keys=st.frozensets(st.sampled_from(KEYS), min_size=1), key=st.sampled_from(KEYS), ahead=st.integers(0, 20))
    def put_one_whose_end_is_an_event(self, keys: frozenset[str], key: str, ahead: int) -> None:
        self.put_one(keys, 1, ahead, lambda: self.count(key))

    @rule(keys=st.frozensets(st.sampled_from(KEYS), min_size=1), victim=st.integers(0, 100), ahead=st.integers(0, 20))
    def put_one_whose_end_cancels_another(self, keys: frozenset[str], victim: int, ahead: int) -> None:
        self.put_one(keys, 1, ahead, lambda: self.cancel(victim))

    def count(self, key: str) -> None:
        self.counts[key] += 1
        self.purgatory.complete(key)

    @rule(key=st.sampled_from(KEYS))
    def an_event(self, key: str) -> None:
        self.count(key)
        # As soon as it can: nobody who could end waits any more.
        assert not [n for n, operation in enumerate(self.operations) if operation.waiting and self.is_ready(n)]

    @rule(by=st.integers(0, 12))
    def time_passes(self, by: int) -> None:
        self.now += by
        while (timer := self.wheel.pop(self.now)) is not None:
            timer.item()
        for number, operation in enumerate(self.operations):
            assert not operation.waiting or self.wanted[number][2] > self.now

    @rule(number=st.integers(0, 100))
    def cancel(self, number: int) -> None:
        if number < len(self.operations):
            waited = self.operations[number].waiting
            assert self.operations[number].cancel() is waited

    @rule(number=st.integers(0, 100))
    def try_again(self, number: int) -> None:
        if number < len(self.operations):
            assert not self.operations[number].try_complete()  # its events have been told: nothing was missed

    @invariant()
    def each_ends_once_and_says_how(self) -> None:
        if not hasattr(self, "operations"):
            return
        for operation, ended in zip(self.operations, self.ended, strict=True):
            expected = {
                OperationState.WAITING: [],
                OperationState.CANCELLED: [],
                OperationState.COMPLETED: [False],
                OperationState.EXPIRED: [True],
            }
            assert ended == expected[operation.state]

    @invariant()
    def nothing_is_kept_of_what_has_ended(self) -> None:
        if not hasattr(self, "operations"):
            return
        waiting = [n for n, operation in enumerate(self.operations) if operation.waiting]
        kept = {key: list(operations) for key, operations in self.purgatory._watched.items()}
        expected = {key: [self.operations[n] for n in waiting if key in self.wanted[n][0]] for key in KEYS}
        assert kept == {key: operations for key, operations in expected.items() if operations}
        assert bool(self.wheel) == bool(waiting)


TestThePurgatory = ThePurgatory.TestCase
TestThePurgatory.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def never(_expired: bool) -> None:
    pytest.fail("it has ended")


def purgatory() -> tuple[Purgatory, Wheel[Callable[[], object]]]:
    wheel: Wheel[Callable[[], object]] = Wheel(0)
    return Purgatory(wheel), wheel


def test_an_operation_needs_a_key() -> None:
    place, wheel = purgatory()
    with pytest.raises(UsageError, match="has no keys"):
        place.put(lambda: False, never, keys=[], deadline=10)
    assert not wheel


def test_an_operation_that_fails_does_not_keep_the_event_from_others() -> None:
    place, wheel = purgatory()
    answers: list[object] = [False, ZeroDivisionError(), False]

    def ready() -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    ended: list[str] = []
    broken = place.put(ready, lambda expired: ended.append(f"broken {expired}"), keys="a", deadline=10)
    other = {"now": False}
    place.put(lambda: other["now"], lambda expired: ended.append(f"other {expired}"), keys="a", deadline=10)
    other["now"] = True
    with pytest.raises(ZeroDivisionError):
        place.complete("a")
    assert ended == ["other False"]
    assert broken.waiting  # and it still has its deadline
    while (timer := wheel.pop(10)) is not None:
        timer.item()
    assert ended == ["other False", "broken True"]


def test_an_operation_that_fails_at_once_is_not_kept() -> None:
    place, wheel = purgatory()
    with pytest.raises(ZeroDivisionError):
        place.put(lambda: bool(1 // 0), never, keys="a", deadline=10)
    with pytest.raises(UsageError, match="ticks ahead"):
        place.put(lambda: False, never, keys="a", deadline=1 << 70)
    assert not place._watched
    assert not wheel
