"""Checks that a driver makes before it computes anything, and that explain why it cannot go on.

- **Topics.** :func:`check_topics` compares what the pipeline is to run with what Kafka has. A deleted topic is no error for
  Kafka: requests about it get no answer. In a managed group that follows its topics the leader takes such a topic out of the
  set, so the driver waits for that. Everywhere else records that belong to the pipeline are lost, and
  :func:`explain_kafka_error` raises an error that says so.
- **Deleted records.** Kafka deletes records by age, by size, or on request. Where the range of a run is agreed on as offsets, a
  log that begins behind its first offset has lost some of them for certain. Where the run starts at a time, the index gives the
  first record that is *left* at or past it, and cannot tell whether there were others before it. But a log that begins at
  offset 0 has lost nothing, and one that still has a record older than the start has lost only older ones.
- **Topics that were created again.** A log that ends before the first offset that is not published is another one: its topic
  was deleted and created again between two starts. Its records would be skipped until it is longer than the old one.
- **A run that has ended.** Other members may have run the pipeline's partitions to the end while no driver of it was there: in
  a managed group, or where a member that is no driver runs them. The last
  cut tells how far each partition was run, by any member; the last intent tells how far the pipeline has come.
- **From scratch.** A driver that runs all partitions is the whole group: :func:`forget_group` also deletes what the group has
  agreed on, or the limit would stay where the last run left it. It does so only when the group has no members any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import anyio

from aiokcc.core import paths
from aiokcc.core.partitions import Partition
from aiokcc.core.periods import format_time
from aiokcc.core.run import CUT_SLOTS
from aiokcc.core.subscriptions import Subscription
from aiokcc.errors import (
    BadVersionError,
    GroupMismatchError,
    KafkaError,
    MissingNodeError,
    NoNodeError,
    PartitionError,
    PartitionRevoked,
    PipelineMismatchError,
    RunEnded,
    UsageError,
)
from aiokcc.kafka.cluster import Cluster
from aiokcc.runtime.agreement import find_run
from aiokcc.runtime.children import list_children
from aiokcc.runtime.cuts import last_cut
from aiokcc.runtime.pipelines import read_pipeline
from aiokcc.spark.checkpoint import Checkpoint
from aiokcc.spark.finder import Finder
from aiokcc.spark.participant import Participant, Track
from aiokcc.spark.standby import wait_until_revoked
from aiokcc.stores.port import ANY_VERSION, Children, Delete, Session, Store

__all__ = [
    "check_not_deleted",
    "check_run_published",
    "check_start",
    "check_topics",
    "deleted_error",
    "explain_kafka_error",
    "explain_mismatch",
    "forget_group",
]

log = logging.getLogger("aiokcc.spark")

_AGAIN = 5.0
"""Seconds between two looks at whether a deleted topic is there again; the leader looks as often by default."""


# -- topics ------------------------------------------------------------------------------------------------------------


def check_topics(
    everything: frozenset[Partition], partitions: frozenset[Partition] | None, wanted: Subscription | None
) -> None:
    """Raise PartitionError or UsageError for the first partition or topic of the pipeline that Kafka does not have.

    ``everything`` are the existing partitions that the group replays. ``partitions`` or ``wanted`` say which of them the
    pipeline runs.
    """
    named = partitions if wanted is None else wanted.partitions
    outside = sorted((named or everything) - everything)
    topics = sorted({p.topic for p in everything})
    if outside and outside[0].topic in topics:
        count = sum(p.topic == outside[0].topic for p in everything)
        raise PartitionError(f"{outside[0]} does not exist; {outside[0].topic} has {count} partitions, from 0 up")
    missing = [p.topic for p in outside] + sorted(({} if wanted is None else wanted.topics).keys() - topics)
    if missing:
        raise UsageError(f"Kafka has no topic {missing[0]!r}; the group replays {', '.join(topics)}")
    if wanted is not None and not any(map(wanted.covers, everything)):
        raise UsageError(
            f"subscription is {wanted.pattern!r}, which no topic matches; the group replays {', '.join(topics)}"
        )


async def explain_kafka_error(
    error: KafkaError,
    cluster: Cluster,
    participant: Participant,
    needed: set[str],
    pipeline: str,
    is_followed: bool,
    again: float = _AGAIN,
) -> None:
    """Raise a better error if a deleted topic is the cause of this one; return if it is not.

    ``needed`` are the topics of a batch that was decided: without their records it can never be published. If the leader takes
    the topic out of the set, wait until it has done so. Raise PartitionRevoked if the topic exists again before that: a
    broker that has just started may not know all of its topics yet.
    """
    topics = needed | {p.topic for p in participant.tracks}
    told: list[str] = []
    while True:
        try:
            gone = sorted(topics - {p.topic for p in await cluster.present(topics)})
        except KafkaError:
            return
        if not gone and told:
            raise PartitionRevoked(f"{', '.join(told)} is there again") from error
        if not gone:
            return
        if not is_followed or needed & {*gone}:
            raise KafkaError(
                f"{', '.join(gone)} was deleted under the pipeline {pipeline!r}, with records that belong to it. Nothing was "
                f"skipped; to go on without them, give the pipeline another name"
            ) from error
        if gone != told:
            told = gone
            log.warning("%s was deleted; the leader takes it out of the set", ", ".join(gone))
        with anyio.move_on_after(again):  # time is the event: Kafka does not notify that a topic exists again
            await wait_until_revoked(participant)
            return


# -- another definition ------------------------------------------------------------------------------------------------


async def explain_mismatch(
    error: GroupMismatchError, store: Store, session: Session, name: str, definition: Mapping[str, Any]
) -> None:
    """Raise PipelineMismatchError if a pipeline of this name was started before and is the whole group; else return.

    The group's settings are compared before the pipeline's definition. A pipeline that runs all partitions is the whole group,
    and starting it from scratch founds another one; so the error says how to do that.
    """

    async def present() -> Session:
        return session

    shared = ("partitions", "subscription")
    pipeline = await read_pipeline(store, session, name)
    if pipeline is None or pipeline.is_shared or any(definition.get(part) is not None for part in shared):
        return  # other members take part in the group: its settings are not the pipeline's alone
    await Checkpoint(store, name, present).check(session, definition, leave_out=["sink", "state"])
    raise PipelineMismatchError(
        f"the pipeline {name!r} was started before with other settings. Give it the same settings, or from_scratch=True to "
        f"throw away what it has done, or use another root: {error}"
    ) from error


# -- deleted records ---------------------------------------------------------------------------------------------------


def deleted_error(partition: Partition, wanted: int, begin: int, what: str) -> KafkaError:
    """Return the error for deleted records: those from ``wanted`` on, which belong to ``what``."""
    return KafkaError(
        f"the log of {partition} begins at {begin} now: the records from {wanted} on, which belong to {what}, were deleted. "
        f"Nothing was skipped; keep them longer (retention.ms), or start from scratch"
    )


async def check_not_deleted(finder: Finder, tracks: Iterable[Track], pipeline: str) -> None:
    """Raise KafkaError if a log begins behind the first offset that is not published, or ends before it."""
    left = {track.partition: track.place.low for track in tracks if not track.is_finished and not track.is_complete}
    for partition, begin in sorted((await finder.begins(left)).items()):
        if begin > left[partition]:
            raise deleted_error(partition, left[partition], begin, f"the pipeline {pipeline!r}")
    for partition, end in sorted((await finder.ends(left)).items()):
        if end < left[partition]:
            raise KafkaError(
                f"the log of {partition} ends at {end} now, and the pipeline {pipeline!r} has published it up to "
                f"{left[partition]}: the topic was deleted and created again, and its records are others. Nothing was skipped; "
                f"give the pipeline another name and another place for its result, or from_scratch=True to replace what it has "
                f"published"
            )


async def check_start(finder: Finder, tracks: Iterable[Track], start: int, *, accept: bool) -> None:
    """Raise KafkaError if records at or past ``start`` may have been deleted before the run was founded.

    A partition whose log begins at 0, or with a record that is not younger than the start, has lost none of them. With
    ``accept`` the others are only logged.
    """
    partitions = {track.partition for track in tracks}
    begins, ends = await finder.begins(partitions), await finder.ends(partitions)
    found = await finder.at(dict.fromkeys(partitions, start))
    doubtful: dict[Partition, str] = {}
    moved: int | None = start
    for partition in sorted(partitions):
        record = found[partition]
        first = ends[partition] if record is None else record.offset
        if not 0 < begins[partition] == first or (record is not None and record.ts <= start):
            continue
        left = "without a record" if record is None else f"with a record of {format_time(record.ts)}"
        doubtful[partition] = f"{partition} begins at offset {first}, {left}"
        moved = None if record is None or moved is None else max(moved, record.ts)
    if accept:
        for text in doubtful.values():
            log.warning("%s; deleted records of %s or later are missing, if there were any", text, format_time(start))
    elif doubtful:
        others = f" (and {len(doubtful) - 1} more partitions likewise)" if len(doubtful) > 1 else ""
        later = "" if moved is None else f'start="{format_time(moved)}" or later, '
        raise KafkaError(
            f"{next(iter(doubtful.values()))}{others}, and what stood before was deleted: records from {format_time(start)} "
            f'on, where the run starts, may be missing. Pass {later}start="earliest" for whatever is left, or '
            f"accept_deleted=True to start there all the same"
        )


# -- a run that has ended ----------------------------------------------------------------------------------------------


async def check_run_published(
    store: Store, session: Session, covers: Callable[[Partition], bool], checkpoint: Checkpoint
) -> None:
    """Raise RunEnded if the pipeline has not published all that was run of the partitions that it ``covers``.

    An ended run does not change. Where the cut does not tell how far a partition was run, its whole range is expected.
    """
    limit = await session.get(paths.COORDINATOR)
    found = await find_run(store, session)
    if found is None:
        raise MissingNodeError(store.describe(paths.RUN))
    run, _ = found
    cut = await last_cut(store, session, limit.version)
    intent, is_published = checkpoint.intent, checkpoint.pending is None
    places = {} if intent is None else intent.positions() if is_published else intent.beginnings()
    for partition in sorted(filter(covers, run.settings.partitions)):
        mark = None if cut is None else cut.find(partition)
        end = run.bounds[partition].end if mark is None or mark.offset is None else mark.offset
        at = places[partition].low if partition in places else run.bounds[partition].start
        if end is not None and at < end:
            raise RunEnded(
                f"the run under {store.describe('')} has ended, and the pipeline {checkpoint.name!r} has not published all of "
                f"it: {partition} up to {at} of {int(end)}. Other members have run the rest while no driver of it was "
                "there. Compute it under another root; and leave its topics out of their subscriptions, so that they do not"
            )


# -- from scratch ------------------------------------------------------------------------------------------------------


async def forget_group(store: Store, session: Session, seconds: float) -> None:
    """Delete what the group under the store's root has agreed on, after all its members have left.

    Raise UsageError if members are left after these seconds, or if the root holds only a part of a group.
    """
    with anyio.move_on_after(seconds):
        while True:
            await _until_nobody_is_left(session)
            generation = await session.find(paths.GENERATION)
            if generation is None:
                return
            agreed = (paths.COORDINATOR, paths.PERIOD, paths.RUN, paths.TOPIC_PARTITIONS)
            slots = (paths.cut(n, CUT_SLOTS) for n in range(CUT_SLOTS))
            # The versions of the next group's limits begin at 0 again. A leader must not take one of these for announced.
            announced = [paths.limit(name) for name in await list_children(session, paths.LIMITS)]
            doomed = (*agreed, *slots, *announced)
            try:
                await session.commit(
                    Delete(paths.GENERATION, generation.version), *(Delete(path, ANY_VERSION) for path in doomed)
                )
            except BadVersionError:  # a member has joined and was elected leader
                continue
            except NoNodeError as error:
                if error.path in announced:  # deleted meanwhile
                    continue
                raise UsageError(
                    f"{store.describe('')} holds the remains of a group, without {error.path}; delete it, or use another root"
                ) from error
            log.info("the group under %s is forgotten; it starts from scratch", store.describe(""))
            return
    members = ", ".join(await session.children(paths.IDS))
    raise UsageError(
        f"from_scratch: {members} still take part in the group under {store.describe('')}; stop them first"
    )


async def _until_nobody_is_left(session: Session) -> None:
    with session.watch() as watch:
        watch.add_children(paths.IDS)
        async for change in watch:
            if not isinstance(change.now, Children) or not change.now.names:
                return
