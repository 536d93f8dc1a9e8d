"""Worker processes as the harness sees them: start, give orders to all, gather answers; they end with the harness.

One line of JSON per order and per answer, over the worker's standard input and output. Nothing is sent while something is
being measured. A worker that fails ends the run, and what it wrote to its standard error is shown.
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

__all__ = ["Crew", "crew"]

_HOME: Final = Path(__file__).resolve().parent.parent
_LINE: Final = 1 << 26
_LAST_WORDS: Final = 4000


class _Worker:
    def __init__(self, name: str, process: asyncio.subprocess.Process, errors: IO[bytes]) -> None:
        self.name, self.process, self.errors = name, process, errors

    def tell(self, order: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")

    async def hear(self, patience: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(patience):
                line = await self.process.stdout.readline()
        except TimeoutError:
            raise self.failed(f"gave no answer within {patience:g} s") from None
        if not line:
            code = await self.process.wait()
            raise self.failed(f"ended with exit code {code}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def failed(self, what: str) -> BenchmarkError:
        self.errors.seek(0)
        words = self.errors.read().decode(errors="replace").strip()[-_LAST_WORDS:]
        return BenchmarkError(f"worker {self.name} {what}" + (f"; its last words:\n{words}" if words else ""))


class Crew:
    """Several workers with the same task. Made by :func:`crew`."""

    def __init__(self, workers: list[_Worker], patience: float) -> None:
        self._workers = workers
        self._patience = patience

    async def order(self, **order: Any) -> list[dict[str, Any]]:
        """Tell all of them the same, at once; all answers, in the workers' order. Fails as soon as one of them does."""
        for worker in self._workers:
            worker.tell(order)
        return await self.answers()

    async def answers(self) -> list[dict[str, Any]]:
        """One answer of each."""
        asking = [asyncio.create_task(worker.hear(self._patience)) for worker in self._workers]
        try:
            return list(await asyncio.gather(*asking))
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def kill(self) -> None:
        """End all of them at once, as a crash would."""
        workers, self._workers = self._workers, []
        for worker in workers:
            os.killpg(worker.process.pid, signal.SIGKILL)
        for worker in workers:
            await worker.process.wait()

    async def dismiss(self) -> None:
        """Let them end by themselves, and see to it that they did so without an error."""
        for worker in self._workers:
            assert worker.process.stdin is not None
            worker.process.stdin.close()
        for worker in self._workers:
            try:
                async with asyncio.timeout(self._patience):
                    code = await worker.process.wait()
            except TimeoutError:
                raise worker.failed(f"did not end within {self._patience:g} s") from None
            if code:
                raise worker.failed(f"ended with exit code {code}")


@contextlib.asynccontextmanager
async def crew(
    name: str, plans: Iterable[dict[str, Any]], *, patience: float = 120, module: str = "benchmarks.worker"
) -> AsyncIterator[Crew]:
    """One process of the module per plan, all ready. On leaving they end: by themselves, or killed after an error."""
    path = os.pathsep.join(filter(None, [str(_HOME), os.environ.get("PYTHONPATH")]))
    workers: list[_Worker] = []
    try:
        for number, plan in enumerate(plans):
            errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed below; a pipe that nobody reads would fill up
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    module,
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
            workers[-1].tell(plan)
        gathered = Crew(workers, patience)
        await gathered.answers()
        yield gathered
        await gathered.dismiss()
    finally:
        for worker in workers:
            if worker.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker.process.pid, signal.SIGKILL)
        for worker in workers:
            await worker.process.wait()
            worker.errors.close()
