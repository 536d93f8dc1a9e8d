"""The subscription of a member, and its registration.

A subscription is one of:

* everything that the group replays (the default);
* topics, each with the most partitions that this member takes: ``{"orders": 4}`` means at most four *streams* of orders,
  ``["orders", "payments"]`` has no such limit; or partition numbers, ``{"orders": [0, 3]}``;
* a pattern: a regular expression that must match the *whole* name of a topic.

It says what a member *may* be assigned, not what it runs: that is the assignment. It is plain data, so that the leader decides
on exactly what the members registered, and equal subscriptions are equal values.

A subscription may name a *pipeline*: then all partitions that it covers are assigned together, to one of the members that named
this pipeline (:mod:`~aiokcc.core.colocation`). Such a registration has one more field, ``"pipeline": "revenue"``.

The registration, ``ids/<member>``, is JSON that a person can read. A leader that cannot decode it names the node in its log::

    {"version": 1, "id": "worker-1-a1b2", "host": "machine-7", "pid": 4711, "timestamp": 1700000000000,
     "subscription": {"orders": 4, "payments": null}, "pattern": null, "running": "orders:0,3;"}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from aiokcc.core.partitions import (
    MAX_COUNT,
    Partition,
    decode_partitions,
    encode_partitions,
    parse_topics,
)
from aiokcc.core.periods import MAX_LIMIT
from aiokcc.errors import CorruptNodeError, UsageError

__all__ = ["EVERYTHING", "Registration", "Subscription"]

MAX_PATTERN: Final = 1000
_PIPELINE: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}")
_ALL: Final = "all"
_FORMS: Final = (
    'a list of topics like ["orders", "payments"], the most streams of each like {"orders": 4}, '
    'or the partitions themselves like {"orders": [0, 3]}'
)
_FORM: Final = "JSON with version, id, host, pid, timestamp, subscription, pattern and running"


@dataclass(frozen=True, slots=True)
class Subscription:
    """The partitions that one member may be assigned. With no field set: all."""

    topics: Mapping[str, int | None] = field(default_factory=dict)
    """Topics, each with the most partitions that this member takes; None if there is no limit."""
    partitions: frozenset[Partition] = frozenset()
    """Partitions that were named one by one."""
    pattern: str | None = None
    """A regular expression for the whole names of topics."""
    pipeline: str | None = None
    """The pipeline: one of its members is assigned all that is covered. None: each partition is assigned by itself."""

    @classmethod
    def check(cls, topics: object = None, *, pattern: object = None, pipeline: str | None = None) -> Subscription:
        """Returns the subscription that a user wrote; without arguments, to everything. Raises UsageError if it is invalid."""
        if pipeline is not None and not _PIPELINE.fullmatch(pipeline):
            raise UsageError(
                f"name {pipeline!r} is not valid for a pipeline; expected letters, digits, '.', '_' and '-', at most 100"
            )
        if pattern is not None:
            if topics is not None:
                raise UsageError("topics and a pattern are both given; expected one of them")
            return cls(pattern=_check_pattern(pattern), pipeline=pipeline)
        if topics is None:
            return EVERYTHING if pipeline is None else cls(pipeline=pipeline)
        if isinstance(topics, str):
            topics = [topics]
        if isinstance(topics, Mapping):
            wanted: dict[Any, object] = dict(topics)
        elif isinstance(topics, Iterable) and not isinstance(topics, bytes):
            wanted = dict.fromkeys(topics)
        else:
            raise UsageError(f"subscription {topics!r} cannot be read; expected {_FORMS}")
        if not wanted:
            raise UsageError(f"the subscription is empty, so this member would run nothing; expected {_FORMS}")
        whole: dict[str, int | None] = {}
        named: set[Partition] = set()
        for topic, spec in wanted.items():
            if spec is None or (isinstance(spec, int) and not isinstance(spec, bool)):
                parse_topics({topic: 1})  # raises if the name is invalid
                whole[topic] = _check_streams(topic, spec)
                if pipeline is not None and spec is not None:
                    raise UsageError(
                        f"a pipeline takes all of {topic!r} or names its partitions; a limit of {spec} is not possible"
                    )
            else:
                named |= parse_topics({topic: spec})
        return cls(dict(sorted(whole.items())), frozenset(named), pipeline=pipeline)

    @property
    def everything(self) -> bool:
        """True if it covers all that the group replays."""
        return not (self.topics or self.partitions or self.pattern is not None)

    def covers_topic(self, topic: str) -> bool:
        """Returns True if this member may be assigned any partition of the topic, up to the limit."""
        if self.pattern is not None:
            return _compiled(self.pattern).fullmatch(topic) is not None
        return topic in self.topics or self.everything

    def covers(self, partition: Partition) -> bool:
        """Returns True if this member may be assigned the partition."""
        return partition in self.partitions or self.covers_topic(partition.topic)

    def limit(self, topic: str) -> int | None:
        """Returns the most partitions of the topic that this member takes; None if there is no limit."""
        return self.topics.get(topic)

    def __str__(self) -> str:
        if self.pattern is not None:
            what = f"topics that match {self.pattern}"
        elif self.everything:
            what = "everything"
        else:
            parts = [topic if most is None else f"{topic} (at most {most})" for topic, most in self.topics.items()]
            what = ", ".join([*parts, *map(str, sorted(self.partitions))])
        return what if self.pipeline is None else f"{what}, all for the pipeline {self.pipeline}"

    def to_json(self) -> tuple[object, str | None]:
        """Returns the fields ``subscription`` and ``pattern`` of a registration."""
        if self.everything:
            return _ALL, None
        wanted: dict[str, object] = dict(self.topics)
        for topic, number in sorted(self.partitions):
            numbers = wanted.setdefault(topic, [])
            assert isinstance(numbers, list)
            numbers.append(number)
        return wanted, self.pattern

    @classmethod
    def from_json(cls, subscription: object, pattern: object, pipeline: object = None) -> Subscription:
        """Returns the subscription of these fields. Raises ValueError if they are invalid."""
        if pipeline is not None and not isinstance(pipeline, str):
            raise ValueError(pipeline)
        if subscription == _ALL and pattern is None:
            return cls.check(pipeline=pipeline)
        if not isinstance(subscription, dict) or bool(subscription) == (pattern is not None):
            raise ValueError(subscription)
        return cls.check(subscription or None, pattern=pattern, pipeline=pipeline)


EVERYTHING: Final = Subscription()
"""Covers all that the group replays, without a limit."""


def _check_streams(topic: str, most: int | None) -> int | None:
    if most is not None and most < 1:
        shown = str(most) if most.bit_length() <= 64 else "a negative number"
        raise UsageError(
            f"topic {topic!r} is given {shown} streams; expected at least 1 (leave the topic out to take none of it)"
        )
    # A limit above the most partitions is none. It is kept small, so that it fits into the node.
    return most if most is None else min(most, MAX_COUNT)


def _check_pattern(pattern: object) -> str:
    if isinstance(pattern, re.Pattern):
        if pattern.flags & ~re.UNICODE or not isinstance(pattern.pattern, str):
            raise UsageError(
                f"pattern {pattern!r} has flags, which the registration cannot hold; write them into the pattern, like (?i)"
            )
        pattern = pattern.pattern
    if not isinstance(pattern, str):
        raise UsageError(f"pattern {pattern!r} is not a text; expected a regular expression like 'orders-.*'")
    if not pattern:
        raise UsageError("the pattern is empty, so no topic matches it; expected a regular expression like 'orders-.*'")
    if len(pattern) > MAX_PATTERN:
        raise UsageError(f"the pattern has {len(pattern)} characters; expected at most {MAX_PATTERN}")
    try:
        _compiled(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"pattern {pattern!r} is not a regular expression: {error}") from None
    return pattern


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


@dataclass(frozen=True, slots=True)
class Registration:
    """The content of ``ids/<member>``: a member, its subscription, and the partitions it runs."""

    id: str
    """The member session: the member's name and a suffix that is unique for this session."""
    subscription: Subscription
    timestamp: int
    """The time at which it joined, in milliseconds since the epoch, by its own clock; only shown to people."""
    host: str
    pid: int | None = None
    running: frozenset[Partition] = frozenset()
    """The partitions it ran at its last write; only shown to people. The locks are what counts."""

    def encode(self) -> bytes:
        """Returns the node's content."""
        subscription, pattern = self.subscription.to_json()
        pipeline = self.subscription.pipeline
        return json.dumps(
            {
                "version": 1,
                "id": self.id,
                "host": self.host,
                "pid": self.pid,
                "timestamp": self.timestamp,
                "subscription": subscription,
                "pattern": pattern,
                **({} if pipeline is None else {"pipeline": pipeline}),
                "running": encode_partitions(self.running).decode(),
            }
        ).encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> Registration:
        """Returns what the node holds. Raises CorruptNodeError if it cannot be read."""
        try:
            raw: Any = json.loads(data, object_pairs_hook=_unique)
            if not isinstance(raw, dict) or raw["version"] != 1:
                raise ValueError(raw)
            name, host, running = raw["id"], raw["host"], raw["running"]
            if not (isinstance(name, str) and name and isinstance(host, str) and isinstance(running, str)):
                raise ValueError(name)
            timestamp, pid = raw["timestamp"], raw["pid"]
            if type(timestamp) is not int or not 0 <= timestamp <= MAX_LIMIT or not (pid is None or type(pid) is int):
                raise ValueError(timestamp)
            subscription = Subscription.from_json(raw["subscription"], raw["pattern"], raw.get("pipeline"))
            partitions = decode_partitions(path, running.encode()) if running else frozenset()
        except (ValueError, KeyError, TypeError, CorruptNodeError, RecursionError):
            raise CorruptNodeError(path, data, _FORM) from None
        return cls(name, subscription, timestamp, host, pid, partitions)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError(pairs)
    return result
