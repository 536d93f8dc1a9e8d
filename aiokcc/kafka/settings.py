"""The settings of a replay, checked before anything is connected."""

from __future__ import annotations

import difflib
import functools
import importlib.util
import inspect
import re
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from aiokafka import AIOKafkaConsumer

from aiokcc.core.masking import mask_url
from aiokcc.core.partitions import Partition, check_topic
from aiokcc.core.periods import format_duration, format_time, parse_duration, parse_time
from aiokcc.core.subscriptions import Subscription
from aiokcc.errors import HandlerError, UsageError
from aiokcc.runtime.entry import warn_of_milliseconds

__all__ = ["ReplaySettings", "Timestamp", "check_consumer"]

Timestamp: TypeAlias = "Callable[[Any], int]"

_STARTS: Final = ("earliest", "committed")
_FIXED_SETTINGS: Final = {
    "auto_offset_reset": "start= says where to begin, and a log that moves under a replay is an error",
    "enable_auto_commit": "offsets are committed when a period closes; commit=False turns that off",
    "group_id": "group_id is an argument of its own",
    "bootstrap_servers": "bootstrap_servers is an argument of its own",
    "max_poll_records": "buffer_records= bounds what is held",
    "max_poll_interval_ms": "a partition is not polled while it waits for the others, however long that takes",
    "consumer_timeout_ms": "a replay waits for the group, not for a clock",
}
_MAX_BYTES: Final = 2**31 - 1
"""Kafka's protocol has 32 bits for the size of a fetch. With a larger value aiokafka fetches nothing and raises nothing."""
_IN_32_BITS: Final = ("max_partition_fetch_bytes", "fetch_max_bytes", "fetch_min_bytes", "fetch_max_wait_ms")
_CHOICES: Final = {
    "security_protocol": ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "sasl_mechanism": ("PLAIN", "GSSAPI", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
}


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """The consumer's side of a replay; the barrier's settings go to :func:`aiokcc.connect`."""

    topics: tuple[str, ...]
    """The topics to replay; empty if there is a pattern."""
    bootstrap_servers: str
    pattern: re.Pattern[str] | None = None
    start: int | Literal["earliest", "committed"] = "earliest"
    end: int | Literal["now"] | None = None
    partitions: frozenset[Partition] | None = None
    """The partitions that this process runs; None: all, or those for which the rule is true."""
    rule: Callable[[str, int], object] | None = None
    """Returns for a partition, also for one that joins later, whether this process runs it."""
    group_id: str | None = None
    by_group: bool = False
    """True if Kafka's group protocol assigns the partitions."""
    managed: bool = False
    """True if the group's own leader assigns the partitions."""
    commit: bool = True
    offset_storage: str = "kafka"
    timestamp: Timestamp | None = None
    lateness: Mapping[str, int] = field(default_factory=dict)
    """The bound on lateness in milliseconds, by topic."""
    late: str = "deliver"
    poison: str = "raise"
    on_error: str = "raise"
    retries: int = 0
    dead_letter: Callable[..., Any] | None = None
    buffer_records: int = 200
    buffer_bytes: int = 1024 * 1024
    isolation_level: str = "read_committed"
    consumer: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Further settings of the aiokafka consumer. Not in the repr: a password may be among them."""

    @property
    def fetches_ahead(self) -> bool:
        """True if a partition is fetched while its last fetch is still being used up."""
        plain = not any(self.consumer.get(name) for name in ("key_deserializer", "value_deserializer"))
        return plain and self.end is not None and not self.by_group

    @property
    def source(self) -> str:
        """The settings that all members must share, as text. It stands in the ``run`` node, and members compare it."""
        start = self.start if isinstance(self.start, str) else format_time(self.start)
        end = self.end if self.end is None or isinstance(self.end, str) else format_time(self.end)
        lateness = ",".join(f"{topic}:{format_duration(ms)}" for topic, ms in sorted(self.lateness.items()) if ms)
        time = "record" if self.timestamp is None else "function"
        what = "" if self.pattern is None else f" pattern={self.pattern.pattern}"
        late = lateness or "none"
        if self.offset_storage != "kafka":
            what += " offsets=zookeeper"  # the run node has this word for "store"
        return f"kafka{what} start={start} end={end or 'none'} time={time} lateness={late} {self.isolation_level}"

    def replays(self, topic: str) -> bool:
        """Return whether the topic is replayed."""
        return topic in self.topics if self.pattern is None else self.pattern.fullmatch(topic) is not None

    def wants(self, partition: Partition) -> bool:
        """Return whether this process runs the partition, if neither Kafka nor the leader assigns it."""
        if self.rule is not None:
            return bool(self.rule(partition.topic, partition.number))
        return self.partitions is None or partition in self.partitions

    @classmethod
    def check(
        cls,
        topics: Sequence[str],
        *,
        pattern: object = None,
        bootstrap_servers: object,
        start: object,
        end: object,
        partitions: object,
        group_id: object,
        assignment: object,
        commit: object,
        offset_storage: object = "kafka",
        timestamp: object,
        lateness: object,
        late: object,
        poison: object,
        on_error: object,
        retries: object,
        dead_letter: object,
        buffer_records: object,
        buffer_bytes: object,
        isolation_level: object,
        consumer: Mapping[str, Any],
    ) -> ReplaySettings:
        """Return the settings from the user's arguments. Raises UsageError for the first invalid one."""
        if pattern is not None:
            if topics:
                raise UsageError("name the topics or give a pattern, not both")
            wanted: Sequence[str] | re.Pattern[str] = _pattern(pattern)
        elif not topics or not all(isinstance(topic, str) and topic for topic in topics):
            raise UsageError('name the topics to replay: aiokcc.replay("orders", "payments", …)')
        else:
            wanted = topics
        if len(set(topics)) != len(topics):
            raise UsageError(f"a topic is named twice: {', '.join(topics)}")
        for topic in topics:
            check_topic(topic)
        listed = bootstrap_servers if isinstance(bootstrap_servers, list | tuple) else [bootstrap_servers]
        if not listed or not all(isinstance(server, str) and server for server in listed):
            shown = mask_url(repr(bootstrap_servers))
            raise UsageError(f'bootstrap_servers is {shown}; expected "host:port" or a list of them')
        for server in map(str, listed):
            if "@" in server or mask_url(server) != server:  # a password behind which the '@' was forgotten, too
                raise UsageError(
                    f'bootstrap_servers has {mask_url(server)!r}; expected "host:port". Credentials are settings of their own: '
                    f"sasl_plain_username and sasl_plain_password"
                )
        begin = start if start in _STARTS else _time(start, "start", _STARTS)
        finish = end if end is None or end == "now" else _time(end, "end", ("now",))
        if isinstance(begin, int) and isinstance(finish, int) and finish <= begin:
            raise UsageError(f"end {end!r} does not lie after start {start!r}; the replay would be empty")
        if group_id is not None and (not isinstance(group_id, str) or not group_id):
            raise UsageError(f"group_id is {group_id!r}; expected the name of a Kafka consumer group")
        if assignment is not None:
            _choice("assignment", assignment, ("managed", "group", "fixed"))
        if assignment == "group" and (group_id is None or partitions is not None):
            raise UsageError('assignment="group" needs group_id, and no partitions: Kafka says which are ours')
        if assignment == "managed" and partitions is not None:
            raise UsageError(
                'assignment="managed" has the group\'s leader say which partitions are ours; subscription= bounds it'
            )
        if offset_storage == "zookeeper":
            raise UsageError('offset_storage is "zookeeper"; write "store", which names any store')
        _choice("offset_storage", offset_storage, ("kafka", "store"))
        if begin == "committed" and group_id is None and offset_storage == "kafka":
            raise UsageError(
                'start="committed" needs group_id, for offsets in Kafka, or offset_storage="store", for those under the root'
            )
        if timestamp is not None and (not callable(timestamp) or inspect.iscoroutinefunction(timestamp)):
            raise UsageError(
                f"timestamp is {timestamp!r}; expected a plain function of a record that gives milliseconds"
            )
        _choice("late", late, ("deliver", "drop", "dead-letter"))
        _choice("poison", poison, ("raise", "skip", "cap", "dead-letter"))
        _choice("on_error", on_error, ("raise", "dead-letter"))
        _choice("isolation_level", isolation_level, ("read_committed", "read_uncommitted"))
        if "dead-letter" in (late, poison, on_error) and not callable(dead_letter):
            raise UsageError("a policy says dead-letter: give dead_letter=, a function of (record, reason)")
        if dead_letter is not None and not callable(dead_letter):
            raise UsageError(f"dead_letter is {dead_letter!r}; expected a function of (record, reason)")
        if not isinstance(commit, bool):
            raise UsageError(f"commit is {commit!r}; expected True or False")
        check_consumer(consumer)
        return cls(
            tuple(topics),
            ",".join(map(str, listed)),
            wanted if isinstance(wanted, re.Pattern) else None,
            begin,  # type: ignore[arg-type]
            finish,  # type: ignore[arg-type]
            None if callable(partitions) else _partitions(wanted, partitions),
            _rule(partitions) if callable(partitions) else None,
            group_id,
            assignment in {None, "group"} and group_id is not None and partitions is None,
            assignment == "managed",
            commit,
            str(offset_storage),
            timestamp,
            _lateness(wanted, lateness),
            str(late),
            str(poison),
            str(on_error),
            _count("retries", retries, 0),
            dead_letter,
            _count("buffer_records", buffer_records, 1),
            _count("buffer_bytes", buffer_bytes, 1, _MAX_BYTES),
            str(isolation_level),
            dict(consumer),
        )


def _pattern(value: object) -> re.Pattern[str]:
    """Return the compiled pattern. Like a subscription it has no flags, so that all members of a group can compare it."""
    return re.compile(Subscription.check(pattern=value).pattern or "")


def _check_replayed(what: str, topic: object, wanted: Sequence[str] | re.Pattern[str]) -> None:
    """Raise UsageError for a topic that is not replayed."""
    if isinstance(wanted, re.Pattern):
        if not isinstance(topic, str) or wanted.fullmatch(topic) is None:
            raise UsageError(f"{what} names the topic {topic!r}, which does not match the pattern {wanted.pattern!r}")
    elif topic not in wanted:
        raise UsageError(f"{what} names the topic {topic!r}, which is not replayed; it has {', '.join(wanted)}")


def _time(value: object, what: str, words: Sequence[str]) -> int:
    if value is None:
        raise UsageError(f"{what} is None; expected a time or {' or '.join(map(repr, words))}")
    try:
        return parse_time(value, what=what)
    except UsageError as error:
        raise UsageError(f"{error}; or {' or '.join(map(repr, words))}") from None


def consumer_keywords() -> frozenset[str]:
    """Return the names of the settings of aiokafka's consumer."""
    return frozenset(inspect.signature(AIOKafkaConsumer).parameters) - {"topics", "loop"}


def check_handler(handler: object, method: str, gets: str) -> None:
    """Raise UsageError if this cannot be called with records, before anything is read."""
    if not callable(handler):
        raise UsageError(
            f"{method}() got {handler!r}, which cannot be called; expected a function of {gets}, with or without async"
        )
    bare: object = handler
    while isinstance(bare, functools.partial):
        bare = bare.func
    for function in (bare, type(bare).__call__):  # an object is called by the method of its class
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            name = getattr(bare, "__qualname__", repr(bare))
            raise UsageError(
                f"{name} is a generator: it has a yield in it, so a call would do nothing; leave out the yield"
            )


def check_result(result: object, record: Any) -> None:
    """HandlerError if a handler has returned a generator for this record: nothing of it has run, and nobody would run it."""
    if isinstance(result, Generator | AsyncGenerator):
        name = getattr(result, "__qualname__", repr(result))
        raise HandlerError(
            f"the handler has returned a generator, {name}, so nothing was done with the record; leave out the yield in it, "
            f"or run it in the handler: '{'async ' * isinstance(result, AsyncGenerator)}for _ in {name}(...): pass'",
            record.topic,
            record.partition,
            record.offset,
        )


def check_consumer(settings: Mapping[str, Any]) -> None:
    """Raise UsageError for settings that aiokafka does not have, or that we fix. aiokafka checks the others on connecting."""
    known = consumer_keywords()
    for name, value in settings.items():
        if name in _FIXED_SETTINGS:
            raise UsageError(f"{name} cannot be passed through: {_FIXED_SETTINGS[name]}")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; {near[0]}?" if near else ""
            raise UsageError(f"{name} is no setting of aiokafka's consumer, nor one of replay's{hint}")
        if name in _CHOICES:
            _choice(name, value, _CHOICES[name])
        if name in _IN_32_BITS:
            _count(name, value, 0, _MAX_BYTES)
    if settings.get("sasl_mechanism") == "GSSAPI" and importlib.util.find_spec("gssapi") is None:
        raise UsageError(
            "sasl_mechanism is 'GSSAPI', for which aiokafka needs the package gssapi: pip install gssapi "
            "(which needs Kerberos on this machine)"
        )


def _choice(what: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise UsageError(f"{what} is {value!r}; expected one of {', '.join(map(repr, choices))}")


def _count(what: str, value: object, least: int, most: int | None = None) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{what} is {value!r}; expected a whole number from {least} up")
    if most is not None and value > most:
        raise UsageError(f"{what} is {value!r}; expected at most {most}")
    return value


def _lateness(wanted: Sequence[str] | re.Pattern[str], value: object) -> dict[str, int]:
    if value is None:
        return {}
    if isinstance(value, Mapping):
        for topic in value:
            _check_replayed("lateness", topic, wanted)
            warn_of_milliseconds("lateness", value[topic])
        return {topic: parse_duration(bound, what=f"lateness of {topic}", least=0) for topic, bound in value.items()}
    bound = parse_duration(value, what="lateness", least=0)
    warn_of_milliseconds("lateness", value)
    if isinstance(wanted, re.Pattern):
        if bound:
            raise UsageError("with a pattern, give lateness by topic: the topics are not known yet")
        return {}
    return dict.fromkeys(wanted, bound)


def _rule(value: Callable[..., Any]) -> Callable[[str, int], object]:
    wrong = f"partitions is {value!r}; expected a plain function of topic and number that says whether they are ours"
    if inspect.iscoroutinefunction(value):
        raise UsageError(wrong)
    try:
        inspect.signature(value).bind("topic", 0)
    except TypeError:
        raise UsageError(wrong) from None
    except ValueError:  # a function written in C may have no signature
        pass
    return value


def _partitions(wanted: Sequence[str] | re.Pattern[str], value: object) -> frozenset[Partition] | None:
    if value is None:
        return None
    form = 'expected partitions like {"orders": [0, 1]}, [("orders", 0), ("orders", 1)] or a function of both'
    pairs: list[Any]
    if isinstance(value, Mapping):
        for numbers in value.values():
            if not isinstance(numbers, Iterable):
                raise UsageError(f"partitions is {value!r}; {form}")
        pairs = [(topic, number) for topic, numbers in value.items() for number in numbers]
    elif isinstance(value, Sequence | set | frozenset) and not isinstance(value, str):
        pairs = list(value)
    else:
        raise UsageError(f"partitions is {value!r}; {form}")
    result: set[Partition] = set()
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise UsageError(f"partitions has {pair!r}; {form}")
        topic, number = pair
        _check_replayed("partitions", topic, wanted)
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise UsageError(f"partitions has {number!r} of {topic!r}; expected a whole number from 0 up")
        result.add(Partition(topic, number))
    if not result:
        raise UsageError("partitions is empty: this process would have nothing to do; leave it out for all of them")
    return frozenset(result)
