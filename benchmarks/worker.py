"""A worker process of the benchmarks period-latency and members: a member of the group in one of three ways, or many members.

The first line on standard input is the plan; each further line is the request for a round. In a round every partition has
one record per period, and records when it arrived and when it was woken, in memory that was allocated before. Between two
records it works: each process for another random time, like handlers that wait for something, so that members arrive one
after the other and not all at once. All three ways get the same times. The answer after the round has, for each period,
the latest of both over this worker's partitions, in nanoseconds of the monotonic clock, which all processes of a machine
share.

``gate``      aiokcc: each partition is a task that awaits ``gate.wait_until(ts)``.
``members``   the same with many members in this process, each with a session of its own; no work between two records.
``polling``   the classic way: a member writes its progress when its last partition has arrived and polls the limit every
              10 ms; the leader polls everybody's progress every 50 ms and writes the limit.
``barrier``   kazoo's DoubleBarrier, one member per process: leave the last one, enter the next one; ``enter`` is what is
              timed. Each period has a barrier of its own, made before, and no process leaves before all have entered:
              otherwise one may wait for ever, because the node ``ready`` was created and deleted before it looked.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import queue
import random
import sys
import threading
import time
from array import array
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final

import aiokcc
from aiokcc.stores import ANY_VERSION, Session

TOPIC: Final = "bench"
LEADER_POLL: Final = 0.050
FOLLOWER_POLL: Final = 0.010
WORK: Final = 0.002
"""The most seconds of work per record and process; the average is half of it."""
_JOINING: Final = 16
"""The number of members of a process that join at a time."""
_LONG_SESSION: Final = 40.0
_PARTING: Final = 60.0
"""Seconds within which a worker ends by itself after the last request."""

_clock = time.monotonic_ns
Wait = Callable[[int], Awaitable[None]]


def run(work: Coroutine[Any, Any, None], loop: str) -> None:
    """Run the work to its end, on the event loop of this name: asyncio or uvloop."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if loop == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Requests:
    """Reads standard input in a thread, so that this process notices the end of the harness whatever it waits for."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._arrived: Callable[[], object] = lambda: None
        self.busy = False
        self.plan: dict[str, Any] = json.loads(sys.stdin.readline())
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self._lines.put(json.loads(line))
            self._arrived()
        self._lines.put(None)
        self._arrived()
        if not self.busy:
            threading.Event().wait(_PARTING)  # usually this process has ended by then, and this thread with it
        os._exit(1)  # the harness has ended: nobody reads an error

    def next(self) -> dict[str, Any] | None:
        """Return the next request; None if there are no more. It blocks."""
        return self._lines.get()

    async def wait(self) -> dict[str, Any] | None:
        """Return the next request, without blocking the event loop."""
        loop = asyncio.get_running_loop()
        while True:
            arrived = loop.create_future()

            self._arrived = functools.partial(loop.call_soon_threadsafe, _settle, arrived)
            with contextlib.suppress(queue.Empty):
                return self._lines.get_nowait()
            await arrived

    @staticmethod
    def answer(**facts: Any) -> None:
        """Send an answer to the harness."""
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()


def works(plan: dict[str, Any], seed: int) -> Iterator[float]:
    """Yield how long this process works before each record, in seconds: the group has about one arrival in 2 ms."""
    chance = random.Random(seed * 1009 + plan["index"])
    while True:
        yield chance.uniform(0.0, WORK * plan["processes"])


class Round:
    """The times of one round. ``stamps`` are the records' timestamps, the same for all partitions."""

    def __init__(self, request: dict[str, Any], plan: dict[str, Any], partitions: int) -> None:
        count = request["periods"]
        self._work = None if plan["way"] == "members" else works(plan, request["first"])
        self._working: dict[int, asyncio.Future[None]] = {}
        self.stamps = [request["first"] + n * request["step"] for n in range(count)]
        self._arrived = [array("q", bytes(8 * count)) for _ in range(partitions)]
        self._woken = [array("q", bytes(8 * count)) for _ in range(partitions)]
        self._cpu = time.process_time_ns()

    async def partition(self, number: int, wait_until: Wait) -> None:
        """Pass the records of one partition, one per period."""
        arrived, woken = self._arrived[number], self._woken[number]
        for n, ts in enumerate(self.stamps):
            if self._work is not None:
                await self._at_work(n, self._work)
            arrived[n] = _clock()
            await wait_until(ts)
            woken[n] = _clock()

    def _at_work(self, n: int, works: Iterator[float]) -> asyncio.Future[None]:
        """One timer for all partitions of the process: the work ends for all of them at the same moment."""
        work = self._working.get(n)
        if work is None:
            loop = asyncio.get_running_loop()
            work = self._working[n] = loop.create_future()
            loop.call_later(next(works), _settle, work)
            self._working.pop(n - 2, None)
        return work

    def facts(self) -> dict[str, Any]:
        """Return the answer."""
        return {
            "cpu": time.process_time_ns() - self._cpu,
            "arrived": list(map(max, *self._arrived)) if len(self._arrived) > 1 else list(self._arrived[0]),
            "woken": list(map(max, *self._woken)) if len(self._woken) > 1 else list(self._woken[0]),
        }


class Rounds:
    """Waits until all partitions are ready, starts a round for all of them, and waits until all have ended it."""

    def __init__(self, requests: Requests, partitions: int) -> None:
        self._requests = requests
        self._partitions = partitions
        self._next: asyncio.Future[Round | None] = asyncio.get_running_loop().create_future()
        self._left = partitions
        self._ended = asyncio.Event()

    async def drive(self) -> None:
        """Serve requests until there are no more."""
        loop = asyncio.get_running_loop()
        await self._ended.wait()
        self._requests.answer(ready=True)
        while (request := await self._requests.wait()) is not None:
            this = Round(request, self._requests.plan, self._partitions)
            begin, self._next = self._next, loop.create_future()
            self._left = self._partitions
            self._ended.clear()
            self._requests.busy = True
            begin.set_result(this)
            await self._ended.wait()
            self._requests.busy = False
            self._requests.answer(**this.facts())
        self._next.set_result(None)

    async def take(self, number: int, wait_until: Wait) -> None:
        """Run one partition in all rounds."""
        self._end()
        while (this := await asyncio.shield(self._next)) is not None:
            await this.partition(number, wait_until)
            self._end()

    def _end(self) -> None:
        self._left -= 1
        if not self._left:
            self._ended.set()


# -- ours --------------------------------------------------------------------------------------------------------------


async def gate(requests: Requests) -> None:
    plan = requests.plan
    index, count = plan["index"], plan["partitions"]
    rounds = Rounds(requests, count)
    sharing: dict[str, Any] = {"share_host": True} if plan.get("share_host") else {}  # the code before does not know it
    async with aiokcc.connect(
        plan["url"],
        topics={TOPIC: plan["processes"] * count},
        start=0,
        period=plan["period"],
        member=f"worker-{index}",
        **sharing,
    ) as group:

        async def run(number: int) -> None:
            async with group.gate(TOPIC, index * count + number) as mine:
                await rounds.take(number, mine.wait_until)
                mine.finish()

        async with asyncio.TaskGroup() as tasks:
            for number in range(count):
                tasks.create_task(run(number))
            await rounds.drive()


async def members(requests: Requests) -> None:
    plan = requests.plan
    count, mine = plan["partitions"], plan["members"]
    rounds = Rounds(requests, len(mine) * count)
    joining = asyncio.Semaphore(_JOINING)

    async def member(place: int, index: int) -> None:
        async with contextlib.AsyncExitStack() as stack:
            async with joining:
                context = aiokcc.connect(
                    plan["url"],
                    topics={TOPIC: plan["total"] * count},
                    start=0,
                    period=plan["period"],
                    member=f"member-{index}",
                    session_timeout=_LONG_SESSION,
                )
                group = await stack.enter_async_context(context)
                gates = [await stack.enter_async_context(group.gate(TOPIC, index * count + n)) for n in range(count)]
            async with asyncio.TaskGroup() as tasks:
                for n, gate in enumerate(gates):
                    tasks.create_task(rounds.take(place * count + n, gate.wait_until))
            for gate in gates:
                gate.finish()

    async with asyncio.TaskGroup() as tasks:
        for place, index in enumerate(mine):
            tasks.create_task(member(place, index))
        await rounds.drive()


# -- the classic way ---------------------------------------------------------------------------------------------------


class Poller:
    """A member that polls. It writes once per period, when its last partition arrives; nothing is slowed on purpose."""

    def __init__(self, session: Session, index: int, processes: int, partitions: int, period: int) -> None:
        self._session = session
        self._index = index
        self._processes = processes
        self._partitions = partitions
        self._period = period
        self._limit = period
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._arrived = asyncio.Event()

    async def join(self) -> None:
        session = self._session
        await session.ensure("progress")
        await session.ensure("coordinator")
        if self._index == 0:
            await session.set("coordinator", str(self._period).encode(), ANY_VERSION)
        await session.create(f"progress/{self._index}", b"0", ephemeral=True)

    async def wait_until(self, ts: int) -> None:
        if ts < self._limit:
            return
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((ts, opened))
        if len(self._waiting) == self._partitions:
            self._arrived.set()
        await opened

    async def report(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            least = min(ts for ts, _ in self._waiting)
            await self._session.set(f"progress/{self._index}", str(least).encode(), ANY_VERSION)

    async def follow(self) -> None:
        while True:
            self._limit = int((await self._session.get("coordinator")).data or b"0")
            still = []
            for ts, opened in self._waiting:
                if ts < self._limit:
                    opened.set_result(None)
                else:
                    still.append((ts, opened))
            self._waiting = still
            await asyncio.sleep(FOLLOWER_POLL)

    async def lead(self) -> None:
        limit = 0
        while True:
            names = await self._session.children("progress")
            if len(names) == self._processes:
                nodes = await asyncio.gather(*(self._session.get(f"progress/{name}") for name in names))
                least = min(int(node.data) for node in nodes)
                if least >= limit:
                    limit = least // self._period * self._period + self._period
                    await self._session.set("coordinator", str(limit).encode(), ANY_VERSION)
            await asyncio.sleep(LEADER_POLL)


async def polling(requests: Requests) -> None:
    plan = requests.plan
    rounds = Rounds(requests, plan["partitions"])
    async with aiokcc.open_store(plan["url"]).session() as session:
        poller = Poller(session, plan["index"], plan["processes"], plan["partitions"], plan["period"])
        await poller.join()
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(poller.report()), tasks.create_task(poller.follow())]
            if plan["index"] == 0:
                background.append(tasks.create_task(poller.lead()))
            for number in range(plan["partitions"]):
                tasks.create_task(rounds.take(number, poller.wait_until))
            await rounds.drive()
            for task in background:
                task.cancel()


# -- kazoo -------------------------------------------------------------------------------------------------------------


def barrier(requests: Requests) -> None:
    from kazoo.client import KazooClient
    from kazoo.recipe.barrier import DoubleBarrier

    plan = requests.plan
    client = KazooClient(hosts=plan["hosts"])
    client.start()
    made: list[Any] = []
    work = works(plan, 1)
    Requests.answer(ready=True)
    while (request := requests.next()) is not None:
        requests.busy = True
        facts: dict[str, Any] = {}
        if "make" in request:
            for number in range(request["make"]):
                path = f"{plan['root']}/{number:06}"
                client.ensure_path(path)
                made.append(DoubleBarrier(client, path, plan["processes"]))
                made[-1].assured_path = True  # the path exists, so that entering need not check
        elif "enter" in request:
            number = request["enter"]
            mine = made[number]
            cpu = time.process_time_ns()
            if number:
                made[number - 1].leave()
            time.sleep(next(work))
            arrived = _clock()
            mine.enter()
            woken = _clock()
            facts = {"cpu": time.process_time_ns() - cpu, "arrived": [arrived], "woken": [woken]}
        else:
            made[request["leave"]].leave()
        requests.busy = False  # before the answer: after the last one the harness may end at once
        Requests.answer(**facts)
    client.stop()
    client.close()


def main() -> None:
    """Run the plan."""
    requests = Requests()
    way = requests.plan["way"]
    if way == "barrier":
        barrier(requests)
    else:
        run({"gate": gate, "members": members, "polling": polling}[way](requests), requests.plan.get("loop", "asyncio"))


if __name__ == "__main__":
    main()
