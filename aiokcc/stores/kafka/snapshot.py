"""Finds where a reader begins: at the first record of the log, or at the snapshot of exactly that record. Pure.

**[prefix]** A log that begins at offset 0 is applied from there. A log that was trimmed begins with the MARK to which it was
trimmed, and the snapshot of this mark follows. If the log begins with anything else, records are missing that nobody can know
of (retention has deleted them, for example), and it is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aiokcc.stores.kafka import records, state
from aiokcc.stores.kafka.machine import Machine
from aiokcc.stores.kafka.records import Kind

__all__ = ["Beginning", "MissingPrefixError", "split_snapshot"]

_MAX_PARTS: Final = 65535


class MissingPrefixError(Exception):
    """The log does not begin at 0, and does not begin with a mark that has a snapshot."""


class Beginning:
    """Finds the machine to begin with. Feed it the records from the first of the log on, until it has one.

    :param start: the offset at which the log begins
    """

    def __init__(self, start: int) -> None:
        self._start = start
        self._genesis: bytes | None = None
        self._parts: dict[int, dict[int, bytes]] = {}
        self.machine: Machine | None = Machine() if start == 0 else None

    def feed(self, offset: int, raw: bytes | None) -> Machine | None:
        """Take the next record. Return the machine once it is known; it is then to be fed all records, from the start on.

        Raises MissingPrefixError if the log does not begin as it must, and UnknownFormatError.
        """
        if self.machine is not None:
            return self.machine
        record = records.decode(raw, self._genesis)
        if self._genesis is None:
            if offset != self._start or record is None or record.kind is not Kind.MARK:
                raise MissingPrefixError
            self._genesis = record.genesis
        elif record is not None and record.kind is Kind.SNAPSHOT:
            self._collect(record)
        return self.machine

    def _collect(self, record: records.Record) -> None:
        try:
            mark, part, parts, data = records.decode_snapshot(record.body)
            if mark != self._start:
                return
            found = self._parts.setdefault(record.session, {})
            found[part] = data
            if len(found) < parts:
                return
            machine = Machine.restore(state.unpack(b"".join(found[number] for number in range(parts))))
        except (ValueError, KeyError):
            return
        if machine.genesis == self._genesis and machine.position == self._start:
            self.machine = machine


def split_snapshot(mark: int, content: bytes, most: int) -> Iterator[bytes]:
    """Return the bodies of the SNAPSHOT records for a state, each with at most so many bytes of it. Raises ValueError."""
    packed = state.pack(content)
    count = -(-len(packed) // most)
    if count > _MAX_PARTS:
        raise ValueError(f"a snapshot of {len(packed)} bytes has more than {_MAX_PARTS} parts of {most} bytes")
    return (
        records.encode_snapshot(mark, number, count, packed[number * most : (number + 1) * most])
        for number in range(count)
    )
