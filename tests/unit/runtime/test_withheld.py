"""Records that a member has gathered and not processed yet hold the limit, however long that takes."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.world import PERIOD, World


@pytest.mark.parametrize("leads", ["worker", "other"])
@pytest.mark.parametrize("lookahead", [0, 3])
async def test_the_limit_waits_for_what_is_withheld(world: World, leads: str, lookahead: int) -> None:
    names = ["worker", "other"] if leads == "worker" else ["other", "worker"]
    settings = {"topics": {"orders": 2}, "start": 0, "lookahead": lookahead}
    async with world.connect(member=names[0], **settings) as one, world.connect(member=names[1], **settings) as two:
        worker, other = (one, two) if leads == "worker" else (two, one)
        async with worker.gate("orders", 0) as mine, other.gate("orders", 1) as theirs:
            worker.membership.progress.withheld_from = 0
            waiting = [asyncio.create_task(gate.wait_until(20 * PERIOD, 1)) for gate in (mine, theirs)]
            floor = world.limit.floor
            await asyncio.sleep(5)  # far longer than it takes until a late member tells who is slow
            assert world.limit.floor == floor
            worker.membership.progress.withheld_from = None
            worker.membership.report_if_due()
            await asyncio.gather(*waiting)
            mine.finish()
            theirs.finish()
