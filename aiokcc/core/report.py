"""Reports and cuts: the contents of ``progress/<member>`` and ``cuts/<slot>``.

A report is one text per member: a first line ``generation limit count minimum``, then one entry per partition::

    3 1700000060000 3 1700000061234
    orders.0:1700000061234@55;orders.1:idle@9;payments.0:finished@120;

An entry has the partition's state: blocked at the timestamp of its next record, *idle* at the end of the log, *finished*
for good, or *running*, which is only written to show people who is slow. After the ``@`` comes the offset of the next
record, if the caller gave it. A report counts only if no entry is running.

With lookahead all partitions of a member may have crossed further boundaries. Each of these is one more line: the boundary, the
smallest timestamp behind it, and where it lies in each partition, in the order of the entries::

    1700000120000 1700000121500 75,31,120!

Under a bound on lateness a partition reads past records that it holds back, so one offset does not tell what was processed.
Then there are two: ``55-60`` says that everything before 55 was processed, and before 60 everything below the boundary. A
record's period is the first one that ends after its timestamp and whose second offset lies behind it.

A cut has what the reports said when a boundary closed: its number, the boundary before, the boundary, the generation, then a
line per member with the offsets by topic; ``?`` where an offset is not known, ``!`` behind a partition that has finished::

    17 1700000000000 1700000060000 3
    worker-1 orders:0@55,1@9;payments:0@120!;
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from aiokcc.core.partitions import Partition
from aiokcc.core.periods import MAX_LIMIT, MAX_TIMESTAMP
from aiokcc.errors import CorruptNodeError

__all__ = ["FINISHED", "IDLE", "RUNNING", "Crossing", "Cut", "Mark", "Report", "Span"]

IDLE: Final = "idle"
FINISHED: Final = "finished"
RUNNING: Final = "running"

_BODY: Final = re.compile(
    r"(?:[A-Za-z0-9._-]+\.[0-9]{1,10}:(?:[0-9]{1,19}|idle|finished|running)(?:@[0-9]{1,19}(?:-[0-9]{1,19})?)?;)*"
)
_ENTRY: Final = re.compile(r"([^:;]+):(([^;@]+)@?([^;]*));")
_WORDS: Final = frozenset((IDLE, FINISHED, RUNNING))
_MARK: Final = re.compile(r"(?:[0-9]{1,19}(?:-[0-9]{1,19})?|\?)!?")
_REPORT_FORM: Final = "a first line 'generation limit count minimum', then entries like orders.0:1700000061234@55;"
_CUT_FORM: Final = "a first line 'number previous limit generation', then lines like 'worker-1 orders:0@55,1@66!;'"
_CUT_ITEM: Final = re.compile(r"([0-9]{1,10})@([0-9]{1,19}|\?)(?:(?<!\?)-([0-9]{1,19}))?(!?)")


def _is_number(word: str) -> bool:
    return word.isdecimal() and len(word) <= 19


class Crossing(NamedTuple):
    """The position of one boundary in all partitions of a member."""

    boundary: int
    minimum: int | None
    """The smallest timestamp behind the boundary; None if all partitions have finished before it."""
    marks: tuple[str, ...]
    """The mark of each partition in a cut: the offset, ``?`` if not known, followed by ``!`` if finished."""

    def encode(self) -> str:
        """Returns a line of the report."""
        return f"{self.boundary} {'-' if self.minimum is None else self.minimum} {','.join(self.marks)}"

    @classmethod
    def decode(cls, line: str, count: int) -> Crossing:
        """Reads a line of the report, for ``count`` partitions. Raises ValueError if it is something else."""
        boundary, least, body = line.split(" ")
        marks = tuple(body.split(","))
        if not _is_number(boundary) or len(marks) != count or not all(map(_MARK.fullmatch, marks)):
            raise ValueError(line)
        if least == "-":
            if not all(mark.endswith("!") for mark in marks):
                raise ValueError(line)
            return cls(int(boundary), None, marks)
        if not _is_number(least) or not int(boundary) <= int(least) <= MAX_TIMESTAMP:
            raise ValueError(line)
        return cls(int(boundary), int(least), marks)


@dataclass(frozen=True, slots=True)
class Report:
    """One member's report. ``entries`` maps ``orders.0`` to ``1700000061234@55`` and the like, in a fixed order."""

    generation: int
    limit: int
    """The floor under which it was written. Idle entries hold for this floor only; blocked ones while ``ts >= T``."""
    entries: Mapping[str, str]
    minimum: int | None = None
    """The smallest timestamp at which a partition is blocked; None if none is blocked."""
    idle: bool = False
    """True if an entry is idle."""
    running: bool = False
    """True if an entry is running: then the report does not count."""
    finished: bool = False
    """True if an entry is finished."""
    marks: tuple[str, ...] = field(default=(), compare=False)
    """The mark of each entry in a cut: the offset, ``?`` if not known, followed by ``!`` if finished."""
    further: tuple[Crossing, ...] = ()
    """The boundaries behind the floor that all entries have crossed, ascending."""

    @classmethod
    def of(cls, generation: int, limit: int, entries: Mapping[str, str]) -> Report:
        """Makes a report from its entries. Raises ValueError if an entry is malformed."""
        minimum: int | None = None
        idle = running = finished = False
        marks: list[str] = []
        for value in entries.values():
            word, _, offset = value.partition("@")
            marks.append(offset or "?")
            if word == IDLE:
                idle = True
            elif word == RUNNING:
                running = True
            elif word == FINISHED:
                finished = True
                marks[-1] += "!"
            else:
                ts = int(word)
                if minimum is None or ts < minimum:
                    minimum = ts
        return cls(generation, limit, entries, minimum, idle, running, finished, tuple(marks))

    def at(self, floor: int) -> Crossing | None:
        """Returns the crossing of this floor; None if the report does not prove that nothing is left before it.

        Call it only for a report that counts. A crossing stays true. A partition that is blocked behind a floor has crossed
        that floor too; but a report with several boundaries proves only those, because a pipeline may be past all of them and
        states the position of each. An idle entry holds for the report's own floor only.
        """
        told = (Crossing(self.limit, self.minimum, self.marks), *self.further)
        found = next((crossing for crossing in told if crossing.boundary == floor), None)
        if found is None and not self.idle and (not self.further or told[-1].minimum is None):
            found = told[-1]
        return found if found is not None and (found.minimum is None or found.minimum >= floor) else None

    def supersedes(self, written: Report | None) -> bool:
        """Returns whether the node must be written again. A blocked entry stays true over several limits; an idle one does not.

        Boundaries crossed since then do not matter before the limit reaches them.
        """
        if written is None or self.generation != written.generation or (self.idle and self.limit != written.limit):
            return True
        if self.limit == written.limit or self.running or not written.further:
            return self.entries != written.entries
        said = written.at(self.limit)
        is_said = said is not None and (said.minimum, said.marks) == (self.minimum, self.marks)
        return not is_said or self.entries.keys() != written.entries.keys()

    def encode(self) -> bytes:
        """Returns the node's content."""
        least = RUNNING if self.running else "-" if self.minimum is None else str(self.minimum)
        body = "".join([f"{name}:{value};" for name, value in self.entries.items()])
        lines = [f"{self.generation} {self.limit} {len(self.entries)} {least}", body]
        return "\n".join(lines + [crossing.encode() for crossing in self.further]).encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> Report | None:
        """Reads the node's content; None while its member has not reported. Raises CorruptNodeError if it is malformed."""
        if not data:
            return None
        try:
            head, body, *lines = data.decode("ascii").split("\n")
            generation, limit, count, least = head.split(" ")
            if not _BODY.fullmatch(body) or not (_is_number(generation) and _is_number(limit) and _is_number(count)):
                raise ValueError(body)
            found = _ENTRY.findall(body)
            entries = {name: value for name, value, _, _ in found}
            words = [word for _, _, word, _ in found]
            if words and _WORDS.isdisjoint(words):  # the usual case, faster
                marks = tuple([offset or "?" for _, _, _, offset in found])
                report = cls(int(generation), int(limit), entries, min(map(int, words)), marks=marks)
            else:
                report = cls.of(int(generation), int(limit), entries)
            stated = RUNNING if report.running else "-" if report.minimum is None else str(report.minimum)
            if (
                int(count) != len(entries)
                or body.count(";") != len(entries)
                or least != stated
                or report.limit > MAX_LIMIT
                or (report.minimum or 0) > MAX_TIMESTAMP
            ):
                raise ValueError(head)
            if lines:
                further = tuple(Crossing.decode(line, len(entries)) for line in lines)
                boundaries = [report.limit, *(crossing.boundary for crossing in further)]
                if report.running or report.idle or any(a >= b for a, b in itertools.pairwise(boundaries)):
                    raise ValueError(lines)
                report = replace(report, further=further)
        except ValueError:
            raise CorruptNodeError(path, data, _REPORT_FORM) from None
        return report


class Span(int):
    """An offset before which everything was processed, and in ``high`` one before which everything below the boundary was."""

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


@dataclass(frozen=True, slots=True)
class Cut:
    """The marks of all partitions, by member, when the boundary ``limit`` closed."""

    number: int
    previous: int
    limit: int
    generation: int
    marks: Mapping[str, Mapping[Partition, Mark]] = field(default_factory=dict)
    """By member."""

    def finished(self) -> dict[Partition, tuple[str, Mark]]:
        """Returns the partitions that have finished, with the member that reported it and the mark."""
        return {p: (member, mark) for member, marks in self.marks.items() for p, mark in marks.items() if mark.finished}

    def owners(self) -> dict[Partition, str]:
        """Returns the member that ran each partition."""
        return {p: member for member, marks in self.marks.items() for p in marks}

    def owner(self, partition: Partition) -> str | None:
        """Returns the member that ran this partition; None if the cut does not have it."""
        return next((member for member, marks in self.marks.items() if partition in marks), None)

    def find(self, partition: Partition) -> Mark | None:
        """Returns the mark of this partition; None if the cut does not have it."""
        return next((marks[partition] for marks in self.marks.values() if partition in marks), None)

    @staticmethod
    def template(member: str, partitions: Iterable[Partition]) -> str:
        """Returns a member's line with ``%s`` for each mark: the leader keeps it and only fills in the marks each period."""
        parts: list[str] = []
        last = None
        for topic, number in partitions:
            parts.append(f"{',' if topic == last else ';' * bool(parts) + topic + ':'}{number}@%s")
            last = topic
        return f"{member.replace('%', '%%')} {''.join(parts)};"

    @staticmethod
    def header(number: int, previous: int, limit: int, generation: int) -> str:
        """Returns the first line."""
        return f"{number} {previous} {limit} {generation}"

    def encode(self) -> bytes:
        """Returns the node's content."""
        lines = [self.header(self.number, self.previous, self.limit, self.generation)]
        lines += [
            self.template(member, sorted(marks)) % tuple(str(marks[p]) for p in sorted(marks))
            for member, marks in self.marks.items()
            if marks
        ]
        return "\n".join(lines).encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> Cut | None:
        """Reads the slot's content. Returns None if it was not used yet. Raises CorruptNodeError if it is malformed."""
        if not data:
            return None
        try:
            head, *lines = data.decode("ascii").split("\n")
            words = head.split(" ")
            number, previous, limit, generation = map(int, words)
            if not all(map(_is_number, words)) or max(previous, limit) > MAX_LIMIT:
                raise ValueError(head)
            marks: dict[str, dict[Partition, Mark]] = {}
            seen: set[Partition] = set()
            for line in lines:
                member, _, body = line.partition(" ")
                if not member or not body.endswith(";"):
                    raise ValueError(line)
                mine = marks.setdefault(member, {})
                for part in body[:-1].split(";"):
                    topic, _, items = part.partition(":")
                    for item in items.split(","):
                        match = _CUT_ITEM.fullmatch(item)
                        if not topic or match is None:
                            raise ValueError(item)
                        offset = None if match[2] == "?" else Span.of(int(match[2]), int(match[3] or match[2]))
                        partition = Partition(topic, int(match[1]))
                        if partition in seen:
                            raise ValueError(item)
                        seen.add(partition)
                        mine[partition] = Mark(offset, bool(match[4]))
        except ValueError:
            raise CorruptNodeError(path, data, _CUT_FORM) from None
        return cls(number, previous, limit, generation, marks)
