"""What Kafka has of what a pipeline is to run: checked before it joins, and looked at again when Kafka does not answer.

A topic that was deleted is no error of Kafka's: questions about it are not answered, and nothing comes. In a managed group that
follows its topics the leader takes it out of the set, and the driver finds out before or after that; it has to wait then,
and not to fail. Everywhere else records that belong to the pipeline are gone, and that is told.
"""

from __future__ import annotations

import logging

import anyio

from aiokcc.core.partitions import Partition
from aiokcc.core.subscriptions import Subscription
from aiokcc.errors import KafkaError, PartitionError, PartitionRevoked, UsageError
from aiokcc.kafka.cluster import Cluster
from aiokcc.spark.participant import Participant
from aiokcc.spark.standby import taken_away

__all__ = ["check_there", "explain"]

log = logging.getLogger("aiokcc.spark")

_AGAIN = 5.0
"""Seconds after which to look again whether a topic is there: as often as the leader looks, if nobody says otherwise."""


def check_there(
    everything: frozenset[Partition], partitions: frozenset[Partition] | None, wanted: Subscription | None
) -> None:
    """Whether Kafka has what the pipeline is to run: PartitionError or UsageError for the first thing that it has not.

    ``everything`` is what is there of what the group replays, ``partitions`` or ``wanted`` what the pipeline runs of it.
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


async def explain(
    error: KafkaError,
    cluster: Cluster,
    participant: Participant,
    needed: set[str],
    pipeline: str,
    is_followed: bool,
    again: float = _AGAIN,
) -> None:
    """Tell an error that comes from a deleted topic from others: for those this returns.

    ``needed`` are the topics of a batch that was decided; without their records it can never be published. Where the leader
    takes a topic out of the set, this waits until it has. PartitionRevoked if the topic is there again before that: a
    broker that has just come up may not know all of its topics yet.
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
        with anyio.move_on_after(again):  # time is the event: nobody tells that it is there again
            await taken_away(participant)
            return
