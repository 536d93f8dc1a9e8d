"""The stores in which a group keeps its state: the port, and its implementations for ``zk://``, ``zks://`` (TLS),
``kafka://`` and ``memory://`` URLs."""

from __future__ import annotations

import difflib
from typing import Any, Final

from aiokcc.core.masking import mask_url
from aiokcc.errors import UsageError
from aiokcc.stores.port import (
    ANY_VERSION,
    STOP_FRACTION,
    Change,
    Check,
    Children,
    Create,
    Created,
    Delete,
    Node,
    Op,
    OpResult,
    Session,
    SessionState,
    Set,
    Store,
    Watch,
    boottime,
)

__all__ = [
    "ANY_VERSION",
    "STOP_FRACTION",
    "ZOOKEEPER_OPTIONS",
    "Change",
    "Check",
    "Children",
    "Create",
    "Created",
    "Delete",
    "Node",
    "Op",
    "OpResult",
    "Session",
    "SessionState",
    "Set",
    "Store",
    "Watch",
    "boottime",
    "open_store",
]

ZOOKEEPER_OPTIONS: Final = frozenset({"auth", "acl", "ca", "cert", "key", "key_password", "ssl"})
_FORMS: Final = (
    "write zk://host:port[,host:port…]/root, as in 'zk://127.0.0.1:2181/replay', "
    "zks:// for TLS, kafka://host:port[,host:port…]/root, as in 'kafka://127.0.0.1:9092/replay', "
    "or memory://name[/root] for one process, as in 'memory://demo'"
)


def open_store(url: str, **options: Any) -> Store:
    """Return the store for a URL, without connecting to it. ::

        store = open_store("zk://127.0.0.1:2181,127.0.0.1:2182/replay")
        store = open_store("kafka://127.0.0.1:9092/replay", security_protocol="SSL", ssl_context=context)
        store = open_store("zks://zk1:2281/replay", ca="ca.pem", auth="env:ZK_AUTH")  # over TLS
        store = open_store("memory://demo")  # in this process only

    ``options`` are passed to the store. The default root is ``/aiokcc/default``. Raises UsageError if the URL is invalid.
    """
    if not isinstance(url, str):
        raise UsageError(f"a store is given as a URL, not as {type(url).__name__}; {_FORMS}")
    scheme, separator, rest = url.partition("://")
    shown = repr(mask_url(url))
    if not separator:
        raise UsageError(f"{shown} is not a store's URL; {_FORMS}" if url else f"the store's URL is empty; {_FORMS}")
    if scheme not in ("memory", "zk", "zks", "kafka"):
        raise UsageError(f"there is no store for {scheme + '://'!r} in {shown}; {_FORMS}")
    if not rest.partition("/")[0]:
        raise UsageError(f"{shown} does not say {'which name' if scheme == 'memory' else 'which host'}; {_FORMS}")
    # Import only the store in use: a program that uses the memory store needs no ZooKeeper client.
    if scheme == "memory":
        from aiokcc.stores.memory import MemoryStore

        if options:
            raise UsageError(f"memory:// takes no options, but got {', '.join(sorted(options))}")
        return MemoryStore.from_url(url)
    if scheme == "kafka":
        from aiokcc.stores.kafka import KafkaStore

        return KafkaStore.from_url(url, **options)
    from aiokcc.stores.zookeeper import ZooKeeperStore

    for name in options.keys() - ZOOKEEPER_OPTIONS:
        near = difflib.get_close_matches(name, ZOOKEEPER_OPTIONS, 1)
        hint = f"did you mean {near[0]!r}? It takes" if near else "it takes"
        raise UsageError(
            f'{scheme}:// has no option {name!r}; {hint} auth=("user", "password"), acl=, and for zks:// ca=, cert=, key=, '
            f"key_password= or ssl="
        )
    store: Store = ZooKeeperStore.from_url(url, **options)
    return store
