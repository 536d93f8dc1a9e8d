"""The state machine of the log: records in, changes of the tree and the sessions out. Pure: no clock, no I/O, no chance.

Every client applies the same records in the same order to its own :class:`Machine`, so all have the same state, and an
operation succeeds or fails for all alike, at the moment it is applied. The rules, by their names in
``docs/explanation/kafka-store.md``:

* **[live]** A session's id is the offset of its OPEN + 1. Its records count from there until its end.
* **[seq]** A write counts only if its number is the session's next one, so a record that was appended twice is applied once.
* **[silence]** EXPIRE(S, N) ends S only if no record of S that counted lies after N.
* **[genesis]** The first record names the log. A record that names another log changes nothing.
* **[same tail]** :meth:`Machine.is_same` tells whether a record that was read again is the one that was applied.
* **[chain]** A hash over all records, and over the whole state at each MARK. Every record carries its writer's hash; a client
  that differs from most others is told so (:meth:`Machine.is_outvoted`).
* **[unreadable]** A record that cannot be read changes nothing but the chain.

The rules that need a clock are in ``contact``; the beginning of a log that was trimmed is in ``snapshot``.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from aiokcc.errors import NodeError
from aiokcc.stores.kafka import records, state
from aiokcc.stores.kafka.records import Kind, Record
from aiokcc.stores.kafka.state import LogSession
from aiokcc.stores.port import OpResult
from aiokcc.stores.tree import Key, Tree, TreeError, TreeOp, tree_op

__all__ = ["ROOT", "Applied", "ComparedSnapshot", "ForeignLogError", "LogMark", "Machine", "digest", "full_path"]

ROOT: Final = "/root"
"""The absolute path of the store's root in the tree. A log has one root."""
WINDOW: Final = 8192
"""The number of last records for which a writer's hash can be compared and a record can be recognised when read again."""
_WRITES: Final = frozenset({Kind.WRITE, Kind.ENSURE, Kind.SYNC})


def full_path(path: str) -> str:
    """Return the absolute path of a path below the store's root."""
    return f"{ROOT}/{path}" if path else ROOT


def digest(*parts: bytes) -> bytes:
    """Return the hash of some bytes, 8 bytes long."""
    hashed = hashlib.blake2b(digest_size=8)
    for part in parts:
        hashed.update(part)
    return hashed.digest()


class ForeignLogError(Exception):
    """The first record of the log is not a GENESIS: the log has content that is not ours."""


@dataclass(slots=True)
class Applied:
    """The effects of one record."""

    offset: int
    timestamp: int = 0
    """The record's time on the broker's clock, in milliseconds since the epoch."""
    record: Record | None = None
    """The record; None if it is not of this log, or cannot be read."""
    counted: bool = False
    results: list[OpResult] = field(default_factory=list)
    """The results of a write that succeeded, with paths relative to the root."""
    error: type[NodeError] | None = None
    """The kind of error of a write that failed, and the index of the operation."""
    index: int = 0
    opened: int = 0
    """The session that was opened."""
    ended: list[int] = field(default_factory=list)
    changed: dict[Key, None] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)
    """The absolute paths of the nodes that were created."""
    is_snapshot_wrong: bool = False
    """The record completes a snapshot that is not our state at its mark."""


@dataclass(frozen=True, slots=True)
class LogMark:
    """The last mark: its offset, the state there, and its hash."""

    offset: int
    content: bytes
    hash: bytes


@dataclass(frozen=True, slots=True)
class ComparedSnapshot:
    """A snapshot in the log that was compared with our own state: the offset of its mark, who wrote it, and the result."""

    mark: int
    writer: int
    is_ours: bool


class Machine:
    """The state after a prefix of the log."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.sessions: dict[int, LogSession] = {}
        self.genesis: bytes | None = None
        self.root = b""
        """The root that the log was made for, as its GENESIS names it."""
        self.position = 0
        """The offset behind the last record that was applied."""
        self.anchor = 0
        """The offset of the last record of this log that was applied: after an interruption, read again from here."""
        self.chain = bytes(8)
        self.mark: LogMark | None = None
        self.snapshot_end: int | None = None
        """The offset of the record that completed a snapshot of the last mark, which we have compared with our own state."""
        self.compared: ComparedSnapshot | None = None
        """The last snapshot that was compared with our own state."""
        self.began_at: int | None = None
        """The offset of the snapshot with which this machine began; None if it began with the first record."""
        self.records_since_mark = self.bytes_since_mark = 0
        self._recent: OrderedDict[int, tuple[bytes, bytes]] = OrderedDict()
        self._opinions: dict[int, bool] = {}
        self._parts: dict[int, bytes] = {}

    @classmethod
    def restore(cls, content: bytes) -> Machine:
        """Return the machine whose state at a mark this is. Raises ValueError if it cannot be read."""
        machine = cls()
        machine.genesis, machine.root, machine.position, machine.chain, sessions, machine.tree = state.decode(content)
        machine.anchor = machine.began_at = machine.position
        machine.sessions = {session.id: session for session in sessions}
        return machine

    def encode_state(self, position: int) -> bytes:
        """Return the whole state, the same for every client that has applied the same records."""
        assert self.genesis is not None
        return state.encode(self.genesis, self.root, position, self.chain, self.sessions.values(), self.tree)

    # -- What a client asks -----------------------------------------------------------------------------------------------

    def is_same(self, offset: int, raw: bytes | None) -> bool:
        """Return whether this record, read again, is the one that was applied at its offset. True if too long ago to know."""
        known = self._recent.get(offset)
        return known is None or known[0] == digest(raw or b"")

    def is_outvoted(self, own: int) -> bool:
        """Return whether more of the other live sessions have another history or state than ours than have the same."""
        differing = sum(not agrees for session, agrees in self._opinions.items() if session != own)
        return differing > 0 and 2 * differing > len(self._opinions) - (own in self._opinions)

    @property
    def differing(self) -> tuple[int, ...]:
        """The live sessions whose history or state differs from ours."""
        return tuple(session for session, agrees in self._opinions.items() if not agrees)

    def trim_offset(self) -> int | None:
        """Return the offset to which the log may be trimmed: the last mark, once every live session has read its snapshot."""
        if self.mark is None or self.snapshot_end is None:
            return None
        if any(session.position <= self.snapshot_end for session in self.sessions.values()):
            return None
        return self.mark.offset

    # -- Application ------------------------------------------------------------------------------------------------------

    def apply(self, offset: int, timestamp: int, raw: bytes | None) -> Applied:
        """Apply one record, the next of the log.

        Raises ForeignLogError if it should be the GENESIS and is not, and UnknownFormatError if a newer version wrote it.
        """
        assert offset >= self.position, "a record is applied once"
        applied = Applied(offset, timestamp)
        content = b""
        if self.genesis is None:
            applied.record = self._begin(raw)
        elif (record := self._decode(raw)) is not None:
            applied.record = record
            content = self._apply_record(record, timestamp, applied)
        hashed = digest(raw or b"")
        self.chain = digest(self.chain, hashed, content)
        self.position = offset + 1
        if applied.record is not None:
            self.anchor = offset
        self.records_since_mark += 1
        self.bytes_since_mark += len(raw or b"")
        self._recent[offset] = hashed, self.chain
        if len(self._recent) > WINDOW:
            self._recent.popitem(last=False)
        return applied

    def _begin(self, raw: bytes | None) -> Record:
        record = records.decode(raw, None)
        if record is None or record.kind is not Kind.GENESIS:
            raise ForeignLogError
        self.genesis, self.root = record.genesis, record.body
        return record

    def _decode(self, raw: bytes | None) -> Record | None:
        return records.decode(raw, self.genesis)

    def _apply_record(self, record: Record, timestamp: int, applied: Applied) -> bytes:
        """Apply a record of this log. Return the hash of the state for a MARK that counts."""
        try:
            if record.kind is Kind.OPEN:
                self._open(record, applied)
                return b""
            session = self._find_live(record)
            if session is None or (record.kind in _WRITES and not self._is_next(session, record)):
                return b""
            content = self._apply_counted(record, timestamp, applied)
        except ValueError:  # its body cannot be read
            return b""
        applied.counted = True
        if session.id in self.sessions:
            session.last, session.position = applied.offset, record.position
            session.next_seq += record.kind in _WRITES
            self._note_opinion(record)
        return content

    def _find_live(self, record: Record) -> LogSession | None:
        return self.sessions.get(record.session)

    def _is_next(self, session: LogSession, record: Record) -> bool:
        return record.seq == session.next_seq

    def _is_silent(self, session: LogSession, last: int) -> bool:
        return session.last <= last

    def _apply_counted(self, record: Record, timestamp: int, applied: Applied) -> bytes:
        match record.kind:
            case Kind.WRITE:
                ops = records.decode_ops(record.body)
                self._write([tree_op(op, full_path(op.path), record.session) for op in ops], timestamp, applied)
            case Kind.ENSURE:
                self._ensure(record.body.decode(), timestamp, applied)
            case Kind.CLOSE:
                self._end(record.session, timestamp, applied)
            case Kind.EXPIRE:
                target, last = records.decode_expire(record.body)
                silent = self.sessions.get(target)
                if silent is not None and self._is_silent(silent, last):
                    self._end(target, timestamp, applied)
            case Kind.MARK:
                content = self.encode_state(applied.offset)
                self.mark = LogMark(applied.offset, content, digest(content))
                self.snapshot_end, self._parts = None, {}
                self.records_since_mark = self.bytes_since_mark = 0
                return self.mark.hash
            case Kind.SNAPSHOT:
                self._compare_snapshot(record, applied)
            case Kind.FORMAT:
                version = int.from_bytes(record.body)
                if version > records.VERSION:
                    raise records.UnknownFormatError(version)
        return b""

    def _open(self, record: Record, applied: Applied) -> None:
        timeout, nonce = records.decode_open(record.body)
        if any(session.nonce == nonce for session in self.sessions.values()):
            return  # the OPEN was appended twice
        applied.counted, applied.opened = True, applied.offset + 1
        self.sessions[applied.opened] = LogSession(
            applied.opened, timeout, nonce, 1, applied.offset, min(record.position, applied.offset)
        )

    def _end(self, session: int, timestamp: int, applied: Applied) -> None:
        del self.sessions[session]
        self._opinions.pop(session, None)
        applied.changed.update(self.tree.delete_owned(session, timestamp))
        applied.ended.append(session)

    def _write(self, ops: list[TreeOp], timestamp: int, applied: Applied) -> None:
        try:
            results, changed = self.tree.apply(ops, timestamp)
        except TreeError as error:
            applied.error, applied.index = error.kind, error.index
            return
        applied.changed = changed
        applied.created = [result for result in results if isinstance(result, str)]
        prefix = len(ROOT) + 1
        applied.results = [result[prefix:] if isinstance(result, str) else result for result in results]

    def _ensure(self, path: str, timestamp: int, applied: Applied) -> None:
        full = full_path(path)
        steps = [full[:end] for end in range(1, len(full)) if full[end] == "/"] + [full]
        self._write([TreeOp("create", step) for step in steps if step not in self.tree.nodes], timestamp, applied)

    def _note_opinion(self, record: Record) -> None:
        """Compare the writer's hash with ours at the same position, if we still know it."""
        known = self._recent.get(record.position - 1)
        if known is not None:
            self._opinions[record.session] = known[1] == record.chain

    def _compare_snapshot(self, record: Record, applied: Applied) -> None:
        mark, part, parts, data = records.decode_snapshot(record.body)
        if self.mark is None or mark != self.mark.offset or self.snapshot_end is not None:
            return
        if part == 0:
            self._parts = {}
        self._parts[part] = data
        if len(self._parts) == parts:
            same = state.unpack(b"".join(self._parts[number] for number in range(parts))) == self.mark.content
            self._parts = {}
            self.compared = ComparedSnapshot(mark, record.session, same)
            if same:
                self.snapshot_end = applied.offset
            else:
                applied.is_snapshot_wrong = True
