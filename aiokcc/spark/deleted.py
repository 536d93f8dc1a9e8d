"""Looks, before the first job, whether Kafka still has what a pipeline is to read.

Kafka deletes records by age, by size, or because somebody asked it to. Where the range of a run is agreed on as offsets, a log
that begins behind them has lost some of it, for certain. Where it starts at a time, the index gives the first record that is
*left* at or past it; whether there were others before that one, nobody can tell from the index. But a log that begins at
offset 0 has lost nothing, and one that still has a record older than the start has lost only older ones.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from aiokcc.core.partitions import Partition
from aiokcc.core.periods import format_time
from aiokcc.errors import KafkaError
from aiokcc.spark.finder import Finder
from aiokcc.spark.participant import Track

__all__ = ["check_left", "check_start", "deleted"]

log = logging.getLogger("aiokcc.spark")


def deleted(partition: Partition, wanted: int, begin: int, what: str) -> KafkaError:
    """Return the error for records that are gone: those from ``wanted`` on, which belong to ``what``."""
    return KafkaError(
        f"the log of {partition} begins at {begin} now: the records from {wanted} on, which belong to {what}, were deleted. "
        f"Nothing was skipped; keep them longer (retention.ms), or start from scratch"
    )


async def check_left(finder: Finder, tracks: Iterable[Track], pipeline: str) -> None:
    """Raise KafkaError if a log begins behind the first offset that is not published."""
    left = {track.partition: track.place.low for track in tracks if not track.is_finished and not track.is_complete}
    for partition, begin in sorted((await finder.begins(left)).items()):
        if begin > left[partition]:
            raise deleted(partition, left[partition], begin, f"the pipeline {pipeline!r}")


async def check_start(finder: Finder, tracks: Iterable[Track], start: int) -> None:
    """Raise KafkaError if records at or past ``start`` may have been deleted before the run was founded.

    Kafka deletes by age in all partitions of a topic alike. So where one of them still has a record older than the start, a
    gap at the beginning of another one is most likely none, and is only logged; so is a partition without any record.
    """
    partitions = {track.partition for track in tracks}
    begins, ends = await finder.begins(partitions), await finder.ends(partitions)
    found = await finder.at(dict.fromkeys(partitions, start))
    firsts = {p: ends[p] if record is None else record.offset for p, record in found.items()}
    reaches_back = {p.topic for p in partitions if firsts[p] > begins[p]}
    doubtful = []
    for partition in sorted(p for p in partitions if 0 < begins[p] == firsts[p]):
        record = found[partition]
        if record is not None and record.ts <= start:
            continue
        left = "without a record" if record is None else f"with a record of {format_time(record.ts)}"
        log.warning(
            "%s begins at offset %d, %s, and what stood before was deleted: if some of it was of %s or later, it is missing",
            partition,
            begins[partition],
            left,
            format_time(start),
        )
        if record is not None and partition.topic not in reaches_back:
            doubtful.append((partition, record))
    if doubtful:
        partition, record = doubtful[0]
        last = max(found.ts for _, found in doubtful)
        raise KafkaError(
            f"{partition} begins at offset {record.offset}, with a record of {format_time(record.ts)}, and what stood before "
            f"was deleted: the records from {format_time(start)} on, where the run starts, are not all there. "
            f'Give start="{format_time(last)}" or later, or start="earliest" for whatever is left'
        )
