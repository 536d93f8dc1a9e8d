"""The status of a managed group: its members, the assignment, and what a rebalance waits for. Any session can read it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aiokcc.core import paths
from aiokcc.core.assignments import TopicAssignment, TopicState
from aiokcc.core.formatting import count
from aiokcc.core.partitions import Partition
from aiokcc.core.subscriptions import Registration
from aiokcc.errors import CorruptNodeError
from aiokcc.runtime.assignment_follower import member_of
from aiokcc.runtime.children import list_children
from aiokcc.stores.port import Node, Session, Store

__all__ = ["GroupMemberStatus", "GroupStatus", "TopicStatus", "read_group_status"]


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """The assignment of one topic."""

    topic: str
    state: TopicState
    assignment: Mapping[str, str]
    """The member of each assigned partition."""
    to_start: Mapping[str, str]
    """Assigned partitions that are not held yet."""
    to_close: Mapping[str, str]
    """Revoked partitions that may still be held."""


@dataclass(frozen=True, slots=True)
class GroupMemberStatus:
    """One member, in whatever session: registered, or isolated, or gone with partitions still assigned."""

    name: str
    here: bool
    isolated: bool
    subscription: str | None
    """Its subscription as a text; None if the member is not there, or its registration cannot be read."""
    assigned: tuple[str, ...]
    running: tuple[str, ...]
    """The partitions whose locks it holds."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A managed group at one moment."""

    workers: tuple[GroupMemberStatus, ...]
    topics: tuple[TopicStatus, ...]
    unassigned: tuple[str, ...]
    """Partitions that are neither assigned nor closing."""
    waits_for: str | None
    """The reason why the present rebalance waits; None if there is no rebalance."""


async def read_group_status(
    store: Store,
    session: Session,
    partitions: frozenset[Partition],
    registered: Mapping[str, Node],
    owners: Mapping[Partition, str],
    problems: list[str],
) -> GroupStatus:
    """Read the assignments and the isolated members, and return the status with what the caller has read.

    ``registered`` has member sessions as keys, ``owners`` as values. Nodes that cannot be read are added to ``problems``.
    """
    topics: dict[str, TopicAssignment] = {}
    names = await list_children(session, paths.ASSIGNMENTS)
    nodes = await asyncio.gather(
        *(session.find(paths.assignment(name)) for name in names), *(session.find(paths.state(name)) for name in names)
    )
    for name, assignment, state in zip(names, nodes[: len(names)], nodes[len(names) :], strict=True):
        if assignment is None or state is None:
            continue
        try:
            topics[name] = TopicAssignment.decode(
                store.describe(assignment.path), assignment.data, store.describe(state.path), state.data
            )
        except CorruptNodeError as error:
            problems.append(str(error))
    isolated = frozenset(await list_children(session, paths.ISOLATED))
    assigned = {Partition(name, n): member for name, topic in topics.items() for n, member in topic.assignment.items()}
    here = {member_of(name): node for name, node in registered.items()}
    running: dict[str, list[Partition]] = {}
    for partition, owner in owners.items():
        running.setdefault(member_of(owner), []).append(partition)
    workers = tuple(
        GroupMemberStatus(
            name,
            name in here,
            name in isolated,
            _subscription(store, here.get(name), problems),
            _texts(p for p, member in assigned.items() if member == name),
            _texts(running.get(name, ())),
        )
        for name in sorted({*here, *isolated, *assigned.values()})
    )
    closing = {Partition(name, n) for name, topic in topics.items() for n in topic.to_close}
    unassigned = _texts(partitions - assigned.keys() - closing)
    return GroupStatus(
        workers,
        tuple(_topic(name, topic) for name, topic in sorted(topics.items())),
        unassigned,
        _waits_for(topics, workers, unassigned),
    )


def _texts(partitions: Iterable[Partition]) -> tuple[str, ...]:
    return tuple(map(str, sorted(partitions)))


def _subscription(store: Store, node: Node | None, problems: list[str]) -> str | None:
    if node is None:
        return None
    try:
        return str(Registration.decode(store.describe(node.path), node.data).subscription)
    except CorruptNodeError as error:
        problems.append(str(error))
        return None


def _topic(name: str, topic: TopicAssignment) -> TopicStatus:
    def by_name(part: Mapping[int, str]) -> dict[str, str]:
        return {str(Partition(name, number)): member for number, member in sorted(part.items())}

    return TopicStatus(name, topic.state, by_name(topic.assignment), by_name(topic.to_start), by_name(topic.to_close))


def _waits_for(
    topics: Mapping[str, TopicAssignment], workers: Iterable[GroupMemberStatus], unassigned: tuple[str, ...]
) -> str | None:
    for word, parts in (
        ("close", {Partition(name, n): m for name, t in topics.items() for n, m in t.to_close.items()}),
        ("start", {Partition(name, n): m for name, t in topics.items() for n, m in t.to_start.items()}),
    ):
        if parts:
            partition, member = min(parts.items())
            more = f" and {len(parts) - 1} more" if len(parts) > 1 else ""
            return f"{member} has to {word} {partition}{more}"
    ready = [worker.name for worker in workers if worker.here and not worker.isolated]
    if unassigned:
        which = unassigned[0] + (f" and {len(unassigned) - 1} more" if len(unassigned) > 1 else "")
        return f"{which}: not assigned yet, and {count(len(ready), 'member')} can take partitions"
    gone = [worker.name for worker in workers if worker.assigned and not worker.here]
    return f"{gone[0]} is gone, and has not been replaced yet" if gone else None
