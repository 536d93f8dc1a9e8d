"""The election: one leader, a chain of watches, and terms that are over and can write nothing."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

from aiokcc.runtime.election import campaign, list_candidates
from aiokcc.stores import ANY_VERSION, Session
from tests.unit.world import PERIOD, World
from tests.virtual import settle


class Candidate:
    """Stands for election and, when elected, leads until told to resign."""

    def __init__(self, session: Session, name: str) -> None:
        self.leads, self.resign = False, asyncio.Event()
        self.task = asyncio.create_task(self._stand(session, name))

    async def _stand(self, session: Session, name: str) -> None:
        async with campaign(session, name, lambda: 0):
            self.leads = True
            await self.resign.wait()
        self.leads = False


async def test_only_the_next_candidate_is_notified(world: World) -> None:
    async with world.store.session() as session:
        await session.ensure("leader")
        candidates = []
        for n in range(6):
            candidates.append(Candidate(session, f"c{n}"))
            await settle()
        assert [c.leads for c in candidates] == [True] + [False] * 5
        line = await list_candidates(session)
        watched = {key[0].rpartition("/")[2]: len(watches) for key, watches in world.server._watches.items()}
        places = [watched.get(path.removeprefix("leader/"), 0) for path in line]
        assert places == [1, 2, 2, 2, 2, 1]  # each its own node and the one before; the first watches nothing
        world.record_calls()
        candidates[3].resign.set()  # not its turn: it cannot resign what it does not have
        candidates[0].resign.set()
        await settle()
        assert [c.leads for c in candidates] == [False, True, False, False, False, False]
        assert {path for call in world.calls if call.verb == "watch" for path in call.paths} == {line[0]}
        candidates[3].resign.clear()
        candidates[2].task.cancel()  # leaves the line: only who stood behind is concerned
        await settle()
        assert [c.leads for c in candidates] == [False, True, False, False, False, False]
        candidates[1].resign.set()
        await settle()
        assert candidates[3].leads
        for candidate in candidates:
            candidate.task.cancel()
        await asyncio.gather(*(c.task for c in candidates), return_exceptions=True)
        assert not world.below("leader")


async def test_the_leaders_node_tells_who_it_is_and_its_epoch(world: World) -> None:
    async with world.connect(member="a") as c:
        await settle()
        (name,) = world.below("leader")
        facts = json.loads(world.data(f"leader/{name}"))
        assert facts["id"].startswith("a-")
        assert facts["epoch"] == c.epoch == 1
        assert world.data("generation").decode() == f"1 {facts['id']} took office"


async def test_a_leader_deposed_while_it_takes_over_does_not_go_on(world: World) -> None:
    """Its successor has bumped the generation between its take-over and its first decision."""
    async with world.connect(member="b") as b:
        await settle()
        async with world.connect(member="a") as a, a.gate("orders", 0) as one, b.gate("orders", 1) as two:
            await settle()
            assert b.epoch == 1
            with world.server.hold_reply(
                lambda call: call.paths == ("topic-partitions",) and call.session is world.session(a)
            ) as reading:
                (mine,) = [n for n in world.below("leader") if b"b-" in world.data(f"leader/{n}")]
                await world.session(b).delete(f"leader/{mine}", ANY_VERSION)
                await reading.reached()  # a has taken over and reads
                assert world.leader().startswith("a-")
                (mine,) = [n for n in world.below("leader") if b"a-" in world.data(f"leader/{n}")]
                await world.session(b).delete(f"leader/{mine}", ANY_VERSION)
                await settle()
                assert world.leader().startswith("b-")
            await settle()
            assert a.epoch is None
            assert b.epoch == 3
            await asyncio.wait_for(asyncio.gather(one.wait_until(PERIOD), two.wait_until(PERIOD)), 60)
            one.finish()
            two.finish()


async def test_leaders_that_die_one_after_the_other(world: World) -> None:
    async with AsyncExitStack() as stack:
        coordinators = []
        for n in range(3):
            coordinators.append(await stack.enter_async_context(world.connect(topics={"orders": 3}, member=f"m{n}")))
            await settle()
        gates = [await c.gate("orders", n).__aenter__() for n, c in enumerate(coordinators)]
        for period in range(1, 10):
            (leader,) = [c for c in coordinators if c.epoch is not None]
            assert leader.epoch == period
            world.server.expire(world.session(leader))
            await asyncio.wait_for(asyncio.gather(*(gate.wait_until(period * PERIOD) for gate in gates)), 60)
            await settle()
        for gate in gates:
            gate.finish()


async def test_a_leader_forgets_members_that_have_gone(world: World) -> None:
    """Members that come and go leave no watch behind."""
    async with world.connect(member="a") as a:
        await settle()
        assert a.epoch == 1
        for n in range(5):
            async with world.connect(member=f"guest{n}") as guest:
                if n % 2:
                    async with guest.gate("orders", 0) as gate:
                        await gate.wait_until(0)
                await settle()
            await settle()
        left = [path for path, _ in world.server._watches if "guest" in path]
        assert left == []
