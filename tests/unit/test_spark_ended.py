"""A pipeline whose run is over when it is started: done, unless something was left or it is to start again. Without Spark."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from aiokcc.core.partitions import Partition
from aiokcc.errors import RunEnded
from aiokcc.spark.driver import AsyncReplay
from aiokcc.spark.plan import Intent, Place
from aiokcc.spark.records import Records
from aiokcc.spark.sinks import FunctionSink
from aiokcc.stores import Session, Store, open_store

INTENT = Intent(0, (), ((0, 10),), {Partition("t", 0): (Place(0, 0), Place(5, 5))})


def driver(store: Store, *, from_scratch: bool) -> AsyncReplay:
    options: Any = SimpleNamespace(
        store=store,
        from_scratch=from_scratch,
        name="p",
        session_timeout=10.0,
        connect_timeout=10.0,
        period=10,
        timestamp=None,
        subscription=None,
        settings=SimpleNamespace(topics=["t"], partitions=None, source={}),
    )
    cluster: Any = None
    return AsyncReplay(options, cluster, None, RunEnded("over"))


async def written(store: Store, replay: AsyncReplay, sink: FunctionSink, *, checkpointed: bool) -> None:
    async with store.session(timeout=10) as session:

        async def present() -> Session:
            return session

        records = Records(store, "p", present)
        await records.begin(replay._definition(sink), "one")
        await records.intend(INTENT)
        if checkpointed:
            await records.checkpoint(0)


def nothing(*_: Any) -> None:
    pytest.fail("nothing is left to be computed")


@pytest.mark.parametrize("from_scratch", [False, True])
@pytest.mark.parametrize("checkpointed", [False, True])
async def test_a_run_that_is_over(from_scratch: bool, checkpointed: bool) -> None:
    store = open_store(f"memory://{uuid.uuid4().hex}")
    sink = FunctionSink(nothing)
    replay = driver(store, from_scratch=from_scratch)
    await written(store, replay, sink, checkpointed=checkpointed)
    if checkpointed and not from_scratch:
        summary = await replay.for_each_period(nothing, sink)
        assert (summary.jobs, summary.event_time) == (0, 10)
    else:
        with pytest.raises(RunEnded):
            await replay.for_each_period(nothing, sink)
