"""The life of a managed group, row by row on a real ZooKeeper: registrations, claims, states, and their writers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from contextlib import AsyncExitStack
from typing import Any

import pytest

import aiokcc
from aiokcc import local
from aiokcc.core import paths
from aiokcc.core.assignments import TopicState
from aiokcc.core.partitions import Partition
from aiokcc.runtime.election import list_candidates
from aiokcc.runtime.operator import isolate, rejoin
from aiokcc.runtime.ownership import Ownership
from aiokcc.stores import Check, SessionState, open_store
from tests.faults import Proxy
from tests.managed import (
    FAR,
    PERIOD,
    Stage,
    break_off,
    generation,
    given,
    name_of,
    owners,
    session_of,
    shared,
    through,
    until_children,
    until_node,
    until_state,
    upstream,
)


@pytest.fixture
def stage(zk_root: str) -> Stage:
    return Stage(zk_root)


class Claims:
    """Holds members' claims up right before they are sent."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.held: set[str] = set()
        """The members whose claims have to wait."""
        self.tried: list[tuple[str, list[Partition]]] = []
        self._changed = asyncio.Condition()
        self._waiting: set[str] = set()
        take = Ownership._claim

        async def take_when_told(
            us: Ownership, wanted: list[Partition], conditions: list[Check]
        ) -> tuple[list[Partition], dict[Partition, str]]:
            name = us._member.name
            async with self._changed:
                self._waiting.add(name)
                self._changed.notify_all()
                await self._changed.wait_for(lambda: name not in self.held)
            result = await take(us, wanted, conditions)
            async with self._changed:
                self._waiting.discard(name)
                self.tried.append((name, wanted))
                self._changed.notify_all()
            return result

        patch.setattr(Ownership, "_claim", take_when_told)

    async def let(self, *names: str) -> None:
        async with self._changed:
            self.held.difference_update(names)
            self._changed.notify_all()

    async def waiting(self, name: str) -> None:
        """Return when a claim of this member is about to be sent."""
        async with self._changed:
            await self._changed.wait_for(lambda: name in self._waiting)

    async def answered(self, name: str) -> None:
        """Return when a claim of this member has been answered."""
        async with self._changed:
            await self._changed.wait_for(lambda: name in {who for who, _ in self.tried})


# -- who is there -------------------------------------------------------------------------------------------------------


async def test_a_members_id_is_configured_or_made(stage: Stage) -> None:
    async with (
        stage.member("worker-7") as named,
        stage.member(None) as one,
        stage.member(None) as another,
        stage.looking() as session,
    ):
        assert named.member == "worker-7"
        host = re.sub("[^A-Za-z0-9._-]", "-", socket.gethostname())[:60]
        for made in (one, another):
            assert re.fullmatch(rf"{re.escape(host)}-{os.getpid()}-[0-9a-f]{{4}}", made.member)
        assert one.member != another.member
        assert set(await session.children(paths.IDS)) == {
            f"{c.member}-{session_of(c).id:x}" for c in (named, one, another)
        }
        given_to = {named.member, one.member, another.member}
        assert set((await shared(session, *given_to)).values()) == given_to, "what is given is given by id"


async def test_a_registration_holds_version_subscription_pattern_and_timestamp_and_is_ephemeral(stage: Stage) -> None:
    async with stage.looking() as session:
        async with (
            stage.member("few", subscription={"orders": 2}, clock=lambda: 5) as few,
            stage.member("some", subscription=re.compile("ord.*"), clock=lambda: 6) as some,
            stage.member("any", clock=lambda: 7) as any_,
        ):
            said = {}
            for group in (few, some, any_):
                node = await session.get(paths.member(name_of(group)))
                assert node.owner == session_of(group).id
                facts = json.loads(node.data)
                assert facts["version"] == 1
                assert facts["id"] == name_of(group)
                said[group.member] = facts["subscription"], facts["pattern"], facts["timestamp"]
            assert said == {"few": ({"orders": 2}, None, 5), "some": ({}, "ord.*", 6), "any": ("all", None, 7)}
        assert await session.children(paths.IDS) == (), "it goes with the session"


async def test_the_first_member_leads_and_receives_what_all_the_others_registered(stage: Stage) -> None:
    async with stage.member("first", expect=3, join_window=30) as first, stage.looking() as session:
        await until_node(session, paths.GENERATION, lambda data: b"took office" in data)
        async with (
            stage.member("second", expect=3, subscription={"orders": 1}) as second,
            stage.member("third", expect=3, subscription=re.compile("ord.*")) as third,
        ):
            assert len(set((await shared(session, "first", "second", "third")).values())) == 3
            assert first.epoch is not None
            assert second.epoch is third.epoch is None
            member_session = first.membership.member_session
            assert member_session is not None
            assert member_session.term is not None
            assert member_session.term.assignment_leader is not None
            known = member_session.term.assignment_leader.machine.members
            assert {name: str(wants) for name, wants in known.items()} == {
                "first": "everything",
                "second": "orders (at most 1)",
                "third": "topics that match ord.*",
            }


async def test_the_leaders_node_holds_version_id_timestamp_and_epoch_and_those_behind_watch_it(
    stage: Stage, zookeeper: local.ZooKeeper
) -> None:
    async with stage.looking() as session, AsyncExitStack() as stack:
        members = []
        for number, name in enumerate("abc", 1):
            members.append(await stack.enter_async_context(stage.member(name, expect=3, join_window=30)))
            await until_children(session, paths.LEADER, lambda names, number=number: len(names) == number)
        await shared(session, "a", "b", "c")
        line = await list_candidates(session)
        node = await session.get(line[0])
        assert node.owner == session_of(members[0]).id
        facts = {"version": 1, "id": name_of(members[0]), "timestamp": 0, "epoch": 1}
        assert json.loads(node.data) == facts

        watchers: dict[str, set[int]] = {}
        root = "/" + stage.url.rpartition("/")[2]
        for text in (await zookeeper.command("wchp")).splitlines():
            if text.startswith("/"):
                watchers[path := text.removeprefix(f"{root}/")] = set()
            elif text.strip():
                watchers[path].add(int(text.strip(), 16))
        b, c = (session_of(member).id for member in members[1:])
        assert watchers[line[0]] == {b}, "the next in line, and nobody else: no herd"
        assert watchers[line[1]] == {b, c}

        await session.delete(line[0], -1)
        await until_node(session, paths.GENERATION, lambda data: b" b-" in data)
        successor = json.loads(await until_node(session, line[1], lambda data: json.loads(data)["epoch"] is not None))
        assert successor["id"] == name_of(members[1])
        assert successor["epoch"] > 1


# -- claims -------------------------------------------------------------------------------------------------------------


async def test_a_lock_names_its_owner_and_ends_with_its_session(stage: Stage) -> None:
    async with stage.looking() as session, stage.member("a", expect=2) as a, stage.member("b", expect=2) as b:
        assignment = await shared(session, "a", "b")
        names = {"a": name_of(a), "b": name_of(b)}
        assert await owners(session) == {number: names[who] for number, who in assignment.items()}
        for number, who in assignment.items():
            node = await session.get(paths.owner(Partition("orders", number)))
            assert node.owner == session_of(a if who == "a" else b).id


async def test_locks_and_registration_are_given_back_on_close_and_not_with_the_session(stage: Stage) -> None:
    settings: dict[str, Any] = {"topics": {"orders": 4}, "period": PERIOD, "start": 0, "clock": lambda: 0}
    async with (
        stage.looking() as session,
        aiokcc.connect(stage.url, assignment="managed", member="a", join_window=0, **settings) as a,
    ):

        async def hold(partition: Partition) -> None:
            async with a.gate(*partition) as gate:
                await gate.wait_until(FAR)

        sharing = asyncio.ensure_future(a.share(hold))
        await shared(session, "a")
        sharing.cancel()
        await asyncio.wait([sharing])
        await until_children(session, f"{paths.OWNERS}/orders", lambda names: names == ())
        await until_children(session, paths.IDS, lambda names: names == ())
        assert session_of(a).state is SessionState.CONNECTED


async def test_a_rebalance_takes_all_of_its_claims_or_none(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = Claims(monkeypatch)
    claims.held = {"a"}
    async with stage.looking() as session, stage.member("a") as a:
        await claims.waiting("a")
        async with open_store(stage.url).session(timeout=10) as somebody:
            await somebody.create(paths.owner(Partition("orders", 2)), b"somebody", ephemeral=True)
            await claims.let("a")
            await claims.answered("a")
            assert claims.tried == [("a", [Partition("orders", n) for n in range(4)])]
            assert await owners(session) == {2: "somebody"}, "half of the claims were left behind"
            assert not stage.events, "something runs without its lock"
        await shared(session, "a")
        assert await owners(session) == dict.fromkeys(range(4), name_of(a))


async def test_a_member_that_missed_a_rebalance_claims_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody holds the locks yet; but the assignment that the claim rests on has been replaced."""
    claims = Claims(monkeypatch)
    async with stage.member("a", expect=2, join_window=30) as a, stage.looking() as session:
        claims.held = {"b"}
        async with stage.member("b", expect=2) as b:
            await claims.waiting("b")
            await claims.answered("a")
            stale, mine = await generation(session), await owners(session)
            assert len(mine) == len(b.assigned) == 2
            claims.held = {"a", "b"}
            await isolate(a.membership.store, session, "b", by="a test", now=0)
            await until_state(session, TopicState.STARTING)
            await until_node(session, paths.assignment("orders"), lambda data: data == b"a:0,1,2,3;")
            assert (await generation(session)).number > stale.number
            await claims.let("b")
            await claims.answered("b")
            assert await owners(session) == mine
            await claims.let("a")
            await shared(session, "a")
            assert await owners(session) == dict.fromkeys(range(4), name_of(a))
            assert not [event for event in stage.events if event[1] == "b"]


async def test_a_topic_that_leaves_while_it_is_being_claimed_is_no_fault(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = Claims(monkeypatch)
    claims.held = {"b"}
    both: dict[str, Any] = {"topics": {"bills": 2, "orders": 2}, "grows": True}
    async with stage.member("a", expect=2, join_window=30, **both) as a, stage.looking() as session:
        await until_state(session, TopicState.INITIAL)
        async with stage.member("b", expect=2, **both) as b:
            await claims.waiting("b")
            assert {p.topic for p in b.assigned} == {"bills", "orders"}
            assert a.remove(frozenset(Partition("bills", n) for n in range(2)))
            await until_children(session, paths.ASSIGNMENTS, lambda names: names == ("orders",))
            await claims.let("b")
            assert sorted((await shared(session, "a", "b")).values()) == ["a", "b"]
            assert set((await owners(session)).values()) == {name_of(a), name_of(b)}


async def test_members_run_what_the_assignment_says(stage: Stage) -> None:
    async with stage.looking() as session, AsyncExitStack() as stack:
        members = {
            name: await stack.enter_async_context(stage.member(name, topics={"orders": 6}, expect=3)) for name in "abc"
        }
        assignment = await shared(session, "a", "b", "c")
        assert sorted(assignment.values()) == ["a", "a", "b", "b", "c", "c"]
        await stage.until(lambda: len(stage.events) == 6)
        assert {(number, who) for what, who, number in stage.events if what == "begins"} == set(assignment.items())
        for name, group in members.items():
            mine = sorted(number for number, who in assignment.items() if who == name)
            assert group.assigned == {Partition("orders", number) for number in mine}
            running = f"orders:{','.join(map(str, mine))};"
            path = paths.member(name_of(group))
            await until_node(session, path, lambda data, running=running: json.loads(data)["running"] == running)


async def test_revoked_partitions_end_before_assigned_ones_begin(stage: Stage) -> None:
    """With round_robin nearly everything moves when a member comes or goes: the others lose partitions and get partitions."""
    six: dict[str, Any] = {"topics": {"orders": 6}, "assignor": "round_robin"}
    two, three = dict(enumerate("ababab")), dict(enumerate("abcabc"))
    at_work, done = asyncio.Event(), asyncio.Event()

    async def work(_: aiokcc.Gate) -> None:
        if at_work.is_set():
            await done.wait()

    async with (
        stage.member("a", work, expect=2, **six) as a,
        stage.member("b", work, expect=2, **six),
        stage.looking() as session,
    ):
        assert await shared(session, "a", "b") == two
        await stage.until(lambda: len(stage.events) == 6)
        at_work.set()
        async with stage.member("c", **six):
            assert await shared(session, "a", "b", "c") == three
            await stage.until(lambda: len(stage.events) == 6 + 8)
            joined = stage.events[6:]
        await until_node(session, paths.assignment("orders"), lambda data: data == b"a:0,2;b:1,5;")
        assert a.assigned < {Partition("orders", n) for n in (0, 2, 3)}
        with pytest.raises(TimeoutError):  # time is the event: nothing may begin for a while
            await asyncio.wait_for(stage.until(lambda: len(stage.events) > 6 + 8 + 2), 0.2)
        done.set()
        assert await shared(session, "a", "b") == two
        await stage.until(lambda: len(stage.events) == 6 + 8 + 8)
        left = stage.events[6 + 8 :]
    for moves, before, after in ((joined, two, three), (left, three, two)):
        for who in "ab":
            own = [(what, number) for what, name, number in moves if name == who]
            lost = {("ends", n) for n in before if before[n] == who != after[n]}
            got = {("begins", n) for n in before if before[n] != who == after[n]}
            assert set(own[: len(lost)]) == lost, "it began something before it had ended all"
            assert set(own[len(lost) :]) == got
        for number in before:
            of_it = [(what, name) for what, name, moved in moves if moved == number]
            if before[number] != after[number]:
                assert of_it == [("ends", before[number]), ("begins", after[number])], "it ran twice at a time"
            else:
                assert of_it == []


async def test_an_isolated_member_counts_as_closed_until_it_is_let_in_again(stage: Stage) -> None:
    """It is there, and is assigned nothing; nor when it is started anew, for an operator has said so and not a session."""
    store = open_store(stage.url)
    async with stage.member("a", expect=2), stage.looking() as session:
        async with stage.member("b", expect=2) as b:
            await shared(session, "a", "b")
            await isolate(store, session, "b", by="a test", now=0)
            assert set((await shared(session, "a")).values()) == {"a"}
            assert name_of(b) in await session.children(paths.IDS)
            assert b.assigned == frozenset()
        async with stage.member("b") as b:
            await until_children(session, paths.IDS, lambda names: name_of(b) in names)
            async with stage.member("c"):
                assert set((await shared(session, "a", "c")).values()) == {"a", "c"}
                await rejoin(store, session, "b")
                assert len(set((await shared(session, "a", "b", "c")).values())) == 3


# -- states -------------------------------------------------------------------------------------------------------------


async def test_a_topic_goes_from_initial_over_starting_to_stable_and_over_closing_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a handler is at work on a partition that moves, it is unassigned; then it is assigned to the new member."""
    claims = Claims(monkeypatch)
    claims.held = {"a", "b", "c"}
    done = asyncio.Event()

    async def work(_: aiokcc.Gate) -> None:
        await done.wait()

    async with stage.member("a", work, expect=2, join_window=30) as a, stage.looking() as session:
        assert await until_state(session, TopicState.INITIAL) == ({}, {})
        async with stage.member("b", work, expect=2) as b:
            to_start, to_close = await until_state(session, TopicState.STARTING)
            assert (sorted(to_start.items()), to_close) == ([(0, "a"), (1, "b"), (2, "a"), (3, "b")], {})
            assert await owners(session) == {}
            await claims.let("a", "b")
            await until_state(session, TopicState.STABLE)
            before = await owners(session)
            assert before == {0: name_of(a), 1: name_of(b), 2: name_of(a), 3: name_of(b)}
            async with stage.member("c", expect=2) as c:
                to_start, to_close = await until_state(session, TopicState.CLOSING)
                assert to_start == {}
                ((number, loser),) = to_close.items()
                assert before[number].startswith(f"{loser}-")
                assert number not in await given(session), "closing before starting"
                assert await owners(session) == before, "whoever works on it holds it until he has done"
                done.set()
                assert await until_state(session, TopicState.STARTING) == ({number: "c"}, {})
                assert number not in await owners(session)
                await claims.let("c")
                await until_state(session, TopicState.STABLE)
                assert await owners(session) == {**before, number: name_of(c)}


async def test_a_new_leader_recovers_the_state_in_the_middle_of_closing(stage: Stage) -> None:
    """The leader dies. Whoever succeeds it finds what is to close, and gives it to nobody before it is closed."""
    done = asyncio.Event()

    async def work(_: aiokcc.Gate) -> None:
        await done.wait()

    six: dict[str, Any] = {"topics": {"orders": 6}}
    async with Proxy(upstream(stage)) as proxy, stage.looking() as session:
        lost: dict[str, Any] = {"url": through(proxy, stage), "session_timeout": 1.5, "expect": 2, "join_window": 30}
        async with stage.member("a", **lost, **six) as a, stage.member("b", work, expect=2, **six) as b:
            assignment = await shared(session, "a", "b")
            async with stage.member("c", **six):
                await until_node(session, paths.state("orders"), lambda data: b"toClose b:" in data)
                closing = {number for number, who in assignment.items() if who == "b"} - {
                    number for number, who in (await given(session)).items() if who == "b"
                }
                assert len(closing) == 1
                assert (await generation(session)).leader == name_of(a)
                break_off(proxy)
                await until_node(session, paths.GENERATION, lambda data: b" a-" not in data)
                path = paths.assignment("orders")
                await until_node(session, path, lambda data: b"a:" not in data and b"c:" in data)
                held = await owners(session)
                assert not closing & (await given(session)).keys(), "it was given away while somebody ran it"
                assert {held[number] for number in closing} == {name_of(b)}
                done.set()
                after = await shared(session, "b", "c")
                assert sorted(after) == list(range(6))
