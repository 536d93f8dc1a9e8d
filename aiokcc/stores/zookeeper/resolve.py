"""Finds the outcome of a write whose answer was lost because the connection broke.

**A write of the old connection cannot be applied later.** When a server has accepted our session on a new connection, it has
closed the old one if that was its own; the requests that it had read from it are in its queue before those of the new
connection. If the old connection was to another server, the leader has recorded that the session moved, and refuses requests
that still arrive from there (SessionMoved). But requests that the leader accepted before may not have reached our server yet.
Therefore we first send a ``sync``: the leader answers it after everything that it has accepted so far, and our reads wait for
that answer. So what they show is final: the write was applied before them, or never will be unless we send it again.

**The evidence.** ``request.after_zxid`` is the newest transaction that we had seen when the write was sent. A node or a change
with a zxid up to that is older than the write and cannot come from it; a newer one may. Then the owner, the id in the name,
the version and the data decide:

* Sequential node: only we use the id in its name. If a node with the id exists, the write was applied; otherwise not.
* Ephemeral node: if it is newer and owned by this session, the write was applied; otherwise not.
* Set at version v: at version v it was not applied. At v+1 with our data it was applied; at v+1 with other data another client
  wrote, and our write was refused. At a higher version, or if the node is gone, the outcome is unknown.
* Set at any version: with our data it was applied; with other data we write again, since no other client writes such a node.
* Delete: if the node is gone, it was applied (or was gone before, which is equivalent). If an older node is there, it was not
  applied. If a newer node is there, the outcome is unknown.
* Persistent node: if it is newer, has our data and was never written, it was applied. If two clients create the same node with
  the same data at the same time and one loses its answer, both believe that they created it. A client that must know creates
  an ephemeral or sequential node, or writes data that no other client writes.
* Transaction: all operations or none are applied, so the first operation with a known outcome decides for all.

A write that was not applied is sent again, and the server's answer to that counts. Several writes may be in doubt at once. They
are resolved in order, and a change that was attributed to one (``attributed``) is not evidence for the next.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import MutableSet, Sequence
from typing import TypeAlias

from aiokcc.errors import NoNodeError, OutcomeUnknownError, StoreError
from aiokcc.stores.port import ANY_VERSION, Check, Create, Delete, Op, OpResult, Set
from aiokcc.stores.zookeeper import wire
from aiokcc.stores.zookeeper.connection import Connection
from aiokcc.stores.zookeeper.pending import (
    ConnectionDroppedError,
    OneConnectionRequest,
    PendingRequest,
    PendingTransaction,
)

Found: TypeAlias = "tuple[bytes, wire.Stat] | None"
"""A node's data and stat, or None if it does not exist."""


class Outcome(enum.Enum):
    """The outcome of an operation in doubt."""

    APPLIED = enum.auto()
    """The operation was applied; the caller gets its result."""
    NOT_APPLIED = enum.auto()
    """The operation was not applied and never will be; it is sent again."""
    UNKNOWN = enum.auto()
    """The node does not show whether it was applied."""


class OutcomeResolver:
    """Resolves the writes in doubt of one session by reads on one new connection."""

    def __init__(
        self, connection: Connection, root: str, session_id: int, attributed: MutableSet[tuple[str, int]]
    ) -> None:
        self._connection = connection
        self._root = root
        self._session_id = session_id
        self._attributed = attributed

    async def sync(self) -> None:
        """Wait until our server has everything that the leader has accepted from us. Call it before :meth:`resolve`.

        Raises ConnectionDroppedError if the connection breaks.
        """
        try:
            await self._send(wire.sync_request(wire.encode_path(self._root, "")), wire.decode_nothing)
        except StoreError as error:
            # Without a sync the reads prove nothing. Try another connection.
            self._connection.abort(f"the server refused a sync: {error}")
            raise ConnectionDroppedError from None

    async def resolve(self, request: PendingRequest, later: Sequence[PendingRequest]) -> bool:
        """Complete the request if it was applied or its outcome is unknown; return False if it must be sent again.

        ``later`` are the requests after it. Raises ConnectionDroppedError if the connection breaks; this changes nothing.
        """
        outcome = Outcome.UNKNOWN
        results: list[OpResult] = []
        try:
            # Of several operations on one node only the last is evidence: another client may have written an earlier state.
            last = {op.path: op for op in request.ops if not isinstance(op, Check)}
            for op in sorted(last.values(), key=_evidence_rank):
                outcome = await self._find_outcome(op, request, later)
                if outcome is not Outcome.UNKNOWN:
                    break
            if outcome is Outcome.APPLIED:
                results = [await self._result(op, later) for op in request.ops]
        except StoreError:  # we may have the permission to write and not to read
            outcome = Outcome.UNKNOWN
        if outcome is Outcome.NOT_APPLIED:
            return False
        if outcome is Outcome.APPLIED:
            request.succeed(results if isinstance(request, PendingTransaction) else results[0])
        else:
            request.fail(
                OutcomeUnknownError(
                    f"{request.path or 'the root'}: the connection broke before the answer, and the node does not show whether "
                    f"the write was applied; read and decide again"
                )
            )
        return True

    async def _find_outcome(
        self, op: Create | Set | Delete, request: PendingRequest, later: Sequence[PendingRequest]
    ) -> Outcome:
        if isinstance(op, Create) and op.sequential:
            return Outcome.APPLIED if await self._find_by_id(op) else Outcome.NOT_APPLIED
        found = await self._read(op.path)
        if isinstance(op, Create):
            outcome = self._create_outcome(op, found, request)
        elif isinstance(op, Set):
            outcome = self._set_outcome(op, found, request, later)
        else:
            outcome = self._delete_outcome(op, found, request)
        # If a later write of ours left the present data, that change is the evidence for the later write, not for this one.
        if outcome is Outcome.APPLIED and found is not None and not _count_overwrites(op, found[0], later):
            stat = found[1]
            self._attributed.add((op.path, stat.czxid if isinstance(op, Create) else stat.mzxid))
        return outcome

    def _create_outcome(self, op: Create, found: Found, request: PendingRequest) -> Outcome:
        if found is None:
            return Outcome.NOT_APPLIED
        data, stat = found
        if not self._may_be_ours(op.path, stat.czxid, request):
            return Outcome.NOT_APPLIED
        if op.ephemeral:
            return Outcome.APPLIED if stat.owner == self._session_id else Outcome.NOT_APPLIED
        if stat.owner or (stat.version == 0 and data != op.data):
            return Outcome.NOT_APPLIED
        return Outcome.APPLIED if stat.version == 0 else Outcome.UNKNOWN

    def _set_outcome(self, op: Set, found: Found, request: PendingRequest, later: Sequence[PendingRequest]) -> Outcome:
        if found is None:
            return Outcome.NOT_APPLIED if op.version == ANY_VERSION else Outcome.UNKNOWN
        data, stat = found
        if op.version == ANY_VERSION:
            if not self._may_be_ours(op.path, stat.mzxid, request):
                return Outcome.NOT_APPLIED
            # If a later write of ours left the data, this one was applied before it: requests arrive in order.
            ours = data == op.data or _count_overwrites(op, data, later)
            return Outcome.APPLIED if ours else Outcome.NOT_APPLIED
        if stat.mzxid <= request.after_zxid:
            return Outcome.NOT_APPLIED
        if stat.version <= op.version:
            return Outcome.NOT_APPLIED if self._existed_before(op.path, stat, request) else Outcome.UNKNOWN
        if stat.version == op.version + 1:
            ours = data == op.data and self._may_be_ours(op.path, stat.mzxid, request)
            return Outcome.APPLIED if ours else Outcome.NOT_APPLIED
        return Outcome.UNKNOWN

    def _delete_outcome(self, op: Delete, found: Found, request: PendingRequest) -> Outcome:
        if found is None:
            return Outcome.APPLIED
        return Outcome.NOT_APPLIED if self._existed_before(op.path, found[1], request) else Outcome.UNKNOWN

    def _may_be_ours(self, path: str, zxid: int, request: PendingRequest) -> bool:
        """Return whether the transaction that created or changed this node can be the request's."""
        return request.after_zxid < zxid <= request.up_to_zxid and (path, zxid) not in self._attributed

    def _existed_before(self, path: str, stat: wire.Stat, request: PendingRequest) -> bool:
        """Return whether the node existed before the request was applied, and was not created again since."""
        return stat.czxid <= request.after_zxid or (path, stat.czxid) in self._attributed

    async def _result(self, op: Op, later: Sequence[PendingRequest]) -> OpResult:
        """Return what the server would have answered to an operation that it has applied."""
        if isinstance(op, Create):
            return await self._find_by_id(op) if op.sequential else op.path
        if isinstance(op, Set):
            if op.version != ANY_VERSION:
                return op.version + 1
            found = await self._read(op.path)
            return found[1].version - _count_overwrites(op, found[0], later) if found else 0
        return None

    async def _find_by_id(self, op: Create) -> str | None:
        parent, _, prefix = op.path.rpartition("/")
        try:
            names = await self._send(
                wire.children_request(wire.encode_path(self._root, parent)), wire.decode_names, parent
            )
        except NoNodeError:
            return None
        assert isinstance(names, tuple)
        return next((f"{parent}/{name}" if parent else name for name in names if name.startswith(prefix)), None)

    async def _read(self, path: str) -> Found:
        try:
            found = await self._send(
                wire.get_request(wire.encode_path(self._root, path)), wire.decode_node_and_stat, path
            )
        except NoNodeError:
            return None
        assert isinstance(found, tuple)
        return found

    async def _send(self, payload: bytes, decode: wire.Decoder, path: str = "") -> object:
        if self._connection.closed.is_set():
            raise ConnectionDroppedError
        request = OneConnectionRequest(asyncio.get_running_loop().create_future(), payload, decode, path)
        self._connection.send(request)
        return await request.future


def _evidence_rank(op: Op) -> int:
    """Return the rank of an operation as evidence: first those that only we can have done."""
    if isinstance(op, Create):
        return 0 if op.sequential or op.ephemeral else 1
    if isinstance(op, Set):
        return 0 if op.version != ANY_VERSION else 3
    return 2


def _count_overwrites(op: Op, data: bytes, later: Sequence[PendingRequest]) -> int:
    """Return how many later writes in doubt were applied to the node after this one, if one of them left this data; else 0."""
    if not isinstance(op, Set) or op.version != ANY_VERSION:
        return 0
    written = [
        other.data
        for request in later
        if request.in_doubt
        for other in request.ops
        if isinstance(other, Set) and other.path == op.path
    ]
    return max((count for count, left in enumerate(written, 1) if left == data), default=0)
