"""Service processes as seen from the program that uses them: start, await readiness, kill, freeze, thaw.

`supervise()` starts a supervisor process (see `_supervisor`) for the lifetime of a context. `Process` is one process that the
supervisor runs. The supervisor's events drive everything: there is no task and no polling, only a protocol whose callbacks wake
the waiters. The one exception is `freeze`, which polls until the process is stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

from aiokcc.errors import LocalServiceError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
_SUPERVISOR = Path(__file__).with_name("_supervisor.py")
_LOG_TAIL_LINES = 40
_NEVER = r"(?!)"
_FREEZE_TIMEOUT = 1.0


class ProcessState(enum.Enum):
    """Where a process stands."""

    DOWN = "down"
    """Not started, killed, or ended by itself."""
    STARTING = "starting"
    """Running, and its log has not said yet that it serves. Ends in UP or DOWN."""
    UP = "up"
    """Its log has said that it serves. Ends in DOWN; a frozen process is UP as well."""


class Process:
    """One service process. Its methods belong to the event loop that entered `keep()`; `freeze` and `thaw` wait for
    nobody but the system."""

    def __init__(
        self,
        supervisor: SupervisorClient,
        name: str,
        command: Iterable[str],
        log: Path,
        ready: str = _NEVER,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        """`ready` is what a line of output matches when it serves; `hear` is called with each line of output."""
        self.name, self.command, self.log, self.ready = name, list(command), log, ready
        self._on_line = on_line
        self.state = ProcessState.DOWN
        self.pid: int | None = None
        self.exit_code: int | None = None
        self.failure: str | None = None
        self._supervisor = supervisor
        supervisor.processes[name] = self

    async def start(self, deadline: float) -> None:
        """Start the process and wait until its log says that it serves; a process that runs already is left alone.

        If it ends, or is not ready after `deadline` seconds, it is killed and `LocalServiceError` has the end of its log.
        A cancelled start leaves the process running; it ends with its context.
        """
        await self._launch(deadline, lambda: self.state is not ProcessState.STARTING, "was not ready")
        if self.state is ProcessState.DOWN:
            raise self.error(self.failure or f"ended with exit code {self.exit_code} before it was ready")

    async def run(self, deadline: float) -> None:
        """Run a process that ends by itself, and wait for its end.

        If it fails, or has not ended after `deadline` seconds, `LocalServiceError` has the end of its log.
        """
        await self._launch(deadline, lambda: self.state is ProcessState.DOWN, "had not ended")
        if self.exit_code != 0:
            raise self.error(self.failure or f"ended with exit code {self.exit_code}")

    async def _launch(self, deadline: float, reached: Callable[[], bool], otherwise: str) -> None:
        if self.state is ProcessState.DOWN:
            self.state, self.exit_code, self.failure = ProcessState.STARTING, None, None
            message = {"start": self.name, "command": self.command, "log": str(self.log), "ready": self.ready}
            self._supervisor.send({**message, "relay": self._on_line is not None})
        try:
            async with asyncio.timeout(deadline):
                await self._supervisor.wait(reached)
        except TimeoutError:
            with contextlib.suppress(LocalServiceError):
                await self.kill()
            raise self.error(f"{otherwise} after {deadline:g} s") from None

    async def kill(self) -> None:
        """End the process as a crash would (SIGKILL) and wait until it is gone; nothing happens if it is down."""
        if self.state is not ProcessState.DOWN:
            self._supervisor.send({"kill": self.name})
            await self._supervisor.wait(lambda: self.state is ProcessState.DOWN)

    async def ended(self) -> None:
        """Wait until the process is down, whoever ended it."""
        await self._supervisor.wait(lambda: self.state is ProcessState.DOWN)

    def freeze(self) -> None:
        """Stop the process where it stands (SIGSTOP): its connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)
        # The signal goes to one thread, and the others run on until that one has had its turn: on a busy machine long enough to
        # answer. Nobody but the parent is told when all stand.
        until = time.monotonic() + _FREEZE_TIMEOUT
        while not self._is_stopped() and time.monotonic() < until:
            os.sched_yield()

    def _is_stopped(self) -> bool:
        """Whether all of its threads are stopped, as far as the system tells."""
        try:
            threads = [stat.read_text() for stat in Path(f"/proc/{self.pid}/task").glob("*/stat")]
        except OSError:  # one of them has just ended
            return False
        return all(thread.rpartition(")")[2].split()[0] in {"T", "t"} for thread in threads)

    def thaw(self) -> None:
        """Let a frozen process go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is None:
            raise LocalServiceError(f"{self.name} is not running")
        os.killpg(self.pid, number)

    def log_tail(self) -> str:
        """Return the end of the log."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return "(no log)"
        return "\n".join(lines[-_LOG_TAIL_LINES:]) or "(the log is empty)"

    def error(self, what: str) -> LocalServiceError:
        """Describe a failure of this process, with the end of its log."""
        return LocalServiceError(f"{self.name} {what}", self.log_tail())

    def on_event(self, event: dict[str, object]) -> None:
        """Take in what the supervisor says."""
        match event:
            case {"event": "started", "pid": int(pid)}:
                self.pid = pid
            case {"event": "ready"}:
                self.state = ProcessState.UP
            case {"event": "line", "text": str(text)}:
                if self._on_line is not None:
                    self._on_line(text)
            case {"event": "exited", "code": int(code)}:
                self.state, self.pid, self.exit_code = ProcessState.DOWN, None, code
            case {"event": "failed", "reason": str(reason)}:
                self.state, self.failure = ProcessState.DOWN, f"could not be run: {reason}"


class SupervisorClient(asyncio.SubprocessProtocol):
    """The parent's end of the two pipes to the supervisor process."""

    def __init__(self) -> None:
        self.processes: dict[str, Process] = {}
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.SubprocessTransport | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._partial = b""
        self._exited = False
        self._stderr = b""

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._stderr = (self._stderr + data)[-4000:]
            return
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            self.processes[event["name"]].on_event(event)
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._exited = True
        for process in self.processes.values():
            process.state, process.pid = ProcessState.DOWN, None
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    # What processes and `keep` call

    def send(self, message: dict[str, object]) -> None:
        """Ask the supervisor for something."""
        if self._exited or self._transport is None:
            raise LocalServiceError("the services of this context have ended", self._stderr.decode(errors="replace"))
        pipe = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))
        pipe.write(json.dumps(message).encode() + b"\n")

    async def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; it is looked at after each message of the supervisor, and at its end."""
        while not condition():
            if self._exited:
                raise LocalServiceError(
                    "the process that keeps the services died", self._stderr.decode(errors="replace")
                )
            waiter = self._loop.create_future()
            self._waiting.add(waiter)
            try:
                await waiter
            finally:
                self._waiting.discard(waiter)

    async def end(self) -> None:
        """Close the pipe, which ends everything, and wait until all is gone."""
        assert self._transport is not None
        pipe = self._transport.get_pipe_transport(0)
        if pipe is not None:
            pipe.close()
        try:
            async with asyncio.timeout(30):
                await self.wait(lambda: self._exited)
        finally:
            self._transport.close()  # after a timeout or a cancellation: the supervisor's end is not ours to await


async def gather_or_cancel(*starts: Awaitable[object]) -> None:
    """Wait for all; if one fails, its error is raised as it is, and the others are cancelled and have ended."""
    tasks = [asyncio.ensure_future(start) for start in starts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def supervise(remove: Path | None = None) -> AsyncIterator[SupervisorClient]:
    """Keep service processes for as long as this context, or this process, lives; then remove the directory `remove`."""
    arguments = [sys.executable, "-I", "-S", str(_SUPERVISOR), str(os.getpid())]
    if remove is not None:
        arguments.append(str(remove))
    loop = asyncio.get_running_loop()
    try:
        # A session of its own, so that a Ctrl-C in the terminal reaches us and not our services.
        _, supervisor = await loop.subprocess_exec(SupervisorClient, *arguments, start_new_session=True)
    except BaseException as error:  # nobody else is there to remove it
        if remove is not None:
            shutil.rmtree(remove, ignore_errors=True)
        if isinstance(error, OSError):
            raise LocalServiceError(f"cannot run {sys.executable}: {error}") from error
        raise
    try:
        yield supervisor
    finally:
        try:
            await supervisor.end()
        finally:
            if remove is not None:  # the supervisor's work, unless somebody killed it
                shutil.rmtree(remove, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    """Pick loopback ports that are free now.

    They are taken from below the range that the system gives to outgoing connections. A port from inside it could be
    taken by any client while a killed server is down, and a client that tries again and again to reach a dead port of that
    range will at some time be given this very port as its own and find itself connected to itself.
    """
    low, high = 10_000, _ephemeral_floor()
    candidates = random.sample(range(low, high), min(high - low, 500)) if high - low > 1000 else [0] * count
    ports: list[int] = []
    with contextlib.ExitStack() as held:  # all are held until the last is found: no port twice
        for candidate in candidates:
            listener = held.enter_context(socket.socket())
            try:
                listener.bind(("127.0.0.1", candidate))
            except OSError:
                continue
            ports.append(listener.getsockname()[1])
            if len(ports) == count:
                return ports
    raise LocalServiceError(f"found no {count} free ports on 127.0.0.1")


def _ephemeral_floor() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768  # at or below the floor of the usual systems
