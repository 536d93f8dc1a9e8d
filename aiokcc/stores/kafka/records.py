"""The records of the log, as bytes. Pure: no clock, no I/O.

Every record begins with the same bytes, whatever its version: a mark of ours, the format version, and the genesis, which is
the name of the log. So a reader of any version can tell three cases apart:

* The bytes are not ours, or they name another log: the record changes nothing (:func:`decode` returns None).
* The record is of this log, and of a version that we do not know: to skip it would make us differ from the members that know
  it, so :func:`decode` raises :class:`UnknownFormatError`.
* The record is of this log and of our version. If its body cannot be read, it changes nothing, for every reader alike.

The rest of the header is the writer: its session, its sequence number, and how far it had applied the log when it made the
record (the position, and the chain hash there).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiokcc.stores.port import Check, Create, Delete, Op, Set

__all__ = [
    "VERSION",
    "Kind",
    "Record",
    "UnknownFormatError",
    "decode",
    "decode_expire",
    "decode_open",
    "decode_ops",
    "decode_snapshot",
    "encode",
    "encode_expire",
    "encode_open",
    "encode_ops",
    "encode_snapshot",
    "is_of_another_log",
]

VERSION: Final = 1
"""The format version that this code writes and reads."""

_MAGIC: Final = b"aiokcc"
_MARK: Final = len(_MAGIC)
_PREFIX: Final = struct.Struct(">6sB8s")
_WRITER: Final = struct.Struct(">BQQQ8s")
_HEADER: Final = _PREFIX.size + _WRITER.size
_OPEN: Final = struct.Struct(">I16s")
_EXPIRE: Final = struct.Struct(">QQ")
_SNAPSHOT: Final = struct.Struct(">QHH")
_OP: Final = struct.Struct(">BiII")

_EPHEMERAL: Final = 16
_SEQUENTIAL: Final = 32


class Kind(enum.IntEnum):
    """The kinds of records."""

    GENESIS = 1
    """The first record of a log: it names the log."""
    OPEN = 2
    """Opens a session, whose id is the record's offset + 1."""
    BEAT = 3
    """Shows that the session is alive, and how far it has read."""
    EXPIRE = 4
    """Ends a session that has been silent for its whole timeout."""
    CLOSE = 5
    """Ends the writer's session."""
    WRITE = 6
    """A transaction of operations on nodes."""
    ENSURE = 7
    """Creates a node and its parents, as far as they do not exist."""
    SYNC = 8
    """Changes nothing; who has read it has read everything before it."""
    MARK = 9
    """Every reader hashes its whole state here, and the log may be trimmed to here once a snapshot of it follows."""
    SNAPSHOT = 10
    """A part of the state at a mark."""
    FORMAT = 11
    """Raises the format version of all records that follow."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the log."""

    genesis: bytes
    kind: Kind
    session: int
    """The writer's session; 0 before it has one."""
    seq: int
    """The number of a write within its session; 0 for records that may be repeated."""
    position: int
    """The writer had applied all records before this offset."""
    chain: bytes
    """The writer's chain hash at that position."""
    body: bytes = b""


class UnknownFormatError(Exception):
    """A record of this log has a format version that we do not know."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


def encode(record: Record) -> bytes:
    """Return the bytes of a record."""
    prefix = _PREFIX.pack(_MAGIC, VERSION, record.genesis)
    return prefix + _WRITER.pack(record.kind, record.session, record.seq, record.position, record.chain) + record.body


def decode(raw: bytes | None, genesis: bytes | None) -> Record | None:
    """Return a record of the log with this genesis (None: of any log); None if it is not ours or cannot be read.

    Raises UnknownFormatError if it is of this log and of another version.
    """
    if raw is None or len(raw) < _PREFIX.size:
        return None
    magic, version, log = _PREFIX.unpack_from(raw)
    if magic != _MAGIC or (genesis is not None and log != genesis):
        return None
    if version != VERSION:
        raise UnknownFormatError(version)
    if len(raw) < _HEADER:
        return None
    kind, session, seq, position, chain = _WRITER.unpack_from(raw, _PREFIX.size)
    try:
        return Record(log, Kind(kind), session, seq, position, chain, bytes(raw[_HEADER:]))
    except ValueError:
        return None


def is_of_another_log(raw: bytes | None, genesis: bytes | None) -> bool:
    """Return whether a record is of a log of ours with another genesis."""
    return (
        raw is not None
        and len(raw) >= _PREFIX.size
        and raw[:_MARK] == _MAGIC
        and raw[_MARK + 1 : _PREFIX.size] != genesis
    )


# Bodies. Each decoder raises ValueError for a body that cannot be read.


def encode_open(timeout: int, nonce: bytes) -> bytes:
    """Return the body of OPEN: the timeout in milliseconds, and 16 bytes by which the writer finds its record again."""
    return _OPEN.pack(timeout, nonce)


def decode_open(body: bytes) -> tuple[int, bytes]:
    """Return the timeout in milliseconds and the nonce."""
    timeout, nonce = _unpack(_OPEN, body)
    return timeout, nonce


def encode_expire(session: int, last: int) -> bytes:
    """Return the body of EXPIRE: the session, and the offset of the last record of it that counted."""
    return _EXPIRE.pack(session, last)


def decode_expire(body: bytes) -> tuple[int, int]:
    """Return the session and the offset of its last record."""
    session, last = _unpack(_EXPIRE, body)
    return session, last


def encode_snapshot(mark: int, part: int, parts: int, data: bytes) -> bytes:
    """Return the body of SNAPSHOT: the mark's offset, the number of this part, the number of parts, and the part."""
    return _SNAPSHOT.pack(mark, part, parts) + data


def decode_snapshot(body: bytes) -> tuple[int, int, int, bytes]:
    """Return the mark's offset, the number of this part, the number of parts, and the part."""
    if len(body) < _SNAPSHOT.size:
        raise ValueError("too short")
    mark, part, parts = _SNAPSHOT.unpack_from(body)
    if not part < parts:
        raise ValueError("a part behind the last one")
    return mark, part, parts, body[_SNAPSHOT.size :]


def encode_ops(ops: Sequence[Op]) -> bytes:
    """Return the body of WRITE."""
    parts: list[bytes] = []
    for op in ops:
        path = op.path.encode()
        match op:
            case Check():
                parts += (_OP.pack(1, op.version, len(path), 0), path)
            case Set():
                parts += (_OP.pack(2, op.version, len(path), len(op.data)), path, op.data)
            case Create():
                flags = 3 | (_EPHEMERAL if op.ephemeral else 0) | (_SEQUENTIAL if op.sequential else 0)
                parts += (_OP.pack(flags, -1, len(path), len(op.data)), path, op.data)
            case Delete():
                parts += (_OP.pack(4, op.version, len(path), 0), path)
    return b"".join(parts)


def decode_ops(body: bytes) -> list[Op]:
    """Return the operations of WRITE."""
    ops: list[Op] = []
    at = 0
    while at < len(body):
        if at + _OP.size > len(body):
            raise ValueError("an operation is cut off")
        flags, version, length, size = _OP.unpack_from(body, at)
        at += _OP.size
        end = at + length + size
        if end > len(body):
            raise ValueError("an operation is cut off")
        path, data = body[at : at + length].decode(), body[at + length : end]
        at = end
        match flags & 15:
            case 1:
                ops.append(Check(path, version))
            case 2:
                ops.append(Set(path, data, version))
            case 3:
                ops.append(Create(path, data, bool(flags & _EPHEMERAL), bool(flags & _SEQUENTIAL)))
            case 4:
                ops.append(Delete(path, version))
            case verb:
                raise ValueError(f"there is no operation {verb}")
    return ops


def _unpack(form: struct.Struct, body: bytes) -> tuple[Any, ...]:
    if len(body) != form.size:
        raise ValueError(f"{len(body)} bytes, expected {form.size}")
    return form.unpack(body)
