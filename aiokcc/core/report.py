"""Reports and cuts: the contents of ``progress/<member>`` and ``cuts/<slot>``.

A report is one text per member, in lines: the generation, the floor and the smallest timestamp; the partitions; the state of
each partition; its offset::

    3 1700000060000 1700000061234
    orders:0,1;payments:0;
    1700000061234,idle,finished;
    55,9,120!;

A partition is blocked at the timestamp of its next record, *idle* at the end of the log, *finished* for good, or *running*,
which is only written to show people who is slow. A report counts only if no partition is running. The offset is that of the
next record, ``?`` if the caller did not give it, and has a ``!`` if the partition has finished.

With lookahead all partitions of a member may have crossed further boundaries. Each of these is one more line: the boundary, the
smallest timestamp behind it, and its offset in each partition::

    1700000120000 1700000121500 75,31,120!;

Under a bound on lateness a partition reads past records that it holds back, so one offset does not tell what was processed.
Then there are two: ``55-60`` says that everything before 55 was processed, and before 60 everything below the boundary. A
record's period is the first one that ends after its timestamp and whose second offset lies behind it.

A cut has what the reports said when a boundary closed: its number, the boundary before, the boundary, the generation, then a
line per member with its partitions and their offsets::

    17 1700000000000 1700000060000 3
    worker-1 orders:0,1;payments:0; 55,9,120!;

The partitions change seldom, so the leader parses their line once. The offsets change each period, and the leader copies their
line from the report into the cut. Other modules see typed values: :class:`Entry`, :class:`~aiokcc.core.marks.Mark`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeAlias

from aiokcc.core.marks import NUMBERS, Mark, Marks
from aiokcc.core.partition_progress import PartitionState
from aiokcc.core.partitions import Partition, PartitionList
from aiokcc.core.periods import MAX_LIMIT, MAX_TIMESTAMP
from aiokcc.errors import CorruptNodeError

__all__ = ["Crossing", "Cut", "Entry", "Report"]

_STATES: Final = {state.value: state for state in PartitionState if state is not PartitionState.BLOCKED}
"""The states that an entry names. A blocked one has its timestamp instead."""
_RUNNING: Final = PartitionState.RUNNING.value
_STOP: Final = f"(?:[0-9]{{1,19}}|{'|'.join(_STATES)})"
_STOPS: Final = re.compile(f"{NUMBERS}|{_STOP}(?:,{_STOP})*;")
_REPORT_FORM: Final = (
    "a first line 'generation limit minimum', then lines of partitions, timestamps and offsets "
    "like 'orders:0,1;', '1700000061234,idle;' and '55,9;'"
)
_CUT_FORM: Final = "a first line 'number previous limit generation', then lines like 'worker-1 orders:0,1; 55,66!;'"

Stop: TypeAlias = int | PartitionState
"""The timestamp of a partition's next record if it is blocked; otherwise its state."""


def _is_number(word: str) -> bool:
    return word.isdecimal() and len(word) <= 19


class Crossing(NamedTuple):
    """The position of one boundary in all partitions of a member."""

    boundary: int
    minimum: int | None
    """The smallest timestamp behind the boundary; None if all partitions have finished before it."""
    marks: Marks

    def encode(self) -> str:
        """Returns a line of the report."""
        return f"{self.boundary} {'-' if self.minimum is None else self.minimum} {self.marks.text}"

    @classmethod
    def decode(cls, line: str, count: int) -> Crossing:
        """Reads a line of the report, for ``count`` partitions. Raises ValueError if it is something else."""
        boundary, least, body = line.split(" ")
        marks = Marks.parse(body, count)
        if not _is_number(boundary):
            raise ValueError(line)
        if least == "-":
            if not marks.all_finished:
                raise ValueError(line)
            return cls(int(boundary), None, marks)
        if not _is_number(least) or not int(boundary) <= int(least) <= MAX_TIMESTAMP:
            raise ValueError(line)
        return cls(int(boundary), int(least), marks)


class Entry(NamedTuple):
    """One partition in a report."""

    state: PartitionState
    ts: int | None = None
    """The timestamp of the next record, if the partition is blocked."""
    offset: int | None = None
    """The offset of the next record, if known; a :class:`~aiokcc.core.marks.Span` where some behind it were processed."""


@dataclass(frozen=True, slots=True)
class Report:
    """One member's report. Its columns have one element per partition, in the same order."""

    generation: int
    limit: int
    """The floor under which it was written. Idle entries hold for this floor only; blocked ones while ``ts >= T``."""
    partitions: PartitionList
    stops: tuple[Stop, ...]
    """The timestamp of the next record of each partition, or its state if it is not blocked."""
    marks: Marks
    """The position of the floor in each partition."""
    minimum: int | None = None
    """The smallest timestamp at which a partition is blocked; None if none is blocked."""
    idle: bool = False
    """True if an entry is idle."""
    running: bool = False
    """True if an entry is running: then the report does not count."""
    finished: bool = False
    """True if an entry is finished."""
    further: tuple[Crossing, ...] = ()
    """The boundaries behind the floor that all entries have crossed, ascending."""

    @classmethod
    def of(cls, generation: int, limit: int, partitions: PartitionList, entries: Sequence[Entry]) -> Report:
        """Makes a report from the entries of these partitions."""
        stops = tuple([entry.state if entry.ts is None else entry.ts for entry in entries])
        ended = [entry.state is PartitionState.FINISHED for entry in entries]
        return cls._of_columns(generation, limit, partitions, stops, Marks.of([e.offset for e in entries], ended))

    @classmethod
    def _of_columns(
        cls, generation: int, limit: int, partitions: PartitionList, stops: tuple[Stop, ...], marks: Marks
    ) -> Report:
        return cls(
            generation,
            limit,
            partitions,
            stops,
            marks,
            min((stop for stop in stops if isinstance(stop, int)), default=None),
            PartitionState.IDLE in stops,
            PartitionState.RUNNING in stops,
            PartitionState.FINISHED in stops,
        )

    @property
    def entries(self) -> dict[Partition, Entry]:
        """The entries by partition. They are made at each call: the leader's rule does not need them."""
        result: dict[Partition, Entry] = {}
        for partition, stop, mark in zip(self.partitions, self.stops, self.marks.values(), strict=True):
            if isinstance(stop, int):
                result[partition] = Entry(PartitionState.BLOCKED, stop, mark.offset)
            else:
                result[partition] = Entry(stop, None, mark.offset)
        return result

    def unfinished(self) -> list[Partition]:
        """Returns the partitions that had not finished."""
        return [p for p, stop in zip(self.partitions, self.stops, strict=True) if stop is not PartitionState.FINISHED]

    def at(self, floor: int) -> Crossing | None:
        """Returns the crossing of this floor; None if the report does not prove that nothing is left before it.

        Call it only for a report that counts. A crossing stays true. A partition that is blocked behind a floor has crossed
        that floor too; but a report with several boundaries proves only those, because a pipeline may be past all of them and
        states the position of each. An idle entry holds for the report's own floor only.
        """
        if self.limit == floor and not self.further:  # the usual case, faster
            minimum = self.minimum
            return Crossing(floor, minimum, self.marks) if minimum is None or minimum >= floor else None
        told = (Crossing(self.limit, self.minimum, self.marks), *self.further)
        found = next((crossing for crossing in told if crossing.boundary == floor), None)
        if found is None and not self.idle and (not self.further or told[-1].minimum is None):
            found = told[-1]
        return found if found is not None and (found.minimum is None or found.minimum >= floor) else None

    def ends_before(self, floor: int) -> bool:
        """Returns whether every partition was blocked before this floor: under it the report says nothing any more."""
        if self.idle or self.running or self.finished or self.further or not self.stops:
            return False
        stops: tuple[int, ...] = self.stops  # type: ignore[assignment]  # all are blocked
        return max(stops) < floor

    def supersedes(self, written: Report | None) -> bool:
        """Returns whether the node must be written again. A blocked entry stays true over several limits; an idle one does not.

        Boundaries crossed since then do not matter before the limit reaches them.
        """
        if written is None or self.generation != written.generation or (self.idle and self.limit != written.limit):
            return True
        if self.partitions != written.partitions:
            return True
        if self.limit == written.limit or self.running or not written.further:
            return (self.stops, self.marks) != (written.stops, written.marks)
        said = written.at(self.limit)
        return said is None or (said.minimum, said.marks) != (self.minimum, self.marks)

    def _stated_minimum(self) -> str:
        return _RUNNING if self.running else "-" if self.minimum is None else str(self.minimum)

    def encode(self) -> bytes:
        """Returns the node's content."""
        if self.idle or self.running or self.finished:
            stops = ",".join([str(stop) if isinstance(stop, int) else stop.value for stop in self.stops])
        else:
            stops = ",".join(map(str, self.stops))
        lines = [
            f"{self.generation} {self.limit} {self._stated_minimum()}",
            self.partitions.text,
            f"{stops};",
            self.marks.text,
            *(crossing.encode() for crossing in self.further),
        ]
        return "\n".join(lines).encode()

    @classmethod
    def decode(cls, path: str, data: bytes, before: Report | None = None) -> Report | None:
        """Reads the node's content; None while its member has not reported. Raises CorruptNodeError if it is malformed.

        ``before`` is an earlier report of the same member, if there is one: it most likely has the same partitions.
        """
        if not data:
            return None
        try:
            head, listed, stops, marks, *lines = data.decode("ascii").split("\n")
            generation, limit, least = head.split(" ")
            if before is not None and listed == before.partitions.text:
                partitions = before.partitions
            else:
                partitions = PartitionList.parse(listed)
            count = len(partitions)
            if not (_is_number(generation) and _is_number(limit)) or int(limit) > MAX_LIMIT:
                raise ValueError(head)
            report = cls._of_texts(int(generation), int(limit), partitions, stops, Marks.parse(marks, count))
            if least != report._stated_minimum() or (report.minimum or 0) > MAX_TIMESTAMP:
                raise ValueError(head)
            if lines:
                further = tuple(Crossing.decode(line, count) for line in lines)
                boundaries = [report.limit, *(crossing.boundary for crossing in further)]
                if report.running or report.idle or any(a >= b for a, b in itertools.pairwise(boundaries)):
                    raise ValueError(lines)
                report = replace(report, further=further)
        except ValueError:
            raise CorruptNodeError(path, data, _REPORT_FORM) from None
        return report

    @classmethod
    def _of_texts(cls, generation: int, limit: int, partitions: PartitionList, stops: str, marks: Marks) -> Report:
        if not _STOPS.fullmatch(stops):
            raise ValueError(stops)
        words = stops[:-1].split(",")
        if len(words) != len(partitions):
            raise ValueError(stops)
        try:  # the usual case, faster: all of them are blocked
            times = tuple(map(int, words))
        except ValueError:
            mixed = tuple([_STATES[word] if word in _STATES else int(word) for word in words])
            report = cls._of_columns(generation, limit, partitions, mixed, marks)
        else:
            report = cls(generation, limit, partitions, times, marks, min(times))
        if report.finished or marks.any_finished:
            ended = [stop is PartitionState.FINISHED for stop in report.stops]
            if ended != [mark.finished for mark in marks.values()]:
                raise ValueError(stops)
        return report


@dataclass(frozen=True, slots=True)
class Cut:
    """The marks of all partitions, by member, when the boundary ``limit`` closed."""

    number: int
    previous: int
    limit: int
    generation: int
    marks: Mapping[str, Mapping[Partition, Mark]] = field(default_factory=dict)
    """The marks of each member's partitions."""

    def finished(self) -> dict[Partition, tuple[str, Mark]]:
        """Returns the partitions that have finished, with the member that reported it and the mark."""
        return {p: (member, mark) for member, marks in self.marks.items() for p, mark in marks.items() if mark.finished}

    def report_after(self, member: str) -> Report | None:
        """Returns what this cut says of a member's partitions: they run, from here on. None if the member has none in it."""
        marks = self.marks.get(member)
        if not marks:
            return None
        entries = [
            Entry(PartitionState.FINISHED if mark.finished else PartitionState.RUNNING, None, mark.offset)
            for _, mark in sorted(marks.items())
        ]
        return Report.of(self.generation, self.limit, PartitionList.of(sorted(marks)), entries)

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
    def line(member: str, partitions: PartitionList, marks: Marks) -> str:
        """Returns a member's line."""
        return f"{member} {partitions.text} {marks.text}"

    @classmethod
    def line_of(cls, member: str, marks: Mapping[Partition, Mark]) -> str:
        """Returns the line of a member with these marks."""
        partitions = sorted(marks)
        found = [marks[p] for p in partitions]
        texts = Marks.of([mark.offset for mark in found], [mark.finished for mark in found])
        return cls.line(member, PartitionList.of(partitions), texts)

    @staticmethod
    def header(number: int, previous: int, limit: int, generation: int) -> str:
        """Returns the first line."""
        return f"{number} {previous} {limit} {generation}"

    def encode(self) -> bytes:
        """Returns the node's content."""
        lines = [self.header(self.number, self.previous, self.limit, self.generation)]
        lines += [self.line_of(member, marks) for member, marks in self.marks.items() if marks]
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
                member, listed, texts = line.split(" ")
                partitions = PartitionList.parse(listed)
                if not member or not seen.isdisjoint(partitions):
                    raise ValueError(line)
                seen.update(partitions)
                values = Marks.parse(texts, len(partitions)).values()
                marks.setdefault(member, {}).update(zip(partitions, values, strict=True))
        except ValueError:
            raise CorruptNodeError(path, data, _CUT_FORM) from None
        return cls(number, previous, limit, generation, marks)
