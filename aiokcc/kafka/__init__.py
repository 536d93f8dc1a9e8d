"""Level 2: replay real Kafka topics in step. ``pip install 'aiokcc[kafka]'``.

::

    Kafka ──▶ FetchLoop: one consumer, fetches for the partitions that want records
                │ whole lists
                ▼
              PartitionConsumer: one per partition, one task each ──gate──▶ your handler
                │ crossings
                ▼
              Group: the barrier; Committer: offsets at period boundaries

* :mod:`~aiokcc.kafka.source_options`: what is read, checked; :mod:`~aiokcc.kafka.consumer_policy`: how records are handled
* :mod:`~aiokcc.kafka.cluster`: questions to the cluster: partitions, offsets at a time, ends
* :mod:`~aiokcc.kafka.fetch_loop`: fetching with bounded buffers; :mod:`~aiokcc.kafka.fast_fetch`: the fast path into aiokafka
* :mod:`~aiokcc.kafka.partition_feed`: the records of one partition between the fetch loop and its consumer
* :mod:`~aiokcc.kafka.partition_consumer`: the loop that hands records to the handler;
  :mod:`~aiokcc.kafka.exceptional_records`: the policies for the records that it cannot simply hand over, and
  :mod:`~aiokcc.kafka.lateness_buffer`: the records that it holds back
* :mod:`~aiokcc.kafka.partition_tasks`: the partitions that are being read; :mod:`~aiokcc.kafka.kafka_group`: those that Kafka
  assigns
* :mod:`~aiokcc.kafka.topic_discovery`: new partitions and topics
* :mod:`~aiokcc.kafka.offset_committer`: commits offsets, to Kafka or to the store
* :mod:`~aiokcc.kafka.replay`: the ways to read: a handler, one stream (through :mod:`~aiokcc.kafka.handoff`), or whole periods
  (through :mod:`~aiokcc.kafka.period_collector`); :mod:`~aiokcc.kafka.reader`: starts the tasks, and shuts them down;
  :mod:`~aiokcc.kafka.handlers`: checks the user's handler; :mod:`~aiokcc.kafka.summary`: what a replay returns besides records
* :mod:`~aiokcc.kafka.telemetry`, :mod:`~aiokcc.kafka.tracing`: measurements and spans
* :mod:`~aiokcc.kafka.own_store`: ``store="kafka"``
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
