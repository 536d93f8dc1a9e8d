"""Starts the worker processes of ``aiokcc replay``, reads their reports, and stops them.

A graceful stop takes as long as the handlers take. Closing a worker's input stops it at once; a worker that does not exit
within _STOP_SECONDS is killed, and so is it if the command is cancelled while it waits.
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
"""The control message that requests a graceful stop."""

_STOP_SECONDS: Final = 5.0
_LAST_REPORTS_SECONDS: Final = 1.0
_LINE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A report of a worker. The pool adds ``ended`` when the process has exited."""

    worker: int
    kind: str
    facts: dict[str, Any]


class WorkerPool:
    """Running workers. Made by :func:`worker_pool`."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self.processes: list[asyncio.subprocess.Process] = []
        self._reports: asyncio.Queue[WorkerReport] = asyncio.Queue()
        self._tasks = tasks
        self._all_read: list[asyncio.Event] = []
        """An event for each worker, which is set when all of its reports were read."""

    async def next_report(self, seconds: float) -> WorkerReport | None:
        """Return the next report; None if there is none within ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                return await self._reports.get()
        except TimeoutError:
            return None

    async def start(self, spec: dict[str, Any], output: Callable[[str], None] | None) -> None:
        """Start a worker. Its output goes to our stdout and stderr, or line by line to ``output``."""
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
                process_group=0,  # Ctrl-C reaches only the command, which stops its workers
                limit=_LINE_BYTES,
            )
        finally:
            os.close(writing)
        self.processes.append(process)
        self._all_read.append(asyncio.Event())
        self._tasks.start_soon(self._read_reports, number, process, lines, output)
        assert process.stdin is not None
        with suppress(ConnectionError):  # it has exited already, which is reported
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
        """Request a graceful stop of all workers; each reports when it has stopped."""
        for process in self.processes:
            assert process.stdin is not None
            if not process.stdin.is_closing():
                process.stdin.write(STOP)

    async def stop(self) -> None:
        """Stop all workers at once and wait for them; those that do not exit in time are killed."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        try:
            with anyio.move_on_after(_STOP_SECONDS):
                for process in self.processes:
                    await process.wait()
        finally:  # also if a signal cancels our task here, which no scope prevents
            for process in self.processes:
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        process.kill()
        for process in self.processes:
            await process.wait()
        # Read their reports to the end; a process that they left behind may keep the pipe open.
        with anyio.move_on_after(_LAST_REPORTS_SECONDS):
            for all_read in self._all_read:
                await all_read.wait()

    def unread_reports(self) -> list[WorkerReport]:
        """Return the reports that have not been returned yet."""
        unread = []
        while not self._reports.empty():
            unread.append(self._reports.get_nowait())
        return unread


@asynccontextmanager
async def worker_pool(
    specs: Sequence[dict[str, Any]], output: Callable[[str], None] | None
) -> AsyncIterator[WorkerPool]:
    """Start a worker for each spec. They are stopped when the block ends, whatever the reason."""
    async with anyio.create_task_group() as tasks:
        pool = WorkerPool(tasks)
        try:
            for spec in specs:
                await pool.start(spec, output)
            yield pool
        finally:
            with anyio.CancelScope(
                shield=True
            ):  # an invalid report cancels the task group, but must not cancel the stop
                await pool.stop()
            tasks.cancel_scope.cancel()


def describe_exit(code: int) -> str:
    """Return a phrase for an exit code."""
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
