"""A small group on virtual time, as a program: it prints all that the leader wrote. Each run must print the same bytes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from aiokcc.runtime import gate
from tests.unit.world import PERIOD, World
from tests.virtual import VirtualLoop, settle

MEMBERS = 6


async def main() -> None:
    """Run six members with two partitions each over three periods; the leader loses its session first."""
    world = World("same-history")
    gate.boottime = world.time  # type: ignore[assignment, attr-defined]  # as the fixture of the tests does
    written: list[bytes] = []
    apply = world.server._write

    def record(ops):  # type: ignore[no-untyped-def]
        written.extend(
            op.data for op in ops if op.path.partition("/group/")[2].startswith(("cuts/", "coordinator", "run"))
        )
        return apply(ops)

    world.server._write = record  # type: ignore[method-assign]
    async with AsyncExitStack() as stack:
        settings = {"topics": {"orders": 2 * MEMBERS}}
        members = [await stack.enter_async_context(world.connect(member=f"m{n}", **settings)) for n in range(MEMBERS)]
        await settle()
        logs = [range(number, 3 * PERIOD, 100 + number) for number in range(2 * MEMBERS)]
        first, *others = [
            [world.consume(members[n], number, logs[number]) for number in (n, n + MEMBERS)] for n in range(MEMBERS)
        ]
        async with asyncio.TaskGroup() as tasks:
            for work in others:
                for one in work:
                    tasks.create_task(one)
            await settle()
            await world.expire(members[0])  # the next leader finds the reports of all others, in no order of their own
            for one in first:
                tasks.create_task(one)
    for data in written:
        print(data.decode())


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
