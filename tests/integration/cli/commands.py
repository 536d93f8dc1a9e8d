"""Runs the installed program in a process of its own, for the tests of the command line."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiokcc
from aiokcc.stores import Node, Session

AIOKCC = str(Path(sys.executable).with_name("aiokcc"))
MINUTE = 60_000


@dataclass
class Ended:
    """The exit code and the output of a command."""

    code: int | None
    out: str
    err: str


def environment(**extra: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if name not in {"AIOKCC_STORE", "NO_COLOR", "FORCE_COLOR"}
    }
    return {**kept, **extra}


async def run(*words: str, **extra: str) -> Ended:
    """Run a command to its end. If the test is over before, the command is killed."""
    process = await asyncio.create_subprocess_exec(
        AIOKCC,
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(**extra),
    )
    try:
        out, err = await process.communicate()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    assert "Traceback" not in err.decode() or "--verbose" in words, err.decode()
    return Ended(process.returncode, out.decode(), err.decode())


@asynccontextmanager
async def started(*words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a command while the block runs; its output can be read line by line."""
    process = await asyncio.create_subprocess_exec(
        AIOKCC, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment()
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def line_with(process: asyncio.subprocess.Process, text: str) -> str:
    """Read the output up to a line that contains the text, and return that line."""
    assert process.stdout is not None
    seen = []
    while line := (await process.stdout.readline()).decode():
        seen.append(line)
        if text in line:
            return line
    raise AssertionError(f"it ended without {text!r}: {''.join(seen)}")


class Terminal:
    """A pseudo terminal in which a command runs. ``screen`` is all that the command has written."""

    def __init__(self, process: asyncio.subprocess.Process, end: int) -> None:
        self.process, self.screen = process, ""
        self._end, self._news = end, asyncio.Event()
        asyncio.get_running_loop().add_reader(end, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._end, 65536)
        except OSError:  # the other end is closed
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._end)
        self.screen += data.decode(errors="replace")
        self._news.set()

    async def shows(self, text: str) -> None:
        """Wait until the command has written the text."""
        await self.shows_different(re.escape(text), least=1)

    async def shows_different(self, pattern: str, *, least: int) -> None:
        """Wait until the command has written at least so many different texts that match the pattern."""
        while len(set(re.findall(pattern, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.screen)))) < least:
            self._news.clear()
            await self._news.wait()

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())


@asynccontextmanager
async def on_terminal(*words: str, **extra: str) -> AsyncIterator[Terminal]:
    """Run a command whose input and output are a terminal, in a session of its own."""
    async with _on_terminal([AIOKCC, *words], extra, start_new_session=True) as terminal:
        yield terminal


@asynccontextmanager
async def in_foreground(directory: Path, *words: str, **extra: str) -> AsyncIterator[Terminal]:
    """Run a command in the foreground of its own terminal, where a typed Ctrl-C goes to all foreground processes."""
    program = "import os, sys; os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])"
    async with _on_terminal([sys.executable, "-c", program, AIOKCC, *words], extra, cwd=directory) as terminal:
        yield terminal


@asynccontextmanager
async def _on_terminal(command: list[str], extra: dict[str, str], **options: Any) -> AsyncIterator[Terminal]:
    ours, theirs = pty.openpty()
    variables = environment(**{"TERM": "xterm", "COLUMNS": "120", "LINES": "50", **extra})
    process = await asyncio.create_subprocess_exec(
        *command, stdin=theirs, stdout=theirs, stderr=theirs, env=variables, **options
    )
    os.close(theirs)
    terminal = Terminal(process, ours)
    try:
        yield terminal
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)


@asynccontextmanager
async def session_of(store: str) -> AsyncIterator[Session]:
    async with aiokcc.open_store(store).session() as session:
        yield session


async def until_holds(session: Session, path: str, content: bytes) -> None:
    """Wait until a node contains the text."""
    with session.watch() as watch:
        watch.add(path)
        async for change in watch:
            if isinstance(change.now, Node) and content in change.now.data:
                return


class Group:
    """Two members in this process: ``alpha`` runs orders.0, ``beta`` runs payments.0."""

    def __init__(self, store: str, alpha: aiokcc.Group, orders: aiokcc.Gate, payments: aiokcc.Gate) -> None:
        self.store, self.alpha, self.orders, self.payments = store, alpha, orders, payments

    async def slow(self) -> None:
        """Wait until beta has reported that payments.0 is slow."""
        async with session_of(self.store) as session:
            names = await session.children("progress")
            beta = next(name for name in names if name.startswith("beta-"))
            await until_holds(session, f"progress/{beta}", b"running\npayments:0;\nrunning;")


@asynccontextmanager
async def group_of(store: str, **options: object) -> AsyncIterator[Group]:
    settings = {"topics": {"orders": 1, "payments": 1}, "start": 0, "period": "1m", **options}
    async with (
        aiokcc.connect(store, member="alpha", **settings) as alpha,  # type: ignore[arg-type]
        alpha.gate("orders", 0) as orders,
        aiokcc.connect(store, member="beta", **settings) as beta,  # type: ignore[arg-type]
        beta.gate("payments", 0) as payments,
    ):
        yield Group(store, alpha, orders, payments)


@asynccontextmanager
async def waiting(gate: aiokcc.Gate, ts: int) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.ensure_future(gate.wait_until(ts))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
