"""Arranges a status as a view: facts and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from aiokcc.core.assignments import TopicState
from aiokcc.core.formatting import count, format_elapsed, short_names
from aiokcc.core.partitions import Partition
from aiokcc.core.periods import format_duration, format_time
from aiokcc.runtime.health import Health, HealthKind, place, reason
from aiokcc.runtime.status import GroupState, PartitionCondition, PartitionStatus, Status
from aiokcc.views.model import StatusView, Table
from aiokcc.views.pipeline_view import pipeline_table

__all__ = ["assignment_tables", "build_view"]

FEW: Final = 20
"""Up to this number, partitions are listed one by one; above it, by topic."""
MOST_BLOCKING: Final = 10
MOST_MEMBERS: Final = 30


def build_view(
    status: Status, health: Health, *, now: float, everything: bool = False, resume: str | None = None, pace: str = ""
) -> StatusView:
    """Return the view of a status. ``resume`` is the command that ends a hold."""
    seen = [m.name for m in status.members] + [p.member for p in status.partitions if p.member is not None]
    seen += [name for b in status.blocking for name in (b.member, b.last_member) if name is not None]
    names = short_names([*seen, *([status.leader] if status.leader else [])])
    hints = (f"resume with: {resume}",) if health.kind is HealthKind.HELD and resume else ()
    shown = (
        _members(status, names, now),
        *assignment_tables(status),
        pipeline_table(status.pipelines, now),
        *_partitions(status, names, everything=everything),
    )
    tables = [table for table in shown if table.rows]
    return StatusView(
        status.where,
        health,
        _blocking(status, health, names),
        tuple(_facts(status, names, pace)),
        tuple(tables),
        status.problems,
        hints,
    )


def _blocking(status: Status, health: Health, names: Mapping[str, str]) -> Table | None:
    if health.kind is not HealthKind.BLOCKED:
        return None
    first = sorted(status.blocking, key=lambda b: b.member is not None)  # the unowned ones first
    rows = tuple(
        (
            b.partition,
            place(b, names),
            format_elapsed(status.waiting_seconds),
            reason(b, names),
        )
        for b in first[:MOST_BLOCKING]
    )
    more = len(first) - len(rows)
    return Table(
        "Blocking",
        ("partition", "member", "for", "why"),
        rows,
        note=f"and {more:,} more" if more else "",
        marked=frozenset(range(len(rows))),
    )


def _facts(status: Status, names: Mapping[str, str], pace: str) -> Iterable[tuple[str, str]]:
    if status.limit is not None:
        yield "limit", f"{_format_limit(status.limit)}{_share(status)}"
        if status.floor is not None and status.floor != status.limit:
            yield "closes next", f"{_format_limit(status.floor)}   lookahead {status.lookahead}"
    if status.period is not None:
        yield "period", _format_period(status.period, status.agreed_period)
    elif status.state is GroupState.HELD:
        yield "period", _format_held_period(status)
    if pace:
        yield "pace", pace
    if run := _run(status):
        yield "run", run
        if status.offsets_total:
            yield "offsets", f"{status.offsets_done:,} of {status.offsets_total:,} are processed"
    if status.closed:  # the first limit is a cut at 0, which closes nothing
        yield "closed", f"{count(status.periods_closed, 'period')}, the last at {format_time(status.closed)}"
    elif status.closed is not None:
        yield "closed", "no period yet"
    if status.state is not GroupState.ENDED:
        yield "leader", f"{names[status.leader]}   epoch {status.epoch}" if status.leader else "none at present"
    yield "generation", str(status.generation)
    if status.group is not None and status.state is not GroupState.ENDED:
        yield "assignment", status.group.waits_for or "stable"


def _format_period(period: int, agreed: int | None) -> str:
    """Return the period in force, with the original one if it was changed."""
    text = format_duration(period)
    return text if agreed in {None, period} else f"{text}   changed; the run began with {format_duration(agreed or 0)}"


def _format_held_period(status: Status) -> str:
    """Return the period before the hold, or that it is not known."""
    if status.held_period is not None:
        return f"{format_duration(status.held_period)} before the hold"
    began = "" if status.agreed_period is None else f"; the run began with {format_duration(status.agreed_period)}"
    return f"not recorded before the hold{began}"


def _format_limit(millis: int) -> str:
    return (
        f"{format_time(millis)}   {millis}"
        if millis
        else "none yet: the group waits until all members have reported where they start"
    )


def _run(status: Status) -> str:
    """Return where the run starts and ends; empty if neither is given."""
    given = dict(word.split("=", 1) for word in status.source.split() if "=" in word)
    start, end = given.get("start"), given.get("end")
    if status.start is None and status.end is None and end != "now" and start != "committed":
        return ""
    begin = "the committed offsets" if start == "committed" else "the earliest record"
    text = f"from {begin if status.start is None else format_time(status.start)}"
    if status.end is not None:
        text += f" to {format_time(status.end)}"
    elif end == "now":
        text += " to where the topics ended when it began"
    return text


def _share(status: Status) -> str:
    if not status.limit:
        return ""
    if status.offsets_total:
        done = (status.offsets_done or 0) / status.offsets_total
    elif status.start is not None and status.end is not None:
        done = (status.limit - status.start) / (status.end - status.start)
    else:
        return ""
    return f"   {min(max(done, 0.0), 1.0):.1%} of the run"


def _members(status: Status, names: Mapping[str, str], now: float) -> Table:
    blocking = {b.member for b in status.blocking}
    shown = sorted(status.members, key=lambda m: (m.name not in blocking, m.name))[:MOST_MEMBERS]
    rows = tuple(
        (
            names[m.name],
            "leads" if m.leads else "",
            m.host or "?",
            "?" if m.pid is None else str(m.pid),
            "?" if m.since is None else f"{format_elapsed(now - m.since / 1000)} ago",
            f"{m.partitions:,}" + (f" in {len(m.processes):,} processes" if m.processes else ""),
        )
        for m in sorted(shown, key=lambda m: m.name)
    )
    more = len(status.members) - len(rows)
    return Table(
        f"Members ({len(status.members):,})",
        ("member", "", "host", "pid", "joined", "partitions"),
        rows,
        right=frozenset({3, 5}),
        note=f"and {more:,} more" if more else "",
    )


def assignment_tables(status: Status) -> list[Table]:
    """Return a table of the members' assignments and one of the topics' states; none if the group is not managed."""
    group = status.group
    if group is None:
        return []
    workers = Table(
        f"Assignment ({count(len(group.workers), 'member')})",
        ("member", "", "subscription", "assigned", "runs"),
        tuple(
            (
                worker.name,
                "isolated" if worker.isolated else "" if worker.here else "gone",
                worker.subscription or "?",
                _format_partitions(worker.assigned),
                "the same"
                if worker.running == worker.assigned and worker.running
                else _format_partitions(worker.running),
            )
            for worker in group.workers[:MOST_MEMBERS]
        ),
        marked=frozenset(n for n, worker in enumerate(group.workers) if worker.isolated or not worker.here),
        note=f"and {len(group.workers) - MOST_MEMBERS:,} more" if len(group.workers) > MOST_MEMBERS else "",
    )
    topics = Table(
        "Topics",
        ("topic", "state", "assigned", "to start", "to close"),
        tuple(
            (t.topic, t.state, f"{len(t.assignment):,}", f"{len(t.to_start):,}", f"{len(t.to_close):,}")
            for t in group.topics
        ),
        right=frozenset({2, 3, 4}),
        marked=frozenset(n for n, t in enumerate(group.topics) if t.state is not TopicState.STABLE),
    )
    return [workers, topics]


def _format_partitions(partitions: Iterable[str]) -> str:
    """Return ``orders 0 1 2, payments 3``; for a topic with many partitions only their number."""
    by_topic: dict[str, list[int]] = {}
    for partition in map(Partition.parse, partitions):
        by_topic.setdefault(partition.topic, []).append(partition.number)
    parts = [
        f"{topic} {' '.join(map(str, numbers))}" if len(numbers) <= FEW else f"{len(numbers):,} of {topic}"
        for topic, numbers in by_topic.items()
    ]
    return ", ".join(parts) or "—"


def _partitions(status: Status, names: Mapping[str, str], *, everything: bool) -> list[Table]:
    blocking = {b.partition for b in status.blocking}
    title = f"Partitions ({len(status.partitions):,})"
    if status.state is GroupState.RELEASED:
        return []  # members do not report after a release, so the nodes are out of date
    if everything or len(status.partitions) <= FEW:
        return [_each(title, status.partitions, names, blocking)]
    return [_by_topic(title, status.partitions)]


def _each(title: str, partitions: Iterable[PartitionStatus], names: Mapping[str, str], blocking: set[str]) -> Table:
    shown = list(partitions)
    rows = tuple(
        (
            p.partition,
            names[p.member] if p.member is not None else "—",
            p.state,
            "" if p.timestamp is None else format_time(p.timestamp),
            "" if p.offset is None else f"{p.offset}",
        )
        for p in shown
    )
    marked = frozenset(n for n, p in enumerate(shown) if p.partition in blocking)
    columns = ("partition", "member", "state", "next record", "offset")
    used = [n for n in range(len(columns)) if any(row[n] not in {"", "—"} for row in rows)]
    return Table(
        title,
        tuple(columns[n] for n in used),
        tuple(tuple(row[n] for n in used) for row in rows),
        right=frozenset({used.index(4)} if 4 in used else ()),
        marked=marked,
    )


def _by_topic(title: str, partitions: Iterable[PartitionStatus]) -> Table:
    topics: dict[str, list[PartitionStatus]] = {}
    for p in partitions:
        topics.setdefault(Partition.parse(p.partition).topic, []).append(p)
    used = [word for word in PartitionCondition if any(p.state == word for ps in topics.values() for p in ps)]
    rows = []
    for topic, members in sorted(topics.items()):
        states = Counter(p.state for p in members)
        times = [p.timestamp for p in members if p.timestamp is not None]
        first, last = (format_time(min(times)), format_time(max(times))) if times else ("", "")
        rows.append((topic, f"{len(members):,}", *(f"{states[w]:,}" if states[w] else "·" for w in used), first, last))
    columns = ("topic", "partitions", *used, "earliest next", "latest next")
    right = frozenset(range(1, 2 + len(used)))
    return Table(title, columns, tuple(rows), right=right, note="--all lists every partition")
