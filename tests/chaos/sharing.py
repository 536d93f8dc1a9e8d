"""A managed replay of real processes, each behind its own proxy to ZooKeeper, and the check of their common history."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from aiokcc import local
from aiokcc.core.limit import Mode
from aiokcc.core.partitions import Partition
from tests import kafka_topics
from tests.chaos.group import Observer
from tests.chaos.sharer import Spec
from tests.chaos.worker import PERIOD
from tests.faults import Proxy
from tests.kafka_topics import Row

FIRST = 1_700_000_040_000


class Process:
    """One member of the group. Started again, it is the same member."""

    def __init__(self, spec: Spec, proxy: Proxy) -> None:
        self.spec = spec
        self.proxy = proxy
        self.log = Path(f"{spec.history}.log")
        self.running: asyncio.subprocess.Process | None = None
        self.stopped = False

    async def start(self) -> None:
        self.stopped = False
        with self.log.open("ab") as log:
            self.running = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.chaos.sharer", json.dumps(asdict(self.spec)), stderr=log
            )

    @property
    def alive(self) -> bool:
        return self.running is not None and self.running.returncode is None

    async def kill(self) -> None:
        if self.alive:
            assert self.running is not None
            self.running.kill()
            await self.running.wait()

    async def leave(self) -> None:
        """Leave in good order."""
        if self.alive:
            assert self.running is not None
            self.running.send_signal(signal.SIGTERM)
            await self.ended(0, -signal.SIGTERM)  # the latter before it has joined

    def stop(self) -> None:
        self._send(signal.SIGSTOP)
        self.stopped = True

    def go_on(self) -> None:
        self._send(signal.SIGCONT)
        self.stopped = False

    def _send(self, number: signal.Signals) -> None:
        assert self.running is not None
        if self.running.returncode is None:
            os.kill(self.running.pid, number)

    async def ended(self, *codes: int) -> None:
        assert self.running is not None
        async with asyncio.timeout(120):
            code = await self.running.wait()
        assert code in (codes or (0,)), f"exit code {code}\n{self.last_words()}"

    def last_words(self) -> str:
        return f"--- {self.spec.name}\n" + "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])


@dataclass
class Sharing:
    """The group, its topic, and the observer."""

    topic: str
    url: str
    logs: list[list[int]]
    processes: list[Process]
    observer: Observer

    async def progress(self, periods: int = 3) -> bool:
        """Wait until the limit has moved. Return False if the run has ended."""
        target = self.observer.limit.value + periods * PERIOD
        await self.observer.until(lambda: self.observer.limit.value >= target or self.over)
        return not self.over

    @property
    def over(self) -> bool:
        return self.observer.limit.mode is Mode.END

    async def leave(self) -> None:
        """Let all members leave in good order, before the run has ended."""
        for process in self.processes:
            process.proxy.heal()
            if process.stopped:
                process.go_on()
        await asyncio.gather(*(process.leave() for process in self.processes))

    async def finish(self) -> None:
        """Wait until the run has ended."""
        for process in self.processes:
            process.proxy.heal()
            if process.stopped:
                process.go_on()
            if not process.alive and not self.over:
                await process.start()
        try:
            for process in self.processes:
                await process.ended()
            await self.observer.until(lambda: self.over)
        except BaseException:
            for process in self.processes:
                print(process.last_words(), file=sys.stderr)
            raise

    def check(self) -> None:
        """Check that no record is missing, past the limit or behind a cut; that each partition has one owner; and the cuts."""
        events = self._events()
        self._check_records(events)
        self._check_owners(events)
        self._check_cuts()

    def _events(self) -> list[tuple[str, int, str, int, int, int, str]]:
        result = []
        for path in sorted({process.spec.history for process in self.processes}):
            for line in Path(path).read_text().splitlines():
                what, when, who, partition, offset, generation, value = line.split(" ")
                result.append((what, int(when), who, int(partition), int(offset), int(generation), value))
        return sorted(result, key=lambda event: event[1])

    def _check_records(self, events: list[tuple[str, int, str, int, int, int, str]]) -> None:
        first_done: dict[tuple[int, int], int] = {}
        starts: dict[tuple[int, int], list[int]] = {}
        values: dict[tuple[int, int], str] = {}
        for what, when, _, partition, offset, _, value in events:
            place = partition, offset
            assert values.setdefault(place, value) == value
            if what == "done":
                first_done.setdefault(place, when)
            else:
                starts.setdefault(place, []).append(when)
        closed = max(cut.limit for cut in self.observer.cuts.values())
        expected = {
            (p, n): f"{p}:{n}"
            for p, stamps in enumerate(self.logs)
            for n, ts in enumerate(stamps)
            if self.over or ts < closed
        }
        handled = {place: values[place] for place in first_done if place in expected}
        assert handled == expected, "not every record was handled, as it was written"
        opened: dict[int, int] = {}
        for (p, n), whens in starts.items():
            period = self.logs[p][n] // PERIOD
            opened[period] = min(whens[0], opened.get(period, whens[0]))
        later: float = float("inf")
        next_opened: dict[int, float] = {}
        for period in range(max(opened), min(opened) - 1, -1):
            next_opened[period] = later
            later = min(later, opened.get(period, later))
        for (p, n), done in first_done.items():
            ends = next_opened[self.logs[p][n] // PERIOD]
            assert done <= ends, f"record {n} of partition {p} was done after a later period began"
            for again in starts[p, n][1:]:
                assert again <= ends, f"record {n} of partition {p} came again behind the cut"

    def _check_owners(self, events: list[tuple[str, int, str, int, int, int, str]]) -> None:
        """Check that no member starts a record under an older assignment than another member's before it.

        A member that was killed and started again within its session continues under the same assignment.
        """
        block: dict[int, tuple[str, int]] = {}
        for what, when, who, partition, offset, generation, _ in events:
            if what != "start":
                continue
            owner, since = block.get(partition, ("", -1))
            if who != owner:
                same = who.rpartition("-")[0] == owner.rpartition("-")[0]
                assert generation > since or (same and generation == since), (
                    f"{who} starts {partition}@{offset} at {when} under generation {generation}, "
                    f"although {owner} runs it since {since}"
                )
                block[partition] = (who, generation)

    def _check_cuts(self) -> None:
        observer = self.observer
        for (_, limit), (_, after) in zip(observer.seen, observer.seen[1:], strict=False):
            assert limit.precedes(after)
        assert len(observer.cuts) > 20
        for number in sorted(observer.cuts):
            cut, before = observer.cuts[number], observer.cuts.get(number - 1)
            if before is not None:
                assert cut.previous == before.limit
                assert cut.generation >= before.generation, "a deposed leader moved the limit"
            for p, stamps in enumerate(self.logs):
                mark = cut.find(Partition(self.topic, p))
                assert mark is not None
                right = next((n for n, ts in enumerate(stamps) if ts >= cut.limit), len(stamps))
                assert mark.offset == right, f"cut {number} lies at {mark.offset} in partition {p}, not at {right}"


@asynccontextmanager
async def sharing(
    kafka: local.Kafka,
    zookeeper: local.ZooKeeper,
    directory: Path,
    *,
    members: int,
    partitions: int,
    periods: int,
    chance: random.Random,
    **spec: object,
) -> AsyncIterator[Sharing]:
    """Give a topic and members that share its replay. At the end all processes are ended."""
    logs = [
        [FIRST + period * PERIOD + chance.randrange(PERIOD) for period in range(periods) if chance.random() < 0.7]
        for _ in range(partitions)
    ]
    topic = await kafka_topics.create_fresh(kafka.bootstrap, partitions=partitions)
    rows = [Row(p, ts, f"{p}:{n}".encode()) for p, stamps in enumerate(logs) for n, ts in enumerate(stamps)]
    await kafka_topics.write(kafka.bootstrap, topic, rows)
    url = zookeeper.url(f"sharing-{topic}")
    root = url.rpartition("/")[2]
    async with AsyncExitStack() as stack:
        observer = Observer()
        await stack.enter_async_context(observer.observing(url))
        processes = []
        for number in range(members):
            proxy = await stack.enter_async_context(Proxy(zookeeper.connection))
            told = Spec(
                f"zk://{proxy.connection}/{root}",
                kafka.bootstrap,
                f"w{number}",
                topic,
                str(directory / f"history-{number}"),
            )
            process = Process(replace(told, **spec), proxy)  # type: ignore[arg-type]
            stack.push_async_callback(process.kill)
            processes.append(process)
        yield Sharing(topic, url, logs, processes, observer)
