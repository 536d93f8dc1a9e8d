"""The store for ``zk://`` URLs: the servers, the root, and how to open a session there."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from ssl import SSLContext
from typing import Final, NoReturn, Self
from urllib.parse import unquote

from aiokcc.background import Background
from aiokcc.core.masking import mask_url
from aiokcc.errors import UsageError
from aiokcc.stores.checks import DEFAULT_ROOT, check_path, check_root, check_timeouts
from aiokcc.stores.port import Session, Store
from aiokcc.stores.zookeeper import wire
from aiokcc.stores.zookeeper.acl import AclChoice, resolve_acl
from aiokcc.stores.zookeeper.connector import Ensemble, ServerAddress
from aiokcc.stores.zookeeper.session import ZooKeeperSession

__all__ = ["DEFAULT_PORT", "ZooKeeperStore"]

DEFAULT_PORT: Final = 2181
_SCHEME: Final = "zk://"
_FORM: Final = "write zk://[user:password@]host[:port][,host[:port]…][/root], as in 'zk://127.0.0.1:2181/replay'"
_HOST: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<name>[^\s\[\]:@/?#,]+))(?::(?P<port>.*))?")


class ZooKeeperStore(Store):
    """A root on a ZooKeeper server or ensemble. ::

        store = ZooKeeperStore.from_url("zk://10.0.0.1:2181,10.0.0.2:2181/replay", auth=("user", "password"))
        async with store.session() as session:
            await session.ensure("")

    * ``auth``: user and password, sent to the server (scheme ``digest``) at the beginning of every connection.
    * ``acl``: who may use the nodes created: ``"creator"`` (only ``auth``'s user; the default with ``auth``), ``"open"``
      (everybody; the default without), ``"readable"`` (everybody may look), or a list of :class:`Acl`. Under a root that a
      group uses already, nodes get the access list of that group.
    * ``ssl``: the context for TLS connections.

    A cancelled create may have been applied; an ephemeral node then exists until the session ends. A session never reads an
    older state than an earlier session of the same store has read.
    """

    def __init__(
        self,
        servers: Iterable[tuple[str, int]],
        root: str = DEFAULT_ROOT,
        *,
        auth: tuple[str, str] | None = None,
        acl: AclChoice = None,
        ssl: SSLContext | None = None,
    ) -> None:
        self.servers = tuple(dict.fromkeys(ServerAddress(host, port) for host, port in servers))
        if not self.servers:
            raise UsageError(f"no server is given; {_FORM}")
        if auth is not None and not (
            isinstance(auth, tuple) and len(auth) == 2 and all(isinstance(part, str) and part for part in auth)
        ):
            raise UsageError("auth is a pair of two strings, (user, password), neither of them empty")
        if auth is not None and ":" in auth[0]:
            raise UsageError("the user in auth contains a ':', which ZooKeeper takes for the end of the name")
        if ssl is not None and not isinstance(ssl, SSLContext):
            raise UsageError("ssl is an ssl.SSLContext, as made by ssl.create_default_context()")
        self.root = check_root(root)
        self.url = f"{_SCHEME}{','.join(map(str, self.servers))}{self.root}"
        self._acl = wire.encode_acl(resolve_acl(acl, authenticated=auth is not None))
        self._ensemble = Ensemble(self.servers, ssl, auth)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        auth: tuple[str, str] | None = None,
        acl: AclChoice = None,
        ssl: SSLContext | None = None,
    ) -> Self:
        """Return the store for a URL. The default port is 2181, the default root ``/aiokcc/default``."""
        servers, root, found = _parse(url)
        if found is not None and auth is not None:
            raise UsageError("the URL has a user and a password, and auth is given as well: leave one of them out")
        return cls(servers, root, auth=auth or found, acl=acl, ssl=ssl)

    def __repr__(self) -> str:
        return f"<ZooKeeperStore {self.url}>"

    def describe(self, path: str) -> str:
        return f"{self.root}/{path}" if check_path(path) else self.root

    def session(
        self, *, timeout: float = 10.0, connect_timeout: float | None = 10.0
    ) -> AbstractAsyncContextManager[Session]:
        check_timeouts(timeout, connect_timeout)
        return self._opened(timeout, connect_timeout)

    @asynccontextmanager
    async def _opened(self, timeout: float, connect_timeout: float | None) -> AsyncIterator[Session]:
        session = ZooKeeperSession(self._ensemble, self.root, self._acl, timeout)
        async with Background(closing=session.close) as background:
            background.tasks.start_soon(session.run)
            await session.wait_connected(connect_timeout)
            yield session


def _parse(url: str) -> tuple[list[tuple[str, int]], str, tuple[str, str] | None]:
    """Return the servers, the root and the credentials of a URL. Its errors never contain the password."""
    if not isinstance(url, str) or not url.startswith(_SCHEME):
        _refuse(url, f"it does not begin with {_SCHEME}")
    rest = url.removeprefix(_SCHEME)
    # A '@' or '/' in the password is written %40 or %2F.
    authority, slash, root = rest.partition("/")
    secret, at, hosts = authority.rpartition("@")
    auth = None
    if at:
        user, colon, password = secret.partition(":")
        if not (user and colon and password):
            _refuse(url, "before the '@' there must be a user and a password, 'user:password@'")
        auth = unquote(user), unquote(password)
    if unexpected := re.search(r"[?#]", hosts + slash + root):
        _refuse(url, f"it contains a '{unexpected.group()}'; options are given as arguments")
    servers = []
    if not at and "@" in root and not all(map(_is_server, hosts.split(","))):
        _refuse(url, "a '/' in the user or the password is written %2F")
    for host in hosts.split(","):
        found = _HOST.fullmatch(host)
        if found is None:
            _refuse(url, f"{mask_url(host)!r} is not a host and port" if host else "a host is missing")
        port = found["port"]
        if port is not None and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            # What does not look like a port may be a password behind which the '@' is missing.
            shown = repr(port) if re.fullmatch("[0-9]{0,5}", port) else "what stands behind the ':'"
            _refuse(url, f"{shown} is not a port number from 1 to 65535")
        servers.append((found["six"] or found["name"], DEFAULT_PORT if port is None else int(port)))
    return servers, check_root(slash + root), auth


def _is_server(host: str) -> bool:
    found = _HOST.fullmatch(host)
    return found is not None and (found["port"] or "1").isdecimal()


def _refuse(url: object, problem: str) -> NoReturn:
    shown = repr(mask_url(url)) if isinstance(url, str) else mask_url(repr(url))
    raise UsageError(f"{shown} is not the URL of a ZooKeeper: {problem}; {_FORM}")
