"""A hierarchical timing wheel: adding and cancelling a timer cost the same whether ten are pending or a million.

Time is an argument, in whole ticks of any length; the wheel has no clock. ``Wheel.pop(now)`` returns the due timers one by one.
So the code that handles one timer may cancel another that is due too, and that one is not returned.

The wheel guarantees, whatever the clock does:

* A timer that is not cancelled is returned exactly once, never before its deadline, by the first ``pop`` whose ``now`` has
  reached it.
* Timers are returned in the order of their deadlines; those with the same deadline in the order in which they were added. A
  timer that is overdue when it is added counts as due at the wheel's time.
* The wheel's time does not go back. A ``now`` before it finds nothing due; once the clock has caught up, timers are due again.

A heap, as in asyncio, compares log n timers per operation, and cancelled timers stay in it until half of it is garbage. Buckets
here are linked rings. A dictionary for each bucket costs more memory, and twice the time once they do not fit the processor's
cache. A list that is cleaned of cancelled timers now and then is faster there, but not for timers that are cancelled soon, and
most are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from aiokcc.errors import UsageError

__all__ = ["Timer", "Wheel"]

T = TypeVar("T")

BITS: Final = 8
"""The bits of a deadline that one wheel covers: it has 256 buckets."""
MAX_BITS: Final = 64
_SIZE: Final = 1 << BITS
_MASK: Final = _SIZE - 1


class Timer(Generic[T]):
    """A link in the ring of its bucket. Cancelling unlinks it: it needs no search and leaves nothing behind."""

    __slots__ = ("_after", "_before", "deadline", "item")

    # Wheel.add sets these: a call of __init__ would take a third of the time that adding a timer takes.
    deadline: int
    item: T
    _before: Timer[Any] | None
    _after: Timer[Any] | None

    @property
    def pending(self) -> bool:
        """True until the timer is returned by ``pop`` or cancelled."""
        return self._after is not None

    def cancel(self) -> bool:
        """Removes the timer from the wheel. Returns False if it was returned by ``pop`` or cancelled before."""
        before = self._before
        if before is None:
            return False
        after = self._after
        assert after is not None
        before._after = after
        after._before = before
        self._before = self._after = None
        if before is after:  # both are the bucket, which is now empty
            after._emptied()
        return True

    def _emptied(self) -> None:
        raise AssertionError("only a bucket can become empty")


class _Bucket(Timer[None]):
    """The head of a ring. Its neighbours are the first and the last timer, or itself if the ring is empty."""

    __slots__ = ("bit", "level", "wheel")

    def __init__(self, wheel: Wheel[Any], level: int, slot: int) -> None:
        self._before = self._after = self
        self.wheel, self.level, self.bit = wheel, level, 1 << slot

    def _emptied(self) -> None:
        wheel = self.wheel
        wheel._occupied[self.level] ^= self.bit
        wheel._on_emptied()


def _nothing() -> None:
    pass


class Wheel(Generic[T]):
    """Timers in buckets, the buckets in wheels. Each wheel turns once while the next one moves by one bucket.

    Write the wheel's time and a deadline in base 256. The *highest digit in which they differ* selects the wheel of the timer,
    and the deadline's digit there selects the bucket. Deadlines within the current 256 ticks differ in the last digit only and
    are in wheel 0, where each bucket is one tick. Wheel 1 has buckets of 256 ticks, wheel 2 of 65,536; *overflow* wheels for
    higher digits are added when a deadline needs them.

    When the time reaches the start of a bucket of a higher wheel, its timers are inserted again: that digit is now equal, so
    they fall into a lower wheel. A timer falls at most once per wheel, and most are cancelled before. All pending timers are
    in the future, so the next bucket of a wheel is its first occupied one, which a bitmap of 256 bits shows, and every bucket
    of a wheel comes before all buckets of the next wheel. Empty buckets cost nothing, however far the clock jumps.

    The bucket of a timer depends on time and deadline only. So all timers with one deadline are in one bucket, in order.

    Example, in decimal digits instead of base 256. The time is 138::

        add 139    differs in the last digit: wheel 0, bucket 9
        add 142    differs in the tens:       wheel 1, bucket 4
        add 905    differs in the hundreds:   wheel 2, bucket 9
        next()     139
        pop(139)   returns 139
        next()     140, where the bucket of 142 begins
        pop(141)   returns None; but 142 now differs in the last digit only: wheel 0, bucket 2
        next()     142
        pop(1000)  returns 142, and in the next call 905: its bucket falls at 900, from wheel 2 into wheel 0

    ``on_emptied`` is called when a cancellation has emptied a bucket, so that ``next()`` may be later than it was.
    """

    __slots__ = ("_buckets", "_now", "_occupied", "_on_emptied")

    def __init__(self, now: int, *, on_emptied: Callable[[], None] = _nothing) -> None:
        if now < 0:
            raise UsageError(f"the wheel starts at {now}; expected a time from 0 on")
        self._now = now
        self._on_emptied = on_emptied
        self._occupied: list[int] = []
        """For each wheel: a bit for each bucket that has timers."""
        self._buckets: list[_Bucket] = []
        """The buckets of all wheels, one wheel after the other."""
        self._grow(1)

    @property
    def now(self) -> int:
        """The wheel's time: the latest that ``pop`` was called with."""
        return self._now

    def __bool__(self) -> bool:
        """Returns True if a timer is pending."""
        return any(self._occupied)

    def add(self, deadline: int, item: T) -> Timer[T]:
        """Adds a timer that is due from ``deadline`` on. Raises UsageError if that is more than 2**64 ticks ahead."""
        now = self._now
        at = deadline if deadline > now else now  # noqa: FURB136 - a call of max() costs as much as the rest
        differ = at ^ now
        try:
            if differ < _SIZE:
                bucket = self._buckets[at & _MASK]
            elif differ < _SIZE * _SIZE:
                bucket = self._buckets[_SIZE + (at >> BITS & _MASK)]
            else:
                level = (differ.bit_length() - 1) // BITS
                bucket = self._buckets[level * _SIZE + (at >> level * BITS & _MASK)]
        except IndexError:
            self._grow(differ)
            return self.add(deadline, item)
        timer: Timer[T] = Timer()
        timer.deadline = deadline
        timer.item = item
        timer._before = before = bucket._before
        timer._after = bucket
        before._after = bucket._before = timer  # type: ignore[union-attr]
        if before is bucket:
            self._occupied[bucket.level] |= bucket.bit
        return timer

    def next(self) -> int | None:
        """Returns the time for the next call of ``pop``, which is not after the next deadline; None if nothing is pending."""
        found = self._first()
        return None if found is None else found[0]

    def pop(self, now: int) -> Timer[T] | None:
        """Removes and returns the next due timer; None if there is none, and then the wheel's time is ``now``."""
        while (found := self._first()) is not None and found[0] <= now:
            self._now, bucket = found
            if bucket.level == 0:
                timer = bucket._after
                assert timer is not None
                after = timer._after
                assert after is not None
                bucket._after = after
                after._before = bucket
                timer._before = timer._after = None
                if after is bucket:
                    self._occupied[0] ^= bucket.bit
                return timer
            self._cascade(bucket)
        self._now = max(self._now, now)
        return None

    def _first(self) -> tuple[int, _Bucket] | None:
        """Returns the time at which the next bucket starts, and the bucket."""
        for level, occupied in enumerate(self._occupied):
            if occupied:
                slot = (occupied & -occupied).bit_length() - 1
                shift = level * BITS
                start = (self._now >> shift + BITS << shift + BITS) + (slot << shift)
                return start, self._buckets[(level << BITS) + slot]
        return None

    def _cascade(self, bucket: _Bucket) -> None:
        """Inserts the timers of a bucket whose start the time has reached into lower wheels, in their order."""
        self._occupied[bucket.level] ^= bucket.bit
        timer, bucket._after = bucket._after, bucket
        bucket._before = bucket
        now = self._now
        while timer is not bucket:
            assert timer is not None
            following = timer._after
            at = timer.deadline
            level = max(0, (at ^ now).bit_length() - 1) // BITS
            lower = self._buckets[level * _SIZE + (at >> level * BITS & _MASK)]
            before = lower._before
            timer._before, timer._after = before, lower
            before._after = lower._before = timer  # type: ignore[union-attr]
            if before is lower:
                self._occupied[lower.level] |= lower.bit
            timer = following

    def _grow(self, differ: int) -> None:
        """Adds the wheels that a deadline needs which differs so much from the time."""
        if differ.bit_length() > MAX_BITS:
            raise UsageError(
                f"the deadline is more than 2**{MAX_BITS} ticks ahead; expected one within {MAX_BITS} bits"
            )
        while differ >> len(self._occupied) * BITS:
            level = len(self._occupied)
            self._occupied.append(0)
            self._buckets += [_Bucket(self, level, slot) for slot in range(_SIZE)]
