"""Fences keep members of a managed group from acting on what is out of date, on a real ZooKeeper."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from aiokcc.core import paths
from aiokcc.core.leader import Decision, Leader, Wait
from aiokcc.core.partitions import Partition
from aiokcc.core.report import Report
from aiokcc.runtime.election import list_candidates
from aiokcc.runtime.own_report import OwnReport
from tests.faults import Proxy
from tests.managed import Stage, break_off, generation, shared, through, until_children, until_node, upstream


@pytest.fixture
def stage(zk_root: str) -> Stage:
    return Stage(zk_root)


async def test_a_report_of_an_earlier_generation_does_not_move_the_limit(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It covers the same partitions, and says that all have arrived; but another has taken over since it was made."""
    held, permits, said = asyncio.Event(), asyncio.Semaphore(0), list[Report]()
    write, decide = OwnReport._write, Leader.decide
    decided, learnt = list[Decision](), asyncio.Event()

    async def write_when_told(us: OwnReport, report: Report) -> None:
        if us.name.startswith("c-"):
            said.append(report)
            held.set()
            await permits.acquire()
        await write(us, report)

    def decide_and_tell(leader: Leader, now: int) -> Decision:
        decision = decide(leader, now)
        if any(name.startswith("c-") for name in leader.reports):
            decided.append(decision)
            learnt.set()
        return decision

    monkeypatch.setattr(OwnReport, "_write", write_when_told)
    monkeypatch.setattr(OwnReport, "_send", lambda _: False)  # nothing is sent before it is told
    monkeypatch.setattr(Leader, "decide", decide_and_tell)
    async with stage.looking() as session, AsyncExitStack() as stack:
        for number, name in enumerate("abc", 1):
            await stack.enter_async_context(stage.member(name, topics={"orders": 3}, expect=3, join_window=30))
            await until_children(session, paths.LEADER, lambda names, number=number: len(names) == number)
        await shared(session, "a", "b", "c")
        await held.wait()
        limit = await session.get(paths.COORDINATOR)
        await session.delete((await list_candidates(session))[0], -1)
        await until_node(session, paths.GENERATION, lambda data: b" b-" in data)
        assert said[0].generation < (await generation(session)).number
        permits.release()
        await learnt.wait()
        assert isinstance(decided[0], Wait), f"it was counted: {decided[0]}"
        assert await session.get(paths.COORDINATOR) == limit
        for _ in range(100):
            permits.release()
        await until_node(session, paths.COORDINATOR, lambda data: data != limit.data)


async def test_a_member_whose_session_has_ended_starts_nothing_of_what_others_run_now(stage: Stage) -> None:
    """It cannot be told: it knows by its own clock."""
    async with Proxy(upstream(stage)) as proxy, stage.looking() as session:
        lost: dict[str, Any] = {"url": through(proxy, stage), "session_timeout": 1.5}
        async with stage.member("a", expect=2), stage.member("b", expect=2, **lost) as b:
            assignment = await shared(session, "a", "b")
            mine = sorted(number for number, who in assignment.items() if who == "b")
            gates = [b.membership.gates[Partition("orders", number)] for number in mine]
            await stage.until(lambda: sum(event[1] == "b" for event in stage.events) == len(mine))
            assert all(gate.is_open(0) for gate in gates)
            break_off(proxy)
            path = f"{paths.OWNERS}/orders"
            await until_children(session, path, lambda names: not {str(number) for number in mine} & {*names})
            assert not any(gate.is_open(0) for gate in gates), "it goes on when its locks have gone"
            await shared(session, "a")
            assert not any(gate.is_open(0) for gate in gates)
            proxy.accept()
            await shared(session, "a", "b")


@pytest.mark.parametrize("had", [False, True], ids=["a-new-group", "somebody-else-had-all"])
async def test_the_join_window_is_open_until_its_deadline(stage: Stage, had: bool) -> None:
    """Somebody else may still come, or come back. Who has not by then is left out."""
    async with stage.looking() as session:
        if had:
            async with stage.member("a"):
                await shared(session, "a")
        began = asyncio.get_running_loop().time()
        async with stage.member("b", expect=2, join_window=1):
            assert set((await shared(session, "b")).values()) == {"b"}
            assert asyncio.get_running_loop().time() - began >= 1
