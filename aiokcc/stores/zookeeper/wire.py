"""ZooKeeper's wire format: encodes requests to bytes and decodes the bytes of replies.

A request is ``length, xid, opcode, record``; a reply is ``length, xid, zxid, error, record``. Requests are built here without
length and xid (:func:`frame` adds both), because a request that is sent again on another connection gets another xid.

The frequent records (reads, writes, transactions, events) are packed and unpacked by hand: aiozk builds a ``Struct`` per
field, eleven for one Stat, which costs more than the round trip through the kernel. The rare ones (handshake, credentials,
closing, sync, removing watches) and the names of the errors come from aiozk. Only this module of aiokcc imports aiozk.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from aiozk import exc, protocol

from aiokcc.errors import (
    BadVersionError,
    EphemeralParentError,
    NoAuthError,
    NodeError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    StoreError,
)
from aiokcc.stores.checks import check_path
from aiokcc.stores.port import Check, Children, Create, Delete, Node, Op, OpResult, Set
from aiokcc.stores.zookeeper.acl import Acl

FRAME_LIMIT: Final = 1_040_000
"""The most bytes of one request with the protocol's overhead. The server closes the connection from 1,048,575 bytes on."""
REPLY_LIMIT: Final = 64 * 1024 * 1024
"""The most bytes of one reply. A greater length means that the stream is broken."""

LENGTH: Final = struct.Struct("!i")
REPLY: Final = struct.Struct("!iqi")
EVENT_XID: Final = -1
PING_XID: Final = -2
AUTH_XID: Final = -4

UNIMPLEMENTED: Final = -6
NO_NODE: Final = -101
NODE_EXISTS: Final = -110
SESSION_EXPIRED: Final = -112
SESSION_MOVED: Final = -118

NODE_CREATED: Final = 1
DATA_CHANGED: Final = 3
CHILDREN_CHANGED: Final = 4

_PAIR: Final = struct.Struct("!ii")
_STAT: Final = struct.Struct("!qqqqiiiqiiq")
_MULTI_HEADER: Final = struct.Struct("!i?i")
_MULTI_END: Final = _MULTI_HEADER.pack(-1, True, -1)
_MULTI_GOES_ON: Final = b"\0\xff\xff\xff\xff"

_CREATE, _DELETE, _EXISTS, _GET, _SET, _GET_ACL, _CHILDREN, _CHECK, _MULTI = 1, 2, 3, 4, 5, 6, 8, 13, 14
_ADD_WATCH: Final = 106
_MULTI_OP: Final = LENGTH.pack(_MULTI)
_MULTI_CHECK: Final = LENGTH.pack(_CHECK) + _MULTI_GOES_ON
_MULTI_SET: Final = LENGTH.pack(_SET) + _MULTI_GOES_ON
_PERSISTENT_RECURSIVE: Final = 1
_RUNTIME_INCONSISTENCY: Final = -2

_ERRORS: Final[dict[int, type[NodeError]]] = {
    NO_NODE: NoNodeError,
    -102: NoAuthError,
    -103: BadVersionError,
    -108: EphemeralParentError,
    NODE_EXISTS: NodeExistsError,
    -111: NotEmptyError,
}

Decoder: TypeAlias = Callable[[bytes, int, int, str], object]
"""Returns the result, given the bytes of a reply, the begin and end of its record, and the caller's path."""


class MalformedReplyError(Exception):
    """The bytes do not follow the protocol, so nothing after them on this connection can be trusted."""


class Stat(NamedTuple):
    """The server's metadata of a node. czxid and mzxid are the transactions that created and last changed it."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    owner: int
    length: int
    children: int
    pzxid: int


class Handshake(NamedTuple):
    """The server's answer to a ConnectRequest. Session id and timeout are 0 if the session has expired."""

    session_id: int
    timeout: float
    password: bytes


# -- Requests -----------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def encode_path(root: str, path: str) -> bytes:
    """Return the full name of a node with its length in front. Cached, because few paths are used most of the time."""
    check_path(path)
    name = (f"{root}/{path}" if path else root or "/").encode()
    return LENGTH.pack(len(name)) + name


def encode_acl(acl: Sequence[Acl]) -> bytes:
    """Return the access rules with their number in front."""
    rules = (LENGTH.pack(rule.perms) + string(rule.scheme) + string(rule.id) for rule in acl)
    return LENGTH.pack(len(acl)) + b"".join(rules)


def string(text: str) -> bytes:
    """Return a text with its length in front."""
    data = text.encode()
    return LENGTH.pack(len(data)) + data


_GET_OP: Final = LENGTH.pack(_GET)
_EXISTS_OP: Final = LENGTH.pack(_EXISTS)
_CHILDREN_OP: Final = LENGTH.pack(_CHILDREN)
_WATCH: Final = (b"\0", b"\1")


def get_request(name: bytes, watch: bool = False) -> bytes:
    return _GET_OP + name + _WATCH[watch]


def exists_request(name: bytes, watch: bool = False) -> bytes:
    return _EXISTS_OP + name + _WATCH[watch]


def children_request(name: bytes, watch: bool = False) -> bytes:
    return _CHILDREN_OP + name + _WATCH[watch]


def add_watch_request(name: bytes) -> bytes:
    """Return the request for a watch that stays and fires for the node and everything below it."""
    return LENGTH.pack(_ADD_WATCH) + name + LENGTH.pack(_PERSISTENT_RECURSIVE)


def acl_request(name: bytes) -> bytes:
    return LENGTH.pack(_GET_ACL) + name


def set_request(name: bytes, data: bytes, version: int) -> bytes:
    return b"".join((LENGTH.pack(_SET), name, LENGTH.pack(len(data)), data, LENGTH.pack(version)))


def create_request(name: bytes, data: bytes, acl: bytes, flags: int) -> bytes:
    return b"".join((LENGTH.pack(_CREATE), name, LENGTH.pack(len(data)), data, acl, LENGTH.pack(flags)))


def delete_request(name: bytes, version: int) -> bytes:
    return LENGTH.pack(_DELETE) + name + LENGTH.pack(version)


def op_request(root: str, op: Op, acl: bytes) -> bytes:
    """Return the request for a single operation."""
    name = encode_path(root, op.path)
    if isinstance(op, Set):
        return set_request(name, op.data, op.version)
    if isinstance(op, Create):
        return create_request(name, op.data, acl, op.ephemeral | op.sequential << 1)
    if isinstance(op, Delete):
        return delete_request(name, op.version)
    return LENGTH.pack(_CHECK) + name + LENGTH.pack(op.version)


def multi_request(root: str, ops: Sequence[Op], acl: bytes) -> bytes:
    parts = [_MULTI_OP]
    pack = LENGTH.pack
    for op in ops:
        kind = type(op)
        if kind is Check:  # the frequent ones, faster
            parts += (_MULTI_CHECK, encode_path(root, op.path), pack(op.version))  # type: ignore[union-attr]
        elif kind is Set:
            data = op.data  # type: ignore[union-attr]
            parts += (_MULTI_SET, encode_path(root, op.path), pack(len(data)), data, pack(op.version))  # type: ignore[union-attr]
        else:
            request = op_request(root, op, acl)
            parts += (request[:4], _MULTI_GOES_ON, request[4:])
    parts.append(_MULTI_END)
    return b"".join(parts)


def frame(xid: int, request: bytes) -> bytes:
    return _PAIR.pack(len(request) + 4, xid) + request


def connect_frame(zxid: int, timeout: float, session_id: int, password: bytes) -> bytes:
    request: bytes = protocol.ConnectRequest(
        protocol_version=0,
        last_seen_zxid=zxid,
        timeout=round(timeout * 1000),
        session_id=session_id,
        password=password or bytes(16),
        read_only=False,
    ).serialize()
    return LENGTH.pack(len(request)) + request


def auth_frame(user: str, password: str) -> bytes:
    request: bytes = protocol.AuthRequest(type=0, scheme="digest", auth=f"{user}:{password}").serialize()
    return frame(AUTH_XID, request)


def sync_request(name: bytes) -> bytes:
    request: bytes = protocol.SyncRequest(path=name[4:].decode()).serialize()
    return request


def remove_watches_request(name: bytes, kind: int) -> bytes:
    """Return the request that removes watches of this connection on a node; ``kind``: 1 children, 2 data, 3 all."""
    request: bytes = protocol.RemoveWatchesRequest(path=name[4:].decode(), type=kind).serialize()
    return request


PING_FRAME: Final = frame(PING_XID, protocol.PingRequest().serialize())
CLOSE_REQUEST: Final[bytes] = protocol.CloseRequest().serialize()


# -- Replies ------------------------------------------------------------------------------------------------------------


def _read_buffer(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    (length,) = LENGTH.unpack_from(data, at)
    at += 4
    if length < 0:
        return b"", at
    if at + length > end:
        raise MalformedReplyError(f"a field of {length} bytes in a reply that has {end - at} left")
    return data[at : at + length], at + length


def decode_handshake(data: bytes, at: int, end: int) -> Handshake:
    try:
        answer = protocol.ConnectResponse.deserialize(data[at:end])
        return Handshake(answer.session_id, answer.timeout / 1000, answer.password or b"")
    except (struct.error, TypeError, ValueError) as error:
        raise MalformedReplyError(f"the answer to the handshake: {error}") from error


def decode_node(data: bytes, at: int, end: int, path: str) -> Node:
    content, at = _read_buffer(data, at, end)
    stat = _STAT.unpack_from(data, at)
    return Node(path, content, stat[4], stat[7], stat[2], stat[3])


def decode_node_and_stat(data: bytes, at: int, end: int, _path: str) -> tuple[bytes, Stat]:
    content, at = _read_buffer(data, at, end)
    return content, Stat._make(_STAT.unpack_from(data, at))


def decode_version(data: bytes, at: int, _end: int, _path: str) -> int:
    version: int = _STAT.unpack_from(data, at)[4]
    return version


def decode_names(data: bytes, at: int, end: int, _path: str) -> tuple[str, ...]:
    (count,) = LENGTH.unpack_from(data, at)
    at += 4
    names = []
    for _ in range(count):
        name, at = _read_buffer(data, at, end)
        names.append(name.decode())
    names.sort()
    return tuple(names)


def decode_children(data: bytes, at: int, end: int, path: str) -> Children:
    return Children(path, decode_names(data, at, end, path))


def decode_acl(data: bytes, at: int, end: int, _path: str) -> tuple[Acl, ...]:
    (count,) = LENGTH.unpack_from(data, at)
    at += 4
    rules = []
    for _ in range(count):
        (perms,) = LENGTH.unpack_from(data, at)
        scheme, at = _read_buffer(data, at + 4, end)
        identity, at = _read_buffer(data, at, end)
        rules.append(Acl(scheme.decode(), identity.decode(), perms))
    return tuple(rules)


def decode_created(data: bytes, at: int, end: int, _path: str) -> str:
    """Return the full name of the created node."""
    return _read_buffer(data, at, end)[0].decode()


def decode_nothing(_data: bytes, _at: int, _end: int, _path: str) -> None:
    return None


def decode_event(data: bytes, at: int, end: int) -> tuple[int, str]:
    """Return the kind of the event and the full name of the node."""
    (kind,) = LENGTH.unpack_from(data, at)
    return kind, _read_buffer(data, at + 8, end)[0].decode()


def decode_multi(data: bytes, at: int, end: int, ops: Sequence[Op], root: str) -> list[OpResult] | StoreError:
    """Return the results of a transaction, or the error of the operation that failed.

    In a failed transaction the operations before the failed one have the error code 0, those after it have
    RuntimeInconsistency, and only the failed one has its own code.
    """
    results: list[OpResult] = []
    failure: StoreError | None = None
    failed = False
    for index, op in enumerate(ops):
        kind, done, _ = _MULTI_HEADER.unpack_from(data, at)
        at += _MULTI_HEADER.size
        if done:
            raise MalformedReplyError(f"a transaction of {len(ops)} operations was answered with {index} results")
        if kind == -1:
            (code,) = LENGTH.unpack_from(data, at)
            at += 4
            failed = True
            if code == SESSION_MOVED:
                raise MalformedReplyError("the session has moved to another connection")
            if failure is None and code not in (0, _RUNTIME_INCONSISTENCY):
                failure = to_error(code, op.path, index)
        elif isinstance(op, Set):
            results.append(_STAT.unpack_from(data, at)[4])
            at += _STAT.size
        elif isinstance(op, Create):
            name, at = _read_buffer(data, at, end)
            results.append(relative_path(root, name.decode()))
        elif isinstance(op, Check | Delete):
            results.append(None)
    if failed and failure is None:
        raise MalformedReplyError("a transaction failed and none of its operations has an error")
    return failure or results


def relative_path(root: str, name: str) -> str:
    """Return a full name as a path relative to the root."""
    return name[len(root) + 1 :]


def to_error(code: int, path: str, index: int | None = None) -> StoreError:
    """Return the error that an error code of the server stands for."""
    if known := _ERRORS.get(code):
        return known(path, index)
    name = getattr(exc.response_error_xref.get(code), "__name__", f"error {code}")
    where = "" if index is None else f" (operation {index} of the transaction)"
    return StoreError(f"{path or 'the root'}: ZooKeeper refused the request with {name}{where}")
