"""What all service processes have in common for the program that uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from ._process import Process


class Service:
    """One server on loopback, always on the same port and with the same data, however often it is restarted."""

    def __init__(self, process: Process, port: int, deadline: float) -> None:
        self.host: Final = "127.0.0.1"
        self.port: Final = port
        self._process = process
        self._deadline = deadline

    @property
    def name(self) -> str:
        """The name in messages, such as ``zookeeper-1``."""
        return self._process.name

    @property
    def pid(self) -> int | None:
        """The Java process, or None while the server is down."""
        return self._process.pid

    @property
    def log(self) -> Path:
        """The file that has the server's log."""
        return self._process.log

    async def start(self) -> None:
        """Start the server again and wait until it serves; a running one is left alone."""
        await self._process.start(self._deadline)

    async def kill(self) -> None:
        """Crash the server (SIGKILL) and wait until it is gone. Its data stay."""
        await self._process.kill()

    async def ended(self) -> None:
        """Wait until the server is down, whoever ended it. Belongs to the event loop that started it."""
        await self._process.ended()

    def log_tail(self) -> str:
        """The end of its log."""
        return self._process.log_tail()

    def freeze(self) -> None:
        """Stop the server in its tracks (SIGSTOP): connections stay open, nothing is answered."""
        self._process.freeze()

    def thaw(self) -> None:
        """Let a frozen server go on (SIGCONT)."""
        self._process.thaw()
