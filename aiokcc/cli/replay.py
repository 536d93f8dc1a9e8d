"""``aiokcc replay``: a replay from the command line, over several processes."""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from contextlib import AbstractAsyncContextManager
from typing import Any

from aiokcc.cli.bar import choose_bar, on_terminal, say, wrapped
from aiokcc.cli.formatting import count, listed
from aiokcc.cli.functions import load
from aiokcc.cli.interrupt import Interruption
from aiokcc.cli.monitor import Monitor
from aiokcc.cli.previous_run import Before, look, look_quickly
from aiokcc.cli.replay_arguments import SERVERS, as_keywords, member_name
from aiokcc.cli.worker_pool import WorkerPool, worker_pool
from aiokcc.core.masking import mask_url
from aiokcc.core.partitions import Partition
from aiokcc.core.periods import format_duration, format_time
from aiokcc.errors import AiokccError, RunEnded, UsageError

__all__ = ["check_replay", "say_replay"]


def check_replay(options: argparse.Namespace) -> None:
    """UsageError for whatever can be refused without asking anybody."""
    if not options.topic and options.pattern is None:
        raise UsageError("which topics? Give --topic TOPIC, for each again, or --pattern REGEX")
    if not options.bootstrap_servers:
        raise UsageError(f"where is Kafka? Give --bootstrap-servers HOST:PORT, or set {SERVERS} to it")
    if "://" in options.bootstrap_servers:
        raise UsageError(
            f"--bootstrap-servers {mask_url(options.bootstrap_servers)}: expected HOST:PORT, without a scheme"
        )
    if options.processes > 1 and options.store.startswith("memory://"):
        raise UsageError(
            f"{mask_url(options.store)} lives inside one process, and --processes {options.processes} are several; "
            f"give them a ZooKeeper to meet at (`aiokcc local up` starts one), or leave --processes out"
        )
    load(options.handler, "a list of records" if options.batches else "a record")
    _replay(options)  # checks; connects nothing


async def say_replay(options: argparse.Namespace) -> int:
    """Run it; the exit code."""
    before = await look(options)
    if before.ended and await _has_ended(options):
        say(f"The run under {_where(options)} has ended already; there is nothing left to do.")
        say("To run it again, use another root: the end of the store's URL.")
        return 0
    shares = await _share(options)
    say(wrapped(_announcement(options, shares, before)))
    account = Monitor(options, before)
    interruption = Interruption(account.stop, account.warn)
    try:
        with choose_bar() as bar, interruption.heard():
            orders = [_orders(options, shares, n) for n in range(1, len(shares) + 1)]
            crew: WorkerPool | None = None
            try:
                async with worker_pool(orders, bar.write if on_terminal() else None) as crew:
                    await account.run(crew, bar)
            finally:
                account.hear_out([] if crew is None else crew.left())
    except asyncio.CancelledError:
        if not interruption.twice:
            raise
    if account.failure is not None and account.refused:
        raise AiokccError(account.failure)
    if account.failure is not None:
        going_on = account.going_on(await look_quickly(options))
        raise AiokccError(f"{account.failure}\n{wrapped(account.result('Stopped'))}\n{wrapped(going_on)}")
    if account.stopped or interruption.twice:
        last = await look_quickly(options)
        if not last.ended:  # which may have come just now
            say(wrapped(account.result("Stopped")))
            say(wrapped(account.going_on(last, in_order=not interruption.twice)))
            return interruption.code
    say(wrapped(account.summary()))
    return 0


def _replay(options: argparse.Namespace) -> AbstractAsyncContextManager[Any]:
    """Return the replay that was asked for, in this process and not entered."""
    import aiokcc

    keywords = as_keywords(options)
    for name, gets, number in (("timestamp", "a record", 1), ("dead_letter", "a record and a reason", 2)):
        if getattr(options, name) is not None:
            keywords[name] = load(getattr(options, name), gets, number)
    return aiokcc.replay(*(options.topic or ()), **keywords)


# -- before the start ---------------------------------------------------------------------------------------------------


async def _has_ended(options: argparse.Namespace) -> bool:
    """Return whether the run that has ended is the one that was asked for.

    Joining it compares all settings: GroupMismatchError if they differ. False if somebody has deleted it in the meantime.
    """
    try:
        async with _replay(options):
            return False
    except RunEnded:
        return True


async def _share(options: argparse.Namespace) -> list[list[Partition]]:
    """Which worker runs which partitions: the fullest first, each to whoever has least so far."""
    from aiokcc.kafka.cluster import Cluster
    from aiokcc.kafka.settings import ReplaySettings

    settings = ReplaySettings(
        tuple(options.topic or ()),
        options.bootstrap_servers,
        None if options.pattern is None else re.compile(options.pattern),
        isolation_level=options.isolation_level,
        consumer=dict(options.consumer),
    )
    async with Cluster(settings, options.timeout).connected() as cluster:
        partitions = await cluster.partitions(await cluster.topics(settings))
        if options.assignment == "managed":  # shared out by the group, as it comes and goes
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
        loads[least] += ends[partition] - begins[partition] + 1  # one for itself: an empty one is shared out, too
    return [sorted(share) for share in shares]


def _orders(options: argparse.Namespace, shares: list[list[Partition]], number: int) -> dict[str, Any]:
    return {
        "topics": options.topic or [],
        "shares": [] if options.assignment == "managed" else shares,
        "number": number - 1,
        "handler": options.handler,
        "timestamp": options.timestamp,
        "dead_letter": options.dead_letter,
        "batches": options.batches,
        "verbose": options.verbose,
        "arguments": {**as_keywords(options), "member": member_name(options, number)},
    }


# -- words --------------------------------------------------------------------------------------------------------------


def _announcement(options: argparse.Namespace, shares: list[list[Partition]], before: Before) -> str:
    partitions = [p for share in shares for p in share]
    names = options.topic or sorted({p.topic for p in partitions})
    topics = listed([f"{name} ({count(sum(p.topic == name for p in partitions), 'partition')})" for name in names], 5)
    if options.follow and options.pattern is not None:
        topics += f", and what else comes to match {options.pattern!r},"
    start = f"from {options.start if isinstance(options.start, str) else format_time(options.start)}"
    end = options.end if isinstance(options.end, str) else format_time(options.end)
    end = "and then the present" if options.follow else f"to {end}"
    period = before.period or options.period
    by = "" if len(shares) == 1 else f", in {len(shares)} processes"
    if isinstance(options.end, int) and options.end > time.time() * 1000:
        end += " (which is still to come: it waits for the clock)"
    text = f"Replaying {topics} {start} {end}, in periods of {format_duration(period)}{by}."
    if before.closed is not None:
        text += (
            f"\nGoing on with the run under {_where(options)}: everything before {format_time(before.closed)} is done."
        )
    if period != options.period:
        text += f"\nThe period was changed since the run began with {format_duration(options.period)}."
    return text


def _where(options: argparse.Namespace) -> str:
    return mask_url(options.store)
