"""The store for ``zk://`` and ``zks://`` URLs: the servers, the root, and how to open a session there."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from ssl import SSLContext
from typing import Any, Self

from aiokcc.background import Background
from aiokcc.credentials import make_tls_context, read_secret, remember_secret
from aiokcc.credentials.tls import read_pem
from aiokcc.errors import UsageError
from aiokcc.stores.checks import DEFAULT_ROOT, check_path, check_root, check_timeouts
from aiokcc.stores.port import Session, Store
from aiokcc.stores.zookeeper import wire
from aiokcc.stores.zookeeper.acl import AclChoice, resolve_acl
from aiokcc.stores.zookeeper.connector import Ensemble, ServerAddress
from aiokcc.stores.zookeeper.session import ZooKeeperSession
from aiokcc.stores.zookeeper.url import FORM, TLS_OPTIONS, parse_url

__all__ = ["ZooKeeperStore"]


class ZooKeeperStore(Store):
    """A root on a ZooKeeper server or ensemble. ::

        store = ZooKeeperStore.from_url("zk://10.0.0.1:2181,10.0.0.2:2181/replay", auth=("user", "password"))
        async with store.session() as session:
            await session.ensure("")

    * ``auth``: user and password, sent to the server (scheme ``digest``) at the beginning of every connection.
    * ``acl``: who may use the nodes created: ``"creator"`` (only ``auth``'s user; the default with ``auth``), ``"open"``
      (everybody; the default without), ``"readable"`` (everybody may look), or a list of :class:`Acl`. Under a root that a
      group uses already, nodes get the access list of that group.
    * ``ssl``: the context for TLS connections. :meth:`from_url` makes one for ``zks://`` URLs, from the PEM files ``ca`` (by
      default the authorities of this machine), ``cert`` and ``key`` (the client's own) and ``key_password``.

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
            raise UsageError(f"no server is given; {FORM}")
        if auth is not None and not (
            isinstance(auth, tuple) and len(auth) == 2 and all(isinstance(part, str) and part for part in auth)
        ):
            raise UsageError("auth is a pair of two strings, (user, password), neither of them empty")
        if auth is not None and ":" in auth[0]:
            raise UsageError("the user in auth contains a ':', which ZooKeeper takes for the end of the name")
        if ssl is not None and not isinstance(ssl, SSLContext):
            raise UsageError("ssl is an ssl.SSLContext, as made by ssl.create_default_context()")
        remember_secret(None if auth is None else auth[1])
        self.root = check_root(root)
        self.url = f"{'zk' if ssl is None else 'zks'}://{','.join(map(str, self.servers))}{self.root}"
        self._acl = wire.encode_acl(resolve_acl(acl, authenticated=auth is not None, by_certificate=ssl is not None))
        self._ensemble = Ensemble(self.servers, ssl, auth)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        auth: tuple[str, str] | str | None = None,
        acl: AclChoice = None,
        ssl: SSLContext | None = None,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        key_password: str | None = None,
    ) -> Self:
        """Return the store for a URL, such as ``zks://zk1:2281/replay?ca=ca.pem&auth=env:ZK_AUTH``.

        The options may stand in the URL, where secrets are named (``env:NAME``, ``file:PATH``), or be given as arguments.
        ``auth`` may be a text, ``user:password``, or say where that is found. The default port is 2181, with TLS 2281; the
        default root ``/aiokcc/default``. Raises UsageError for invalid options and for files that cannot be read.
        """
        parsed = parse_url(url)
        given: dict[str, Any] = {
            "auth": auth,
            "acl": acl,
            "ca": ca,
            "cert": cert,
            "key": key,
            "key_password": key_password,
        }
        for name, value in parsed.options.items():
            if given[name] is not None:
                raise UsageError(f"the URL has the option {name}, and {name} is given as well: leave one of them out")
            given[name] = value
        if parsed.auth is not None and given["auth"] is not None:
            raise UsageError("the URL has a user and a password, and auth is given as well: leave one of them out")
        files = [name for name in TLS_OPTIONS if given[name] is not None]
        if files and (ssl is not None or not parsed.tls):
            other = (
                "ssl, which says the same, is given as well"
                if ssl is not None
                else "the URL does not begin with zks://"
            )
            raise UsageError(f"{files[0]} is an option for TLS, but {other}")
        if parsed.tls and ssl is None:
            ssl = _context(given)
        credentials = parsed.auth or _read_auth(given["auth"])
        return cls(parsed.servers, parsed.root, auth=credentials, acl=given["acl"], ssl=ssl)

    def at(self, root: str) -> Self:
        """Return the store of another root on the same servers, with the same credentials; ``""`` is the top."""
        other = copy.copy(self)
        other.root = check_root(root) if root else ""
        other.url = f"{self.url.removesuffix(self.root)}{other.root}"
        return other

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


def _context(given: dict[str, Any]) -> SSLContext:
    wrong = next((name for name in TLS_OPTIONS if not isinstance(given[name], str | None)), None)
    if wrong is not None:
        raise UsageError(
            f"{wrong} is {type(given[wrong]).__name__}; expected a text: the path of a PEM file, or the password"
        )
    ca, cert, key = (None if given[n] is None else read_pem(given[n], n) for n in ("ca", "cert", "key"))
    password = None if given["key_password"] is None else read_secret(given["key_password"], "key_password")
    remember_secret(password)
    return make_tls_context(ca=ca, certificate=cert, key=key, password=password)


def _read_auth(given: Any) -> Any:
    """Return user and password of the text ``user:password``, or of where that is found; any other value as it is."""
    if not isinstance(given, str):
        return given
    user, colon, password = read_secret(given, "auth").partition(":")
    if not (user and colon and password):
        raise UsageError("auth has to be user:password, or env:NAME or file:PATH that holds it; there is no ':' in it")
    return user, password
