"""Starts worker processes for the harness, sends requests to all of them and collects the answers.

The workers end with the harness. A request and an answer are one line of JSON each, over the worker's standard input and
output. Nothing is sent while something is measured. A worker that fails ends the run, and the end of its standard error
is shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import IO, Any, Final

from benchmarks.harness import BenchmarkError

__all__ = ["WorkerPool", "worker_pool"]

_HOME: Final = Path(__file__).resolve().parent.parent
_LINE: Final = 1 << 26
_STDERR_TAIL: Final = 4000


class _Worker:
    def __init__(self, name: str, process: asyncio.subprocess.Process, errors: IO[bytes]) -> None:
        self.name, self.process, self.errors = name, process, errors

    def send(self, request: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")

    async def receive(self, timeout: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(timeout):
                line = await self.process.stdout.readline()
        except TimeoutError:
            raise self.failed(f"gave no answer within {timeout:g} s") from None
        if not line:
            code = await self.process.wait()
            raise self.failed(f"ended with exit code {code}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def failed(self, what: str) -> BenchmarkError:
        self.errors.seek(0)
        words = self.errors.read().decode(errors="replace").strip()[-_STDERR_TAIL:]
        return BenchmarkError(
            f"worker {self.name} {what}" + (f"; the end of its standard error:\n{words}" if words else "")
        )


class WorkerPool:
    """Several workers with the same task. Made by :func:`worker_pool`."""

    def __init__(self, workers: list[_Worker], timeout: float) -> None:
        self._workers = workers
        self._timeout = timeout

    async def request(self, **request: Any) -> list[dict[str, Any]]:
        """Send the same request to all workers, and return their answers in the order of the workers.

        Raises BenchmarkError as soon as one of them fails.
        """
        for worker in self._workers:
            worker.send(request)
        return await self.answers()

    async def answers(self) -> list[dict[str, Any]]:
        """Return the next answer of each worker."""
        receiving = [asyncio.create_task(worker.receive(self._timeout)) for worker in self._workers]
        try:
            return list(await asyncio.gather(*receiving))
        finally:
            for task in receiving:
                task.cancel()
            await asyncio.gather(*receiving, return_exceptions=True)

    async def kill(self) -> None:
        """End all of them at once, as a crash would."""
        workers, self._workers = self._workers, []
        for worker in workers:
            os.killpg(worker.process.pid, signal.SIGKILL)
        for worker in workers:
            await worker.process.wait()

    async def close(self) -> None:
        """Wait until all workers have ended by themselves. Raises BenchmarkError if one ends with an error."""
        for worker in self._workers:
            assert worker.process.stdin is not None
            worker.process.stdin.close()
        for worker in self._workers:
            try:
                async with asyncio.timeout(self._timeout):
                    code = await worker.process.wait()
            except TimeoutError:
                raise worker.failed(f"did not end within {self._timeout:g} s") from None
            if code:
                raise worker.failed(f"ended with exit code {code}")


@contextlib.asynccontextmanager
async def worker_pool(
    name: str,
    plans: Iterable[dict[str, Any]],
    *,
    timeout: float = 120,
    module: str = "benchmarks.worker",
    checkout: Path | None = None,
    first_alone: bool = False,
) -> AsyncIterator[WorkerPool]:
    """Start one process of the module for each plan, and wait until all are ready.

    ``checkout`` is another checkout of the repository: its package is measured, with the worker of this one, which then may
    import no other module of the benchmarks. ``first_alone``: the first worker is ready before the others start. When the
    block ends the processes end by themselves; after an error they are killed.
    """
    path = os.pathsep.join(filter(None, [str(checkout or _HOME), os.environ.get("PYTHONPATH")]))
    program = ["-m", module] if checkout is None else ["-P", str(_HOME.joinpath(*module.split(".")).with_suffix(".py"))]
    workers: list[_Worker] = []
    try:
        for number, plan in enumerate(plans):
            errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed below; a pipe that nobody reads would fill up
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *program,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=errors,
                    limit=_LINE,
                    env={**os.environ, "PYTHONPATH": path},
                    start_new_session=True,  # a Ctrl-C in the terminal is for us; we then end the workers
                )
            except BaseException:
                errors.close()
                raise
            workers.append(_Worker(f"{name}/{number}", process, errors))
            workers[-1].send(plan)
            if first_alone and number == 0:
                await workers[0].receive(timeout)
        await WorkerPool(workers[1:] if first_alone else workers, timeout).answers()
        pool = WorkerPool(workers, timeout)
        yield pool
        await pool.close()
    finally:
        for worker in workers:
            if worker.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker.process.pid, signal.SIGKILL)
        for worker in workers:
            await worker.process.wait()
            worker.errors.close()
