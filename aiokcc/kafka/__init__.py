"""Level 2: replay real Kafka topics in step. ``pip install 'aiokcc[kafka]'``.

::

    Kafka ──▶ Pump: one consumer, fetches for the partitions that have room
                │ whole lists
                ▼
              Stream: one per partition, one task each ──gate──▶ your handler
                │ crossings
                ▼
              Group: the barrier; Committer: offsets at period boundaries

* :mod:`~aiokcc.kafka.settings`: what a replay is told, checked
* :mod:`~aiokcc.kafka.cluster`: questions to the cluster: partitions, offsets at a time, ends
* :mod:`~aiokcc.kafka.fetch_loop`: fetching with bounded buffers
* :mod:`~aiokcc.kafka.partition_consumer`: a partition's records on their way to the handler
* :mod:`~aiokcc.kafka.offset_committer`: offsets committed, to Kafka or to the store
* :mod:`~aiokcc.kafka.replay`: the three ways to read: a handler, one stream, or whole periods
"""

from __future__ import annotations

try:
    from aiokcc.kafka.replay import Period, Replay, Summary, replay
except ModuleNotFoundError as error:
    if error.name != "aiokafka":
        raise
    raise ModuleNotFoundError(
        "aiokcc.kafka reads Kafka through aiokafka: pip install 'aiokcc[kafka]'", name=error.name
    ) from error

__all__ = ["Period", "Replay", "Summary", "replay"]
