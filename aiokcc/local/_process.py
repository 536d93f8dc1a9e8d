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
import tempfile
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
    """The state of a service process."""

    DOWN = "down"
    """The process was not started, was killed, or ended by itself."""
    STARTING = "starting"
    """It runs, and its log has not yet shown that it serves. The next state is UP or DOWN."""
    UP = "up"
    """Its log has shown that it serves. A frozen process is UP too. The next state is DOWN."""


class Process:
    """One service process.

    Its coroutines must run on the event loop that entered `supervise()`. `freeze` and `thaw` can be called from anywhere.
    """

    def __init__(
        self,
        supervisor: SupervisorClient,
        name: str,
        command: Iterable[str],
        log: Path,
        ready: str = _NEVER,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        """A line of output that matches `ready` means that the process serves. `on_line` is called with each line of output."""
        self.name, self.command, self.log, self.ready = name, list(command), log, ready
        self._on_line = on_line
        self.state = ProcessState.DOWN
        self.pid: int | None = None
        self.frozen = False
        self.exit_code: int | None = None
        self.failure: str | None = None
        self._supervisor = supervisor
        supervisor.processes[name] = self

    async def start(self, deadline: float) -> None:
        """Start the process, unless it runs, and wait until its log shows that it serves.

        Raises LocalServiceError, with the end of the log, if the process ends or is not ready after `deadline` seconds; in
        the second case the process is killed. Cancelling leaves the process running until its context ends.
        """
        await self._launch(deadline, lambda: self.state is not ProcessState.STARTING, "was not ready")
        if self.state is ProcessState.DOWN:
            raise self.error(self.failure or f"ended with exit code {self.exit_code} before it was ready")

    async def run(self, deadline: float) -> None:
        """Run a process that ends by itself and wait for its end.

        Raises LocalServiceError, with the end of the log, if its exit code is not 0 or it runs longer than `deadline` seconds;
        in the second case the process is killed. Cancelling leaves the process running until its context ends.
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
        """Kill the process (SIGKILL), unless it is down, and wait until it has exited."""
        if self.state is not ProcessState.DOWN:
            self._supervisor.send({"kill": self.name})
            await self._supervisor.wait(lambda: self.state is ProcessState.DOWN)

    async def ended(self) -> None:
        """Wait until the process is down, for whatever reason."""
        await self._supervisor.wait(lambda: self.state is ProcessState.DOWN)

    def freeze(self) -> None:
        """Stop the process (SIGSTOP): its connections stay open and it answers nothing. Return when it is stopped."""
        self._signal(signal.SIGSTOP)
        self.frozen = True
        # The signal goes to one thread. The others run until that thread is scheduled, which on a busy machine is long enough
        # to answer a request. Only the parent process is notified when all are stopped, so we poll.
        until = time.monotonic() + _FREEZE_TIMEOUT
        while not self._is_stopped() and time.monotonic() < until:
            os.sched_yield()

    def _is_stopped(self) -> bool:
        """Return whether all threads of the process are stopped. Without /proc, return True."""
        try:
            threads = [stat.read_text() for stat in Path(f"/proc/{self.pid}/task").glob("*/stat")]
        except OSError:  # a thread has just ended
            return False
        return all(thread.rpartition(")")[2].split()[0] in {"T", "t"} for thread in threads)

    def thaw(self) -> None:
        """Resume a frozen process (SIGCONT)."""
        self._signal(signal.SIGCONT)
        self.frozen = False

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is None:
            raise LocalServiceError(f"{self.name} is not running")
        os.killpg(self.pid, number)

    def log_tail(self) -> str:
        """Return the last lines of the log."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return "(no log)"
        return "\n".join(lines[-_LOG_TAIL_LINES:]) or "(the log is empty)"

    def error(self, what: str) -> LocalServiceError:
        """Return an error about this process, with the end of its log."""
        return LocalServiceError(f"{self.name} {what}", self.log_tail())

    def on_event(self, event: dict[str, object]) -> None:
        """Update the state from an event of the supervisor."""
        match event:
            case {"event": "started", "pid": int(pid)}:
                self.pid, self.frozen = pid, False
            case {"event": "ready"}:
                self.state = ProcessState.UP
            case {"event": "line", "text": str(text)}:
                if self._on_line is not None:
                    self._on_line(text)
            case {"event": "exited", "code": int(code)}:
                self.state, self.pid, self.frozen, self.exit_code = ProcessState.DOWN, None, False, code
            case {"event": "failed", "reason": str(reason)}:
                self.state, self.failure = ProcessState.DOWN, f"could not be run: {reason}"


class SupervisorClient(asyncio.SubprocessProtocol):
    """The parent's side of the supervisor: sends commands and passes events on to the processes."""

    def __init__(self) -> None:
        self.processes: dict[str, Process] = {}
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.SubprocessTransport | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._partial = b""
        self._exited = False
        self._stderr = b""

    # Called by the transport

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

    # Called by processes and by `supervise`

    def send(self, message: dict[str, object]) -> None:
        """Send a command to the supervisor. Raises LocalServiceError if it has exited."""
        if self._exited or self._transport is None:
            raise LocalServiceError("the services of this context have ended", self._stderr.decode(errors="replace"))
        pipe = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))
        pipe.write(json.dumps(message).encode() + b"\n")

    async def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` is true; it is checked after each event.

        Raises LocalServiceError if the supervisor exits first. Can be cancelled at any time.
        """
        while not condition():
            if self._exited:
                raise LocalServiceError(
                    "the process that supervises the services died", self._stderr.decode(errors="replace")
                )
            waiter = self._loop.create_future()
            self._waiting.add(waiter)
            try:
                await waiter
            finally:
                self._waiting.discard(waiter)

    async def end(self) -> None:
        """Close the pipe, upon which the supervisor kills all processes and exits, and wait for that."""
        assert self._transport is not None
        pipe = self._transport.get_pipe_transport(0)
        if pipe is not None:
            pipe.close()
        try:
            async with asyncio.timeout(30):
                await self.wait(lambda: self._exited)
        finally:
            self._transport.close()  # also after a timeout or a cancellation, without waiting for the supervisor


async def gather_or_cancel(*starts: Awaitable[object]) -> None:
    """Wait for all. If one fails or the caller is cancelled, cancel the others, wait for them, and raise its error."""
    tasks = [asyncio.ensure_future(start) for start in starts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def supervise(remove: Path | None = None) -> AsyncIterator[SupervisorClient]:
    """Run a supervisor until the context or this process ends; then its processes are killed and `remove` is removed.

    Raises LocalServiceError if the supervisor cannot be started.
    """
    arguments = [sys.executable, "-I", "-S", str(_SUPERVISOR), str(os.getpid())]
    if remove is not None:
        arguments.append(str(remove))
    loop = asyncio.get_running_loop()
    try:
        # It has a session of its own, so that Ctrl-C in the terminal reaches us and not the services.
        _, supervisor = await loop.subprocess_exec(SupervisorClient, *arguments, start_new_session=True)
    except BaseException as error:  # no supervisor will remove it
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
            if remove is not None:  # the supervisor does this, unless it was killed
                shutil.rmtree(remove, ignore_errors=True)


def make_directory(service: str, data_dir: str | Path | None) -> tuple[Path, Path | None]:
    """Make the directory of a service; return it, and once more if it is a temporary one that `supervise` must remove."""
    if data_dir is None:
        temporary = Path(tempfile.mkdtemp(prefix=f"aiokcc-{service}-"))
        return temporary, temporary
    directory = Path(data_dir).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    return directory, None


def free_ports(count: int) -> list[int]:
    """Return loopback ports that are free now.

    They lie below the range that the system uses for outgoing connections. While a killed server is down, any client could
    take a port of that range. A client that keeps connecting to a dead port of that range would at some time be given this
    port as its own and connect to itself.
    """
    low, high = 10_000, _ephemeral_floor()
    candidates = random.sample(range(low, high), min(high - low, 500)) if high - low > 1000 else [0] * count
    ports: list[int] = []
    with contextlib.ExitStack() as held:  # hold all until the last is found, so that no port comes twice
        for candidate in candidates:
            listener = held.enter_context(socket.socket())
            try:
                listener.bind(("127.0.0.1", candidate))
            except OSError:
                continue
            ports.append(listener.getsockname()[1])
            if len(ports) == count:
                return ports
    raise LocalServiceError(f"there are not {count} free ports on 127.0.0.1")


def _ephemeral_floor() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768  # the lowest value that is usual
