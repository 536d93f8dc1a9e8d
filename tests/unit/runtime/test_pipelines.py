"""Tests of what the operator's tools read and show of a pipeline; a store in memory holds the nodes."""

from __future__ import annotations

import json
from dataclasses import replace

from aiokcc.core.periods import format_time
from aiokcc.runtime.pipelines import read_pipeline
from aiokcc.spark.restating import alone_with
from aiokcc.views.pipeline_view import describe_state, pipeline_table
from tests.unit.world import World

DEFINITION = {"topics": ["orders"], "period": 60_000, "sink": "Parquet in /out", "late": "restate"}


async def test_the_version_a_running_restatement_and_waiting_late_records_are_shown(world: World) -> None:
    async with world.store.session() as session:
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
