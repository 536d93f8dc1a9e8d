"""The options that say which records a replay reads, and from where. They are checked once, where they enter."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from aiokafka import AIOKafkaConsumer

from aiokcc.core.masking import mask_url
from aiokcc.core.partitions import Partition, check_topic
from aiokcc.core.periods import parse_time
from aiokcc.core.subscriptions import Subscription
from aiokcc.credentials import KafkaClient, KafkaConfig, remember_secrets
from aiokcc.errors import UsageError

__all__ = ["MAX_BYTES", "SourceOptions", "check_choice", "check_consumer", "check_count", "consumer_keywords"]

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
MAX_BYTES: Final = 2**31 - 1
"""Kafka's protocol has 32 bits for the size of a fetch. With a larger value aiokafka fetches nothing and raises nothing."""
_IN_32_BITS: Final = ("max_partition_fetch_bytes", "fetch_max_bytes", "fetch_min_bytes", "fetch_max_wait_ms")
_CHOICES: Final = {
    "security_protocol": ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "sasl_mechanism": ("PLAIN", "GSSAPI", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceOptions:
    """The source: topics and partitions of a cluster, between two places in their logs; and where offsets are committed."""

    topics: tuple[str, ...] = ()
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
    isolation_level: str = "read_committed"
    consumer: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Further settings of the aiokafka consumer. Not in the repr: a password may be among them."""

    @property
    def user(self) -> str:
        """The name by which the broker knows us, for errors."""
        name = self.consumer.get("sasl_plain_username")
        return "this client" if name is None else f"the user {name!r}"

    @property
    def can_fetch_ahead(self) -> bool:
        """True if a partition may be fetched while its last fetch is still being used up."""
        plain = not any(self.consumer.get(name) for name in ("key_deserializer", "value_deserializer"))
        return plain and self.end is not None and not self.by_group

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
        kafka: KafkaConfig = None,
        start: object = "earliest",
        end: object = "now",
        partitions: object = None,
        group_id: object = None,
        assignment: object = None,
        commit: object = True,
        offset_storage: object = "kafka",
        isolation_level: object = "read_committed",
        consumer: Mapping[str, Any],
    ) -> SourceOptions:
        """Return the options from the user's arguments. Raises UsageError for the first invalid one."""
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
        client = KafkaClient.load(kafka)
        if bootstrap_servers is None and client.bootstrap_servers is None:
            raise UsageError(
                'bootstrap_servers is missing; give "host:port", or bootstrap.servers in the kafka properties'
            )
        servers = _servers(client.bootstrap_servers if bootstrap_servers is None else bootstrap_servers)
        begin = start if start in _STARTS else _time(start, "start", _STARTS)
        finish = end if end is None or end == "now" else _time(end, "end", ("now",))
        if isinstance(begin, int) and isinstance(finish, int) and finish <= begin:
            raise UsageError(f"end {end!r} does not lie after start {start!r}; the replay would be empty")
        if group_id is not None and (not isinstance(group_id, str) or not group_id):
            raise UsageError(f"group_id is {group_id!r}; expected the name of a Kafka consumer group")
        if assignment is not None:
            check_choice("assignment", assignment, ("managed", "group", "fixed"))
        if assignment == "group" and (group_id is None or partitions is not None):
            raise UsageError('assignment="group" needs group_id, and no partitions: Kafka says which are ours')
        if assignment == "managed" and partitions is not None:
            raise UsageError(
                'assignment="managed" has the group\'s leader say which partitions are ours; subscription= bounds it'
            )
        if offset_storage == "zookeeper":
            raise UsageError('offset_storage is "zookeeper"; write "store", which names any store')
        check_choice("offset_storage", offset_storage, ("kafka", "store"))
        if begin == "committed" and group_id is None and offset_storage == "kafka":
            raise UsageError(
                'start="committed" needs group_id, for offsets in Kafka, or offset_storage="store", for those under the root'
            )
        check_choice("isolation_level", isolation_level, ("read_committed", "read_uncommitted"))
        if not isinstance(commit, bool):
            raise UsageError(f"commit is {commit!r}; expected True or False")
        consumer = {**client.consumer, **consumer}
        remember_secrets(consumer)
        check_consumer(consumer)
        return cls(
            topics=tuple(topics),
            bootstrap_servers=servers,
            pattern=wanted if isinstance(wanted, re.Pattern) else None,
            start=begin,  # type: ignore[arg-type]
            end=finish,  # type: ignore[arg-type]
            partitions=None if callable(partitions) else _partitions(wanted, partitions),
            rule=_rule(partitions) if callable(partitions) else None,
            group_id=group_id,
            by_group=assignment in {None, "group"} and group_id is not None and partitions is None,
            managed=assignment == "managed",
            commit=commit,
            offset_storage=str(offset_storage),
            isolation_level=str(isolation_level),
            consumer=consumer,
        )

    def check_replayed(self, what: str, topic: object) -> None:
        """Raise UsageError for a topic that is not replayed. ``what`` is the argument that names it."""
        _check_replayed(what, topic, self.topics if self.pattern is None else self.pattern)


def _pattern(value: object) -> re.Pattern[str]:
    """Return the compiled pattern. Like a subscription it has no flags, so that all members of a group can compare it."""
    return re.compile(Subscription.check(pattern=value).pattern or "")


def _servers(value: object) -> str:
    listed = value if isinstance(value, list | tuple) else [value]
    if not listed or not all(isinstance(server, str) and server for server in listed):
        raise UsageError(f'bootstrap_servers is {mask_url(repr(value))}; expected "host:port" or a list of them')
    for server in map(str, listed):
        if "@" in server or mask_url(server) != server:  # a password behind which the '@' was forgotten, too
            raise UsageError(
                f'bootstrap_servers has {mask_url(server)!r}; expected "host:port". Credentials are settings of their own: '
                f"sasl_plain_username and sasl_plain_password"
            )
    return ",".join(map(str, listed))


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
            check_choice(name, value, _CHOICES[name])
        if name in _IN_32_BITS:
            check_count(name, value, 0, MAX_BYTES)
    if settings.get("sasl_mechanism") == "GSSAPI" and importlib.util.find_spec("gssapi") is None:
        raise UsageError(
            "sasl_mechanism is 'GSSAPI', for which aiokafka needs the package gssapi: pip install gssapi "
            "(which needs Kerberos on this machine)"
        )


def check_choice(what: str, value: object, choices: Sequence[str]) -> None:
    """Raise UsageError for a value that is not among the choices."""
    if value not in choices:
        raise UsageError(f"{what} is {value!r}; expected one of {', '.join(map(repr, choices))}")


def check_count(what: str, value: object, least: int, most: int | None = None) -> int:
    """Return a whole number within bounds. Raises UsageError for any other value."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{what} is {value!r}; expected a whole number from {least} up")
    if most is not None and value > most:
        raise UsageError(f"{what} is {value!r}; expected at most {most}")
    return value


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
