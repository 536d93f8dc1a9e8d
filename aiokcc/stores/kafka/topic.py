"""The topic of a log: its name, the settings with which it is made, and the check that its settings lose nothing.

Kafka keeps what it has acknowledged on replicas, not on disk. So the topic has three of them where there are three brokers, two
of which must have a record before it is acknowledged, and a replica that lags never becomes the leader. Retention and
compaction would delete records that newcomers need.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from typing import Final

from aiokcc.errors import AiokccError, StoreError, UsageError
from aiokcc.stores.kafka.client import LogClient, TopicDescription

__all__ = ["PERMISSIONS", "PREFIX", "OtherRootError", "check_name", "find_problems", "name_topic", "open_topic"]

log = logging.getLogger("aiokcc.stores")

PREFIX: Final = "__aiokcc"
"""The beginning of a topic's name. Topics that begin with two underscores are never replayed by a pattern."""
MIN_MESSAGE: Final = 1_048_588
"""Kafka's default for ``max.message.bytes``, which the largest transaction needs."""
PERMISSIONS: Final = (
    "kafka:// needs the permissions Read, Write, Describe and DescribeConfigs on its topic, Delete to trim it, and Create "
    "unless it exists"
)
_MAX_NAME: Final = 249
_LOOK_AGAIN: Final = 0.02
"""The pause between two looks for a topic that was just made: Kafka does not notify when it is known."""
_said: Final[set[str]] = set()
"""The topics that this process has opened: a warning about one of them is logged once."""
_OLD_FORMAT: Final = re.compile(r"0\.([89]|10)\b")
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


class OtherRootError(StoreError):
    """A topic holds another root than the one that is asked for: both have dots or slashes at the same places."""

    def __init__(self, topic: str, root: str, wanted: str) -> None:
        super().__init__(
            f"the topic {topic!r} holds the root {root!r}, not {wanted!r}; "
            f"name another topic: kafka://host:9092{wanted}?topic=NAME"
        )
        self.root = root


def name_topic(root: str, prefix: str = PREFIX) -> str:
    """Return the name of the topic for a root: ``__aiokcc.replay`` for ``/replay``. Raises UsageError if it is not valid."""
    return check_name(prefix + root.replace("/", "."), f"the root {root!a} gives")


def check_name(topic: str, what: str = "that is") -> str:
    """Return the name of a topic. Raises UsageError if Kafka would refuse it."""
    if not _NAME.fullmatch(topic) or len(topic) > _MAX_NAME or topic in (".", ".."):
        raise UsageError(
            f"{what} the topic {topic!a}, which Kafka refuses: a topic's name has at most {_MAX_NAME} of the characters "
            f"a-z, A-Z, 0-9, '.', '_' and '-'; take another root, or name the topic: kafka://host:9092/root?topic=NAME"
        )
    return topic


async def open_topic(client: LogClient, topic: str, *, if_missing: AiokccError | None) -> TopicDescription:
    """Check the topic; if it does not exist, raise this error, or make it if there is none.

    Raises StoreError, which says what would be right.
    """
    try:
        found = await client.describe()
        if found is None:
            if if_missing is not None:
                raise if_missing
            replicas = min(3, await client.count_brokers())
            await client.create(replicas, make_settings(replicas))
            log.info("made the topic %s with %d replica(s)", topic, replicas)
            while (found := await client.describe()) is None:  # noqa: ASYNC110 - Kafka tells nobody when it is known
                await asyncio.sleep(_LOOK_AGAIN)
    except PermissionError as error:
        raise StoreError(
            f"Kafka does not let us make or describe the topic {topic!r} ({error}); {PERMISSIONS}"
        ) from None
    if problems := list(find_problems(found)):
        raise StoreError(f"the topic {topic!r} would lose the group's agreement: {'; '.join(problems)}")
    if topic not in _said and found.replicas < 3:
        log.warning(
            "the topic %s has %d replica(s): that is for trials; with three brokers make it with 3 replicas and "
            "min.insync.replicas=2",
            topic,
            found.replicas,
        )
    _said.add(topic)
    return found


def make_settings(replicas: int) -> dict[str, str]:
    """Return the settings with which a topic of so many replicas is made."""
    return {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "min.insync.replicas": "2" if replicas >= 3 else "1",
        "unclean.leader.election.enable": "false",
        "message.timestamp.type": "LogAppendTime",
        "compression.type": "producer",
        "max.message.bytes": str(2 * 2**20),
        "segment.bytes": str(16 * 2**20),  # so that what was trimmed leaves the disk
    }


def find_problems(found: TopicDescription) -> Iterator[str]:
    """Yield what is wrong with a topic, and what would be right."""
    settings = found.settings
    if found.partitions != 1:
        yield f"it has {found.partitions} partitions; expected 1"
    if settings.get("cleanup.policy", "delete") != "delete":
        yield f"its cleanup.policy is {settings['cleanup.policy']!r}; set it to 'delete' (records build on each other)"
    for name in ("retention.ms", "retention.bytes"):
        if settings.get(name, "-1") != "-1":
            yield f"its {name} is {settings[name]}; set it to -1 (aiokcc trims the topic itself)"
    if settings.get("message.timestamp.type", "LogAppendTime") != "LogAppendTime":
        yield "its message.timestamp.type is CreateTime; set it to LogAppendTime (the times of nodes are the broker's)"
    if settings.get("compression.type", "producer") not in ("producer", "uncompressed"):
        yield f"its compression.type is {settings['compression.type']}; set it to producer"
    if _OLD_FORMAT.match(settings.get("message.format.version", "")):
        yield f"its message.format.version is {settings['message.format.version']}; set it to 0.11 or later"
    if found.replicas > 1 and settings.get("unclean.leader.election.enable") == "true":
        yield "its unclean.leader.election.enable is true; set it to false"
    if found.brokers >= 3 and found.replicas < 3:
        yield f"it has {found.replicas} replica(s) of {found.brokers} brokers; make it with 3"
    elif found.replicas >= 3 and int(settings.get("min.insync.replicas") or 1) < 2:
        yield f"its min.insync.replicas is {settings.get('min.insync.replicas', '1')}; set it to 2"
    largest = int(settings.get("max.message.bytes") or MIN_MESSAGE)
    if largest < MIN_MESSAGE:
        yield f"its max.message.bytes is {largest}; set it to {MIN_MESSAGE} or more, which a transaction or snapshot may need"
