"""The run is over: has the pipeline published all of it?

Where a pipeline's partitions are its own, the run cannot end before that. In a managed group others may have run them while no
driver of the pipeline was there, and to the end: then the run is over, and the pipeline is not. The last cut tells how far
each partition was run, by whomever; the batch that was decided last tells how far the pipeline has come.
"""

from __future__ import annotations

from aiokcc.core import paths
from aiokcc.core.partitions import decode_partitions
from aiokcc.core.run import Run
from aiokcc.core.subscriptions import Subscription
from aiokcc.errors import RunEnded
from aiokcc.runtime.cuts import last_cut
from aiokcc.spark.checkpoint import Records
from aiokcc.stores.port import Session, Store

__all__ = ["check_ended"]


async def check_ended(store: Store, session: Session, mine: Subscription, records: Records) -> None:
    """RunEnded if the pipeline has not published all that was run of its partitions. All is read as it stays."""
    limit = await session.get(paths.COORDINATOR)
    listed = await session.get(paths.TOPIC_PARTITIONS)
    agreed = decode_partitions(store.describe(listed.path), listed.data)
    node = await session.get(paths.RUN)
    bounds = Run.decode(store.describe(node.path), node.data, agreed).bounds
    cut = await last_cut(store, session, limit.version)
    intent, is_published = records.intent, records.pending is None
    places = {} if intent is None else intent.positions() if is_published else intent.beginnings()
    for partition in sorted(filter(mine.covers, agreed)):
        mark = None if cut is None else cut.find(partition)
        at = places[partition].low if partition in places else bounds[partition].start
        if mark is not None and mark.offset is not None and at < mark.offset:
            raise RunEnded(
                f"the run under {store.describe('')} has ended, and the pipeline {records.name!r} has not published all of it: "
                f"{partition} up to {at} of {int(mark.offset)}. Other members have run the rest while no driver of it was "
                "there. Compute it under another root; and leave its topics out of their subscriptions, so that they do not"
            )
