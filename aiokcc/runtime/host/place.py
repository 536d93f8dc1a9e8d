"""The place where the processes of a host meet: a socket in a directory that only the user may enter.

Its name is made from the store's URL and root and from the timeouts, so only processes of one group that agree on them meet. A
new service binds a socket of its own and renames it over the one before, so a socket that a dead or stopped process has left
does no harm. A lock on a file beside it keeps processes that start together from serving all at once. Neither decides who
owns a partition: two services of one host would be two members, and the locks in the store keep them apart.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import secrets
import socket
import stat
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from aiokcc.errors import CoordinationError, UsageError
from aiokcc.runtime.host.channel import ProcessChannel, SocketChannel
from aiokcc.stores.port import Store

if TYPE_CHECKING:
    from aiokcc.runtime.options import GroupOptions

__all__ = ["Listening", "MeetingPlace", "SocketPlace", "can_meet", "check_directory", "find_place", "runtime_directory"]

_LONGEST: Final = 107
"""The bytes that Linux has for the path of a socket."""
_NAME: Final = 24
"""The length of a socket's name."""


class Listening(Protocol):
    """A service that can be found."""

    def close(self) -> None:
        """Takes no further connection."""


class MeetingPlace(Protocol):
    """The place where a process finds the one that serves its host."""

    async def connect(self) -> ProcessChannel | None:
        """Connects to the process that serves; None if there is none."""

    def reserve(self) -> bool:
        """Returns whether this process may begin to serve: no other one is about to."""

    async def wait_reserved(self) -> None:
        """Waits while another process is about to serve. Cancelling ends the wait."""

    def end_reservation(self) -> None:
        """Ends the reservation."""

    async def listen(self, taken: Callable[[ProcessChannel], None]) -> Listening:
        """Serves from now on: ``taken`` gets the connection of each client."""


class SocketPlace:
    """A socket in the file system."""

    def __init__(self, store: Store, timeouts: tuple[float, float | None], directory: Path | None = None) -> None:
        self._directory = directory or runtime_directory()
        what = repr((store.url, store.root, os.getuid(), timeouts)).encode()
        self.path = self._directory / f"{hashlib.sha256(what).hexdigest()[:_NAME]}.sock"
        if _is_too_long(self.path):
            raise UsageError(
                f"the path {self.path} is too long for a socket; set XDG_RUNTIME_DIR to a shorter directory"
            )
        self._lock: int | None = None

    async def connect(self) -> ProcessChannel | None:
        """Connects to the process that serves; None if there is none. Raises CoordinationError if it is another user's."""
        check_directory(self._directory)
        try:
            _, channel = await asyncio.get_running_loop().create_unix_connection(SocketChannel, str(self.path))
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
            return None
        except OSError as error:
            raise CoordinationError(f"{self.path}: {error.strerror}; remove it, or do not share the host") from error
        if channel.peer_user() not in {None, os.getuid()}:
            channel.close()
            raise CoordinationError(f"{self.path} is served by another user; remove it, or do not share the host")
        return channel

    def reserve(self) -> bool:
        """Locks the file beside the socket. Returns False if another process has locked it."""
        lock = self._open_lock()
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        self._lock = lock
        return True

    async def wait_reserved(self) -> None:
        """Waits until no process has locked the file for itself.

        The system has no call that waits for a lock and can be cancelled, so a thread waits. If this is cancelled, the thread
        stays until the file is unlocked, with nothing else to do; it does not keep the process from ending.
        """
        loop, lock, unlocked = asyncio.get_running_loop(), self._open_lock(), asyncio.Event()

        def wait() -> None:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH)  # all that wait get it together
            finally:
                os.close(lock)
            with suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(unlocked.set)

        threading.Thread(target=wait, name="aiokcc waits for its host", daemon=True).start()
        await unlocked.wait()

    def _open_lock(self) -> int:
        return os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def end_reservation(self) -> None:
        """Unlocks the file."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def listen(self, taken: Callable[[ProcessChannel], None]) -> Listening:
        """Binds a socket that only this user may open, and renames it over the one before."""
        check_directory(self._directory)
        own = self.path.with_suffix(f".{secrets.token_hex(3)}")
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            bound.bind(str(own))
            own.chmod(0o600)
            server = await asyncio.get_running_loop().create_unix_server(
                lambda: SocketChannel(lambda channel: _admit(channel, taken)), sock=bound, backlog=1024
            )
            inode = own.stat().st_ino
            own.rename(self.path)
        except BaseException:
            bound.close()
            own.unlink(missing_ok=True)
            raise
        return _Socket(server, self.path, inode)


class _Socket:
    def __init__(self, server: asyncio.Server, path: Path, inode: int) -> None:
        self._server, self._path, self._inode = server, path, inode

    def close(self) -> None:
        """Takes no further connection, and removes the socket if it is still ours."""
        self._server.close()
        with suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()


def find_place(store: Store, options: GroupOptions) -> MeetingPlace | None:
    """Returns where the processes of this host meet; None for a store in memory, which only this process has."""
    if store.volatile:
        return None
    return SocketPlace(store, (options.session_timeout, options.claim_timeout))


def _admit(channel: SocketChannel, taken: Callable[[ProcessChannel], None]) -> None:
    """Takes a connection if it comes from a process of the same user."""
    if channel.peer_user() in {None, os.getuid()}:
        taken(channel)
    else:
        channel.close()


def can_meet() -> bool:
    """Returns whether processes of this user can meet on this host: there is a directory for their sockets."""
    try:
        directory = runtime_directory()
    except CoordinationError:
        return False
    return os.access(directory, os.W_OK | os.X_OK) and not _is_too_long(directory / ("x" * _NAME + ".sock"))


def _is_too_long(path: Path) -> bool:
    return len(os.fsencode(path)) + 10 > _LONGEST


def runtime_directory() -> Path:
    """Returns the directory of this user's sockets, which is created if it does not exist."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    directory = Path(given) / "aiokcc" if given else Path(tempfile.gettempdir()) / f"aiokcc-{os.getuid()}"
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise CoordinationError(
            f"{directory}: {error.strerror}; the processes of a host meet there: set XDG_RUNTIME_DIR, or do not share the host"
        ) from error
    check_directory(directory)
    return directory


def check_directory(directory: Path) -> None:
    """Raises CoordinationError unless this is a directory of this user that nobody else may enter."""
    try:
        found = directory.lstat()
    except OSError as error:
        raise CoordinationError(f"{directory}: {error.strerror}; the processes of a host meet there") from error
    if not stat.S_ISDIR(found.st_mode):
        raise CoordinationError(f"{directory} is not a directory; remove it, or set XDG_RUNTIME_DIR to another place")
    if found.st_uid != os.getuid():
        raise CoordinationError(
            f"{directory} belongs to user {found.st_uid}, not to {os.getuid()}; set XDG_RUNTIME_DIR to a directory of yours"
        )
    if found.st_mode & 0o077:
        raise CoordinationError(
            f"{directory} can be entered by others (mode {stat.S_IMODE(found.st_mode):o}); run: chmod 700 {directory}"
        )
