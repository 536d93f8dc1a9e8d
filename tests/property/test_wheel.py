"""The timing wheel behaves as a sorted list does."""

from __future__ import annotations

import bisect

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from aiokcc.core.wheel import BITS, MAX_BITS, Timer, Wheel
from aiokcc.errors import UsageError

# Close ones, ones around the borders of buckets and wheels, and far ones.
steps = st.one_of(
    st.integers(0, 5),
    st.integers(0, 3 << BITS),
    st.builds(lambda level, n: (1 << BITS * level) + n, st.integers(1, 6), st.integers(-2, 2)),
    st.integers(0, 1 << 50),
)


class SortedList:
    """The model: a sorted list of (due time, order of adding, number)."""

    def __init__(self, now: int) -> None:
        self.now = now
        self._added = 0
        self._list: list[tuple[int, int, int]] = []

    def add(self, deadline: int, number: int) -> None:
        self._added += 1
        bisect.insort(self._list, (max(deadline, self.now), self._added, number))

    def cancel(self, number: int) -> bool:
        left = [entry for entry in self._list if entry[2] != number]
        found = len(left) < len(self._list)
        self._list = left
        return found

    def pop(self, now: int) -> int | None:
        if self._list and self._list[0][0] <= now:
            self.now, _, number = self._list.pop(0)
            return number
        self.now = max(self.now, now)
        return None

    @property
    def first(self) -> int | None:
        return self._list[0][0] if self._list else None


class TheWheel(RuleBasedStateMachine):
    """Does every operation on a wheel, and on the list."""

    timers = Bundle("timers")

    @initialize(start=st.integers(0, 1 << 40) | st.builds(lambda n: (1 << 40) - n, st.integers(1, 5)))
    def begin(self, start: int) -> None:
        self.clock = start
        self.emptied = 0
        self.wheel: Wheel[int] = Wheel(start, on_emptied=self.bucket_was_emptied)
        self.model = SortedList(start)
        self.count = 0
        self.come: set[int] = set()
        self.deadlines: dict[int, int] = {}

    def bucket_was_emptied(self) -> None:
        self.emptied += 1

    def add_one(self, deadline: int) -> Timer[int]:
        self.count += 1
        self.deadlines[self.count] = deadline
        self.model.add(deadline, self.count)
        timer = self.wheel.add(deadline, self.count)
        assert timer.pending
        assert timer.deadline == deadline
        return timer

    @rule(target=timers, ahead=steps)
    def add(self, ahead: int) -> Timer[int]:
        return self.add_one(self.clock + ahead)

    @rule(target=timers, behind=steps)
    def add_overdue(self, behind: int) -> Timer[int]:
        return self.add_one(max(0, self.clock - behind))

    @rule(target=timers, ahead=steps, count=st.integers(2, 5))
    def add_several_at_once(self, ahead: int, count: int) -> object:
        return multiple(*(self.add_one(self.clock + ahead) for _ in range(count)))

    @rule(timer=consumes(timers))
    def cancel_and_forget(self, timer: Timer[int]) -> None:
        self.cancel(timer)

    @rule(timer=timers)
    def cancel(self, timer: Timer[int]) -> None:
        before = self.wheel.next()
        told = self.emptied
        assert timer.cancel() is self.model.cancel(timer.item)
        assert not timer.pending
        assert not timer.cancel()
        if self.wheel.next() != before:
            assert self.emptied > told

    def take(self) -> Timer[int] | None:
        timer = self.wheel.pop(self.clock)
        assert (timer and timer.item) == self.model.pop(self.clock)
        if timer is not None:
            assert timer.item not in self.come
            assert self.deadlines[timer.item] <= self.clock
            assert not timer.pending
            assert not timer.cancel()
            self.come.add(timer.item)
        return timer

    def take_all(self) -> None:
        while self.take() is not None:
            pass

    @rule(by=steps)
    def time_passes(self, by: int) -> None:
        self.clock += by
        self.take_all()

    @rule(by=steps)
    def time_passes_and_one_is_taken(self, by: int) -> None:
        self.clock += by
        self.take()

    @rule()
    def time_passes_to_the_next(self) -> None:
        self.clock = max(self.clock, self.wheel.next() or 0)
        self.take_all()

    @rule(by=steps)
    def the_clock_goes_back(self, by: int) -> None:
        self.clock = max(0, self.clock - by)
        self.take_all()

    @rule(by=steps, victim=timers, ahead=steps)
    def one_that_comes_cancels_another_and_adds_a_third(self, by: int, victim: Timer[int], ahead: int) -> None:
        self.clock += by
        if self.take() is not None:
            assert victim.cancel() is self.model.cancel(victim.item)
            self.add_one(self.clock + ahead)
        self.take_all()

    @invariant()
    def says_when_to_look_again(self) -> None:
        if not hasattr(self, "wheel"):
            return
        first, following = self.model.first, self.wheel.next()
        assert bool(self.wheel) == (first is not None) == (following is not None)
        if first is not None:
            assert following is not None
            assert self.wheel.now <= following <= first
        assert self.wheel.now == self.model.now


TestTheWheel = TheWheel.TestCase
TestTheWheel.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)


@given(st.lists(steps, max_size=60), st.integers(0, 1 << 40))
def test_sleeping_until_next_wakes_up_few_times(aheads: list[int], start: int) -> None:
    """At each time that next() returns, a timer is due, or some timers move to a finer wheel."""
    wheel: Wheel[int] = Wheel(start)
    for number, ahead in enumerate(aheads):
        wheel.add(start + ahead, number)
    looks, come = 0, []
    while (moment := wheel.next()) is not None:
        looks += 1
        while (timer := wheel.pop(moment)) is not None:
            assert timer.deadline == moment  # not late either
            come.append(timer.item)
    assert come == sorted(range(len(aheads)), key=lambda number: aheads[number])
    assert looks <= len(aheads) * (MAX_BITS // BITS + 1)


@given(st.lists(steps, min_size=1, max_size=60), st.integers(0, 1 << 60))
def test_a_jump_of_the_clock_returns_all_timers_in_order(aheads: list[int], jump: int) -> None:
    wheel: Wheel[int] = Wheel(7)
    for ahead in aheads:
        wheel.add(7 + ahead, ahead)
    come = []
    while (timer := wheel.pop(7 + jump)) is not None:
        come.append(timer.item)
    assert come == sorted(ahead for ahead in aheads if ahead <= jump)
    assert bool(wheel) == (max(aheads) > jump)


def test_the_example_of_the_wheel() -> None:
    """This is the example of its documentation, with digits of base 256."""
    time, soon, later, far = (1 << 16) + 3 * 256 + 8, 1, 256, 9 << 16
    wheel: Wheel[str] = Wheel(time)
    for name, ahead in (("soon", soon), ("later", later), ("far", far)):
        wheel.add(time + ahead, name)
    assert wheel.next() == time + soon
    timer = wheel.pop(time + soon)
    assert timer is not None
    assert timer.item == "soon"
    assert wheel.next() == (1 << 16) + 4 * 256
    assert wheel.pop(time + later - 1) is None
    assert wheel.next() == time + later
    names = []
    while (timer := wheel.pop(1 << 30)) is not None:
        names.append(timer.item)
    assert names == ["later", "far"]
    assert wheel.next() is None


def test_a_timer_that_is_added_again_is_returned_once_per_pop() -> None:
    """A timer that is added again when it is due does not make pop() loop for ever."""
    wheel: Wheel[int] = Wheel(0)
    wheel.add(0, 0)
    for n in range(100):
        timer = wheel.pop(0)
        assert timer is not None
        assert timer.item == n
        wheel.add(0, n + 1)


def test_impossible_deadlines_are_refused() -> None:
    wheel: Wheel[None] = Wheel(0)
    wheel.add((1 << MAX_BITS) - 1, None)
    with pytest.raises(UsageError, match="more than 2\\*\\*64 ticks ahead"):
        wheel.add(1 << MAX_BITS, None)
    with pytest.raises(UsageError, match="starts at -1"):
        Wheel(-1)
