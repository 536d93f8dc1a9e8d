"""Joins a group as the layers above it do: with offsets to replay, and with a set of partitions that may grow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiokcc
from aiokcc.core.partitions import Partition, parse_topics
from aiokcc.core.run import Bounds
from aiokcc.runtime.group import Group, join
from aiokcc.runtime.options import GroupOptions
from aiokcc.stores import Store, open_store


def joining(
    store: str | Store,
    *,
    topics: Mapping[str, int | list[int]],
    offsets: Callable[[], Awaitable[Mapping[Partition, Bounds]]] | None = None,
    **settings: Any,
) -> AbstractAsyncContextManager[Group]:
    """Join by ``aiokcc.connect``; with ``offsets``, ``grows`` or ``newer``, which it does not take, as the layers above do."""
    if offsets is None and not settings.keys() & {"grows", "newer"}:
        return aiokcc.connect(store, topics=topics, **settings)
    there = store if isinstance(store, Store) else open_store(store)
    return join(there, GroupOptions.check(**settings), parse_topics(topics), offsets)
