"""Members of a managed group on a real ZooKeeper, without Kafka: they hold their partitions and do what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiokcc
from aiokcc.core import paths
from aiokcc.core.assignments import TopicState, decode_assignment, decode_state
from aiokcc.core.partitions import Partition
from aiokcc.core.run import Generation
from aiokcc.stores import Children, Node, Session, open_store
from tests.faults import Proxy
from tests.joining import joining

FAR = 10**12
"""A record that nobody ever comes to: the members' clock stands at 0, and the limit does not pass it by more than an hour."""
PERIOD = 1000

Handler = Callable[[aiokcc.Gate], Awaitable[None]]


class Stage:
    """The actions of the members of one test, in order: ``("begins", member, number)`` and ``("ends", member, number)``."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.events: list[tuple[str, str, int]] = []
        self._changed = asyncio.Event()

    def note(self, what: str, who: str, number: int) -> None:
        self.events.append((what, who, number))
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    @asynccontextmanager
    async def member(
        self, name: str | None, handler: Handler | None = None, *, url: str | None = None, **settings: Any
    ) -> AsyncIterator[aiokcc.Group]:
        """Give a member that runs what it is assigned. At the end of the block it leaves the group in good order."""
        usual: dict[str, Any] = {
            "topics": {"orders": 4},
            "period": PERIOD,
            "start": 0,
            "assignment": "managed",
            "member": name,
            "join_window": 0.2,
            "clock": lambda: 0,
        }
        async with joining(url or self.url, **{**usual, **settings}) as group:

            async def consume(partition: Partition) -> None:
                async with group.gate(*partition) as gate:
                    self.note("begins", group.member, partition.number)
                    try:
                        if handler is not None:
                            await handler(gate)
                        await gate.wait_until(FAR)
                    finally:
                        self.note("ends", group.member, partition.number)

            sharing = asyncio.ensure_future(group.share(consume))
            try:
                yield group
            finally:
                sharing.cancel()
                await asyncio.wait([sharing])

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[Session]:
        """Give a session beside the group's, as an operator would use."""
        async with open_store(self.url).session(timeout=10) as session:
            yield session


def name_of(group: aiokcc.Group) -> str:
    """Return the name of the member in its present session."""
    member_session = group.membership.member_session
    assert member_session is not None
    return member_session.name


def session_of(group: aiokcc.Group) -> Session:
    session = group.membership.session
    assert isinstance(session, Session)
    return session


async def until_node(session: Session, path: str, condition: Callable[[bytes], bool]) -> bytes:
    """Wait until a node holds this data."""
    with session.watch() as watch:
        watch.add(path)
        async for change in watch:
            if isinstance(change.now, Node) and condition(change.now.data):
                return change.now.data
    raise AssertionError


async def until_children(session: Session, path: str, condition: Callable[[tuple[str, ...]], bool]) -> tuple[str, ...]:
    """Wait until a node has these children."""
    with session.watch() as watch:
        watch.add_children(path)
        async for change in watch:
            if isinstance(change.now, Children) and condition(change.now.names):
                return change.now.names
    raise AssertionError


async def until_state(
    session: Session, state: TopicState, topic: str = "orders"
) -> tuple[dict[int, str], dict[int, str]]:
    """Wait until the topic is in this state, and return its partitions to start and to close."""
    data = await until_node(session, paths.state(topic), lambda data: decode_state("", data)[0] is state)
    return decode_state("", data)[1:]


async def given(session: Session) -> dict[int, str]:
    """Return the assignment."""
    return decode_assignment("", (await session.get(paths.assignment("orders"))).data)


async def shared(session: Session, *members: str, topic: str = "orders") -> dict[int, str]:
    """Wait until exactly these members are assigned partitions and hold all of them; return the assignment."""
    path = paths.assignment(topic)
    while True:
        data = await until_node(session, path, lambda data: set(decode_assignment("", data).values()) == {*members})
        await until_state(session, TopicState.STABLE, topic)
        if (await session.get(path)).data == data:
            return decode_assignment("", data)


async def owners(session: Session) -> dict[int, str]:
    """Return the owner of each lock, a member in its session, by partition."""
    result = {}
    for name in await session.children(f"{paths.OWNERS}/orders"):
        node = await session.find(f"{paths.OWNERS}/orders/{name}")
        if node is not None:
            result[int(name)] = node.data.decode()
    return result


async def generation(session: Session) -> Generation:
    return Generation.decode("", (await session.get(paths.GENERATION)).data)


# -- the way to ZooKeeper -----------------------------------------------------------------------------------------------


def upstream(stage: Stage) -> str:
    """The address of the server itself."""
    return stage.url.removeprefix("zk://").split("/")[0]


def through(proxy: Proxy, stage: Stage) -> str:
    """The same root, through the proxy."""
    return f"zk://{proxy.connection}/{stage.url.rpartition('/')[2]}"


def break_off(proxy: Proxy) -> None:
    """Refuse connections, and reset the present ones."""
    proxy.refuse()
    proxy.cut()
