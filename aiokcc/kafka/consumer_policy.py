"""The options that say how the records of a replay are handled. They are checked once, where they enter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiokcc.core.periods import format_duration, format_time, parse_duration
from aiokcc.errors import UsageError
from aiokcc.kafka.source_options import MAX_BYTES, SourceOptions, check_choice, check_count
from aiokcc.kafka.tracing import check_traces
from aiokcc.runtime.entry import warn_of_milliseconds

__all__ = ["ConsumerPolicy", "describe_source"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerPolicy:
    """The policies for records: their time, those that are late, have no usable timestamp or fail, and how many are held."""

    timestamp: Callable[[Any], int] | None = None
    lateness: Mapping[str, int] = field(default_factory=dict)
    """The bound on lateness in milliseconds, by topic."""
    late: str = "deliver"
    poison: str = "raise"
    on_error: str = "raise"
    retries: int = 0
    dead_letter: Callable[..., Any] | None = None
    buffer_records: int = 200
    buffer_bytes: int = 1024 * 1024
    fast_fetch: bool = True
    """True if records are taken out of aiokafka's fetcher directly, where it is built as known."""
    traces: bool = False
    """True if there is a span per period and per batch of records."""

    @classmethod
    def check(
        cls,
        source: SourceOptions,
        *,
        timestamp: object = None,
        lateness: object = None,
        late: object = "deliver",
        poison: object = "raise",
        on_error: object = "raise",
        retries: object = 0,
        dead_letter: object = None,
        buffer_records: object = 200,
        buffer_bytes: object = 1024 * 1024,
        fast_fetch: object = True,
        traces: object = False,
    ) -> ConsumerPolicy:
        """Return the policy from the user's arguments, for these topics. Raises UsageError for the first invalid one."""
        if timestamp is not None and (not callable(timestamp) or inspect.iscoroutinefunction(timestamp)):
            raise UsageError(
                f"timestamp is {timestamp!r}; expected a plain function of a record that gives milliseconds"
            )
        check_choice("late", late, ("deliver", "drop", "dead-letter"))
        check_choice("poison", poison, ("raise", "skip", "cap", "dead-letter"))
        check_choice("on_error", on_error, ("raise", "dead-letter"))
        if "dead-letter" in (late, poison, on_error) and not callable(dead_letter):
            raise UsageError("a policy says dead-letter: give dead_letter=, a function of (record, reason)")
        if dead_letter is not None and not callable(dead_letter):
            raise UsageError(f"dead_letter is {dead_letter!r}; expected a function of (record, reason)")
        if not isinstance(fast_fetch, bool):
            raise UsageError(f"fast_fetch is {fast_fetch!r}; expected True or False")
        return cls(
            timestamp=timestamp,
            lateness=_lateness(source, lateness),
            late=str(late),
            poison=str(poison),
            on_error=str(on_error),
            retries=check_count("retries", retries, 0),
            dead_letter=dead_letter,
            buffer_records=check_count("buffer_records", buffer_records, 1),
            buffer_bytes=check_count("buffer_bytes", buffer_bytes, 1, MAX_BYTES),
            fast_fetch=fast_fetch,
            traces=check_traces(traces),
        )


def describe_source(source: SourceOptions, policy: ConsumerPolicy) -> str:
    """Return the options that all members must share, as text. It stands in the ``run`` node, and members compare it."""
    start = source.start if isinstance(source.start, str) else format_time(source.start)
    end = source.end if source.end is None or isinstance(source.end, str) else format_time(source.end)
    lateness = ",".join(f"{topic}:{format_duration(ms)}" for topic, ms in sorted(policy.lateness.items()) if ms)
    time = "record" if policy.timestamp is None else "function"
    what = "" if source.pattern is None else f" pattern={source.pattern.pattern}"
    late = lateness or "none"
    if source.offset_storage != "kafka":
        what += " offsets=zookeeper"  # the run node has this word for "store"
    return f"kafka{what} start={start} end={end or 'none'} time={time} lateness={late} {source.isolation_level}"


def _lateness(source: SourceOptions, value: object) -> dict[str, int]:
    if value is None:
        return {}
    if isinstance(value, Mapping):
        for topic in value:
            source.check_replayed("lateness", topic)
            warn_of_milliseconds("lateness", value[topic])
        return {topic: parse_duration(bound, what=f"lateness of {topic}", least=0) for topic, bound in value.items()}
    bound = parse_duration(value, what="lateness", least=0)
    warn_of_milliseconds("lateness", value)
    if source.pattern is not None:
        if bound:
            raise UsageError("with a pattern, give lateness by topic: the topics are not known yet")
        return {}
    return dict.fromkeys(source.topics, bound)
