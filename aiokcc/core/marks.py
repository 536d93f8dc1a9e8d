"""The marks of a cut: where a boundary lies in each partition. Reports and cuts have them as the same text.

A mark is the first offset behind the boundary, ``?`` if that is not known, with ``!`` behind it if the partition has finished.
Under a bound on lateness it may be a pair like ``55-60``, see :class:`Span`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["NUMBERS", "Mark", "Marks", "Span"]

_MARK: Final = r"(?:[0-9]{1,19}(?:-[0-9]{1,19})?|\?)!?"
NUMBERS: Final = "[0-9]{1,19}(?:,[0-9]{1,19})*;"
"""The regular expression of a line of plain numbers: the usual case, faster than one with all alternatives."""
_MARKS: Final = re.compile(f"{NUMBERS}|{_MARK}(?:,{_MARK})*;")


class Span(int):
    """An offset before which everything was processed, and in ``high`` one before which everything below the boundary was.

    It is ordered by the lower offset, and computes with it. But it equals only a span with the same two offsets, and not the
    plain offset, which says that nothing behind it was processed.
    """

    high: int

    @classmethod
    def of(cls, low: int, high: int) -> int:
        """Returns the pair, or the plain offset if the two are equal. Raises ValueError if ``high`` is below ``low``."""
        if high < low:
            raise ValueError(f"{low}-{high}")
        if high == low:
            return low
        span = cls(low)
        span.high = high
        return span

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Span) and (int(self), self.high) == (int(other), other.high)

    def __ne__(self, other: object) -> bool:
        return not self == other  # without this method ``!=`` would be that of int

    def __hash__(self) -> int:
        return hash((int(self), self.high))

    def __str__(self) -> str:
        return f"{int(self)}-{self.high}"

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class Mark:
    """The position of a cut in one partition: the first offset after it, if known, and whether the partition has finished.

    The offset is a :class:`Span` where records behind it had been processed already.
    """

    offset: int | None
    finished: bool = False

    def __str__(self) -> str:
        return f"{'?' if self.offset is None else self.offset}{'!' if self.finished else ''}"

    @classmethod
    def parse(cls, text: str) -> Mark:
        """Returns the mark of a text like ``55``, ``55-60!`` or ``?``. Raises ValueError if the text has another form."""
        offset = text.removesuffix("!")
        if offset == "?":
            return cls(None, offset != text)
        low, _, high = offset.partition("-")
        return cls(Span.of(int(low), int(high or low)), offset != text)


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of a member's partitions, in the order of its report.

    They go from the report into the cut, and few of them are ever looked at. So they stay the text that both have, and become
    values when somebody asks.
    """

    text: str
    """The marks with commas between them, and a semicolon at the end: ``55,9,120!;``."""

    @classmethod
    def of(cls, offsets: Sequence[int | None], finished: Sequence[bool] | None = None) -> Marks:
        """Returns the marks of these offsets. ``finished`` says which partitions have finished; None: none has."""
        if finished is not None:
            return cls(f"{','.join([str(Mark(*mark)) for mark in zip(offsets, finished, strict=True)])};")
        if None in offsets:
            return cls(f"{','.join(['?' if offset is None else str(offset) for offset in offsets])};")
        return cls(f"{','.join(map(str, offsets))};")

    @classmethod
    def parse(cls, text: str, count: int) -> Marks:
        """Returns the marks of this text. Raises ValueError unless it has ``count`` well-formed marks."""
        if text.count(",") + 1 != count or not _MARKS.fullmatch(text):
            raise ValueError(text)
        found = cls(text)
        if "-" in text:
            found.values()  # raises ValueError if a pair is the wrong way round
        return found

    def texts(self) -> list[str]:
        """Returns the text of each mark."""
        return self.text[:-1].split(",")

    def values(self) -> list[Mark]:
        """Returns each mark."""
        return [Mark.parse(text) for text in self.texts()]

    @property
    def any_finished(self) -> bool:
        """True if a partition has finished."""
        return "!" in self.text

    @property
    def all_finished(self) -> bool:
        """True if all partitions have finished."""
        return all(text.endswith("!") for text in self.text[:-1].split(","))


def mark_offset(text: str) -> int | None:
    """Returns the offset of one mark; fast where it is a plain number."""
    return int(text) if text.isdigit() else Mark.parse(text).offset
