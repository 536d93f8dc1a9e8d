"""A store in memory on virtual time, with members, consumers and a view of the nodes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiokcc
from aiokcc.core.limit import Limit
from aiokcc.core.partitions import Partition
from aiokcc.core.report import Cut
from aiokcc.stores import Node
from aiokcc.stores.memory import Call, MemoryServer, MemorySession, MemoryStore
from aiokcc.stores.tree import TreeError, TreeOp
from tests.history import History
from tests.joining import joining
from tests.virtual import settle

__all__ = ["FAR", "PERIOD", "World"]

PERIOD = 1000
FAR = 10**15
"""A wall clock so far ahead that it never holds a limit back."""
ROOT = "/group"


class World:
    """One memory server. ``connect`` makes members of one group; the other methods read nodes and cause faults."""

    def __init__(self, name: str) -> None:
        self.store = MemoryStore(name, ROOT)
        self.server: MemoryServer = self.store.server
        self.server.clock = self.time
        self.server.wall_clock = lambda: 1_700_000_000 + self.time()
        self.handled: list[tuple[str, int]] = []
        """The records that consumers have processed: partition and timestamp, in order."""
        self.calls: list[Call] = []
        self.refused: list[tuple[list[tuple[str, str]], str]] = []
        """The writes that the server has refused: verb and path of each operation, and the path of the refused one."""
        self.history = History(itertools.count().__next__)
        self._apply, self.server._write = self.server._write, self._written

    @staticmethod
    def time() -> float:
        return asyncio.get_running_loop().time()

    def connect(self, **settings: Any) -> AbstractAsyncContextManager[aiokcc.Group]:
        """Join as a member of the group, with settings that most tests can use."""
        usual: dict[str, Any] = {
            "topics": {"orders": 2},
            "start": 0,
            "period": PERIOD,
            "clock": lambda: FAR,
            "session_timeout": 9,
        }
        return joining(self.store, **{**usual, **settings})

    # -- consumers ----------------------------------------------------------------------------------------------------

    async def consume(
        self,
        group: aiokcc.Group,
        number: int,
        stamps: Iterable[int],
        *,
        topic: str = "orders",
        takes: float = 0,
        finish: bool = True,
    ) -> aiokcc.Gate:
        """Run one partition over records with these timestamps."""
        records = list(stamps)
        async with group.gate(topic, number) as gate:
            offset = gate.resume_offset or 0
            while offset < len(records):
                await gate.wait_until(records[offset], offset)
                self.handled.append((f"{topic}.{number}", records[offset]))
                if takes:
                    await asyncio.sleep(takes)
                offset += 1
            if finish:
                gate.finish(len(records))
        return gate

    def done(self, partition: str) -> list[int]:
        """Return the timestamps that a partition's consumer has processed."""
        return [ts for name, ts in self.handled if name == partition]

    async def process(
        self,
        group: aiokcc.Group,
        number: int,
        logs: Mapping[str, Sequence[int]],
        *,
        takes: Callable[[], float] = lambda: 0,
    ) -> None:
        """Run one partition over its log, and record it in the history."""
        who, partition = group.member, f"orders.{number}"
        records = logs[partition]
        async with group.gate("orders", number) as gate:
            for offset in range(gate.resume_offset or 0, len(records)):
                ts = records[offset]
                await gate.wait_until(ts, offset)
                self.history.start(who, partition, ts, offset)
                try:
                    await asyncio.sleep(takes())
                except BaseException:
                    self.history.gone(who, partition, ts, offset)
                    raise
                self.history.done(who, partition, ts, offset)
            gate.finish(len(records))

    def _written(self, ops: list[TreeOp]) -> list[int | str | None]:
        try:
            results = self._apply(ops)
        except TreeError as error:
            steps = [(op.verb, op.path.removeprefix(f"{ROOT}/")) for op in ops]
            self.refused.append((steps, steps[error.index][1]))
            raise
        for op in sorted(ops, key=lambda op: op.path.endswith("/coordinator")):  # the cut, then the limit it led to
            if op.verb in {"create", "set"}:
                if op.path == f"{ROOT}/coordinator":
                    self.history.limit(op.data)
                elif op.path.startswith(f"{ROOT}/cuts/") and op.data:
                    self.history.cut(op.data)
        return results

    # -- what the store holds --------------------------------------------------------------------------------------------

    def node(self, path: str) -> Node | None:
        return self.server.nodes().get(f"{ROOT}/{path}")

    def data(self, path: str) -> bytes:
        node = self.node(path)
        assert node is not None, f"{path} is not there"
        return node.data

    def below(self, path: str) -> list[str]:
        """Return the names of a node's children."""
        prefix = f"{ROOT}/{path}/"
        return [p.removeprefix(prefix) for p in self.server.nodes() if p.startswith(prefix)]

    @property
    def limit(self) -> Limit:
        return Limit.decode("coordinator", self.data("coordinator"))

    def cuts(self) -> list[Cut]:
        """Return the cuts in the store, in order."""
        found = (Cut.decode(name, self.data(f"cuts/{name}")) for name in self.below("cuts"))
        return sorted((cut for cut in found if cut is not None), key=lambda cut: cut.number)

    def owner(self, number: int, topic: str = "orders") -> str | None:
        node = self.node(f"owners/{topic}/{number}")
        return None if node is None else node.data.decode()

    def leader(self) -> str:
        """Return the member session of the leader."""
        return self.data("generation").decode().split(" ")[1]

    # -- sessions ----------------------------------------------------------------------------------------------------------

    def session(self, group: aiokcc.Group) -> MemorySession:
        """Return the member's present session."""
        session = group.membership.session
        assert isinstance(session, MemorySession)
        return session

    async def expire(self, group: aiokcc.Group) -> None:
        """End the member's session, and wait until it has joined again."""
        before = self.session(group)
        self.server.expire(before)
        while group.membership.session is before or group.membership.member_session is None:
            await settle()

    def record_calls(self) -> None:
        """Keep every call that reaches the server from now on."""
        self.server.intercept(before=self.calls.append)

    def was_refused(self, write: Call, path: str) -> bool:
        """Return whether the server has refused a write with the operations of this one, because of this node."""
        return ([(type(op).__name__.lower(), op.path) for op in write.ops], path) in self.refused

    def writes(self) -> list[Call]:
        return [call for call in self.calls if call.writes]

    def check(self) -> None:
        """Check, after a test, that no session, watch or call is left."""
        assert not [s for s in self.server.sessions if s._can_send], "a session was left open"
        assert not self.server._watches, f"watches were left behind: {list(self.server._watches)}"

    @staticmethod
    def partition(number: int, topic: str = "orders") -> Partition:
        return Partition(topic, number)
