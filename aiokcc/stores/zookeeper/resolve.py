"""Was it applied? What becomes of a write whose answer was lost with the connection.

**Nothing of the old connection can be applied later.** Once a server has accepted our session on a new connection, it has
closed the old one if that was its own; what it had read from it by then stands in its queue in front of everything that
the new connection sends. If the old connection led to another server, the leader has noted that the session moved, and
refuses what still arrives from there (SessionMoved). What the leader had accepted before that may be on its way to our
server without having arrived. Therefore we first send a ``sync``: the leader answers it only behind all that it has
accepted so far, and our reads wait for that answer. So what they show is final: the write was applied before them, or
it never will be unless we send it again.

**What the node shows.** ``call.after_zxid`` is the newest transaction we had been shown when the write was sent. A node or a
change with a zxid up to that is older than the write and cannot be its doing; a newer one may be. Then the owner, the
mark in the name, the version and the data decide:

* Sequential node: the mark in its name is ours alone. There or not there.
* Ephemeral node: newer and owned by this session, it is ours; otherwise not applied.
* Set at version v: v again is not applied; v+1 with our data is ours; v+1 with other data is somebody else's, and ours
  was refused. Beyond v+1, or gone: nobody can tell.
* Set at any version: our data is ours, anything else is written again: nobody else writes such a node.
* Delete: gone is ours (or it was gone before, which comes to the same); an older node is still there, not applied; a
  newer one has taken its place, nobody can tell.
* Persistent node: newer, with our data and never written, it is ours. If two create the same node with the same data at
  the same time and one of them loses the answer, both believe that it was theirs. Who must know creates an ephemeral or
  a sequential node, or writes something of his own into it.
* Transaction: all or nothing, so the first operation that can tell tells for all.

What was not applied is sent again, and the server's answer is the answer. Several writes may be in doubt at once; they
are resolved in order, and what one has taken as its own doing (``taken``) is not evidence for the next.
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
    """What became of an operation."""

    APPLIED = enum.auto()
    """Done; the caller gets its result."""
    NOT_APPLIED = enum.auto()
    """Not done, and never will be: send it again."""
    UNKNOWN = enum.auto()
    """This operation does not tell."""


class OutcomeResolver:
    """Looks at the store through one new connection, for the writes in doubt of one session."""

    def __init__(
        self, connection: Connection, root: str, session_id: int, attributed: MutableSet[tuple[str, int]]
    ) -> None:
        self._connection = connection
        self._root = root
        self._session_id = session_id
        self._attributed = attributed

    async def sync(self) -> None:
        """Wait until our server has all that the leader has accepted from us. Before anything else."""
        try:
            await self._send(wire.sync_request(wire.encode_path(self._root, "")), wire.decode_nothing)
        except StoreError as error:
            # Without it nothing can be told. Another connection may be luckier.
            self._connection.abort(f"the server refused a sync: {error}")
            raise ConnectionDroppedError from None

    async def resolve(self, request: PendingRequest, later: Sequence[PendingRequest]) -> bool:
        """Answer the call if it was applied or nobody can tell; False if it is to be sent again.

        ``later`` are the calls behind it. Raises ConnectionDroppedError if the connection breaks; the call is then as before.
        """
        outcome = Outcome.UNKNOWN
        results: list[OpResult] = []
        try:
            # Of several on one node only the last has left something: what an earlier one wrote may be there from others.
            last = {op.path: op for op in request.ops if not isinstance(op, Check)}
            for op in sorted(last.values(), key=_evidence_rank):
                outcome = await self._find_outcome(op, request, later)
                if outcome is not Outcome.UNKNOWN:
                    break
            if outcome is Outcome.APPLIED:
                results = [await self._result(op, later) for op in request.ops]
        except StoreError:  # we may write there and not read
            outcome = Outcome.UNKNOWN
        if outcome is Outcome.NOT_APPLIED:
            return False
        if outcome is Outcome.APPLIED:
            request.succeed(results if isinstance(request, PendingTransaction) else results[0])
        else:
            request.fail(
                OutcomeUnknownError(
                    f"{request.path or 'the root'}: the connection broke before the answer, and what is there now does not "
                    f"tell whether the write was applied; read and decide again"
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
        # What a later write of ours has left there is not this one's to take: it is what the later one will go by.
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
            # What a later write of ours has left there was written after this one: requests arrive in order.
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
        """Whether the transaction that made or changed this node can be the call's."""
        return request.after_zxid < zxid <= request.up_to_zxid and (path, zxid) not in self._attributed

    def _existed_before(self, path: str, stat: wire.Stat, request: PendingRequest) -> bool:
        """Whether the node is the one that was there when the call arrived, and not another of the same name."""
        return stat.czxid <= request.after_zxid or (path, stat.czxid) in self._attributed

    async def _result(self, op: Op, later: Sequence[PendingRequest]) -> OpResult:
        """What the server would have answered to an operation that it has applied."""
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
    """Which operation of a transaction to ask first: those that only we can have done, then those that tell less."""
    if isinstance(op, Create):
        return 0 if op.sequential or op.ephemeral else 1
    if isinstance(op, Set):
        return 0 if op.version != ANY_VERSION else 3
    return 2


def _count_overwrites(op: Op, data: bytes, later: Sequence[PendingRequest]) -> int:
    """How many of the writes in doubt behind this one came to the node after it, if the last of them has left this data."""
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
