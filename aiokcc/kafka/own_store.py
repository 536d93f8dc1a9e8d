"""``store="kafka"``: the group's agreement in the Kafka that the replay reads, with the same security settings.

The root is made from what all processes of the group have in common: the topics or the pattern, and the group id. Who wants
another one gives the URL: ``store="kafka://host:9092/root"``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from aiokcc.credentials.kafka_client import CONNECTION_SETTINGS
from aiokcc.errors import UsageError
from aiokcc.kafka.source_options import SourceOptions
from aiokcc.runtime.new_run import open_by_url
from aiokcc.stores.port import Store

__all__ = ["choose_store", "connection_settings", "name_root"]

_MAX_ROOT: Final = 200
_UNSAFE: Final = re.compile(r"[^a-zA-Z0-9._/-]")


def choose_store(
    store: str | Store,
    source: SourceOptions,
    options: Mapping[str, Any] | None,
    name: str | None = None,
    open_url: Callable[..., Store] = open_by_url,
) -> Store:
    """Return the store of a replay: the one given, the one of a URL, or for ``"kafka"`` the Kafka that is read.

    Connection settings of the consumer, such as ``security_protocol``, are also those of a store in Kafka, unless ``options``
    say otherwise. ``name`` is the pipeline's. Raises UsageError.
    """
    if isinstance(store, Store):
        if options:
            raise UsageError("store_options go with a store's URL; give them to the store you made")
        return store
    given = dict(options or {})
    if store == "kafka":
        store = f"kafka://{source.bootstrap_servers}{name_root(source, name)}"
    elif not (isinstance(store, str) and store.startswith("kafka://")):
        return open_url(store, **given)
    return open_url(store, **{**connection_settings(source.consumer), **given})


def connection_settings(consumer: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a consumer's settings that concern the connection."""
    return {key: value for key, value in consumer.items() if key in CONNECTION_SETTINGS}


def name_root(source: SourceOptions, name: str | None = None) -> str:
    """Return the root for a group: ``/orders/payments``, or ``/orders/payments/of.GROUP``.

    A name that a topic cannot have, or a pattern, gets a hash, so that no two groups have the same root.
    """
    parts = sorted(source.topics) if source.pattern is None else [f"pattern.{source.pattern.pattern}"]
    parts += [f"of.{one}" for one in (source.group_id, name) if one is not None]
    root = "/" + "/".join(parts)
    safe = _UNSAFE.sub("_", root).replace("//", "/_")
    if safe != root or len(root) > _MAX_ROOT:
        safe = f"{safe[:_MAX_ROOT].rstrip('/')}-{hashlib.blake2b(root.encode(), digest_size=4).hexdigest()}"
    return safe
