"""The limit ``T`` as the ``coordinator`` node holds it, and the operator's request as the ``period`` node holds it.

While the gate works, the node holds the open boundaries in descending order: the first is the limit, the last is the
*floor*, the boundary that closes next. Without lookahead the two are the same and the node holds one number. With a
lookahead of ``k`` there are ``k + 1`` of them: participants run up to the limit while the floor waits for the slowest. The
boundaries are in the node because a changed period must not move a boundary that a partition may have crossed already. With
lookahead several may close at once; the one that closed last follows after them, and records below it are late.

::

    1700000060000                                one period at a time
    1700000180000 1700000120000 1700000060000 after 1700000000000    lookahead of two
    open                                         released: everything passes, for good
    end                                          the run is over: nothing passes any more
"""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass, field
from typing import Final

from aiokcc.core.periods import MAX_LIMIT, MAX_PERIOD, boundary_after
from aiokcc.errors import CorruptNodeError

__all__ = ["END", "OPEN", "Limit", "Mode", "Request", "RequestKind"]

_MAX_LOOKAHEAD: Final = 1000
_LIMIT_FORM: Final = "a limit in milliseconds since the epoch, 'open' or 'end'"
_REQUEST_FORM: Final = f"a period in milliseconds, 'hold' or 'off'; the longest period is {MAX_PERIOD}"


class Mode(enum.IntEnum):
    """The mode of the limit. Modes are ordered: a run never goes back to a smaller one."""

    GATED = 0
    """Records below the limit pass."""
    OPEN = 1
    """Released: all records pass."""
    END = 2
    """The run is over: no record passes."""


_GATED: Final = Mode.GATED
"""To look it up in its class costs more than the rest of :attr:`Limit.floor`, up to Python 3.11."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The open boundaries, ascending; empty when the gate is open or the run is over."""

    boundaries: tuple[int, ...] = ()
    mode: Mode = Mode.GATED
    closed: int = field(default=0, compare=False)
    """The boundary that closed last, with lookahead; without it this is 0, and the floor before this one closed last."""

    @property
    def value(self) -> int:
        """Records below this pass. MAX_LIMIT when released, 0 at the end of the run."""
        if self.mode is _GATED:
            return self.boundaries[-1]
        return MAX_LIMIT if self.mode is Mode.OPEN else 0

    @property
    def floor(self) -> int:
        """The boundary that closes next."""
        return self.boundaries[0] if self.mode is _GATED else MAX_LIMIT

    def precedes(self, other: Limit) -> bool:
        """Returns whether ``other`` is a later limit than this one. A stale read is not, and is dropped."""
        if self.mode is not other.mode:
            return self.mode < other.mode
        return self.mode is _GATED and (self.floor, self.value) < (other.floor, other.value)

    def fits(self, lookahead: int, end: int | None, *, least: int | None = None) -> bool:
        """Returns whether a run with these settings can have this limit: one boundary and one for each period of lookahead.

        There are fewer only near the end of the run, and before the first reports. This detects a limit that was cut short by
        hand and can still be read. ``least``: the leader chooses a lookahead from this one up to ``lookahead``.
        """
        if self.mode is not _GATED or self.boundaries == (0,):
            return True
        if least is not None:
            return least < len(self.boundaries) <= lookahead + 1
        last = MAX_LIMIT if end is None else end
        return len(self.boundaries) == lookahead + 1 or (len(self.boundaries) <= lookahead and self.value >= last)

    @classmethod
    def first(cls, start: int | None, period: int, lookahead: int, end: int | None) -> Limit:
        """Returns the first limit of a run. Without a start it is 0: nothing passes until all partitions are reported."""
        if start is None:
            return cls((0,))
        return cls._extended((boundary_after(start, period),), period, lookahead, end)

    def after(self, ts: int, period: int, lookahead: int, end: int | None, *, max_apart: int | None = None) -> Limit:
        """Returns the limit once no partition has anything left before ``ts``: its floor is the first boundary after ``ts``.

        ``max_apart``: the lookahead may be another one at each step, and no boundary is opened that lies further than this
        behind the one that closes. Boundaries that are open stay open.
        """
        kept = tuple(b for b in self.boundaries if b > ts)
        closed = self.floor if lookahead or max_apart is not None else 0
        first = kept or (boundary_after(ts, period),)
        lowest = self.floor if kept else max(self.floor, first[0] - period)  # the slowest partition is not before this
        last = MAX_LIMIT if max_apart is None else lowest + max_apart
        return self._extended(first, period, lookahead, end, closed, last)

    @classmethod
    def _extended(
        cls,
        boundaries: tuple[int, ...],
        period: int,
        lookahead: int,
        end: int | None,
        closed: int = 0,
        most: int = MAX_LIMIT,
    ) -> Limit:
        last = MAX_LIMIT if end is None else end
        chain = [min(b, last) for b in boundaries]
        while len(chain) <= lookahead and chain[-1] < last and boundary_after(chain[-1], period) <= most:
            chain.append(min(boundary_after(chain[-1], period), last))
        return cls(tuple(dict.fromkeys(chain)), closed=closed)

    def encode(self) -> bytes:
        """Returns the node's content."""
        if self.mode is _GATED:
            after = f" after {self.closed}" if self.closed else ""
            return f"{' '.join(map(str, reversed(self.boundaries)))}{after}".encode()
        return self.mode.name.lower().encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> Limit:
        """Reads the node's content. Raises CorruptNodeError if it is malformed."""
        if data.strip() == b"open":
            return OPEN
        if data.strip() == b"end":
            return END
        words = data.split(maxsplit=_MAX_LOOKAHEAD + 3)
        closed = b"0"
        if words[-2:-1] == [b"after"]:
            words, closed = words[:-2], words[-1]
        if not words or len(words) > _MAX_LOOKAHEAD + 1 or not all(map(_is_number, [*words, closed])):
            raise CorruptNodeError(path, data, _LIMIT_FORM)
        boundaries = tuple(int(w) for w in reversed(words))
        if boundaries[-1] > MAX_LIMIT or any(a >= b for a, b in itertools.pairwise((int(closed) - 1, *boundaries))):
            raise CorruptNodeError(path, data, _LIMIT_FORM)
        return cls(boundaries, closed=int(closed))


def _is_number(word: bytes) -> bool:
    return word.isdigit() and len(word) <= 19


OPEN: Final = Limit(mode=Mode.OPEN)
END: Final = Limit(mode=Mode.END)


class RequestKind(enum.Enum):
    """The kinds of request that an operator can make."""

    PERIOD = "period"
    """Move the limit by this period."""
    HOLD = "hold"
    """Do not move the limit."""
    OFF = "off"
    """Open the gate for all, for good."""


@dataclass(frozen=True, slots=True)
class Request:
    """The operator's request. Only the leader acts on it."""

    kind: RequestKind
    period: int = 0

    @classmethod
    def every(cls, period: int) -> Request:
        """Returns a request for periods of this many milliseconds."""
        return cls(RequestKind.PERIOD, period)

    def encode(self) -> bytes:
        """Returns the node's content."""
        return (str(self.period) if self.kind is RequestKind.PERIOD else self.kind.value).encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> Request:
        """Reads the node's content. Raises CorruptNodeError if it is malformed."""
        text = data.strip()
        if text in {b"hold", b"off"}:
            return cls(RequestKind(text.decode()))
        if not text.isdigit() or len(text) > 19 or not 0 < int(text) <= MAX_PERIOD:
            raise CorruptNodeError(path, data, _REQUEST_FORM)
        return cls.every(int(text))
