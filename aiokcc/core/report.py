"""Reports and cuts: the contents of ``progress/<member>`` and ``cuts/<slot>``.

A report is one text per member: a first line ``generation limit count minimum``, then one entry per partition::

    3 1700000060000 3 1700000061234
    orders.0:1700000061234@55;orders.1:idle@9;payments.0:finished@120;

An entry has the partition's state: blocked at the timestamp of its next record, *idle* at the end of the log, *finished*
for good, or *running*, which is only written to show people who is slow. After the ``@`` comes the offset of the next
record, if the caller gave it. A report counts only if no entry is running. Other modules see typed values (:class:`Entry`,
:class:`~aiokcc.core.marks.Mark`); only this module and ``marks`` read and write the text.

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
from typing import Final, NamedTuple, TypeAlias

from aiokcc.core.marks import MARK, Mark, Marks
from aiokcc.core.partition_progress import PartitionState
from aiokcc.core.partitions import Partition
from aiokcc.core.periods import MAX_LIMIT, MAX_TIMESTAMP
from aiokcc.errors import CorruptNodeError

__all__ = ["Crossing", "Cut", "Entry", "Report"]

_STATES: Final = {state.value: state for state in PartitionState if state is not PartitionState.BLOCKED}
"""The states that an entry names. A blocked one has its timestamp instead."""
_RUNNING: Final = PartitionState.RUNNING.value
_BODY: Final = re.compile(
    r"(?:[A-Za-z0-9._-]+\.[0-9]{1,10}:(?:[0-9]{1,19}|idle|finished|running)(?:@[0-9]{1,19}(?:-[0-9]{1,19})?)?;)*"
)
_ENTRY: Final = re.compile(r"([^:;]+):([^;@]+)@?([^;]*);")
_REPORT_FORM: Final = "a first line 'generation limit count minimum', then entries like orders.0:1700000061234@55;"
_CUT_FORM: Final = "a first line 'number previous limit generation', then lines like 'worker-1 orders:0@55,1@66!;'"
_CUT_ITEM: Final = re.compile(f"([0-9]{{1,10}})@({MARK})")

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
    names: tuple[str, ...]
    """The partitions: ``orders.0`` and the like."""
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
    def of(cls, generation: int, limit: int, entries: Mapping[str, Entry]) -> Report:
        """Makes a report from its entries."""
        values = entries.values()
        stops = tuple([entry.state if entry.ts is None else entry.ts for entry in values])
        ended = [entry.state is PartitionState.FINISHED for entry in values]
        marks = Marks.of([entry.offset for entry in values], ended)
        return cls._of_columns(generation, limit, tuple(entries), stops, marks)

    @classmethod
    def _of_columns(
        cls, generation: int, limit: int, names: tuple[str, ...], stops: tuple[Stop, ...], marks: Marks
    ) -> Report:
        return cls(
            generation,
            limit,
            names,
            stops,
            marks,
            min((stop for stop in stops if isinstance(stop, int)), default=None),
            PartitionState.IDLE in stops,
            PartitionState.RUNNING in stops,
            PartitionState.FINISHED in stops,
        )

    @property
    def entries(self) -> dict[str, Entry]:
        """The entries by partition. They are made at each call: the leader's rule needs the columns only."""
        result: dict[str, Entry] = {}
        for name, stop, mark in zip(self.names, self.stops, self.marks.values(), strict=True):
            if isinstance(stop, int):
                result[name] = Entry(PartitionState.BLOCKED, stop, mark.offset)
            else:
                result[name] = Entry(stop, None, mark.offset)
        return result

    def unfinished(self) -> list[str]:
        """Returns the partitions that had not finished."""
        return [name for name, stop in zip(self.names, self.stops, strict=True) if stop is not PartitionState.FINISHED]

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
        if self.names != written.names:
            return True
        if self.limit == written.limit or self.running or not written.further:
            return (self.stops, self.marks) != (written.stops, written.marks)
        said = written.at(self.limit)
        return said is None or (said.minimum, said.marks) != (self.minimum, self.marks)

    def _stated_minimum(self) -> str:
        return _RUNNING if self.running else "-" if self.minimum is None else str(self.minimum)

    def encode(self) -> bytes:
        """Returns the node's content."""
        lines = [
            f"{self.generation} {self.limit} {len(self.names)} {self._stated_minimum()}",
            "".join(self._encode_entries()),
        ]
        return "\n".join(lines + [crossing.encode() for crossing in self.further]).encode()

    def _encode_entries(self) -> list[str]:
        columns = zip(self.names, self.stops, self.marks.texts(), strict=True)
        if not (self.idle or self.running or self.finished or "?" in self.marks.text):  # the usual case, faster
            return [f"{name}:{ts}@{mark};" for name, ts, mark in columns]
        result: list[str] = []
        for name, stop, mark in columns:
            offset = mark.rstrip("?!")
            result.append(f"{name}:{stop if isinstance(stop, int) else stop.value}{offset and f'@{offset}'};")
        return result

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
            report = cls._decode_entries(int(generation), int(limit), body)
            if (
                int(count) != len(report.names)
                or len(set(report.names)) != len(report.names)
                or least != report._stated_minimum()
                or report.limit > MAX_LIMIT
                or (report.minimum or 0) > MAX_TIMESTAMP
            ):
                raise ValueError(head)
            if lines:
                further = tuple(Crossing.decode(line, len(report.names)) for line in lines)
                boundaries = [report.limit, *(crossing.boundary for crossing in further)]
                if report.running or report.idle or any(a >= b for a, b in itertools.pairwise(boundaries)):
                    raise ValueError(lines)
                report = replace(report, further=further)
        except ValueError:
            raise CorruptNodeError(path, data, _REPORT_FORM) from None
        return report

    @classmethod
    def _decode_entries(cls, generation: int, limit: int, body: str) -> Report:
        found = _ENTRY.findall(body)
        if not found:
            return cls(generation, limit, (), (), Marks(""))
        names, words, offsets = zip(*found, strict=True)
        if _STATES.keys().isdisjoint(words) and all(offsets):  # the usual case, faster
            times, marks = tuple(map(int, words)), Marks(",".join(offsets))
            report = cls(generation, limit, names, times, marks, min(times))
        else:
            stops = tuple([_STATES[word] if word in _STATES else int(word) for word in words])
            ends = ["!" if stop is PartitionState.FINISHED else "" for stop in stops]
            marks = Marks(",".join([f"{offset or '?'}{end}" for offset, end in zip(offsets, ends, strict=True)]))
            report = cls._of_columns(generation, limit, names, stops, marks)
        if "-" in marks.text:
            marks.values()  # raises ValueError if a pair is the wrong way round
        return report


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
                        partition = Partition(topic, int(match[1]))
                        if partition in seen:
                            raise ValueError(item)
                        seen.add(partition)
                        mine[partition] = Mark.parse(match[2])
        except ValueError:
            raise CorruptNodeError(path, data, _CUT_FORM) from None
        return cls(number, previous, limit, generation, marks)
