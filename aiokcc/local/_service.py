"""The interface that all local services share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ._process import Process, ProcessState

if TYPE_CHECKING:
    from pathlib import Path


class Service:
    """One server on loopback. It keeps its port and its data when it is restarted."""

    def __init__(self, process: Process, port: int, deadline: float) -> None:
        self.host: Final = "127.0.0.1"
        self.port: Final = port
        self._process = process
        self._deadline = deadline

    @property
    def name(self) -> str:
        """The service's name in messages, such as ``zookeeper-1``."""
        return self._process.name

    @property
    def pid(self) -> int | None:
        """The id of the Java process; None while the server is down."""
        return self._process.pid

    @property
    def serving(self) -> bool:
        """True from the end of a successful start to the end of the process, also while it is frozen."""
        return self._process.state is ProcessState.UP

    @property
    def frozen(self) -> bool:
        """True between `freeze` and `thaw`."""
        return self._process.frozen

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self._process.log

    async def start(self) -> None:
        """Start the server, unless it runs, and wait until it serves.

        Raises LocalServiceError if it does not start. Cancelling leaves it running until its context ends.
        """
        await self._process.start(self._deadline)

    async def kill(self) -> None:
        """Kill the server (SIGKILL) and wait until it has exited. Its data stay."""
        await self._process.kill()

    async def ended(self) -> None:
        """Wait until the server is down, for whatever reason. Must run on the event loop that started it."""
        await self._process.ended()

    def log_tail(self) -> str:
        """Return the last lines of the log."""
        return self._process.log_tail()

    def freeze(self) -> None:
        """Stop the server (SIGSTOP): its connections stay open and it answers nothing."""
        self._process.freeze()

    def thaw(self) -> None:
        """Resume a frozen server (SIGCONT)."""
        self._process.thaw()
