"""Translates the options of ``aiokcc replay``: the keywords of :func:`aiokcc.replay`, and the share of each worker."""

from __future__ import annotations

import argparse
import os
import re
import socket
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from aiokcc.cli.functions import load_function
from aiokcc.cli.kafka_options import consumer_settings
from aiokcc.cli.loops import choose_loop
from aiokcc.core.assignors import DEFAULT
from aiokcc.core.formatting import count
from aiokcc.core.partitions import Partition
from aiokcc.core.periods import parse_duration
from aiokcc.errors import UsageError
from aiokcc.runtime.host.place import can_meet

__all__ = [
    "FUNCTIONS",
    "as_keywords",
    "make_replay",
    "member_name",
    "own_store_url",
    "share_partitions",
    "shares_host",
    "worker_spec",
]

FUNCTIONS: Final = (
    ("timestamp", "a record", 1),
    ("dead_letter", "a record and a reason", 2),
    ("weight", "a partition and a member", 2),
)
"""The options that name functions of the user: what each function gets, and how many arguments that is."""


def as_keywords(options: argparse.Namespace) -> dict[str, Any]:
    """Return the keywords of :func:`aiokcc.replay`, except topics and functions, as data that JSON can hold."""
    return {
        "pattern": options.pattern,
        "bootstrap_servers": options.bootstrap_servers,
        "kafka": options.kafka,
        "store": options.store,
        "period": options.period,
        "start": options.start,
        "end": None if options.follow else options.end or "now",
        "group_id": options.group_id,
        "offset_storage": options.offset_storage,
        "lateness": _lateness(options.lateness),
        "late": options.late,
        "poison": options.poison,
        "on_error": options.on_error,
        "retries": options.retries,
        "lookahead": options.lookahead,
        "max_apart": options.max_apart,
        "caught_up": options.caught_up,
        "traces": options.traces,
        "isolation_level": options.isolation_level,
        "connect_timeout": options.timeout,
        **_managed(options),
        **dict(options.consumer),
    }


def own_store_url(options: argparse.Namespace) -> str:
    """Return the URL that ``--store kafka`` means: a root in the Kafka that is read, made from topics and group id."""
    from aiokcc.kafka.own_store import name_root
    from aiokcc.kafka.source_options import SourceOptions

    source = SourceOptions.check(
        tuple(options.topic),
        pattern=options.pattern,
        bootstrap_servers=options.bootstrap_servers,
        group_id=options.group_id,
        consumer={},
    )
    return f"kafka://{source.bootstrap_servers}{name_root(source)}"


def _managed(options: argparse.Namespace) -> dict[str, Any]:
    if options.assignment != "managed":
        only = ("member", "expect", "subscription", "assignor", "weight")
        unused = [f"--{name}" for name in only if getattr(options, name) is not None]
        if unused:
            raise UsageError(f"{' and '.join(unused)} can only be used with --assignment managed")
        return {"assignment": "fixed"}
    expect = options.expect or (options.processes if options.processes > 1 else None)
    return {
        "assignment": "managed",
        "expect": expect,
        "subscription": dict(options.subscription) if options.subscription else None,
        "assignor": options.assignor or DEFAULT,
    }


def member_name(options: argparse.Namespace, number: int) -> str:
    """Return the member id of the worker with this number; numbers start at 1."""
    if options.assignment != "managed":
        return f"worker-{number}"
    if options.member is None:
        host = re.sub("[^A-Za-z0-9._-]", "-", socket.gethostname())[:60]
        return f"{host}-{os.getpid()}-{number}"
    return options.member if options.processes == 1 else f"{options.member}-{number}"


def _lateness(given: list[str]) -> int | dict[str, int] | None:
    """Return one bound for all topics, or one for each topic that is named; None if there is none."""
    by_topic: dict[str, int] = {}
    for text in given:
        topic, equals, bound = text.rpartition("=")
        if not equals and len(given) > 1:
            raise UsageError("--lateness is given for all topics and again; write TOPIC=TIME for each instead")
        length = parse_duration(bound, what="--lateness", least=0)
        if not equals:
            return length
        by_topic[topic] = length
    return by_topic or None


def make_replay(options: argparse.Namespace) -> AbstractAsyncContextManager[Any]:
    """Return the replay with these options, not entered."""
    import aiokcc

    keywords = as_keywords(options)
    for name, gets, number in FUNCTIONS:
        if getattr(options, name) is not None:
            keywords[name] = load_function(getattr(options, name), gets, number)
    return aiokcc.replay(*(options.topic or ()), **keywords)


async def share_partitions(options: argparse.Namespace) -> list[list[Partition]]:
    """Return the partitions of each worker: the biggest first, each to the worker with the fewest records so far."""
    from aiokcc.kafka.cluster import Cluster
    from aiokcc.kafka.source_options import SourceOptions

    source = SourceOptions(
        topics=tuple(options.topic or ()),
        bootstrap_servers=options.bootstrap_servers,
        pattern=None if options.pattern is None else re.compile(options.pattern),
        isolation_level=options.isolation_level,
        consumer=consumer_settings(options),
    )
    async with Cluster(source, options.timeout).connected() as cluster:
        partitions = await cluster.partitions(await cluster.topics())
        if options.assignment == "managed":  # the group assigns them
            return [sorted(partitions), *([] for _ in range(1, options.processes))]
        ends, begins = await cluster.ends(partitions), await cluster.begins(partitions)
    number = options.processes
    if number > len(partitions):
        raise UsageError(f"--processes {number}: there are only {count(len(partitions), 'partition')} to share")
    shares: list[list[Partition]] = [[] for _ in range(number)]
    loads = [0] * number
    for partition in sorted(partitions, key=lambda p: (begins[p] - ends[p], p)):
        least = min(range(number), key=lambda n: (loads[n], len(shares[n])))
        shares[least].append(partition)
        loads[least] += ends[partition] - begins[partition] + 1  # + 1, so that empty partitions are shared out evenly
    return [sorted(share) for share in shares]


def worker_spec(options: argparse.Namespace, shares: list[list[Partition]], number: int) -> dict[str, Any]:
    """Return what a worker process needs to know, as data that JSON can hold; numbers start at 1."""
    return {
        "topics": options.topic or [],
        "shares": [] if options.assignment == "managed" else shares,
        "number": number - 1,
        "handler": options.handler,
        "timestamp": options.timestamp,
        "dead_letter": options.dead_letter,
        "weight": options.weight,
        "batches": options.batches,
        "verbose": options.verbose,
        "logs": options.logs,
        "probes": options.metrics is not None,
        "loop": choose_loop(options.loop),
        "arguments": {
            **as_keywords(options),
            "member": member_name(options, number),
            "share_host": shares_host(options),
        },
    }


def shares_host(options: argparse.Namespace) -> bool:
    """Return whether the workers share one session with the store. Where they cannot, nothing is said.

    The user has not asked for it, so a machine on which the workers cannot meet is no error.
    """
    wanted = options.share_host and options.processes > 1 and options.assignment != "managed" and not options.follow
    return bool(wanted and can_meet())
