"""The timers of a loop, on virtual time: when the loop is woken, and by what."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import pytest

from aiokcc.core.delayed import Purgatory
from aiokcc.errors import UsageError
from aiokcc.runtime.timer import Timers, _of_loop, timers
from tests.unit.naming import brief
from tests.virtual import DeadlockError, VirtualLoop, settle


class Wakes:
    """Counts what the loop is asked to do at a time of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop = asyncio.get_running_loop()
        self.start = self.loop.time()
        self.set: list[float] = []
        self.woken: list[float] = []
        call_at = self.loop.call_at

        def counting(
            when: float, callback: Callable[..., object], *args: object, **more: object
        ) -> asyncio.TimerHandle:
            if getattr(callback, "__self__", None).__class__ is not Timers:
                return call_at(when, callback, *args, **more)  # type: ignore[arg-type]
            self.set.append(round(when - self.start, 3))

            def wake() -> None:
                self.woken.append(round(self.loop.time() - self.start, 3))
                callback()

            return call_at(when, wake)

        monkeypatch.setattr(self.loop, "call_at", counting)


@pytest.fixture
async def wakes(monkeypatch: pytest.MonkeyPatch) -> Wakes:
    return Wakes(monkeypatch)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_timer_comes_at_its_time_and_once() -> None:
    came: list[float] = []
    start = now()
    timer = timers().call_later(2.5, lambda: came.append(now() - start))
    assert timer.pending
    await asyncio.sleep(2.5)
    assert came == []  # it comes at the end of its tick, never early
    await asyncio.sleep(0.002)
    assert came == [pytest.approx(2.501)]
    assert not timer.pending
    assert not timer.cancel()
    await asyncio.sleep(3600)
    assert len(came) == 1


async def test_a_cancelled_timer_never_comes_and_nothing_is_left_to_wake_for(wakes: Wakes) -> None:
    timer = timers().call_later(5, pytest.fail)
    assert timer.cancel()
    assert not timer.cancel()
    await asyncio.sleep(3600)
    assert wakes.woken == []


def test_an_idle_loop_sleeps_for_ever() -> None:
    """With all timers cancelled nothing can ever happen again, and a virtual loop says so."""

    async def main() -> None:
        every = [timers().call_later(n, pytest.fail) for n in (1, 100, 10_000)]
        for timer in every:
            timer.cancel()
        await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlockError), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


async def test_the_loop_is_set_once_for_what_comes_first(wakes: Wakes) -> None:
    every = timers()
    for delay in (10, 20, 15, 3600):
        every.call_later(delay, lambda: None)
    assert wakes.set == [10.001]
    every.call_later(5, lambda: None)
    assert wakes.set == [10.001, 5.001]


async def test_it_wakes_for_buckets_that_have_something_and_for_no_others(wakes: Wakes) -> None:
    came: list[float] = []
    for delay in (0.1, 0.1, 60, 3600):
        timers().call_later(delay, lambda: came.append(round(now() - wakes.start, 3)))
    await asyncio.sleep(4000)
    assert came == [0.101, 0.101, 60.001, 3600.001]
    # Far ones fall from wheel to wheel: at most once for each, and in an hour of 3,600,000 ticks there are three.
    assert len(wakes.woken) <= 1 + 3 + 3
    await asyncio.sleep(10_000)
    assert len(wakes.woken) <= 1 + 3 + 3


async def test_pushing_a_deadline_back_does_not_wake_the_loop(wakes: Wakes) -> None:
    """As an idle limit is: cancelled and made again at each record."""
    limit = timers().call_later(60, pytest.fail)
    for _ in range(1000):
        await asyncio.sleep(0.05)
        assert limit.cancel()
        limit = timers().call_later(60, pytest.fail)
    assert wakes.woken == []
    limit.cancel()


async def test_a_callback_may_cancel_a_timer_that_is_due_as_well() -> None:
    came: list[str] = []

    def first() -> None:
        came.append("first")
        assert second.cancel()

    timers().call_later(1, first)
    second = timers().call_later(1, lambda: came.append("second"))
    third = timers().call_later(1, lambda: came.append("third"))
    await asyncio.sleep(2)
    assert came == ["first", "third"]
    assert not third.pending


async def test_a_callback_may_cancel_all_other_timers(wakes: Wakes) -> None:
    later = [timers().call_later(10 * n, pytest.fail) for n in range(1, 20)]
    timers().call_later(1, lambda: [timer.cancel() for timer in later])
    await asyncio.sleep(3600)
    assert wakes.woken == [1.001]


async def test_a_row_of_calls_without_a_delay_lets_others_run() -> None:
    """A timer that is made in a callback never comes in the same turn."""
    turns = 0

    def again() -> None:
        nonlocal turns
        turns += 1
        if turns < 50:
            timers().call_later(-1, again)

    timers().call_later(0, again)
    assert turns == 0
    for turn in range(1, 10):
        await asyncio.sleep(0.001)
        assert turns <= turn
    await asyncio.sleep(1)
    assert turns == 50


async def test_a_callback_that_fails_is_reported_and_the_others_are_called() -> None:
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    came: list[int] = []
    timers().call_later(1, lambda: 1 // 0)
    timers().call_later(1, lambda: came.append(1))
    timers().call_later(2, lambda: came.append(2))
    await asyncio.sleep(3)
    assert came == [1, 2]
    (context,) = told
    assert isinstance(context["exception"], ZeroDivisionError)


async def test_a_late_loop_catches_up_in_order() -> None:
    """The process was stopped for an hour: everything that was due comes, the oldest first."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    came: list[int] = []
    for delay in (3000, 30, 300, 7200):
        timers().call_later(delay, lambda delay=delay: came.append(delay))  # type: ignore[misc]
    loop.jump(3600)
    await settle()
    assert came == [30, 300, 3000]
    await asyncio.sleep(3601)
    assert came == [30, 300, 3000, 7200]


@pytest.mark.parametrize("delay", [math.inf, math.nan, 1e30], ids=brief)
async def test_a_delay_that_is_none(delay: float) -> None:
    with pytest.raises(UsageError, match="expected"):
        timers().call_later(delay, pytest.fail)
    await settle()


def test_each_loop_has_its_own_and_closed_ones_are_forgotten() -> None:
    async def ask() -> tuple[Timers, Timers]:
        return timers(), timers()

    loops = [VirtualLoop() for _ in range(3)]
    found = []
    for loop in loops:
        first, again = loop.run_until_complete(ask())
        assert first is again
        assert loop in _of_loop
        found.append(first)
        loop.close()
    assert len(set(map(id, found))) == 3
    assert [loop in _of_loop for loop in loops] == [False, False, True]


async def test_delayed_operations_have_their_deadlines_here() -> None:
    ended: list[tuple[str, bool]] = []
    here: set[str] = set()
    purgatory = Purgatory(timers())
    deadline = int(now() * 1000) + 30_000
    for name in "ab":
        purgatory.put(
            lambda name=name: name in here,  # type: ignore[misc]
            lambda expired, name=name: ended.append((name, expired)),  # type: ignore[misc]
            keys=["joined"],
            deadline=deadline,
        )
    await asyncio.sleep(20)
    here.add("a")
    assert purgatory.complete("joined") == 1
    assert ended == [("a", False)]
    await asyncio.sleep(11)
    assert ended == [("a", False), ("b", True)]
