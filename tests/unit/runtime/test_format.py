"""A group has one format: a member of another version does not join it ([one format] in docs/explanation/protocol.md)."""

from __future__ import annotations

import asyncio
import json

import pytest

import aiokcc
from aiokcc.core import paths
from aiokcc.core.run import FORMAT
from aiokcc.stores.port import ANY_VERSION
from tests.unit.world import PERIOD, World
from tests.virtual import settle


@pytest.mark.parametrize("version", [FORMAT - 1, FORMAT + 1])
async def test_a_member_does_not_join_a_group_of_another_format(world: World, version: int) -> None:
    async with world.store.session() as hand:
        async with world.connect(member="a"):
            await settle()
        node = await hand.get(paths.RUN)
        await hand.set(paths.RUN, json.dumps({**json.loads(node.data), "version": version}).encode(), ANY_VERSION)
        with pytest.raises(aiokcc.OtherFormatError, match=f"its format is {version}, and this version has {FORMAT}"):
            async with world.connect(member="b"):
                pytest.fail("it has joined")
        assert world.below("progress") == []
        assert world.below("ids") == []


async def test_a_report_and_a_cut_have_the_partitions_and_the_offsets_apart(world: World) -> None:
    async with world.connect(member="a") as a, a.gate("orders", 0) as led:
        await settle()
        async with world.connect(member="b") as b, b.gate("orders", 1) as followed:
            await settle()
            waiting = [led.wait_until(PERIOD, 7), followed.wait_until(PERIOD + 5, 3)]
            await asyncio.gather(*waiting)
            (name,) = [name for name in world.below("progress") if name.startswith("b-")]
            epoch = a.epoch
            assert (
                world.data(f"progress/{name}")
                == f"{epoch} {PERIOD} {PERIOD + 5}\norders:1;\n{PERIOD + 5};\n3;".encode()
            )
            head, *lines = world.data("cuts/1").decode().split("\n")
            assert head == f"1 0 {PERIOD} {epoch}"
            assert [line.partition(" ")[2] for line in lines] == ["orders:0; 7;", "orders:1; 3;"]
            led.finish(8)
            followed.finish(4)
