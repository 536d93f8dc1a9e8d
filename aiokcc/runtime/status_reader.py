"""Reads the status of a group from the store: which partition blocks, on which member, for how long."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from aiokcc.core import paths
from aiokcc.core.leader import BlockerState, blockers
from aiokcc.core.limit import Limit, Mode, Request, RequestKind
from aiokcc.core.marks import Mark
from aiokcc.core.partitions import Partition, decode_partitions
from aiokcc.core.report import Cut, Report
from aiokcc.core.run import Generation, Run
from aiokcc.errors import CorruptNodeError, MissingNodeError, NoGroupError, NoNodeError
from aiokcc.runtime.agreement import has_changed
from aiokcc.runtime.children import list_children
from aiokcc.runtime.cuts import last_cut
from aiokcc.runtime.election import list_candidates
from aiokcc.runtime.find_nodes import find_nodes
from aiokcc.runtime.group_status import GroupStatus, read_group_status
from aiokcc.runtime.pipelines import read_pipelines
from aiokcc.runtime.status import (
    STANDSTILL_SECONDS,
    Blocking,
    GroupState,
    MemberStatus,
    PartitionCondition,
    PartitionStatus,
    ProcessStatus,
    Status,
    why_blocked,
)
from aiokcc.stores.port import Node, Session, Store

__all__ = ["read_status"]

T = TypeVar("T")


async def read_status(store: Store, session: Session, *, now: Callable[[], float] = time.time) -> Status:
    """Reads the status of the group. Raises UsageError if there is no group under the root."""
    problems: list[str] = []

    def attempt(decode: Callable[[str, bytes], T], node: Node | None) -> T | None:
        if node is None:
            return None
        try:
            return decode(store.describe(node.path), node.data)
        except CorruptNodeError as error:
            problems.append(str(error))
            return None

    needed = (paths.COORDINATOR, paths.PERIOD, paths.GENERATION, paths.TOPIC_PARTITIONS, paths.RUN)
    nodes = await find_nodes(session, {path: path for path in needed})
    missing = [path for path, node in nodes.items() if node is None]
    if len(missing) == len(nodes):
        raise NoGroupError(f"there is no group under {store.describe('')}; a member founds one when it connects")
    problems += [f"{store.describe(path)} does not exist" for path in missing]
    coordinator = nodes[paths.COORDINATOR]
    limit = attempt(Limit.decode, coordinator)
    request = attempt(Request.decode, nodes[paths.PERIOD])
    generation = attempt(Generation.decode, nodes[paths.GENERATION])
    partitions = attempt(decode_partitions, nodes[paths.TOPIC_PARTITIONS]) or frozenset()
    run = attempt(lambda path, data: Run.decode(path, data, partitions), nodes[paths.RUN])
    if run is None and (node := nodes[paths.RUN]) is not None and await has_changed(session, node):
        return await read_status(store, session, now=now)  # the set has changed between the reads
    cut: Cut | None = None
    if coordinator is not None:
        try:
            cut = await last_cut(store, session, coordinator.version)
        except (CorruptNodeError, MissingNodeError, NoNodeError) as error:
            problems.append(str(error))

    reports: dict[str, Report] = {}
    for path, node in (await _below(session, paths.PROGRESS)).items():
        report = attempt(Report.decode, node)
        if report is not None:
            reports[path.removeprefix(f"{paths.PROGRESS}/")] = report
    locks = await find_nodes(session, {p: paths.owner(p) for p in sorted(partitions)})
    owners = {p: node.data.decode(errors="replace") for p, node in locks.items() if node is not None}
    ids = await _below(session, paths.IDS)
    candidates = await find_nodes(session, {path: path for path in (await list_candidates(session))[:1]})
    leaders = [_json(node) for node in candidates.values() if node is not None]
    leader, epoch = (leaders[0].get("id"), leaders[0].get("epoch")) if leaders else (None, None)
    finished = {} if cut is None else cut.finished()
    last = {} if cut is None else cut.owners()
    number = 0 if generation is None else generation.number
    if (
        cut is not None
        and limit is not None
        and leader is not None
        and not (run is not None and run.settings.lookahead)
    ):
        reports.update(_of_leader(leader, reports.get(leader), cut, limit, number))
    found = [] if limit is None else blockers(limit, number, partitions, reports, finished, owners)
    group: GroupStatus | None = None
    if run is not None and run.managed:
        registered = {path.removeprefix(f"{paths.IDS}/"): node for path, node in ids.items() if node is not None}
        group = await read_group_status(store, session, partitions, registered, owners, problems)
        if limit is not None and limit.mode is Mode.END:
            group = replace(group, waits_for=None)  # a member that has left since is not replaced any more
    pipelines = await read_pipelines(store, session, problems)
    waited = 0.0 if coordinator is None else max(0.0, now() - coordinator.modified / 1000)
    state = _state(limit, request)
    members = tuple(_member(path, node, owners, leader) for path, node in sorted(ids.items()) if node is not None)
    processes = _processes(members)
    blocking = tuple(
        Blocking(str(b.partition), b.member, b.state, last.get(b.partition), processes.get((b.member, b.partition)))
        for b in found
    )
    standstill: str | None = None
    if state is GroupState.RUNNING and blocking and waited >= STANDSTILL_SECONDS:
        # a partition that does not run is more likely the cause
        first = min(blocking, key=lambda b: b.state is BlockerState.RUNNING)
        standstill = f"the limit has stood for {waited:.0f} s: {first.partition}: {why_blocked(first)}"
    told = {member: _told(member, report, limit, number) for member, report in reports.items()}
    shown = tuple(_partition(p, owners.get(p), told, finished.get(p)) for p in sorted(partitions))
    done, total = _offsets(run, cut, shown)
    return Status(
        where=store.url,
        state=state,
        limit=limit.value if limit is not None and limit.mode is Mode.GATED else None,
        floor=limit.floor if limit is not None and limit.mode is Mode.GATED else None,
        closed=None if cut is None else cut.limit,
        period=request.period if request is not None and request.kind is RequestKind.PERIOD else None,
        agreed_period=None if run is None else run.settings.period,
        start=None if run is None else run.settings.start,
        end=None if run is None else run.settings.end,
        lookahead=0 if run is None else run.settings.lookahead,
        generation=number,
        leader=leader if epoch is not None else None,
        epoch=epoch,
        members=members,
        partitions=shown,
        blocking=blocking,
        waiting_seconds=round(waited, 3),
        periods_closed=0 if cut is None else cut.number,
        problems=tuple(problems),
        group=group,
        standstill=standstill,
        source="" if run is None else run.settings.source,
        offsets_done=done,
        offsets_total=total,
        held_period=_held_period(nodes[paths.PERIOD], nodes[paths.RUN], run) if state is GroupState.HELD else None,
        pipelines=pipelines,
    )


def _of_leader(leader: str, report: Report | None, cut: Cut, limit: Limit, generation: int) -> dict[str, Report]:
    """Returns the leader's report by the last cut, if that is newer than its node: an advance that makes it old omits it."""
    is_newer = report is None or report.generation != generation or report.limit < cut.limit
    if cut.generation != generation or not is_newer:
        return {}
    if report is not None and report.generation == generation and not report.ends_before(limit.floor):
        return {}  # a partition that is blocked far ahead still is
    known = cut.report_after(leader)
    return {} if known is None else {leader: known}


def _held_period(request: Node | None, founded: Node | None, run: Run | None) -> int | None:
    """Returns the period that a hold has replaced, or None if it is not known.

    The node holds the one word "hold". Only if that is the first change since the founding is it known what it replaced.
    """
    if request is None or founded is None or run is None:
        return None
    is_first_change = request.version == 1 and request.created == founded.created
    return run.settings.period if is_first_change else None


def _offsets(
    run: Run | None, cut: Cut | None, partitions: tuple[PartitionStatus, ...]
) -> tuple[int | None, int | None]:
    """Returns how many offsets of the run are processed, and how many there are; None if its end is not known."""
    if run is None or not run.bounds:
        return None, None
    reached = {p.partition: p.offset for p in partitions}
    done = total = 0
    for partition, bounds in run.bounds.items():
        if bounds.end is None:
            return None, None
        mark = None if cut is None else cut.find(partition)
        position = max(bounds.start, (mark and mark.offset) or 0, reached.get(str(partition)) or 0)
        total += bounds.end - bounds.start
        done += (bounds.end if run.ended else min(position, bounds.end)) - bounds.start
    return done, total


async def _below(session: Session, path: str) -> dict[str, Node | None]:
    """Returns the nodes below this one, by path."""
    below = [f"{path}/{name}" for name in await list_children(session, path)]
    return await find_nodes(session, {path: path for path in below})


def _state(limit: Limit | None, request: Request | None) -> GroupState:
    if limit is not None and limit.mode is not Mode.GATED:
        return GroupState.RELEASED if limit.mode is Mode.OPEN else GroupState.ENDED
    if limit is None or request is None:
        return GroupState.UNREADABLE
    return GroupState.HELD if request.kind is RequestKind.HOLD else GroupState.RUNNING


def _json(node: Node) -> dict[str, Any]:
    try:
        raw = json.loads(node.data)
    except (ValueError, RecursionError):
        return {}
    return raw if isinstance(raw, dict) else {}


def _member(path: str, node: Node, owners: dict[Partition, str], leader: str | None) -> MemberStatus:
    name, facts = path.removeprefix(f"{paths.IDS}/"), _json(node)
    held = sum(owner == name for owner in owners.values())
    raw = facts.get("processes")
    processes = tuple(
        ProcessStatus(process, told.get("pid"), str(told.get("partitions", "")))
        for process, told in (raw.items() if isinstance(raw, dict) else ())
        if isinstance(told, dict)
    )
    return MemberStatus(
        name, facts.get("host"), facts.get("pid"), facts.get("timestamp"), held, name == leader, processes
    )


def _processes(members: tuple[MemberStatus, ...]) -> dict[tuple[str | None, Partition], str]:
    """Returns the process that has each partition of a member that the processes of a host share."""
    result: dict[tuple[str | None, Partition], str] = {}
    for member in members:
        for process in member.processes:
            try:
                partitions = decode_partitions(member.name, process.partitions.encode())
            except CorruptNodeError:
                continue
            result |= {(member.name, partition): process.name for partition in partitions}
    return result


def _partition(
    partition: Partition,
    owner: str | None,
    told: dict[str, dict[Partition, PartitionStatus]],
    finished: tuple[str, Mark] | None,
) -> PartitionStatus:
    name = str(partition)
    if finished is not None:
        return PartitionStatus(
            name, owner or finished[0], PartitionCondition.FINISHED, None, _plain(finished[1].offset)
        )
    if owner is None:
        return PartitionStatus(name, None, PartitionCondition.UNOWNED)
    return told.get(owner, {}).get(partition) or PartitionStatus(name, owner, PartitionCondition.UNREPORTED)


def _told(owner: str, report: Report, limit: Limit | None, generation: int) -> dict[Partition, PartitionStatus]:
    """Returns what a member's report says of its partitions under this limit."""
    is_current = limit is not None and report.generation == generation
    crossing = report.at(limit.floor) if limit is not None and is_current else None
    marks = None if crossing is None else dict(zip(report.partitions, crossing.marks.values(), strict=True))
    result: dict[Partition, PartitionStatus] = {}
    for partition, (state, ts, offset) in report.entries.items():
        name = str(partition)
        if ts is None:
            status = PartitionStatus(name, owner, PartitionCondition(state.value), None, _plain(offset))
        elif limit is not None and is_current and ts >= limit.floor:
            status = PartitionStatus(name, owner, PartitionCondition.WAITING, ts, _plain(offset))
        elif marks is not None:  # under lookahead: it was past this floor when an earlier one was reported
            mark = marks[partition]
            condition = PartitionCondition.FINISHED if mark.finished else PartitionCondition.WAITING
            status = PartitionStatus(name, owner, condition, None, _plain(mark.offset))
        else:
            status = PartitionStatus(name, owner, PartitionCondition.RUNNING, ts, _plain(offset))
        result[partition] = status
    return result


def _plain(offset: int | None) -> int | None:
    """Returns the first unprocessed offset, of a span the lower one."""
    return None if offset is None else int(offset)
