"""``aiokcc replay``: a replay from the command line, over several processes."""

from __future__ import annotations

import argparse
import asyncio
import re
import shlex
import sys
import time
from typing import Any, Final

from aiokcc.cli.bar import Bar, Pace, View, choose_bar, on_terminal
from aiokcc.cli.crew import Crew, Report, crew_of, how_it_ended
from aiokcc.cli.functions import load
from aiokcc.cli.replay_arguments import SERVERS, as_keywords, member_name
from aiokcc.cli.words import count, listed, short_names, span
from aiokcc.core import paths
from aiokcc.core.partitions import Partition, decode_partitions
from aiokcc.core.periods import MAX_LIMIT, format_duration, format_time
from aiokcc.core.progress import Cut
from aiokcc.core.run import Run
from aiokcc.errors import AiokccError, UsageError
from aiokcc.runtime.cuts import last_cut
from aiokcc.stores import open_store

__all__ = ["check_replay", "say_replay"]

_REDRAW: Final = 0.1
_SILENT: Final = 3.0
_SLOW: Final = 1.0
_QUICKLY: Final = 3.0
_RARE: Final = {
    "late": "came after their period had closed",
    "outside": "lay before the start and were left out",
    "poisoned": "had no usable timestamp",
    "retried": "were tried again",
    "dead_lettered": "went to the dead-letter function",
}


def check_replay(options: argparse.Namespace) -> None:
    """UsageError for whatever can be refused without asking anybody."""
    import aiokcc

    if not options.bootstrap_servers:
        raise UsageError(f"where is Kafka? Give --bootstrap-servers HOST:PORT, or set {SERVERS} to it")
    if "://" in options.bootstrap_servers:
        raise UsageError(f"--bootstrap-servers {options.bootstrap_servers}: expected HOST:PORT, without a scheme")
    if options.processes > 1 and options.store.startswith("memory://"):
        raise UsageError(
            f"{options.store} lives inside one process, and --processes {options.processes} are several; "
            f"give them a ZooKeeper to meet at (`aiokcc local up` starts one), or leave --processes out"
        )
    keywords = as_keywords(options)
    load(options.handler, "a list of records" if options.batches else "a record")
    for name, gets, number in (("timestamp", "a record", 1), ("dead_letter", "a record and a reason", 2)):
        if getattr(options, name) is not None:
            keywords[name] = load(getattr(options, name), gets, number)
    aiokcc.replay(*options.topic, **keywords)  # checks; connects nothing


async def say_replay(options: argparse.Namespace) -> int:
    """Run it; the exit code."""
    before = await _look(options)
    if before.ended:
        _say(f"The run under {_where(options)} has ended already; there is nothing left to do.")
        _say("To run it again, use another root: the end of the store's URL.")
        return 0
    shares = await _share(options)
    _say(_announcement(options, shares, before))
    command = _Command(options, before)
    try:
        with choose_bar() as bar:
            orders = [_orders(options, shares, n) for n in range(1, len(shares) + 1)]
            crew: Crew | None = None
            try:
                async with crew_of(orders, bar.write if on_terminal() else None) as crew:
                    await command.run(crew, bar)
            finally:
                for report in [] if crew is None else crew.left():
                    command.hear(report)
    except asyncio.CancelledError:
        _say(f"Stopped: {command.done()}.\n{command.going_on(await _last(options))}")
        raise
    if command.failure is not None:
        going_on = command.going_on(await _last(options))
        raise AiokccError(f"{command.failure}\nStopped: {command.done()}.\n{going_on}")
    _say(command.summary())
    return 0


class _Command:
    """What the workers have said so far, and what that comes to."""

    def __init__(self, options: argparse.Namespace, before: _Before) -> None:
        self._options, self._before = options, before
        self._joined: float | None = None
        """When the first worker had joined the group."""
        self._moved = 0.0
        """When a record was last handled."""
        self._reached: int | None = None
        self._there: set[int] = set()
        self._counts: dict[int, dict[str, Any]] = {}
        self._status: dict[str, Any] = {}
        self._heard = [time.monotonic()] * options.processes
        self._done: set[int] = set()
        self._gone: set[int] = set()
        self._total: int | None = None
        self._released = False
        self._records, self._time = Pace(), Pace()
        self.failure: str | None = None

    async def run(self, crew: Crew, bar: Bar) -> None:
        """Listen and show until all are done, or one has failed."""
        drawn = 0.0
        while len(self._gone) < len(crew.processes) and self.failure is None:
            report = await crew.next_report(_SLOW)
            if report is not None:
                self.hear(report)
            now = time.monotonic()
            if now - drawn >= _REDRAW:
                drawn = now
                bar.show(self._view(now))

    def hear(self, report: Report) -> None:
        """Take note of it."""
        self._heard[report.worker] = now = time.monotonic()
        facts = report.facts
        match report.kind:
            case "joined":
                self._joined = self._joined or now
                self._there.add(report.worker)
                self._total = facts["total"]
            case "counts":
                if self._counts.get(report.worker, {}).get("records") != facts["records"]:
                    self._moved = now
                self._counts[report.worker] = facts
                self._records.add(self._sum("records"), now)
                if 0 < facts["limit"] < MAX_LIMIT:
                    self._reached = max(self._reached or 0, facts["limit"])
                    self._time.add(self._reached, now)
            case "status":
                self._status = facts
            case "failed" if self.failure is None:
                self.failure = facts["text"] + (f"\n  {facts['where']}" if facts["where"] else "")
            case "done":
                self._done.add(report.worker)
                self._released |= facts["released"]
            case "ended":
                self._gone.add(report.worker)
                if report.worker not in self._done and self.failure is None:
                    self._lost(report.worker, facts["code"])

    def _lost(self, worker: int, code: int) -> None:
        """A worker is gone before its time. In a managed group the others take over what it had, while there are others."""
        how = f"{member_name(self._options, worker + 1)} {how_it_ended(code)}"
        if self._options.assignment == "managed" and code < 0 and len(self._gone) < self._options.processes:
            _say(f"{how}; the others take over what it had.")
        else:
            self.failure = how

    def done(self) -> str:
        """What was done, in words."""
        seconds = max(0.0, self._moved - (self._joined or self._moved))
        records, periods = self._sum("records"), max((c["periods"] for c in self._counts.values()), default=0)
        text = f"{count(records, 'record')} in {count(periods, 'period')} and {span(seconds)}"
        return f"{text} ({records / seconds:,.0f} records/s)" if records and seconds else text

    def summary(self) -> str:
        """The last words of a run that has come to its end."""
        number = self._options.processes
        lines = [f"Done: {self.done()}{f', by {number} processes' if number > 1 else ''}."]
        if self._released:
            lines.append("The gate was released on the way: from there on the partitions were not kept in step.")
        lines += [f"  {self._sum(name):,} {what}" for name, what in _RARE.items() if self._sum(name)]
        return "\n".join(lines)

    def going_on(self, last: _Before) -> str:
        """How to go on after a stop."""
        options = self._options
        if not options.store.startswith("memory://"):
            where = "where the last period closed" if last.closed is None else f"at {format_time(last.closed)}"
            return f"The same command goes on {where}:\n    {_again(options)}"
        if options.group_id is None:
            return (
                "memory:// remembers nothing: the same command starts from the beginning; with a zk:// it would go on."
            )
        if options.start != "committed":
            return f"To go on by what was committed for {options.group_id}: the same command with --from committed."
        return f"The same command goes on by the committed offsets:\n    {_again(options)}"

    # -- what is shown --------------------------------------------------------------------------------------------------

    def _view(self, now: float) -> View:
        records, done = self._sum("records"), self._before.offsets + self._sum("records")
        reached = self._reached
        start, end = self._options.start, self._options.end
        share = left = None
        per_second = self._records.per_second()
        if self._total:
            share = min(0.99, done / self._total)
            if per_second:
                left = max(0, self._total - done) / per_second
        elif not self._options.follow and isinstance(end, int) and reached is not None:
            begun = start if isinstance(start, int) else reached
            share = min(0.99, max(0.0, (reached - begun) / (end - begun))) if end > begun else None
            pace = self._time.per_second()
            if pace:
                left = max(0, end - reached) / pace
        return View(reached, share, records, per_second, left, self._note(now))

    def _note(self, now: float) -> str:
        if self._done:
            return "ending"
        if len(self._there) < self._options.processes:
            return f"{len(self._there)} of {count(self._options.processes, 'worker')} there"
        silent = [n for n, heard in enumerate(self._heard) if now - heard > _SILENT and n not in self._gone]
        if silent:
            who = listed(f"worker-{n + 1}" for n in silent)
            return f"no word from {who} for {span(now - self._heard[silent[0]])}: a handler that does not return?"
        match self._status.get("state"):
            case "held":
                return "on hold"
            case "released":
                return "released: not kept in step"
        blocking = self._status.get("blocking")
        if blocking:
            names = short_names(member for _, member in blocking if member is not None)
            partition, member = blocking[0]
            waits = f"waits for {partition}" + (f" on {names[member]}" if member else ", which nobody runs yet,")
            seconds = self._status["waiting_seconds"]
            return waits + (f" for {span(seconds)}" if seconds >= _SLOW else "")
        return "at the end of the topics" if self._status.get("idle") and self._options.follow else ""

    def _sum(self, name: str) -> int:
        return sum(counts[name] for counts in self._counts.values())


# -- before the start ---------------------------------------------------------------------------------------------------


class _Before:
    """What the store tells about an earlier start of the same run."""

    def __init__(self, run: Run | None = None, cut: Cut | None = None) -> None:
        self.exists, self.ended = run is not None, run is not None and run.ended
        self.closed = None if cut is None else cut.limit
        self.offsets = 0
        """How many offsets lie behind it."""
        if run is not None and cut is not None:
            for partition, bounds in run.bounds.items():
                mark = cut.find(partition)
                if mark is not None and mark.offset is not None:
                    self.offsets += max(0, mark.offset - bounds.start)


async def _look(options: argparse.Namespace) -> _Before:
    if options.store.startswith("memory://"):
        return _Before()
    store = open_store(options.store)
    async with store.session(connect_timeout=options.timeout) as session:
        found = [await session.find(path) for path in (paths.RUN, paths.TOPIC_PARTITIONS, paths.COORDINATOR)]
        run, listed_, coordinator = found
        if run is None or listed_ is None or coordinator is None:
            return _Before()
        decoded = Run.decode(store.describe(run.path), run.data, decode_partitions(listed_.path, listed_.data))
        return _Before(decoded, await last_cut(store, session, coordinator.version))


async def _last(options: argparse.Namespace) -> _Before:
    """Where the run stands now that it has stopped, as far as that can be had quickly."""
    try:
        async with asyncio.timeout(_QUICKLY):
            return await _look(options)
    except (TimeoutError, AiokccError):
        return _Before()


async def _share(options: argparse.Namespace) -> list[list[Partition]]:
    """Which worker runs which partitions: the fullest first, each to whoever has least so far."""
    from aiokcc.kafka.cluster import Cluster
    from aiokcc.kafka.settings import ReplaySettings

    settings = ReplaySettings(
        tuple(options.topic),
        options.bootstrap_servers,
        isolation_level=options.isolation_level,
        consumer=dict(options.consumer),
    )
    async with Cluster(settings, options.timeout).connected() as cluster:
        partitions = await cluster.partitions(options.topic)
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
        "topics": options.topic,
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


def _announcement(options: argparse.Namespace, shares: list[list[Partition]], before: _Before) -> str:
    partitions = [p for share in shares for p in share]
    topics = listed(
        [f"{topic} ({count(sum(p.topic == topic for p in partitions), 'partition')})" for topic in options.topic], 5
    )
    start = f"from {options.start if isinstance(options.start, str) else format_time(options.start)}"
    end = options.end if isinstance(options.end, str) else format_time(options.end)
    end = "and then the present" if options.follow else f"to {end}"
    by = "" if len(shares) == 1 else f", in {len(shares)} processes"
    text = f"Replaying {topics} {start} {end}, in periods of {format_duration(options.period)}{by}."
    if before.closed is not None:
        text += (
            f"\nGoing on with the run under {_where(options)}: everything before {format_time(before.closed)} is done."
        )
    return text


def _where(options: argparse.Namespace) -> str:
    return re.sub(r"//.*@", "//", options.store)


def _again(options: argparse.Namespace) -> str:
    """The command as it was typed; without a password that stood in the URL."""
    return shlex.join(["aiokcc", *(re.sub(r"//.*@", "//USER:PASSWORD@", word) for word in options.words)])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
