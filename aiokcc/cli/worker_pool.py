"""The worker processes of ``aiokcc replay``: started, heard, and stopped together.

A worker that is *asked* to stop ends in good order, and takes the time that its handlers take. One whose input is closed stops
where it stands; if it does not within seconds, it is killed, and at once if we are told to hurry while we wait for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import anyio

__all__ = ["STOP", "WorkerPool", "WorkerReport", "describe_exit", "worker_pool"]

STOP: Final = b"stop\n"
"""What a worker that is asked to stop finds on its input."""

_STOP_SECONDS: Final = 5.0
_LAST_REPORTS_SECONDS: Final = 1.0
_LINE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """Something a worker said; ``ended`` is said for it when it is gone."""

    worker: int
    kind: str
    facts: dict[str, Any]


class WorkerPool:
    """Running workers. Made by :func:`crew_of`."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self.processes: list[asyncio.subprocess.Process] = []
        self._reports: asyncio.Queue[WorkerReport] = asyncio.Queue()
        self._tasks = tasks
        self._all_read: list[asyncio.Event] = []
        """For each worker, set when everything it had to say was heard."""

    async def next_report(self, seconds: float) -> WorkerReport | None:
        """What is said next; None if nobody has said anything for so long."""
        try:
            async with asyncio.timeout(seconds):
                return await self._reports.get()
        except TimeoutError:
            return None

    async def start(self, spec: dict[str, Any], output: Callable[[str], None] | None) -> None:
        """Start one more. Its output goes where ours goes, or line by line to ``output``."""
        number = len(self.processes)
        reading, writing = os.pipe()
        lines = asyncio.StreamReader(limit=_LINE_BYTES)
        try:
            await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(reading, "rb", 0)
            )
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "aiokcc.cli.worker",
                str(writing),
                stdin=asyncio.subprocess.PIPE,
                stdout=None if output is None else asyncio.subprocess.PIPE,
                stderr=None if output is None else asyncio.subprocess.STDOUT,
                pass_fds=(writing,),
                process_group=0,  # Ctrl-C is for the command, which then stops its workers
                limit=_LINE_BYTES,
            )
        finally:
            os.close(writing)
        self.processes.append(process)
        self._all_read.append(asyncio.Event())
        self._tasks.start_soon(self._read_reports, number, process, lines, output)
        assert process.stdin is not None
        with suppress(ConnectionError):  # gone already: its end is reported
            process.stdin.write(json.dumps(spec).encode() + b"\n")
            await process.stdin.drain()

    async def _read_reports(
        self,
        number: int,
        process: asyncio.subprocess.Process,
        lines: asyncio.StreamReader,
        output: Callable[[str], None] | None,
    ) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_copy_output, process.stdout, output)
                async for line in lines:
                    facts = json.loads(line)
                    self._reports.put_nowait(WorkerReport(number, facts.pop("kind"), facts))
                code = await process.wait()
            self._reports.put_nowait(WorkerReport(number, "ended", {"code": code}))
        finally:
            self._all_read[number].set()

    def request_stop(self) -> None:
        """Ask all to end in good order. They say so when they have."""
        for process in self.processes:
            assert process.stdin is not None
            if not process.stdin.is_closing():
                process.stdin.write(STOP)

    async def stop(self) -> None:
        """Tell all to stop where they are, and wait; those that do not listen are killed."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        try:
            with anyio.move_on_after(_STOP_SECONDS):
                for process in self.processes:
                    await process.wait()
        finally:  # also if our own task is cancelled here, by a signal: no scope shields us from that
            for process in self.processes:
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        process.kill()
        for process in self.processes:
            await process.wait()
        # To the end of what they had to say, unless a process they left behind holds the pipe.
        with anyio.move_on_after(_LAST_REPORTS_SECONDS):
            for all_read in self._all_read:
                await all_read.wait()

    def unread_reports(self) -> list[WorkerReport]:
        """What was said before the end and has not been read yet."""
        unread = []
        while not self._reports.empty():
            unread.append(self._reports.get_nowait())
        return unread


@asynccontextmanager
async def worker_pool(
    specs: Sequence[dict[str, Any]], output: Callable[[str], None] | None
) -> AsyncIterator[WorkerPool]:
    """Workers with these specs; in the end they are stopped, whatever way the block was left."""
    async with anyio.create_task_group() as tasks:
        pool = WorkerPool(tasks)
        try:
            for spec in specs:
                await pool.start(spec, output)
            yield pool
        finally:
            with anyio.CancelScope(shield=True):  # a worker that cannot be understood ends the group, not its stopping
                await pool.stop()
            tasks.cancel_scope.cancel()


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}{' (was the machine out of memory?)' if code == -signal.SIGKILL else ''}"


async def _copy_output(stream: asyncio.StreamReader | None, output: Callable[[str], None] | None) -> None:
    if stream is None or output is None:
        return
    async for line in stream:
        output(line.decode(errors="replace").rstrip("\n"))
