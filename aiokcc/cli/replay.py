"""``aiokcc replay``: runs a replay in one or several worker processes."""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from contextlib import AbstractAsyncContextManager
from typing import Any

from aiokcc.cli.bar import choose_bar, on_terminal, print_message, wrap
from aiokcc.cli.formatting import count, join_names
from aiokcc.cli.functions import load_function
from aiokcc.cli.interrupt import Interruption
from aiokcc.cli.loops import choose_loop
from aiokcc.cli.monitor import Monitor
from aiokcc.cli.previous_run import PreviousRun, read_previous_run, try_read_previous_run
from aiokcc.cli.replay_arguments import SERVERS, as_keywords, check_typed, member_name
from aiokcc.cli.worker_pool import WorkerPool, worker_pool
from aiokcc.core.masking import mask_url
from aiokcc.core.partitions import Partition
from aiokcc.core.periods import format_duration, format_time
from aiokcc.errors import AiokccError, RunEnded, UsageError

__all__ = ["check_replay", "run_replay"]


def check_replay(options: argparse.Namespace) -> None:
    """Raise UsageError for arguments that are invalid whatever the store and Kafka hold."""
    if not options.topic and options.pattern is None:
        raise UsageError("which topics? Give --topic TOPIC, once for each, or --pattern REGEX")
    if not options.bootstrap_servers:
        raise UsageError(f"where is Kafka? Give --bootstrap-servers HOST:PORT, or set {SERVERS} to it")
    if "://" in options.bootstrap_servers:
        raise UsageError(
            f"--bootstrap-servers {mask_url(options.bootstrap_servers)}: expected HOST:PORT, without a scheme"
        )
    if options.processes > 1 and options.store.startswith("memory://"):
        raise UsageError(
            f"{mask_url(options.store)} exists only inside one process, but --processes is {options.processes}; "
            f"give the URL of a ZooKeeper (`aiokcc local up` starts one), or omit --processes"
        )
    check_typed(options.consumer)
    choose_loop(options.loop)
    load_function(options.handler, "a list of records" if options.batches else "a record")
    _replay(options)  # checks the settings; does not connect


async def run_replay(options: argparse.Namespace) -> int:
    """Run the replay and return the exit code. Raises AiokccError if a worker fails. Cancelling stops the workers at once."""
    previous = await read_previous_run(options)
    if previous.ended and await _has_ended(options):
        print_message(f"The run under {_where(options)} has ended already; there is nothing left to do.")
        print_message("To run it again, use another root: the end of the store's URL.")
        return 0
    shares = await _share_partitions(options)
    print_message(wrap(_announcement(options, shares, previous)))
    monitor = Monitor(options, previous)
    interruption = Interruption(monitor.stop, monitor.warn)
    try:
        with choose_bar() as bar, interruption.handling():
            specs = [_worker_spec(options, shares, n) for n in range(1, len(shares) + 1)]
            pool: WorkerPool | None = None
            try:
                async with worker_pool(specs, bar.write if on_terminal() else None) as pool:
                    await monitor.run(pool, bar)
            finally:
                monitor.receive_last_counts([] if pool is None else pool.unread_reports())
    except asyncio.CancelledError:
        if not interruption.cancelled:
            raise
    if monitor.failure is not None and monitor.refused:
        raise AiokccError(monitor.failure)
    if monitor.failure is not None:
        resume = monitor.how_to_resume(await try_read_previous_run(options))
        raise AiokccError(f"{monitor.failure}\n{wrap(monitor.result('Stopped'))}\n{wrap(resume)}")
    if monitor.stopped or interruption.cancelled:
        last = await try_read_previous_run(options)
        if not last.ended:  # the run may have ended just now
            print_message(wrap(monitor.result("Stopped")))
            print_message(wrap(monitor.how_to_resume(last, in_order=not interruption.cancelled)))
            return interruption.code
    print_message(wrap(monitor.summary()))
    return 0


def _replay(options: argparse.Namespace) -> AbstractAsyncContextManager[Any]:
    """Return the replay with these options, not entered."""
    import aiokcc

    keywords = as_keywords(options)
    for name, gets, number in (("timestamp", "a record", 1), ("dead_letter", "a record and a reason", 2)):
        if getattr(options, name) is not None:
            keywords[name] = load_function(getattr(options, name), gets, number)
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


async def _share_partitions(options: argparse.Namespace) -> list[list[Partition]]:
    """Return the partitions of each worker: the biggest first, each to the worker with the fewest records so far."""
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


def _worker_spec(options: argparse.Namespace, shares: list[list[Partition]], number: int) -> dict[str, Any]:
    return {
        "topics": options.topic or [],
        "shares": [] if options.assignment == "managed" else shares,
        "number": number - 1,
        "handler": options.handler,
        "timestamp": options.timestamp,
        "dead_letter": options.dead_letter,
        "batches": options.batches,
        "verbose": options.verbose,
        "loop": choose_loop(options.loop),
        "arguments": {**as_keywords(options), "member": member_name(options, number)},
    }


# -- messages -----------------------------------------------------------------------------------------------------------


def _announcement(options: argparse.Namespace, shares: list[list[Partition]], previous: PreviousRun) -> str:
    partitions = [p for share in shares for p in share]
    names = options.topic or sorted({p.topic for p in partitions})
    topics = join_names(
        [f"{name} ({count(sum(p.topic == name for p in partitions), 'partition')})" for name in names], 5
    )
    if options.follow and options.pattern is not None:
        topics += f", and new topics that match {options.pattern!r},"
    start = f"from {options.start if isinstance(options.start, str) else format_time(options.start)}"
    end = options.end if isinstance(options.end, str) else format_time(options.end)
    end = "and then the present" if options.follow else f"to {end}"
    period = previous.period or options.period
    by = "" if len(shares) == 1 else f", in {len(shares)} processes"
    if isinstance(options.end, int) and options.end > time.time() * 1000:
        end += " (in the future: it waits for the clock)"
    text = f"Replaying {topics} {start} {end}, in periods of {format_duration(period)}{by}."
    if previous.closed is not None:
        text += f"\nResuming the run under {_where(options)}: everything before {format_time(previous.closed)} is done."
    if period != options.period:
        text += f"\nThe period was changed since the run began with {format_duration(options.period)}."
    return text


def _where(options: argparse.Namespace) -> str:
    return mask_url(options.store)
