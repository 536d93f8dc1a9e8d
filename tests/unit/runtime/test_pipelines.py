"""Tests of what the operator's tools read and show of a pipeline; a store in memory holds the nodes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from aiokcc.core.paths import is_session_of
from aiokcc.core.periods import format_time
from aiokcc.errors import PipelineBusyError
from aiokcc.runtime.pipelines import read_pipeline
from aiokcc.spark.restating import alone_with
from aiokcc.stores.port import Session
from aiokcc.views.pipeline_view import describe_state, pipeline_table
from tests.unit.world import World

DEFINITION = {"topics": ["orders"], "period": 60_000, "sink": "Parquet in /out", "late": "restate"}


async def write_pipeline(session: Session) -> None:
    await session.ensure("pipelines/p")
    nodes = {
        "definition": json.dumps(DEFINITION),
        "attempt": "3 d1",
        "intent": '{"number": 0, "periods": [[0, 60000]]}',
        "published": "0 0",
        "function": '{"version": "2", "fingerprint": "4.0.0:0a"}',
    }
    for name, data in nodes.items():
        await session.create(f"pipelines/p/{name}", data.encode())


async def test_a_connected_driver_is_known_by_its_member_session(world: World) -> None:
    """The attempt has the name of the member; its registration has the name of its present session."""
    async with world.store.session() as session:
        async with world.connect(member="d1"), world.connect(member="d10"):
            await write_pipeline(session)
            running = await read_pipeline(world.store, session, "p")
            assert running is not None
            assert (running.is_driven, describe_state(running)) == (True, "driven by d1, attempt 3")
            with pytest.raises(PipelineBusyError, match="'p' is driven by d1, also after 1 s"):
                async with alone_with(session, "p", "host-1, process 7", 1):
                    pass
        after = await read_pipeline(world.store, session, "p")
        assert after is not None
        assert not after.is_driven
        async with alone_with(session, "p", "host-1, process 7", 1):
            pass


def test_names_of_other_members_are_not_taken_for_sessions() -> None:
    assert is_session_of("d1-1f", "d1")
    assert is_session_of("d1--7fffffffffffffff", "d1")  # ZooKeeper's numbers may be negative
    assert not any(
        is_session_of(name, "d1") for name in ("d1", "d10-1f", "d1-a-1f", "d1-x", "d1-1f-2a", "e1-1f", "d1-")
    )


async def test_the_version_a_running_restatement_and_waiting_late_records_are_shown(world: World) -> None:
    async with world.store.session() as session:
        await write_pipeline(session)
        async with alone_with(session, "p", "host-1, process 7", 1):
            during = await read_pipeline(world.store, session, "p")
        after = await read_pipeline(world.store, session, "p")
    assert during is not None
    assert after is not None
    assert (during.version, during.restated_by, during.restates_late, during.late) == (
        "2",
        "host-1, process 7",
        True,
        None,
    )
    assert describe_state(during) == "is being restated by host-1, process 7; not driven"
    assert replace(during, restated_by=None) == after
    assert describe_state(after) == "not driven"
    assert describe_state(replace(after, late=1)) == "not driven; 1 late record to restate"
    (row,) = pipeline_table([replace(after, late=4)], 60.0).rows
    assert row == (
        "p",
        format_time(60_000),
        row[2],
        "2",
        "not driven; 4 late records to restate",
        "Parquet in /out",
    )
