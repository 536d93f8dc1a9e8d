"""Finds the roots that one Kafka cluster has, by the names of their topics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from aiokcc.credentials.kafka_refusal import find_refusal
from aiokcc.errors import StoreUnreachableError
from aiokcc.stores.kafka.topic import PREFIX

__all__ = ["list_roots"]

_PROBE_SECONDS: Final = 1.0


async def list_roots(
    servers: Sequence[str], settings: Mapping[str, Any], timeout: float, prefix: str = PREFIX
) -> list[str]:
    """Return the roots of a cluster, sorted: ``/orders/payments`` for ``__aiokcc.orders.payments``.

    A dot in a root is a slash here; both mean the same topic. Raises StoreUnreachableError if no broker answers in time.
    """
    where = ",".join(servers)
    admin = AIOKafkaAdminClient(bootstrap_servers=where, **settings)
    try:
        async with asyncio.timeout(timeout):
            await admin.start()
            topics = await admin.list_topics()
    except (KafkaError, OSError, TimeoutError) as error:
        refusal = await find_refusal(where, settings, _PROBE_SECONDS)
        reason = "no broker there" if refusal is None else refusal.text
        raise StoreUnreachableError(f"no Kafka broker of {where} answered within {timeout:g} s: {reason}") from error
    finally:
        await admin.close()
    begin = f"{prefix}."
    return sorted("/" + name.removeprefix(begin).replace(".", "/") for name in topics if name.startswith(begin))
