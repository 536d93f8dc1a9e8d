"""The agreement of the group: the contents of ``run``, ``generation`` and the nodes that only people read.

Members of one group run the same program, so they bring the same settings. A member with other settings gets an error that
names both.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

from aiokcc.core import paths
from aiokcc.core.partitions import Partition, encode_partitions, parse_topics
from aiokcc.core.periods import (
    MAX_LIMIT,
    check_timestamp,
    format_duration,
    format_time,
    parse_duration,
    parse_period,
    parse_time,
)
from aiokcc.errors import CorruptNodeError, GroupMismatchError, OtherFormatError, UsageError

__all__ = ["Bounds", "Generation", "Run", "Settings", "check_member", "encode_member"]

CUT_SLOTS: Final = 16
MOST_AT_ONCE: Final = CUT_SLOTS // 2
"""The most boundaries that one report has, and that one advance closes."""
MAX_LOOKAHEAD: Final = 1000
MANAGED: Final = "assignment=managed"
"""Ends the ``source`` of a managed group, so that a member that claims partitions on its own cannot join it."""
_MEMBER: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
FORMAT: Final = 3
"""The format of all nodes of a group ([one format] in docs/explanation/protocol.md). Since format 2, partitions and offsets
have lines of their own in reports and cuts."""
_RUN_FORM: Final = "JSON with version, start, end, period, lookahead, caught_up, ahead, source, offsets and state"
_GENERATION_FORM: Final = "'number leader reason'"


@dataclass(frozen=True, slots=True)
class Settings:
    """The checked settings of one member. Times and durations are milliseconds."""

    partitions: frozenset[Partition]
    period: int
    start: int | None = None
    end: int | None = None
    lookahead: int = 0
    caught_up: int | Literal["follow", "release"] = "follow"
    """The policy once the limit has reached the clock: follow the clock, release the gate, or go on with this period."""
    ahead: int = 3_600_000
    """The limit moves at most this far past the clock."""
    source: str = ""
    """Describes the records; the same text for all members: where they start and end, and how event time is found."""
    max_apart: int | None = None
    """Set if the leader chooses the lookahead: how far partitions may lie apart. ``lookahead`` is then its greatest choice."""

    @property
    def first_lookahead(self) -> int:
        """The lookahead with which the run begins: none if the leader is going to choose it."""
        return self.lookahead if self.max_apart is None else 0

    @classmethod
    def check(
        cls,
        *,
        topics: object = (),
        period: object,
        start: object = None,
        end: object = None,
        lookahead: object = 0,
        caught_up: object = "follow",
        ahead: object = "1h",
        source: object = "",
        max_apart: object = None,
    ) -> Settings:
        """Returns the settings from a user's arguments. Raises UsageError for the first invalid argument.

        Without ``topics`` the partitions are not known yet, and the set is empty.
        """
        begin = None if start is None else parse_time(start, what="start")
        finish = None if end is None else parse_time(end, what="end")
        if begin is not None and finish is not None and finish <= begin:
            raise UsageError(f"end {end!r} does not lie after start {start!r}; the run would be empty")
        apart = None
        if lookahead == "auto":
            lookahead, apart = _auto(parse_period(period), max_apart)
        elif max_apart is not None:
            raise UsageError('max_apart goes with lookahead="auto"; give that, or leave max_apart out')
        if not isinstance(lookahead, int) or isinstance(lookahead, bool) or not 0 <= lookahead <= MAX_LOOKAHEAD:
            raise UsageError(
                f'lookahead {lookahead!r} is not a number of periods from 0 to {MAX_LOOKAHEAD}, nor "auto"'
            )
        policy: int | Literal["follow", "release"]
        if caught_up == "follow":
            policy = "follow"
        elif caught_up == "release":
            policy = "release"
        else:
            try:
                policy = parse_period(caught_up, what="caught_up")
            except UsageError as error:
                raise UsageError(f'{error}; or "follow", or "release"') from None
        return cls(
            frozenset() if topics == () else parse_topics(topics),
            parse_period(period),
            begin,
            finish,
            lookahead,
            policy,
            parse_duration(ahead, what="ahead", least=0),
            str(source),
            apart,
        )


def _auto(period: int, max_apart: object) -> tuple[int, int]:
    """Returns the greatest lookahead within which partitions lie at most so far apart, and the bound in milliseconds."""
    if max_apart is None:
        raise UsageError('lookahead="auto" needs a bound: max_apart="15m" lets partitions lie up to 15 minutes apart')
    apart = parse_duration(max_apart, what="max_apart")
    if apart < 2 * period:
        raise UsageError(
            f"max_apart {max_apart!r} leaves no choice: partitions in step lie up to one period apart, "
            f"{format_duration(period)}, so it must be at least {format_duration(2 * period)}"
        )
    return min(apart // period - 1, MAX_LOOKAHEAD), apart


class Bounds(NamedTuple):
    """The offsets of a partition that the run replays: from ``start`` up to, not including, ``end`` (None: no end)."""

    start: int
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """The content of the ``run`` node: the settings the group runs with, and whether it is still running."""

    settings: Settings
    ended: bool = False
    bounds: Mapping[Partition, Bounds] = field(default_factory=dict)
    """The offsets to replay, if known. The founder of the group resolves them once, so that all members agree on them."""

    @property
    def managed(self) -> bool:
        """True if the leader assigns the partitions."""
        return self.settings.source.endswith(MANAGED)

    def end(self) -> Run:
        """Returns the same run, ended."""
        return replace(self, ended=True)

    def with_partitions(self, bounds: Mapping[Partition, Bounds]) -> Run:
        """Returns the same run with these partitions added."""
        settings = replace(self.settings, partitions=self.settings.partitions | bounds.keys())
        return replace(self, settings=settings, bounds={**self.bounds, **bounds})

    def without(self, partitions: frozenset[Partition]) -> Run:
        """Returns the same run without these partitions."""
        settings = replace(self.settings, partitions=self.settings.partitions - partitions)
        return replace(self, settings=settings, bounds={p: b for p, b in self.bounds.items() if p not in partitions})

    def require(self, mine: Settings, where: str) -> None:
        """Raises GroupMismatchError, which names both sides, unless ``mine`` equals the group's settings."""
        differences = [
            f"{name} is {_shown(name, getattr(self.settings, name))} there and {_shown(name, getattr(mine, name))} here"
            for name in Settings.__slots__
            if getattr(self.settings, name) != getattr(mine, name)
        ]
        if differences:
            if self.ended:
                said, remedy = "has ended, and ran with other settings", "Use another root for a new run"
            else:
                said, remedy = "runs with other settings", "Join with the group's settings, or use another root"
            raise GroupMismatchError(f"the group under {where} {said}: {'; '.join(differences)}. {remedy}")

    def encode(self) -> bytes:
        """Returns the node's content. The partitions are in a node of their own; this one has their checksum."""
        s = self.settings
        return json.dumps(
            {
                "version": FORMAT,
                "state": "ended" if self.ended else "running",
                "start": s.start,
                "end": s.end,
                "period": s.period,
                "lookahead": s.lookahead,
                "max_apart": s.max_apart,
                "caught_up": s.caught_up,
                "ahead": s.ahead,
                "source": s.source,
                "offsets": {str(p): list(bounds) for p, bounds in sorted(self.bounds.items())},
                "partitions": _checksum(s.partitions),
            }
        ).encode()

    @classmethod
    def decode(cls, path: str, data: bytes, partitions: frozenset[Partition]) -> Run:
        """Reads the node's content. Raises CorruptNodeError if it is malformed or was written with another set of partitions.

        Raises OtherFormatError if a version of aiokcc with another format wrote it.
        A set that was cut short can still be read, but a leader with that set would not wait for the missing partitions.
        """
        try:
            raw: Any = json.loads(data, object_pairs_hook=_unique)
            if not isinstance(raw, dict) or type(raw["version"]) is not int:
                raise ValueError(raw)
            if raw["version"] != FORMAT:
                raise OtherFormatError(path, data, raw["version"], FORMAT)
            if raw["state"] not in {"running", "ended"}:
                raise ValueError(raw)
            settings = Settings.check(
                topics={"unused": 1},
                **{name: raw[name] for name in ("period", "lookahead", "caught_up", "ahead", "source")},
            )
            start, end = (None if raw[name] is None else check_timestamp(raw[name]) for name in ("start", "end"))
            if start is not None and end is not None and end <= start:
                raise ValueError(raw)
            apart = raw.get("max_apart")
            if apart is not None:
                parse_duration(apart, what="max_apart")
            bounds = {Partition.parse(name): _bounds(*pair) for name, pair in raw["offsets"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise CorruptNodeError(path, data, _RUN_FORM) from None
        if raw.get("partitions", _checksum(partitions)) != _checksum(partitions):
            listed = path.removesuffix(paths.RUN) + paths.TOPIC_PARTITIONS
            raise CorruptNodeError(listed, encode_partitions(partitions), f"the set that {path} was written with")
        settings = replace(settings, partitions=partitions, start=start, end=end, max_apart=apart)
        return cls(settings, raw["state"] == "ended", bounds)


def _checksum(partitions: frozenset[Partition]) -> int:
    return zlib.crc32(encode_partitions(partitions))


def _bounds(start: object, end: object) -> Bounds:
    for offset in (start, end):
        if offset is not None and (type(offset) is not int or not 0 <= offset <= MAX_LIMIT):
            raise ValueError(offset)
    if not isinstance(start, int) or not (end is None or isinstance(end, int)):
        raise TypeError(start)
    return Bounds(start, end)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError(pairs)
    return result


def _shown(name: str, value: Any) -> str:
    if name == "partitions":
        text = encode_partitions(value).decode()
        return text if len(text) <= 200 else f"{text[:200]}…"
    if name in {"start", "end"} and value is not None:
        return format_time(value)
    if isinstance(value, int) and name != "lookahead":
        return format_duration(value)
    return str(value)


@dataclass(frozen=True, slots=True)
class Generation:
    """The fence: every take-over and every change of the agreed set adds one."""

    number: int
    leader: str
    """The member session that wrote it."""
    reason: str

    def encode(self) -> bytes:
        """Returns the node's content."""
        return f"{self.number} {self.leader} {self.reason}".encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> Generation:
        """Reads the node's content. Raises CorruptNodeError if it is malformed."""
        try:
            number, leader, reason = data.decode().split(" ", 2)
            if not (number.isascii() and number.isdecimal()) or len(number) > 19 or not leader:
                raise ValueError(number)
            return cls(int(number), leader, reason)
        except ValueError:
            raise CorruptNodeError(path, data, _GENERATION_FORM) from None


def check_member(name: object) -> str:
    """Returns the name if it is usable in paths, cuts and the fence. Raises UsageError if it is not."""
    if not isinstance(name, str) or not _MEMBER.fullmatch(name) or name in {".", ".."}:
        raise UsageError(
            f"member {name!r} is not a usable name; expected letters, digits, '.', '_' and '-', at most 100"
        )
    return name


def encode_member(**facts: object) -> bytes:
    """Returns the content of a node that people read: JSON with a version."""
    return json.dumps({"version": 1, **facts}).encode()
