"""Processes of one host share one session and one report, on virtual time: each member here is a process."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

import aiokcc
from aiokcc.core.lookahead_choice import LookaheadChoice
from aiokcc.errors import CoordinationError, GroupMismatchError, PartitionOwnedError, UsageError
from aiokcc.runtime.host.channel import Message, ProcessChannel, decode_error, encode_error
from aiokcc.runtime.host.client import Client
from aiokcc.runtime.host.hosted import HostedReport
from aiokcc.runtime.host.place import Listening
from aiokcc.runtime.host.service import HostService
from aiokcc.runtime.host.session import HostedSession
from aiokcc.runtime.metrics import collect
from aiokcc.runtime.options import GroupOptions
from aiokcc.runtime.own_report import OwnReport
from aiokcc.stores import SessionState
from tests.history import ViolationError
from tests.unit.world import World
from tests.virtual import settle


class MemoryChannel(ProcessChannel):
    """One end of a connection within this process. ``frozen``: its process is stopped, and what it gets waits."""

    def __init__(self) -> None:
        super().__init__()
        self.peer: MemoryChannel
        self.open = True
        self.frozen = False
        self._waiting: list[Callable[[], None]] = []

    def send(self, message: Message) -> None:
        if self.open:
            self._deliver(lambda: self.peer.received(message))

    def _deliver(self, act: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(self.peer._take, act)

    def _take(self, act: Callable[[], None]) -> None:
        if self.frozen:
            self._waiting.append(act)
        else:
            act()

    def thaw(self) -> None:
        self.frozen = False
        for act in self._waiting:
            asyncio.get_running_loop().call_soon(act)
        self._waiting.clear()

    def close(self) -> None:
        if self.open:
            self.open = False
            self._deliver(self.peer._closed_by_peer)
            asyncio.get_running_loop().call_soon(self.closed)

    def _closed_by_peer(self) -> None:
        self.ended_by_peer = True
        if self.open:
            self.open = False
            self.closed()


class MemoryPlace:
    """A host within this process."""

    def __init__(self) -> None:
        self.taken: Callable[[ProcessChannel], None] | None = None
        self.reserved = False
        self.given_up = asyncio.Event()
        self.channels: list[MemoryChannel] = []
        """The clients' ends, in the order in which they connected."""
        self.services = 0

    async def connect(self) -> ProcessChannel | None:
        await asyncio.sleep(0)
        if self.taken is None:
            return None
        ours, theirs = MemoryChannel(), MemoryChannel()
        ours.peer, theirs.peer = theirs, ours
        self.channels.append(ours)
        self.taken(theirs)
        return ours

    def reserve(self) -> bool:
        if self.reserved:
            return False
        self.reserved = True
        return True

    async def wait_reserved(self) -> None:
        while self.reserved:
            await self.given_up.wait()

    def end_reservation(self) -> None:
        self.reserved = False
        self.given_up.set()
        self.given_up = asyncio.Event()

    async def listen(self, taken: Callable[[ProcessChannel], None]) -> Listening:
        self.taken = taken
        self.services += 1
        place = self

        class Open:
            def close(self) -> None:
                if place.taken is taken:
                    place.taken = None

        return Open()


@pytest.fixture
def host(world: World, monkeypatch: pytest.MonkeyPatch) -> MemoryPlace:
    """Give a host on which all members of the world run that share it."""
    place = MemoryPlace()
    monkeypatch.setattr("aiokcc.runtime.group.find_place", lambda store, options: place)
    for module in ("client", "service", "session", "store"):
        monkeypatch.setattr(f"aiokcc.runtime.host.{module}.boottime", world.time)
    return place


def stamps(count: int) -> list[int]:
    return list(range(500, 500 + count * 1000, 1000))


async def test_the_store_sees_one_member(world: World, host: MemoryPlace) -> None:
    topics = {"orders": 6}
    async with (
        world.connect(topics=topics, share_host=True, member="a") as a,
        world.connect(topics=topics, share_host=True, member="b") as b,
        world.connect(topics=topics, share_host=True, member="c") as c,
        asyncio.TaskGroup() as tasks,
    ):
        for n, group in enumerate([a, a, b, b, c, c]):
            tasks.create_task(world.consume(group, n, stamps(30)))
        await settle()
        assert len(world.below("progress")) == 1
        assert len(world.below("ids")) == 1
    assert host.services == 1
    for n in range(6):
        assert world.done(f"orders.{n}") == stamps(30)


async def test_a_process_that_blocks_is_not_ready_although_its_host_is_the_member(
    world: World, host: MemoryPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiokcc.runtime.member_health.boottime", world.time)
    monkeypatch.setattr(world.server, "wall_clock", lambda: time.time() - 60)  # the limit was written a minute ago
    settings: dict[str, Any] = {"topics": {"orders": 2}, "share_host": True}
    async with world.connect(**settings, member="a") as a, world.connect(**settings, member="b") as b:
        async with a.gate("orders", 0) as waits, b.gate("orders", 1):
            waiting = asyncio.ensure_future(waits.wait_until(90_000_000))
            await asyncio.sleep(2)  # after a second a process says which of its partitions are slow
            here = {group: await group.health() for group in (a, b)}
            waiting.cancel()
            assert here[b].blocking_here == ("orders.1",)
            assert (here[b].stuck, here[b].ready) == (True, False)
            assert here[a].blocking_here == ()
            assert (here[a].stuck, here[a].ready) == (True, True)


async def test_the_metrics_of_a_host_say_that_it_leads(world: World, host: MemoryPlace) -> None:
    async with world.connect(share_host=True, member="a"), world.connect(share_host=True, member="b"):
        await settle()
        leads = [each for each in collect() if each.name == "aiokcc.leader"]
        assert sorted(str(each.value) for each in leads) == ["0.0", "0.0", "1.0"]
        owners = {each.attributes["member"] for each in collect() if each.name == "aiokcc.partitions.owned"}
        assert owners == {"a", "b"}, "what the processes have is counted once"
    assert collect() == []


async def test_a_host_does_not_delay_the_reports_of_its_processes_again(
    world: World, host: MemoryPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a lookahead that the leader chooses the processes gather boundaries; what they report counts at once."""

    class Seven(LookaheadChoice):
        def advanced(self, *_: object, **__: object) -> None:
            self.lookahead = 7

    monkeypatch.setattr("aiokcc.runtime.leader_term.LookaheadChoice", Seven)
    delayed = set[type[OwnReport]]()

    def note(report: OwnReport) -> None:
        delayed.add(type(report))
        delay(report)

    delay = OwnReport.delay
    monkeypatch.setattr(OwnReport, "delay", note)
    settings: dict[str, Any] = {"share_host": True, "lookahead": "auto", "max_apart": 10_000}
    async with (
        world.connect(**settings, member="a") as a,
        world.connect(**settings, member="b") as b,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(world.consume(a, 0, stamps(40), takes=0.03))
        tasks.create_task(world.consume(b, 1, stamps(40), takes=0.02))
    assert world.done("orders.0") == world.done("orders.1") == stamps(40)
    assert delayed == {HostedReport}


def logs_of(partitions: int, records: int, seed: int) -> dict[str, list[int]]:
    rng = random.Random(seed)
    return {f"orders.{n}": sorted(rng.randrange(0, 20_000) for _ in range(records)) for n in range(partitions)}


@pytest.mark.parametrize("lookahead", [0, 2, 7])
@pytest.mark.parametrize("seed", range(6))
async def test_the_invariants_hold(world: World, host: MemoryPlace, seed: int, lookahead: int) -> None:
    """Two processes of this host, and a member of another one; they join and finish at different times."""
    logs, rng = logs_of(6, 25, seed), random.Random(seed)

    async def member(name: str, numbers: list[int], **more: object) -> None:
        await asyncio.sleep(rng.random())
        async with (
            world.connect(topics={"orders": 6}, end=20_000, member=name, lookahead=lookahead, **more) as group,
            asyncio.TaskGroup() as tasks,
        ):
            for number in numbers:
                tasks.create_task(world.process(group, number, logs, takes=lambda: rng.random() / 10))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(member("a", [0, 1], share_host=True))
        tasks.create_task(member("b", [2, 3], share_host=True))
        tasks.create_task(member("c", [4, 5]))
    world.history.check(logs)


async def test_another_process_serves_when_the_first_leaves(world: World, host: MemoryPlace) -> None:
    logs = {"orders.0": stamps(3), "orders.1": stamps(30)}

    async def member(name: str, number: int) -> None:
        async with world.connect(share_host=True, member=name) as group:
            await world.process(group, number, logs, takes=lambda: 0.1)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(member("a", 0))
        await settle()
        tasks.create_task(member("b", 1))
    assert host.services == 2
    world.history.check(logs)


async def test_processes_that_leave_together_keep_their_session_to_the_end(world: World, host: MemoryPlace) -> None:
    """The one that serves leaves first. The other one still has the session when its handler returns, and can commit."""
    left = asyncio.Event()

    async def first() -> None:
        async with world.connect(share_host=True, member="a"):
            await asyncio.sleep(1)
        left.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(first())
        await settle()
        async with world.connect(share_host=True, member="b") as b:
            session = b.membership.session
            await asyncio.sleep(2)
            assert b.membership.session is session
            assert not left.is_set()
        await settle()
        assert left.is_set()
    assert host.services == 1


async def test_a_process_that_is_cancelled_leaves_its_partitions_to_another(world: World, host: MemoryPlace) -> None:
    """The standby is a process of the same host: the lock goes from one to the other within the host."""
    logs = {"orders.0": stamps(20), "orders.1": stamps(20)}

    async def member(name: str, *numbers: int) -> None:
        async with (
            world.connect(share_host=True, member=name, claim_timeout=math.inf) as group,
            asyncio.TaskGroup() as tasks,
        ):
            for number in numbers:
                tasks.create_task(world.process(group, number, logs, takes=lambda: 0.1))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(member("a", 0))
        await settle()
        dying = tasks.create_task(member("b", 1))
        await asyncio.sleep(0.5)
        tasks.create_task(member("c", 1))
        await asyncio.sleep(0.55)
        dying.cancel()
    assert host.services == 1
    world.history.check(logs)


async def cut_off(world: World, host: MemoryPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process hears nothing, is not heard, and does not notice it; another process of the host waits for its partition."""

    async def ping(session: HostedSession) -> None:
        while True:
            session.send({"ping": True})
            await asyncio.sleep(1)

    monkeypatch.setattr(HostedSession, "keep_alive", ping)
    logs = {"orders.0": [*stamps(1), 50_000], "orders.1": [500 + n for n in range(400)]}

    async def member(name: str, number: int) -> None:
        async with world.connect(share_host=True, member=name, claim_timeout=math.inf) as group:
            await world.process(group, number, logs, takes=lambda: 0.1)

    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(member("a", 0))
        await settle()
        silent = tasks.create_task(member("b", 1))
        await settle()
        ours = host.channels[-1]
        waiting = tasks.create_task(member("c", 1))
        await asyncio.sleep(1)
        ours.frozen = ours.peer.frozen = True
        await asyncio.sleep(20)
        ours.thaw()
        ours.peer.thaw()
        await asyncio.sleep(1)
        for task in (silent, waiting, first):
            task.cancel()
    assert {event.member for event in world.history.events if event.partition == "orders.1"} == {"b", "c"}
    world.history.check(logs, complete=False)


async def test_a_silent_process_loses_its_partitions_when_it_starts_nothing_any_more(
    world: World, host: MemoryPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cut_off(world, host, monkeypatch)


async def test_host_lease(world: World, host: MemoryPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rule, a process is told the stop of the session, which the host goes on to renew: two owners."""

    def tell(client: Client, message: Message) -> None:
        client.channel.send({**message, "stop": client.service.session.stop_at + 60})

    monkeypatch.setattr(Client, "tell", tell)
    with pytest.raises(ViolationError, match="one owner"):
        await cut_off(world, host, monkeypatch)


async def left_behind(world: World, host: MemoryPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that serves leaves while one of its clients hears nothing; a member of another host waits for a partition."""
    logs = {"orders.0": [*stamps(1), 50_000], "orders.1": [500 + n for n in range(400)]}

    async def member(name: str, number: int, *, share_host: bool) -> None:
        async with world.connect(share_host=share_host, member=name, claim_timeout=math.inf) as group:
            await world.process(group, number, logs, takes=lambda: 0.1)

    async def keep_on(session: HostedSession) -> None:
        await session.until(SessionState.LOST)

    monkeypatch.setattr(HostedSession, "keep_alive", keep_on)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(member("a", 0, share_host=True))
        await settle()
        silent = tasks.create_task(member("b", 1, share_host=True))
        await settle()
        waiting = tasks.create_task(member("c", 1, share_host=False))
        await asyncio.sleep(1)
        ours = host.channels[-1]
        ours.frozen = ours.peer.frozen = True
        first.cancel()
        await asyncio.sleep(15)
        ours.thaw()
        await asyncio.sleep(1)
        for task in (silent, waiting):
            task.cancel()
    assert {event.member for event in world.history.events if event.partition == "orders.1"} == {"b", "c"}
    world.history.check(logs, complete=False)


async def test_a_session_is_closed_when_no_process_starts_anything_under_it(
    world: World, host: MemoryPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await left_behind(world, host, monkeypatch)


async def test_host_lease_at_the_end(world: World, host: MemoryPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rule, the process that serves closes its session at once, and its silent client goes on: two owners."""

    async def at_once(service: HostService) -> None:
        service.ending = True
        for client in list(service.clients):
            client.channel.close()

    monkeypatch.setattr(HostService, "_dismiss_all", at_once)
    with pytest.raises(ViolationError, match="one owner"):
        await left_behind(world, host, monkeypatch)


async def test_a_lost_session_of_the_host_is_one_of_all_its_processes(world: World, host: MemoryPlace) -> None:
    logs = logs_of(4, 40, 1)

    async def member(name: str, *numbers: int) -> None:
        async with (
            world.connect(topics={"orders": 4}, end=20_000, share_host=True, member=name) as group,
            asyncio.TaskGroup() as tasks,
        ):
            for number in numbers:
                tasks.create_task(world.process(group, number, logs, takes=lambda: 0.05))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(member("a", 0, 1))
        tasks.create_task(member("b", 2, 3))
        for _ in range(3):
            await asyncio.sleep(0.4)
            world.server.expire(next(s for s in world.server.sessions if s._can_send))
    assert host.services == 4
    world.history.check(logs)


async def test_the_report_says_which_process_has_a_partition(world: World, host: MemoryPlace) -> None:
    async with (
        world.connect(share_host=True, member="a") as a,
        world.connect(share_host=True, member="b") as b,
        a.gate("orders", 0) as gate,
        b.gate("orders", 1),
    ):
        waiting = asyncio.ensure_future(gate.wait_until(5000))
        await asyncio.sleep(2)
        status = await b.status()
        assert [member.partitions for member in status.members] == [2]
        assert [(p.name, p.partitions) for p in status.members[0].processes] == [("a", "orders:0;"), ("b", "orders:1;")]
        assert [(blocking.partition, blocking.process) for blocking in status.blocking] == [("orders.1", "b")]
        waiting.cancel()


async def test_a_partition_of_another_process_of_the_host_is_owned(world: World, host: MemoryPlace) -> None:
    async with (
        world.connect(share_host=True, member="a") as a,
        world.connect(share_host=True, member="b", claim_timeout=1) as b,
        a.gate("orders", 0),
    ):
        with pytest.raises(PartitionOwnedError, match=r"orders\.0 is held by a of this host"):
            async with b.gate("orders", 0):
                raise AssertionError
        async with b.gate("orders", 1):  # and the gate can be used
            pass


async def test_a_gate_that_nobody_waits_for_any_more_is_not_claimed(world: World, host: MemoryPlace) -> None:
    async with (
        world.connect(share_host=True, member="a") as a,
        world.connect(share_host=True, member="b") as b,
    ):
        async with a.gate("orders", 0):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1), b.gate("orders", 0):
                    raise AssertionError
        await settle()
        assert world.owner(0) is None


async def test_other_settings_are_refused_in_the_process_that_has_them(world: World, host: MemoryPlace) -> None:
    async with world.connect(share_host=True):
        with pytest.raises(GroupMismatchError, match="period"):
            async with world.connect(share_host=True, period=77):
                raise AssertionError


async def test_an_operator_can_act_through_the_host(world: World, host: MemoryPlace) -> None:
    async with world.connect(share_host=True), world.connect(share_host=True) as b:
        await b.hold()
        assert world.data("period") == b"hold"
        assert (await b.status()).state == "held"


async def test_a_node_that_cannot_be_read_fails_all_processes(world: World, host: MemoryPlace) -> None:
    async def member() -> None:
        async with world.connect(share_host=True):
            await asyncio.sleep(3600)

    async with world.store.session() as session:
        tasks = [asyncio.ensure_future(member()) for _ in range(2)]
        await settle()
        await session.set("generation", b"nonsense", -1)
        for task in tasks:
            with pytest.raises(aiokcc.CorruptNodeError, match="generation holds 'nonsense'"):
                await task
    assert host.services == 1


async def test_a_service_that_nobody_needs_ends(world: World, host: MemoryPlace) -> None:
    """Its own process has found another one, as after a freeze."""
    async with world.connect(share_host=True) as group:
        first = host.taken
        host.taken = None
        host.channels[0].close()
        await settle()
        while host.services < 2 or group.membership.member_session is None:
            await settle()
        assert len(world.below("ids")) == 2
        await asyncio.sleep(20)
        assert len(world.below("ids")) == 1
        assert host.taken is not first


async def test_a_deleted_node_fails_all_processes(world: World, host: MemoryPlace) -> None:
    async def member() -> None:
        async with world.connect(share_host=True):
            await asyncio.sleep(3600)

    async with world.store.session() as session:
        tasks = [asyncio.ensure_future(member()) for _ in range(2)]
        await settle()
        await session.delete("generation", -1)
        for task in tasks:
            with pytest.raises(aiokcc.MissingNodeError):
                await task


async def test_options_that_do_not_go_together_are_refused() -> None:
    settings = {"topics": {"orders": 2}, "period": 1000}
    with pytest.raises(UsageError, match="managed"):
        aiokcc.connect("memory://x", **settings, share_host=True, assignment="managed")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="grows"):
        GroupOptions.check(period=1000, share_host=True, grows=True)
    with pytest.raises(UsageError, match="True or False"):
        aiokcc.connect("memory://x", **settings, share_host="yes")  # type: ignore[arg-type]


def test_an_error_keeps_its_class_and_its_facts() -> None:
    error = decode_error(encode_error(PartitionOwnedError("orders.0", "a", 3)))
    assert isinstance(error, PartitionOwnedError)
    assert (error.partition, error.owner) == ("orders.0", "a")
    assert str(error) == str(PartitionOwnedError("orders.0", "a", 3))
    assert type(decode_error(encode_error(ValueError("x")))) is CoordinationError


async def test_a_welcome_while_the_store_does_not_answer_the_host_lets_no_record_start() -> None:
    """The host has no time to give: its session is lost at this moment, of which the new process is told next."""
    ours, theirs = MemoryChannel(), MemoryChannel()
    ours.peer, theirs.peer = theirs, ours
    session = HostedSession(ours, {"welcome": 1, "session": 7, "timeout": 9.0, "host": "host-1"})
    assert session.stop_at == -math.inf
    theirs.send({"over": True})
    await settle()
    assert session.state is SessionState.LOST
    assert session.dismissed
