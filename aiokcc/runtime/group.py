"""Level 1 of the API: connect to a group, open gates, and control it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Literal

import anyio

from aiokcc.background import Background
from aiokcc.core.limit import Mode, Request, RequestKind
from aiokcc.core.partitions import Partition, parse_topics
from aiokcc.core.periods import parse_period
from aiokcc.core.run import Bounds
from aiokcc.core.weighted import Weight
from aiokcc.errors import PartitionError, SessionLostError, UsageError
from aiokcc.runtime.assignment_follower import run_assigned
from aiokcc.runtime.entry import Block, known_keywords
from aiokcc.runtime.gate import Gate
from aiokcc.runtime.host.hosted import HostedMember
from aiokcc.runtime.host.place import find_place
from aiokcc.runtime.host.store import HostStore
from aiokcc.runtime.member import Member, NoSession
from aiokcc.runtime.member_health import MemberHealth, read_health
from aiokcc.runtime.metrics import observe_member, observing
from aiokcc.runtime.new_run import open_by_url
from aiokcc.runtime.operator import write_request
from aiokcc.runtime.options import GroupOptions
from aiokcc.runtime.status import STANDSTILL_SECONDS, Status
from aiokcc.runtime.status_reader import read_status
from aiokcc.stores import ZOOKEEPER_OPTIONS
from aiokcc.stores.port import Session, Store

__all__ = ["Group", "connect", "join"]


@known_keywords("aiokcc.connect", lambda: ZOOKEEPER_OPTIONS)
def connect(
    store: str | Store,
    *,
    topics: Mapping[str, int | list[int]],
    period: str | int | timedelta,
    start: str | int | datetime | None = None,
    end: str | int | datetime | None = None,
    lookahead: int | Literal["auto"] = 0,
    max_apart: str | int | timedelta | None = None,
    caught_up: str | int | timedelta = "follow",
    ahead: str | int | timedelta = "1h",
    member: str | None = None,
    session_timeout: float = 10.0,
    connect_timeout: float = 10.0,
    claim_timeout: float | None = None,
    clock: Callable[[], int] | None = None,
    source: str = "",
    assignment: Literal["managed"] | None = None,
    subscription: object = None,
    assignor: str = "sticky",
    weight: Weight | None = None,
    join_window: float | None = None,
    expect: int | None = None,
    share_host: bool = False,
    **options: Any,
) -> AbstractAsyncContextManager[Group]:
    """Joins the group under the store's root, or founds it: ``async with aiokcc.connect(...) as group``.

    All members bring the same settings; a member with other settings gets a GroupMismatchError that names both sides. The
    arguments are checked at once, before anything is connected.

    :param store: ``zk://h1:2181,h2:2181/root``, ``memory://name``, or a store
    :param topics: ``{"orders": 8}`` for the partitions 0 to 7, or ``{"orders": [0, 3]}``
    :param period: how far the limit moves at a time: ``"1m"``, a timedelta, or milliseconds
    :param start: where the replay starts; by default at the earliest record of all partitions
    :param end: where it ends; records from there on never pass. By default it goes on
    :param lookahead: how many periods a partition may run ahead of the slowest. From three on, members report up to half
        of them together, eight at most, and delay that by 0.1 s at most: then one round trip closes several periods
    :param max_apart: with ``lookahead="auto"``: how far partitions may lie apart, in event time. Within it the leader chooses
        the lookahead, from the time that round trips and the records of a period take
    :param caught_up: once the limit has reached the clock: ``"follow"`` it, ``"release"`` the gate, or a longer period
    :param ahead: how far past the clock a record may move the limit
    :param member: this member's name; made from host, process and a random number if not given
    :param session_timeout: seconds after which the store ends the session of a member that no longer answers
    :param connect_timeout: seconds to wait for the first answer; then StoreUnreachableError
    :param claim_timeout: seconds to wait for a partition another member holds (default: twice the session timeout);
        ``math.inf`` waits for as long as it takes, as a hot standby does
    :param clock: milliseconds since the epoch; the wall clock by default
    :param source: describes the records; the same text for all members
    :param assignment: ``"managed"``: the group's leader assigns the partitions to members, see :meth:`Group.share`.
        All members of a group must set it. Without it, each member opens the gates it wants
    :param subscription: managed: what may be assigned to this member: topics (``["orders"]``), the most partitions of each
        (``{"orders": 4}``), partitions (``{"orders": [0, 3]}``), or a compiled regular expression; by default everything
    :param assignor: managed: ``"sticky"`` (moves as little as possible), ``"range"`` or ``"round_robin"``
    :param weight: managed: how heavy a partition is on a member, a function of the two; loads are balanced, not numbers
    :param join_window: managed: seconds to wait for further members before partitions move; 1 by default, 30 with ``expect``
    :param expect: managed: the number of members that ends the window early
    :param share_host: whether the processes of this host that set it share one session and one report, so that the store sees
        one member for all of them. See docs/explanation/host-sharing.md
    :param options: for the store behind a URL

    Leaving the block normally waits until a cut holds its finished partitions, then leaves the group. If the group cannot go
    on (a node was deleted or cannot be read), the block is cancelled and the error is raised from it.
    """
    checked = GroupOptions.check(
        period=period,
        start=start,
        end=end,
        lookahead=lookahead,
        max_apart=max_apart,
        caught_up=caught_up,
        ahead=ahead,
        source=source,
        member=member,
        session_timeout=session_timeout,
        connect_timeout=connect_timeout,
        claim_timeout=claim_timeout,
        clock=clock,
        assignment=assignment,
        subscription=subscription,
        assignor=assignor,
        weight=weight,
        join_window=join_window,
        expect=expect,
        share_host=share_host,
    )
    partitions = parse_topics(topics)
    if isinstance(store, Store):
        if options:
            raise UsageError(f"{', '.join(options)}: options go with a store's URL; give them to the store you made")
    else:
        store = open_by_url(store, **options)
    return Block(join(store, checked, partitions), "aiokcc.connect", "group")


@asynccontextmanager
async def join(
    store: Store,
    options: GroupOptions,
    partitions: frozenset[Partition],
    resolve: Callable[[], Awaitable[Mapping[Partition, Bounds]]] | None = None,
) -> AsyncIterator[Group]:
    """Joins the group, or founds it, with these partitions and checked options: for the layers that are built on the group.

    ``resolve`` returns the offsets to replay. It is called by the member that founds the group, and they are kept for all.
    """
    place = find_place(store, options) if options.share_host else None
    if place is None:
        async with _joined(Member(store, options, partitions, resolve)) as group:
            yield group
        return
    async with Background() as serving:  # around the member: if we serve the host, we leave as a client first
        host = HostStore(store, place, options, partitions, resolve, serving.tasks)
        async with _joined(HostedMember(host, options, partitions, resolve)) as group:
            yield group
        await host.leave()


@asynccontextmanager
async def _joined(member: Member) -> AsyncIterator[Group]:
    async def run(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        await member.run(task_status=task_status)
        if member.failure is not None:
            raise member.failure  # the block cannot go on

    try:
        async with Background() as background:
            await background.tasks.start(run)
            with observing(observe_member(member)):
                yield Group(member)
            await member.settled()
            if member.failure is not None:
                raise member.failure
            member.release_log.write()
    except ExceptionGroup as group:
        ours = member.failure
        if ours is None or group.split(lambda error: error is ours)[1] is not None:
            raise
        raise ours from None  # bare, even where a task group in the block has wrapped it
    finally:
        member.release_log.discard()  # if the block fails, the log shows that error only
        if member.failure is None:
            member.fail(UsageError(f"{member.name} has left the group: its 'async with' is over"))


class Group:
    """The group, as this process takes part in it. Made by :func:`connect`."""

    def __init__(self, membership: Member) -> None:
        self.membership = membership
        """This process as a member, for the layers that are built on the group (Kafka, Spark). Programs do not need it."""

    @property
    def member(self) -> str:
        """This member's name."""
        return self.membership.name

    @property
    def limit(self) -> int:
        """Records below it may be processed. The greatest 64-bit number when released, 0 when the run is over."""
        return self.membership.progress.limit.value

    @property
    def released(self) -> bool:
        """True if the gate was opened for all, for good."""
        return self.membership.progress.limit.mode is Mode.OPEN

    @property
    def ended(self) -> bool:
        """True if the run is over."""
        return self.membership.progress.limit.mode is Mode.END

    @property
    def epoch(self) -> int | None:
        """The generation under which this member leads; None if it does not lead."""
        member_session = self.membership.member_session
        term = None if member_session is None else member_session.term
        return None if term is None else term.epoch

    def gate(self, topic: str, partition: int) -> Gate:
        """Returns the gate of one partition: ``async with group.gate("orders", 3) as gate``.

        Raises PartitionError if the partition is not in the agreed set.
        """
        wanted = Partition(topic, partition)
        agreed = self.membership.settings.partitions
        if not isinstance(topic, str) or type(partition) is not int or wanted not in agreed:
            numbers = sorted(p.number for p in agreed if p.topic == topic)
            there = (
                f"{topic} has the partitions {_ranges(numbers)}"
                if numbers
                else f"the topics are {', '.join(sorted({p.topic for p in agreed}))}"
            )
            raise PartitionError(f"partition {partition!r} of {topic!r} is not in the agreed set; {there}")
        return Gate(self.membership, wanted)

    @property
    def partitions(self) -> frozenset[Partition]:
        """The agreed set."""
        return self.membership.settings.partitions

    def add(self, bounds: Mapping[Partition, Bounds]) -> bool:
        """Adds partitions to the agreed set, at the present limit. Only the leader can; returns False if we do not lead."""
        member_session = self.membership.member_session
        term = None if member_session is None else member_session.term
        if term is not None:
            term.add(bounds)
        return term is not None

    def remove(self, partitions: frozenset[Partition]) -> bool:
        """Removes partitions from the set of a managed group. Only the leader can; returns False if we do not lead."""
        member_session = self.membership.member_session
        term = None if member_session is None else member_session.term
        if term is not None:
            term.remove(partitions)
        return term is not None

    @property
    def assigned(self) -> frozenset[Partition]:
        """The partitions that are assigned to this member of a managed group, as far as it knows."""
        return self.membership.assigned or frozenset()

    async def share(self, run: Callable[[Partition], Awaitable[None]]) -> None:
        """Runs the partitions that the managed group assigns to this member, each as a task, until the run ends. ::

            async def consume(partition):
                async with group.gate(*partition) as gate:
                    ...                                       # from gate.resume_offset on

            await group.share(consume)

        When a partition is revoked its gate raises PartitionRevoked. The lock is held until ``consume`` has returned or raised,
        also behind the block of the gate, so commit there; then it is released, and another member can be assigned the
        partition. When another member has closed periods of it while we had lost its lock, its gate raises
        PositionLostError: let ``consume`` raise it, and it is called again, or handle it as :class:`Gate` shows. This call
        raises every other error of ``consume``.
        """
        if self.membership.options.managed is None:
            raise UsageError('this group is not managed; connect with assignment="managed"')
        await run_assigned(self.membership, run)

    async def status(self) -> Status:
        """Reads the status of the whole group: which partition blocks, on which member, for how long."""
        return await read_status(self.membership.store, self._session())

    async def health(self, *, stuck_after: float = STANDSTILL_SECONDS) -> MemberHealth:
        """Returns whether this process is alive, in step, stuck, fenced, or without its store. Never raises, answers soon."""
        return await read_health(self.membership, stuck_after=stuck_after)

    async def set_period(self, period: str | int | timedelta) -> None:
        """Changes the period for all, from the next boundary on. Ends a hold."""
        await write_request(self.membership.store, self._session(), Request.every(parse_period(period)))

    async def hold(self) -> None:
        """Stops the limit. Once this has returned, the limit does not move until a period is set again."""
        await write_request(self.membership.store, self._session(), Request(RequestKind.HOLD))

    async def release(self) -> None:
        """Opens the gate for all, for good."""
        await write_request(self.membership.store, self._session(), Request(RequestKind.OFF))

    def _session(self) -> Session:
        if self.membership.failure is not None:
            raise self.membership.failure
        if isinstance(self.membership.session, NoSession):
            raise SessionLostError("there is no session with the store at present; it is being opened again")
        return self.membership.session


def _ranges(numbers: list[int]) -> str:
    if numbers == list(range(len(numbers))) and len(numbers) > 1:
        return f"0 to {numbers[-1]}"
    return ", ".join(map(str, numbers[:20])) + (" …" if len(numbers) > 20 else "")
