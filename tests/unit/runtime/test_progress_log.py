"""The progress of a member in its log: one line at most every ten seconds, with facts."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from aiokcc.runtime.progress_log import PROGRESS
from tests.unit.world import PERIOD, World
from tests.virtual import settle


def progress(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.msg == PROGRESS]


async def test_the_limit_is_logged_at_most_every_ten_seconds(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aiokcc.runtime")
    async with world.connect(member="a") as a, a.gate("orders", 0) as one, a.gate("orders", 1) as two:
        await settle()
        for period in range(1, 36):
            await asyncio.gather(one.wait_until(period * PERIOD, period), two.wait_until(period * PERIOD, period))
            await asyncio.sleep(1)
    found = progress(caplog)
    assert len(found) == 3, "one every ten of 35 seconds"
    last = vars(found[-1])
    assert last["member"].startswith("a-")
    assert (last["generation"], last["partitions"]) == (1, 2)
    assert last["limit"] == last["periods"] * PERIOD + PERIOD
    assert "the limit is 1970-01-01T" in found[-1].getMessage()


async def test_leading_and_standing_still_have_facts(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aiokcc.runtime")
    async with world.connect(member="a") as a, a.gate("orders", 0) as one:
        await settle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(61):
                await one.wait_until(PERIOD, 1)
    (leads,) = [vars(r) for r in caplog.records if r.msg == "%s leads under generation %d"]
    assert (leads["member"][:2], leads["generation"]) == ("a-", 1)
    stands = [vars(r) for r in caplog.records if "the limit has stood" in r.getMessage()]
    assert stands[0]["partitions"] == ["orders.1"]
    assert stands[0]["stood_seconds"] == pytest.approx(30, abs=1)
