"""A group of real processes, an observer of the limit, and the check of their common history."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

from aiokcc.core import paths
from aiokcc.core.limit import Limit
from aiokcc.core.partitions import Partition
from aiokcc.core.report import Cut
from aiokcc.core.run import CUT_SLOTS, Generation
from aiokcc.errors import SessionLostError
from aiokcc.stores import Children, Node, Session, open_store
from tests.chaos.worker import PERIOD, TOPIC, Spec, stamp
from tests.faults import Op, Proxy

DEADLINE = 60.0


class Worker:
    """One process of the group, behind a proxy of its own."""

    def __init__(self, spec: Spec, proxy: Proxy | None) -> None:
        self.spec = spec
        self.proxy = proxy
        self.process: asyncio.subprocess.Process | None = None
        self.lines: list[str] = []
        self._spoke = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.chaos.worker",
            json.dumps(asdict(self.spec)),
            stderr=asyncio.subprocess.PIPE,
            stdin=asyncio.subprocess.DEVNULL,
        )
        assert self.process.stderr is not None
        self._listener = asyncio.get_running_loop().create_task(self._listen(self.process.stderr))

    async def _listen(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            self.lines.append(line.decode(errors="replace").rstrip())
            self._spoke.set()

    async def said(self, text: str) -> None:
        """Wait until the worker has logged this text."""
        async with asyncio.timeout(DEADLINE):
            while not any(text in line for line in self.lines):
                self._spoke.clear()
                await self._spoke.wait()

    async def kill(self) -> None:
        """Kill the process without a warning, as a crash does."""
        assert self.process is not None
        self.process.kill()
        await self._gone()

    def freeze(self) -> None:
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    async def end(self) -> int:
        """End the process in good order, and return its exit code."""
        assert self.process is not None
        if self.process.returncode is None:
            self.thaw()
            self.process.terminate()
        async with asyncio.timeout(DEADLINE):
            return await self._gone()

    async def _gone(self) -> int:
        assert self.process is not None
        assert self._listener is not None
        code = await self.process.wait()
        await self._listener
        return code

    def log(self) -> str:
        return "\n".join([f"--- {self.spec.name}", *self.lines[-40:]])


class Group:
    """Workers, their proxies and the observer. Leaving the context ends all of them and checks the history."""

    def __init__(
        self,
        url: str,
        upstream: str,
        directory: Path,
        *,
        members: int,
        partitions: int,
        session_timeout: float = 3.0,
        proxies: bool = True,
        count: int | None = None,
        leader_without_partitions: bool = False,
        lose_first: Op | None = None,
        lookahead: int = 0,
        share_host: bool = False,
    ) -> None:
        self.url = url
        self._upstream = upstream
        self._directory = directory
        self._proxies = proxies
        self.total = members * partitions
        self.workers: list[Worker] = []
        self._members, self._partitions = members, partitions
        self._session_timeout = session_timeout
        self._count = count
        self._lose_first = lose_first
        self._idle_leader = leader_without_partitions
        self._lookahead = lookahead
        self._share_host = share_host
        self._stack = AsyncExitStack()
        self.observer = Observer()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _start(self) -> None:
        root = self.url.rpartition("/")[2]
        await self._stack.enter_async_context(self.observer.observing(self.url))
        first = -1 if self._idle_leader else 0
        for number in range(first, self._members):
            proxy = await self._stack.enter_async_context(Proxy(self._upstream)) if self._proxies else None
            url = f"zk://{proxy.connection}/{root}" if proxy is not None else self.url
            mine = list(range(number, self.total, self._members)) if number >= 0 else []
            history = str(self._directory / f"worker-{number + 1}.history")
            told = {
                "session_timeout": self._session_timeout,
                "lookahead": self._lookahead,
                "share_host": self._share_host,
            }
            spec = Spec(url, f"worker-{number + 1}", mine, self.total, history, **told)  # type: ignore[arg-type]
            if self._count is not None:
                spec = Spec(**{**asdict(spec), "count": self._count})
            if proxy is not None and self._lose_first is not None:
                proxy.drop_reply(self._lose_first)
            worker = Worker(spec, proxy)
            self.workers.append(worker)
            self._stack.push_async_callback(_end, worker)
            await worker.start()
            if number < 0:
                await worker.said(" leads under generation")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        codes = [await worker.end() for worker in self.workers] if kind is None else []
        await self._stack.aclose()
        if kind is None:
            logs = "\n".join(worker.log() for worker in self.workers)
            assert codes == [0] * len(codes), f"exit codes {codes}\n{logs}"
            self.check()
        else:
            for worker in self.workers:
                print(worker.log(), file=sys.stderr)

    async def add(self, name: str, partitions: list[int]) -> Worker:
        """Start one more worker, which waits for these partitions while others hold them."""
        like = self.workers[0].spec
        history = str(self._directory / f"{name}.history")
        spec = Spec(**{**asdict(like), "name": name, "partitions": partitions, "history": history})
        worker = Worker(spec, None)
        self.workers.append(worker)
        self._stack.push_async_callback(_end, worker)
        await worker.start()
        return worker

    async def leader(self) -> Worker:
        """Return the worker that leads, by the content of the store."""
        await self.observer.until(lambda: self.observer.generation.number > 0)
        name = self.observer.generation.leader
        return next(w for w in self.workers if name.startswith(f"{w.spec.name}-"))

    async def progress(self, periods: int = 5) -> None:
        """Wait until the limit has moved by this many periods."""
        target = self.observer.limit.value + periods * PERIOD
        await self.observer.until(lambda: self.observer.limit.value >= target)

    # -- the check ----------------------------------------------------------------------------------------------------

    def records(self) -> list[tuple[str, int, int, int]]:
        """Return the actions of all workers as (what, when, partition, offset), in order of time."""
        result: list[tuple[str, int, int, int]] = []
        for worker in self.workers:
            for line in Path(worker.spec.history).read_text().splitlines():
                what, when, partition, offset = line.split(" ")
                result.append((what, int(when), int(partition), int(offset)))
        return sorted(result, key=lambda record: record[1])

    def check(self) -> None:
        """Check invariants 1 to 5 on the recorded history. See `check_history` and `Observer.check`."""
        check_history(self.records(), self.total, self._lookahead)
        self.observer.check(self.total)


async def _end(worker: Worker) -> None:
    if worker.process is not None and worker.process.returncode is None:
        await worker.kill()


def check_history(records: list[tuple[str, int, int, int]], partitions: int, lookahead: int = 0) -> None:
    """Check that no worker starts a record at or past a boundary before all workers have done everything before it.

    This is alignment and completeness as a user sees them: by the machine's clock, without the content of the store.
    A record may be done again after a crash, but only while its period has not closed: redelivery never reaches behind a cut.
    With lookahead both bounds are so many periods wider.
    """
    first_done: dict[tuple[int, int], int] = {}
    first_start: dict[int, int] = {}
    starts: dict[tuple[int, int], list[int]] = {}
    for what, when, partition, offset in records:
        if what == "done":
            first_done.setdefault((partition, offset), when)
        else:
            first_start.setdefault(stamp(partition, offset) // PERIOD, when)
            starts.setdefault((partition, offset), []).append(when)
    assert first_start, "nobody did anything"
    last = max(first_start)
    opened = dict.fromkeys(
        range(last + 2 + lookahead), float("inf")
    )  # when the first record of this period or a later one started
    for period in range(last, -1, -1):
        opened[period] = min(opened[period + 1], first_start.get(period, float("inf")))
    for partition in range(partitions):
        offset = 0
        while (period := stamp(partition, offset) // PERIOD) < last - lookahead:
            done = first_done.get((partition, offset))
            where = f"record {offset} of partition {partition} in period {period}"
            assert done is not None, f"{where} was never done, and period {last} was started"
            assert done <= opened[period + 1 + lookahead], f"{where} was done after a later period had started"
            for again in starts[partition, offset][1:]:
                assert again <= opened[period + 1 + lookahead], f"{where} came again after its period had closed"
            offset += 1


class Observer:
    """Watches the limit over a connection of its own, and keeps every limit and cut that it sees."""

    def __init__(self) -> None:
        self.limit = Limit((0,))
        self.generation = Generation(0, "-", "-")
        self.seen: list[tuple[int, Limit]] = []
        self.cuts: dict[int, Cut] = {}
        self._changed = asyncio.Event()
        self._session: Session | None = None

    def observing(self, url: str) -> _Observing:
        return _Observing(self, url)

    async def follow(self, session: Session) -> None:
        self._session = session
        with session.watch() as watch:
            watch.add(paths.COORDINATOR)
            watch.add(paths.GENERATION)
            async for change in watch:
                if not isinstance(change.now, Node):
                    continue  # the group is not founded yet
                if change.path == paths.GENERATION:
                    self.generation = Generation.decode(change.path, change.now.data)
                elif not self.seen or change.now.version > self.seen[-1][0]:
                    await self._see(change.now, session)
                self._changed.set()

    async def _see(self, node: Node, session: Session) -> None:
        self.limit = Limit.decode(node.path, node.data)
        self.seen.append((node.version, self.limit))
        for number in range(CUT_SLOTS):
            slot = await session.find(paths.cut(number, CUT_SLOTS))
            cut = None if slot is None else Cut.decode(slot.path, slot.data)
            if cut is not None:
                assert self.cuts.setdefault(cut.number, cut) == cut, "a cut was written twice"

    async def until(self, condition: Callable[[], bool], deadline: float = DEADLINE) -> None:
        """Wait until the condition holds for what is observed."""
        async with asyncio.timeout(deadline):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def new_leader(self, *, than: str) -> None:
        """Wait until another worker than this one leads."""
        await self.until(lambda: not self.generation.leader.startswith(f"{than}-"))

    async def lost(self, name: str) -> None:
        """Wait until this worker's session is over."""
        assert self._session is not None
        with self._session.watch() as watch:
            watch.add_children(paths.IDS)
            async for change in watch:
                if isinstance(change.now, Children) and not any(n.startswith(f"{name}-") for n in change.now.names):
                    return

    async def members(self) -> tuple[str, ...]:
        """Return the live member sessions."""
        assert self._session is not None
        return await self._session.children(paths.IDS)

    async def processes(self) -> set[str]:
        """Return the names of the processes that share the session of a host, as the hosts have registered them."""
        assert self._session is not None
        nodes = [await self._session.find(paths.member(name)) for name in await self.members()]
        return {name for node in nodes if node is not None for name in json.loads(node.data).get("processes", ())}

    def check(self, partitions: int) -> None:
        """Check that limits only grow, that one leader wrote at a time, and that the cuts tile each log at the boundaries."""
        for (version, limit), (later_version, later) in zip(self.seen, self.seen[1:], strict=False):
            assert later_version > version
            assert limit.precedes(later), f"the limit went from {limit} to {later}"
        numbers = sorted(self.cuts)
        for number in numbers:
            cut, before = self.cuts[number], self.cuts.get(number - 1)
            if before is not None:
                assert cut.previous == before.limit
                assert cut.generation >= before.generation, "a deposed leader moved the limit"
            for partition in range(partitions):
                mark = cut.find(Partition(TOPIC, partition))
                assert mark is not None, f"cut {number} knows nothing of partition {partition}"
                assert mark.offset is not None
                if not mark.finished:
                    assert stamp(partition, mark.offset) >= cut.limit
                assert mark.offset == 0 or stamp(partition, mark.offset - 1) < cut.limit


class _Observing:
    """The observer's session. It is open for the length of a test, and opened again after it was lost."""

    def __init__(self, observer: Observer, url: str) -> None:
        self._observer, self._store = observer, open_store(url)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            try:
                async with self._store.session(timeout=10, connect_timeout=60) as session:
                    await self._observer.follow(session)
            except SessionLostError:
                continue

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        failed = self._task.done()
        self._task.cancel()
        try:
            await self._task
        except asyncio.CancelledError:
            if failed:
                raise
