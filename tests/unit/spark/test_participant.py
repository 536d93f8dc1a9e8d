"""The driver as a member of the group when its session ends. On the memory store."""

from __future__ import annotations

import logging
import uuid
from typing import Any

import pytest

from aiokcc.core import paths
from aiokcc.core.partitions import Partition
from aiokcc.core.report import Cut
from aiokcc.core.run import CUT_SLOTS, Bounds
from aiokcc.errors import PartitionOwnedError
from aiokcc.spark.participant import Participant
from aiokcc.spark.plan import CrossedPeriod, Place
from aiokcc.stores import Store, open_store
from tests.joining import joining

PARTITIONS = [Partition("t", 0), Partition("t", 1)]


async def bounds() -> dict[Partition, Bounds]:
    return {p: Bounds(0, 10) for p in PARTITIONS}


def driver(store: Store, member: str, **settings: Any) -> Any:
    return joining(store, topics={"t": 2}, period="1m", start=0, offsets=bounds, member=member, **settings)


async def test_after_a_lost_session_it_is_ready_as_soon_as_it_holds_its_locks_again() -> None:
    store: Any = open_store(f"memory://{uuid.uuid4().hex}")
    async with driver(store, "one") as group:
        participant = Participant(group, 5.0)
        await participant.open(PARTITIONS)
        await participant.ready()
        for _ in range(3):
            before = participant.member.session
            store.server.expire(before)
            await participant.ready()  # StoreUnreachableError if it missed that it holds them
            assert participant.member.session is not before
            assert all(track.gate.progress.owned for track in participant.tracks.values())
        await participant.close()


async def test_a_lock_that_another_member_took_meanwhile_raises_an_error() -> None:
    store: Any = open_store(f"memory://{uuid.uuid4().hex}")
    async with store.session(timeout=10) as somebody, driver(store, "one") as group:
        participant = Participant(group, 0.2)
        await participant.open(PARTITIONS)
        store.server.expire(participant.member.session)
        await somebody.create("owners/t/0", b"somebody", ephemeral=True)
        with pytest.raises(PartitionOwnedError, match=r"t\.0 is held by another member"):
            await participant.ready()
        await participant.close()


async def test_many_published_periods_are_closed_in_few_steps_and_the_kept_cuts_are_right() -> None:
    store: Any = open_store(f"memory://{uuid.uuid4().hex}")
    minute, count = 60_000, 60
    async with store.session(timeout=10) as session, driver(store, "one", lookahead=100) as group:
        participant = Participant(group, 5.0)
        await participant.open(PARTITIONS)
        before = (await session.get(paths.COORDINATOR)).version
        crossed = [
            CrossedPeriod(
                minute * n, minute * (n + 1), {p: Place(10 * n + p.number, 10 * n + p.number) for p in PARTITIONS}
            )
            for n in range(count)
        ]
        participant.report_crossings(crossed)
        participant.write_report()
        while participant.limit.floor <= minute * count:
            await participant.moved(None)
        after = (await session.get(paths.COORDINATOR)).version
        assert after - before <= CUT_SLOTS + 2
        cuts = [
            Cut.decode("cut", (await session.get(paths.cut(version, CUT_SLOTS))).data)
            for version in range(after - CUT_SLOTS + 1, after + 1)
        ]
        assert [cut and cut.limit for cut in cuts] == [period.end for period in crossed[-CUT_SLOTS:]]
        for cut, period in zip(cuts, crossed[-CUT_SLOTS:], strict=True):
            for partition in PARTITIONS:
                mark = cut and cut.find(partition)
                assert mark
                assert mark.offset == period.places[partition].low
        await participant.close()


@pytest.mark.parametrize("is_done", [False, True])
async def test_it_warns_of_released_partitions_unless_the_next_start_continues(
    caplog: pytest.LogCaptureFixture, is_done: bool
) -> None:
    caplog.set_level(logging.INFO)
    async with driver(open_store(f"memory://{uuid.uuid4().hex}"), "one") as group:
        participant = Participant(group, 5.0)
        await participant.open(PARTITIONS)
        if is_done:
            participant.leave_the_rest()
        await participant.close()
    (record,) = [record for record in caplog.records if "released before" in record.getMessage()]
    assert record.levelno == (logging.INFO if is_done else logging.WARNING)
