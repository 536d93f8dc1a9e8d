"""The store for ``kafka://`` URLs: the servers, the root, its topic, and how to open a session there."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, NoReturn, Self
from urllib.parse import parse_qsl

from aiokcc.background import Background
from aiokcc.core.masking import mask_url
from aiokcc.credentials import remember_secrets
from aiokcc.credentials.kafka_client import CONNECTION_SETTINGS
from aiokcc.errors import UsageError
from aiokcc.stores.checks import DEFAULT_ROOT, check_path, check_root, check_timeouts
from aiokcc.stores.kafka.client import LogClient
from aiokcc.stores.kafka.history import LogHistory
from aiokcc.stores.kafka.roots import list_roots
from aiokcc.stores.kafka.session import KafkaSession, TrimmedWhileOpeningError
from aiokcc.stores.kafka.topic import PREFIX, check_name, name_topic
from aiokcc.stores.port import Session, Store, boottime

__all__ = ["DEFAULT_PORT", "KafkaStore"]

DEFAULT_PORT: Final = 9092
_SCHEME: Final = "kafka://"
_FORM: Final = "write kafka://host[:port][,host[:port]…][/root][?topic=NAME], as in 'kafka://127.0.0.1:9092/replay'"
_HOST: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s\[\]:@/?#,]+)(?::(?P<port>.*))?")


class KafkaStore(Store):
    """A root in one topic of a Kafka cluster. ::

        store = KafkaStore.from_url("kafka://10.0.0.1:9092,10.0.0.2:9092/replay", security_protocol="SASL_SSL", …)
        async with store.session() as session:
            await session.ensure("")

    * ``topic``: the topic's name; by default it is made from ``prefix`` and the root. It is created on first use.
    * ``create=False``: it is never created; a session raises UsageError if it does not exist.
    * all others: settings of aiokafka that concern the connection: ``security_protocol``, ``ssl_context``, ``sasl_…``,
      ``client_id``.
    """

    def __init__(
        self,
        servers: Iterable[str],
        root: str = DEFAULT_ROOT,
        *,
        topic: str | None = None,
        prefix: str = PREFIX,
        create: bool = True,
        **settings: Any,
    ) -> None:
        self.servers = tuple(dict.fromkeys(servers))
        if not self.servers:
            raise UsageError(f"no server is given; {_FORM}")
        for name in settings.keys() - CONNECTION_SETTINGS:
            raise UsageError(
                f"kafka:// has no option {name!r}; it takes topic=, prefix= and {', '.join(sorted(CONNECTION_SETTINGS))}"
            )
        remember_secrets(settings)
        self.root = check_root(root)
        self.topic = name_topic(self.root, prefix) if topic is None else check_name(topic)
        named = "" if topic is None else f"?topic={topic}"
        self.url = f"{_SCHEME}{','.join(self.servers)}{self.root}{named}"
        self.is_named = topic is not None
        """True if the topic's name was given, so that it does not follow from the root."""
        self._prefix = prefix
        self._settings = settings
        self._create = create
        self._history = LogHistory()

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """Return the store for a URL. The default port is 9092, the default root ``/aiokcc/default``."""
        servers, root, found = _parse(url)
        for name in found.keys() & options.keys():
            raise UsageError(f"the URL has {name}=, and {name} is given as well: leave one of them out")
        return cls(servers, root, **{**found, **options})

    async def list_roots(self, timeout: float = 10.0) -> list[str]:
        """Return the roots that this cluster has, sorted. Raises StoreUnreachableError if no broker answers in time."""
        return await list_roots(self.servers, self._settings, timeout, self._prefix)

    def at(self, root: str) -> Self:
        """Return the store of another root on the same servers."""
        return type(self)(self.servers, root, prefix=self._prefix, create=self._create, **self._settings)

    def __repr__(self) -> str:
        return f"<KafkaStore {self.url}>"

    def describe(self, path: str) -> str:
        return f"{self.root}/{path}" if check_path(path) else self.root

    def session(
        self, *, timeout: float = 10.0, connect_timeout: float | None = 10.0
    ) -> AbstractAsyncContextManager[Session]:
        check_timeouts(timeout, connect_timeout)
        return self._opened(timeout, connect_timeout)

    @asynccontextmanager
    async def _opened(self, timeout: float, connect_timeout: float | None) -> AsyncIterator[Session]:
        self._history.check()
        until = math.inf if connect_timeout is None else boottime() + connect_timeout
        left, is_open = connect_timeout, False
        while not is_open:
            client = LogClient(self.servers, self.topic, self._settings, min(max(1.5, timeout / 3), 30.0))
            session = KafkaSession(client, self.topic, self.root, self._history, timeout, create=self._create)
            try:
                async with Background(closing=session.close) as background:
                    await session.open(left)
                    background.tasks.start_soon(session.run)
                    await session.wait_opened(_left(until))
                    is_open = True
                    yield session
            except TrimmedWhileOpeningError:
                if is_open or boottime() >= until:
                    raise
                left = _left(until)


def _left(until: float) -> float | None:
    return None if until == math.inf else max(0.1, until - boottime())


def _parse(url: str) -> tuple[list[str], str, dict[str, str]]:
    """Return the servers, the root and the options of a URL."""
    if not isinstance(url, str) or not url.startswith(_SCHEME):
        _refuse(url, f"it does not begin with {_SCHEME}")
    rest, _, query = url.removeprefix(_SCHEME).partition("?")
    authority, slash, root = rest.partition("/")
    if "@" in authority:
        _refuse(url, "it has a user or a password; give them as options: sasl_plain_username=, sasl_plain_password=")
    servers = []
    for host in authority.split(","):
        found = _HOST.fullmatch(host)
        if found is None:
            _refuse(url, f"{mask_url(host)!r} is not a host and port" if host else "a host is missing")
        port = found["port"]
        if port is not None and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            _refuse(url, "what stands behind the ':' is not a port number from 1 to 65535")
        servers.append(host if port is not None else f"{host}:{DEFAULT_PORT}")
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options.keys() - {"topic", "prefix"}:
        _refuse(
            url,
            f"it has the option {mask_url(name)!r}; a URL takes topic= and prefix=, the others are given as arguments",
        )
    return servers, check_root(slash + root), options


def _refuse(url: object, problem: str) -> NoReturn:
    shown = repr(mask_url(url)) if isinstance(url, str) else mask_url(repr(url))
    raise UsageError(f"{shown} is not the URL of a store in Kafka: {problem}; {_FORM}")
