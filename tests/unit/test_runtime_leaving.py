"""A member that leaves a managed group and loses its session on the way."""

from __future__ import annotations

import asyncio

import aiokcc
from aiokcc.core.partitions import Partition
from tests.unit.world import World


async def test_who_leaves_with_a_finished_partition_and_loses_its_session_waits_for_nobody(world: World) -> None:
    """What it said has gone with the session, and whoever is given the partition says it again."""
    said = asyncio.Event()
    async with world.connect(member="stays", assignment="managed") as stays:
        holding = asyncio.ensure_future(_hold(stays))
        async with asyncio.timeout(100):
            async with world.connect(member="leaves", assignment="managed") as leaves:

                async def finish(partition: Partition) -> None:
                    async with leaves.gate(*partition) as gate:
                        gate.finish(1)
                    said.set()

                sharing = asyncio.ensure_future(leaves.share(finish))
                await said.wait()
                sharing.cancel()
                await asyncio.wait([sharing])
                world.server.expire(world.session(leaves))
            assert leaves._member.session.stop_at < 0  # it did not join again either
        holding.cancel()
        await asyncio.wait([holding])


async def _hold(coordinator: aiokcc.Coordinator) -> None:
    async def hold(partition: Partition) -> None:
        async with coordinator.gate(*partition) as gate:
            await gate.wait_until(10**12)

    await coordinator.share(hold)
