"""Finds the groups at and below the path of a URL, for ``aiokcc list`` and ``aiokcc prune``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio

from aiokcc.cli.verb import open_existing
from aiokcc.errors import AiokccError, NoGroupError, StoreUnreachableError, UsageError
from aiokcc.exception_groups import unwrapped
from aiokcc.runtime.roots import RootSummary, find_roots, summarize
from aiokcc.stores.zookeeper import ZooKeeperStore

if TYPE_CHECKING:
    from aiokcc.stores.kafka import KafkaStore

    GroupStore: TypeAlias = ZooKeeperStore | KafkaStore

__all__ = ["path_of", "summaries"]

_AT_ONCE: Final = 20
"""The most roots that are read at the same time: each has a session of its own."""


def path_of(options: argparse.Namespace) -> str:
    """Return the path of the URL, without the slash at its end; empty if it has none."""
    path = options.store.partition("://")[2].partition("?")[0].rpartition("@")[2].partition("/")[2]
    return f"/{path}".rstrip("/")


async def _stores(options: argparse.Namespace) -> list[GroupStore]:
    """Return the stores of all roots at and below the URL's path."""
    store, prefix = open_existing(options), path_of(options)
    if isinstance(store, ZooKeeperStore):
        above = store.at(prefix)
        async with above.session(connect_timeout=options.timeout) as session:
            if prefix and await session.find("") is None:
                raise UsageError(f"there is no node {prefix} on this server")
            return [store.at(f"{prefix}/{path}".rstrip("/")) async for path in find_roots(session)]
    from aiokcc.stores.kafka import KafkaStore

    assert isinstance(store, KafkaStore)
    if store.is_named:
        return [store]
    same = prefix.replace(".", "/")
    roots = await store.list_roots(options.timeout)
    return [store.at(root) for root in roots if f"{root}/".startswith(f"{same}/")]


async def summaries(options: argparse.Namespace) -> list[tuple[GroupStore, RootSummary | AiokccError]]:
    """Return each store with its summary, or the error for which there is none. A topic without a group is left out.

    Roots are read side by side: a session on Kafka may wait for the end of those that were killed (see
    :mod:`aiokcc.stores.kafka.contact`). Raises StoreUnreachableError.
    """
    stores = await _stores(options)
    found: dict[int, tuple[GroupStore, RootSummary | AiokccError]] = {}
    limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def read(number: int) -> None:
        async with limiter:
            try:
                found[number] = await _summarize(stores[number], options.timeout)
            except NoGroupError:
                pass
            except StoreUnreachableError:
                raise
            except AiokccError as error:
                found[number] = stores[number], error

    async with unwrapped() as tasks:
        for number in range(len(stores)):
            tasks.start_soon(read, number)
    return [found[number] for number in sorted(found)]


async def _summarize(store: GroupStore, timeout: float) -> tuple[GroupStore, RootSummary]:
    """Return the summary of a root, and its store: on Kafka the name of a topic does not tell dots from slashes."""
    if not isinstance(store, ZooKeeperStore):
        from aiokcc.stores.kafka.topic import OtherRootError

        try:
            async with store.session(connect_timeout=timeout):
                pass
        except OtherRootError as error:
            store = store.at(error.root)
    async with store.session(connect_timeout=timeout) as session:
        return store, await summarize(store, session)
