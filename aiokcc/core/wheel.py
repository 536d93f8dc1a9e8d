"""A hierarchical timing wheel: adding and cancelling a timer cost the same whether ten are pending or a million.

Time is an argument, in whole ticks of any length; the wheel has no clock. ``Wheel.pop(now)`` gives back, one by one, what has
become due, so that whoever handles one timer may cancel another that is due too, and it will not come.

What holds, whatever the clock does:

* A timer that is not cancelled comes exactly once, never before its deadline, and at the first ``pop`` whose ``now`` has
  reached it.
* Timers come in the order of their deadlines, and those of one deadline in the order in which they were added. What is overdue
  when it is added comes as if it were due at the wheel's time.
* The wheel's time does not go back. A ``now`` before it finds nothing due; when the clock has caught up, all goes on.

A heap, as the event loop has it, compares its way through log n timers, and what was cancelled stays in it until half of it is
garbage. Buckets here are rings of links: a dictionary for each costs more memory and twice the time once they no longer fit
the processor's cache; a list from which the cancelled are swept now and then is faster there, but not for a timer that is
cancelled soon, which most are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from aiokcc.errors import UsageError

__all__ = ["Timer", "Wheel"]

T = TypeVar("T")

BITS: Final = 8
"""So many bits of a deadline are one wheel: 256 buckets."""
MAX_BITS: Final = 64
_SIZE: Final = 1 << BITS
_MASK: Final = _SIZE - 1


class Timer(Generic[T]):
    """A link in the ring of its bucket, so that cancelling is to take it out: no search, nothing left behind."""

    __slots__ = ("_after", "_before", "deadline", "what")

    # Filled in by who makes one: an __init__ of Python's would cost a third of what adding a timer costs.
    deadline: int
    what: T
    _before: Timer[Any] | None
    _after: Timer[Any] | None

    @property
    def pending(self) -> bool:
        """Whether it is still to come."""
        return self._after is not None

    def cancel(self) -> bool:
        """Take it out. False if it has come already, or was cancelled before."""
        before = self._before
        if before is None:
            return False
        after = self._after
        assert after is not None
        before._after = after
        after._before = before
        self._before = self._after = None
        if before is after:  # the bucket itself, and nothing in it
            after._emptied()
        return True

    def _emptied(self) -> None:
        raise AssertionError("only a bucket is emptied")


class _Bucket(Timer[None]):
    """The head of a ring; its neighbours are the first and the last timer, or itself."""

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
    """Timers in buckets, the buckets in wheels, each of which turns once while the next one moves on by one bucket.

    Write the wheel's time and a deadline in the number system of base 256. The *highest digit in which they differ* says in
    which wheel the timer lies, and the deadline's digit there says in which bucket. What is due within the current 256 ticks
    differs in the last digit only and lies in wheel 0, where each bucket is one tick. Wheel 1 has buckets of 256 ticks, wheel 2
    of 65,536; the *overflow* wheels for higher digits are added when a deadline needs them.

    When the time comes to the beginning of a bucket of a higher wheel, its timers are put in anew: that digit is now equal, so
    they fall into a lower wheel. A timer falls at most once per wheel, and most are cancelled before they ever do. All that is
    pending lies ahead: so a wheel's next bucket is its first occupied one, which a bitmap of 256 bits tells, and any bucket of
    a wheel comes before all buckets of the next wheel. Empty buckets cost nothing, however far the clock jumps.

    Time and deadline alone say where a timer lies. So all timers of one deadline lie in one bucket, and keep their order.

    Example, in decimal digits instead of base 256. The time is 138::

        add 139    differs in the last digit: wheel 0, bucket 9
        add 142    differs in the tens:       wheel 1, bucket 4
        add 905    differs in the hundreds:   wheel 2, bucket 9
        next()     139
        pop(139)   139 comes
        next()     140, where the bucket of 142 begins
        pop(141)   nothing comes; but 142 now differs in the last digit only: wheel 0, bucket 2
        next()     142
        pop(1000)  142 comes, then 905: its bucket falls at 900, from wheel 2 into wheel 0

    ``on_emptied`` is called when a cancellation has emptied a bucket, so that ``next()`` may be later than it was.
    """

    __slots__ = ("_buckets", "_now", "_occupied", "_on_emptied")

    def __init__(self, now: int, *, on_emptied: Callable[[], None] = _nothing) -> None:
        if now < 0:
            raise UsageError(f"the wheel starts at {now}; expected a time from 0 on")
        self._now = now
        self._on_emptied = on_emptied
        self._occupied: list[int] = []
        """By wheel: which buckets have timers, as bits."""
        self._buckets: list[_Bucket] = []
        """Of all wheels, one after the other."""
        self._grow(1)

    @property
    def now(self) -> int:
        """The wheel's time: the latest that it was told."""
        return self._now

    def __bool__(self) -> bool:
        """Whether a timer is pending."""
        return any(self._occupied)

    def add(self, deadline: int, what: T) -> Timer[T]:
        """A timer that comes at the first ``pop`` from ``deadline`` on."""
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
            return self.add(deadline, what)
        timer: Timer[T] = Timer()
        timer.deadline = deadline
        timer.what = what
        timer._before = before = bucket._before
        timer._after = bucket
        before._after = bucket._before = timer  # type: ignore[union-attr]
        if before is bucket:
            self._occupied[bucket.level] |= bucket.bit
        return timer

    def next(self) -> int | None:
        """When to call ``pop`` next, if nothing is added before: not after the next deadline. None: nothing is pending."""
        found = self._first()
        return None if found is None else found[0]

    def pop(self, now: int) -> Timer[T] | None:
        """The next timer whose deadline ``now`` has reached, taken out; None if there is none, and then it is ``now`` here."""
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
        """The bucket that comes next, and the time at which it begins."""
        for level, occupied in enumerate(self._occupied):
            if occupied:
                slot = (occupied & -occupied).bit_length() - 1
                shift = level * BITS
                start = (self._now >> shift + BITS << shift + BITS) + (slot << shift)
                return start, self._buckets[(level << BITS) + slot]
        return None

    def _cascade(self, bucket: _Bucket) -> None:
        """The time has come to this bucket's beginning: its timers fall into lower wheels, in their order."""
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
        """Wheels for deadlines that differ so much."""
        if differ.bit_length() > MAX_BITS:
            raise UsageError(f"the deadline lies more than 2**{MAX_BITS} ticks ahead; expected one that can come")
        while differ >> len(self._occupied) * BITS:
            level = len(self._occupied)
            self._occupied.append(0)
            self._buckets += [_Bucket(self, level, slot) for slot in range(_SIZE)]
