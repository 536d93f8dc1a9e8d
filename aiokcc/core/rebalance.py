"""The machine that assigns the partitions of a managed group to its members.

Each topic goes through the states Initial → Starting → Stable → Closing → Starting → …, which
:class:`~aiokcc.core.assignments.TopicState` documents. The main rule is *close before start*: a partition that moves is first
removed from the assignment, and is assigned to its next owner only when its lock is gone. The partitions of a dead member are
free at once, because its locks disappeared with its session.

The fields of :class:`RebalanceMachine` are facts that the leader has read; :meth:`RebalanceMachine.decide` is the rule. It is
level-triggered: it derives the next write from the content of the store and from the present members alone. So a new leader
continues where the last one stopped, and a missed event does no harm. A decision changes nothing here until it was written.

There are two kinds of work. *Placing* assigns free partitions and moves no others. *Rebalancing* computes the whole assignment
again; it is due when the members or the partitions have changed. Both happen at once when a running group has partitions that
no eligible member owns. Otherwise joins are gathered in a *join window*. It closes early when all expected members are there:
as many as ``expect`` says, or, after the whole group restarted, all that owned something before. Members that are missing when
the window closes are not waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from aiokcc.core.assignments import TopicAssignment, by_partition
from aiokcc.core.assignors import assign
from aiokcc.core.colocation import colocate
from aiokcc.core.group_settings import JOIN_WINDOW, GroupSettings
from aiokcc.core.partitions import Partition
from aiokcc.core.subscriptions import Subscription

__all__ = ["Await", "Decision", "Reassign", "RebalanceMachine", "Settle"]

STARTS_PER_WRITE: Final = 2000
"""One transaction assigns at most this many partitions, and fewer if the names of their topics are long."""
_BYTES_PER_WRITE: Final = 400_000
"""The share of the store's limit of 1 MB for the proof that nobody holds these partitions. The assignments need room too."""
_REASON: Final = 160

Basis: TypeAlias = "tuple[dict[str, Subscription], frozenset[Partition]]"
"""The eligible members and the partitions from which an assignment was computed."""


@dataclass(frozen=True, slots=True)
class Reassign:
    """Write these topics and the next generation in one transaction, if no partition in ``starting`` has a lock."""

    topics: Mapping[str, TopicAssignment]
    """The topics that change."""
    removed: tuple[str, ...]
    """Topics that have no partitions any more: delete their nodes."""
    starting: tuple[Partition, ...]
    """The free partitions that this write assigns."""
    reason: str
    basis: Basis | None
    """The basis of a rebalance; None if only free partitions were placed."""
    unplaced: frozenset[Partition] | None
    """Free partitions that no member can take; None if some were left for the next transaction."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Write the states of these topics: members hold all that was assigned. Assignment and generation stay the same."""

    topics: Mapping[str, TopicAssignment]


@dataclass(frozen=True, slots=True)
class Await:
    """Write nothing until something changes, or until the clock shows ``until``."""

    reason: str
    until: float | None = None


Decision: TypeAlias = Reassign | Settle | Await


@dataclass(slots=True)
class RebalanceMachine:
    """The facts that a leader knows about its group, and the rule that decides what to write next."""

    settings: GroupSettings
    partitions: frozenset[Partition]
    """The agreed set."""
    topics: dict[str, TopicAssignment] = field(default_factory=dict)
    """The topics as they are in the store."""
    members: dict[str, Subscription] = field(default_factory=dict)
    """The members that are registered, isolated or not."""
    isolated: frozenset[str] = frozenset()
    """The members that an operator has isolated: their partitions move to others."""
    locked: dict[str, frozenset[int]] = field(default_factory=dict)
    """The partition numbers of each topic that have a lock. If a topic is missing, its locks are unknown: all may be held."""
    window_since: float | None = None
    """The time at which the join window opened. A new leader counts from its own join, so that a member which has been there
    for long does not wait for others again."""
    _basis: Basis | None = None
    """The basis of the last rebalance."""
    _found_locked: set[Partition] = field(default_factory=set)
    """Partitions that a refused transaction wanted to assign: some member holds their locks."""
    _placed_from: frozenset[Partition] | None = None
    """The free partitions that were left after the last placing."""

    @property
    def eligible(self) -> dict[str, Subscription]:
        """The members that may be assigned partitions: registered and not isolated."""
        return {name: wants for name, wants in self.members.items() if name not in self.isolated}

    @property
    def moving(self) -> frozenset[str]:
        """The topics whose locks the next decision depends on."""
        moving = {name for name, topic in self.topics.items() if topic.to_start or topic.to_close}
        return frozenset(moving.union(p.topic for p in self._found_locked))

    @property
    def contested(self) -> Mapping[str, tuple[Partition, str]]:
        """The pipelines that are refused: for each, a partition that it wants and the pipeline that has it."""
        return colocate(self.eligible, self.partitions, self._assigned()).refused

    @property
    def gathering(self) -> str | None:
        """A text about the members that the join window waits for; None if the next decision need not wait for members."""
        eligible = self.eligible
        if self._basis == (eligible, self.partitions) or not eligible or self._all_there():
            return None
        owned = self._owned()
        if self._urgent(owned, self.partitions - owned.keys() - self._closing().keys()):
            return None
        return self._members_there()

    # -- the rule -----------------------------------------------------------------------------------------------------

    def decide(self, now: float) -> Decision:
        """Returns the next thing to write. ``now`` is any clock in seconds, the same one in every call."""
        eligible = self.eligible
        owned = self._owned()
        closing = self._closing()
        free = self.partitions - owned.keys() - closing.keys()
        basis = (eligible, self.partitions)
        changed = self._basis != basis
        if not changed:
            self.window_since = None
        elif not self._urgent(owned, free):
            waiting = self._window(now)
            if waiting is not None:
                return self._settle() or waiting
        if changed or (free and free != self._placed_from):
            decision = self._reassign(owned, closing, free, basis if changed else None)
            if decision is not None:
                return decision
            self._remember(basis if changed else None, free)
        return self._settle() or self._await_locks(closing)

    def wrote(self, decision: Reassign | Settle) -> None:
        """Takes over a decision that was written to the store."""
        self.topics.update(decision.topics)
        if isinstance(decision, Reassign):
            for topic in decision.removed:
                self.topics.pop(topic, None)
            for topic in decision.topics:
                self.locked.pop(
                    topic, None
                )  # locks that were read before the write say nothing about the time after it
            self._remember(decision.basis, decision.unplaced)

    def found_locked(self, partition: Partition) -> None:
        """Notes that a transaction was refused because this partition has a lock: its holder must release it first."""
        self._found_locked.add(partition)
        self.locked.pop(partition.topic, None)

    # -- the facts, combined ------------------------------------------------------------------------------------------

    def _remember(self, basis: Basis | None, free: frozenset[Partition] | None) -> None:
        if basis is not None:
            self._basis, self.window_since = basis, None
        self._placed_from = free

    def _assigned(self) -> dict[Partition, str]:
        result: dict[Partition, str] = {}
        for name, topic in self.topics.items():
            result.update(by_partition(name, topic.assignment))
        return result

    def _owned(self) -> dict[Partition, str]:
        """Returns the part of the assignment that is still valid: the partition is in the set, its member is there."""
        return {p: m for p, m in self._assigned().items() if m in self.members and p in self.partitions}

    def _closing(self) -> dict[Partition, str]:
        """Returns unassigned partitions that may still be locked, with their holders. An absent member holds nothing."""
        result: dict[Partition, str] = {}
        for name, topic in self.topics.items():
            locked = self.locked.get(name)
            for number, member in topic.to_close.items():
                if (locked is None or number in locked) and member in self.members:
                    result[Partition(name, number)] = member
        for partition in tuple(self._found_locked):
            locked = self.locked.get(partition.topic)
            if locked is not None and partition.number not in locked:
                self._found_locked.discard(partition)
            else:
                result.setdefault(partition, "its holder")
        return result

    # -- the join window ----------------------------------------------------------------------------------------------

    def _urgent(self, owned: Mapping[Partition, str], free: frozenset[Partition]) -> bool:
        """Returns True if a rebalance must not wait for the join window."""
        eligible = self.eligible
        to_evacuate = any(member in self.isolated for member in owned.values())
        if to_evacuate and not eligible:
            return True  # there is nobody to wait for
        return self._basis is not None and (
            to_evacuate
            or any(wants.covers(p) for p in free for wants in eligible.values())
            or any(p not in self.partitions for p in self._assigned())
        )

    def _window(self, now: float) -> Await | None:
        """Returns what the join window waits for; None if it is closed."""
        if not self.eligible:
            self.window_since = None
            return Await("no eligible member is there")
        if self.window_since is None:
            self.window_since = now
        # Where members have owned something, the group is not starting: nobody waits long for all that were announced.
        window = self.settings.join_window
        until = self.window_since + (min(window, JOIN_WINDOW) if self._previous_owners() else window)
        return None if self._all_there() or now >= until else Await(self._members_there(), until)

    def _members_there(self) -> str:
        expected = "" if self.settings.expect is None else f" of {self.settings.expect}"
        return f"gathering members, {len(self.eligible)}{expected} there"

    def _all_there(self) -> bool:
        """Returns True if all expected members are there."""
        there, previous = self.eligible.keys(), self._previous_owners()
        if self.settings.expect is not None and len(there) >= self.settings.expect:
            return True
        return self._basis is None and bool(previous) and previous <= there

    def _previous_owners(self) -> set[str]:
        """Returns the members that own partitions by the stored assignment, or still have to close some."""
        return {*self._assigned().values(), *(m for t in self.topics.values() for m in t.to_close.values())}

    # -- what to write ------------------------------------------------------------------------------------------------

    def _reassign(
        self,
        owned: Mapping[Partition, str],
        closing: Mapping[Partition, str],
        free: frozenset[Partition],
        basis: Basis | None,
    ) -> Reassign | None:
        settings, eligible = self.settings, self.eligible
        current = {p: m for p, m in owned.items() if m in eligible}
        target = assign(settings.assignor, eligible, self.partitions, current, settings.weight) if eligible else {}
        moved = {p: m for p, m in owned.items() if target.get(p) != m} if basis is not None else {}
        starting = {p: target[p] for p in sorted(free) if p in target}
        unplaced: frozenset[Partition] | None = free - starting.keys()
        most = _count_that_fits(starting)
        if len(starting) > most:
            starting, unplaced = dict(list(starting.items())[:most]), None
        after = {p: m for p, m in {**owned, **starting}.items() if p not in moved}
        topics: dict[str, TopicAssignment] = {}
        removed: list[str] = []
        to_close = {p: m for p, m in {**closing, **moved}.items() if p in self.partitions and m in self.members}
        is_released = any(Partition(t, n) not in to_close for t, topic in self.topics.items() for n in topic.to_close)
        parts = _by_topic(after), _by_topic(starting), _by_topic(to_close)
        agreed = {p.topic for p in self.partitions}
        for name in sorted({*self.topics, *agreed}):
            before = self.topics.get(name)
            if name not in agreed:
                removed.append(name)
                continue
            assignment, new, leaving = (part.get(name, {}) for part in parts)
            topic = TopicAssignment(assignment, {**self._not_started(name, before, assignment), **new}, leaving)
            if topic != before:
                topics[name] = topic
        if not topics and not removed:
            return None
        reason = self._reason(starting, moved, removed) or ("released, nobody to start" if is_released else "assigned")
        return Reassign(topics, tuple(removed), tuple(starting), reason, basis, unplaced)

    def _not_started(self, name: str, before: TopicAssignment | None, assignment: Mapping[int, str]) -> dict[int, str]:
        """Returns the partitions that were assigned earlier, stay assigned, and have no known lock yet."""
        if before is None:
            return {}
        locked = self.locked.get(name, frozenset())
        return {n: m for n, m in before.to_start.items() if n not in locked and assignment.get(n) == m}

    def _reason(self, starting: Mapping[Partition, str], moved: Mapping[Partition, str], removed: Iterable[str]) -> str:
        known = {} if self._basis is None else self._basis[0]
        words = [
            *(f"{name} joined" for name in sorted(self.eligible.keys() - known.keys()) if self._basis is not None),
            *(f"{name} isolated" for name in sorted(known.keys() & self.isolated)),
            *(f"{name} left" for name in sorted(known.keys() - self.members.keys())),
            *(f"{len(part)} to {verb}" for part, verb in ((moved, "close"), (starting, "start")) if part),
            *(f"{name} is gone" for name in removed),
        ]
        text = ", ".join(words)
        return text if len(text) <= _REASON else f"{text[: _REASON - 1]}…"

    def _settle(self) -> Settle | None:
        settled: dict[str, TopicAssignment] = {}
        for name, topic in self.topics.items():
            locked = self.locked.get(name)
            if locked is not None and topic.to_start and topic.to_start.keys() <= locked:
                settled[name] = replace(topic, to_start={})
        return Settle(settled) if settled else None

    def _await_locks(self, closing: Mapping[Partition, str]) -> Await:
        if closing:
            partition, member = min(closing.items())
            more = f" and {len(closing) - 1} more" if len(closing) > 1 else ""
            return Await(f"{member} has to close {partition}{more}")
        for name, topic in sorted(self.topics.items()):
            if topic.to_start:
                number, member = min(topic.to_start.items())
                return Await(f"{member} has to start {Partition(name, number)}")
        return Await("stable" if self.topics else "nothing to assign")


def _count_that_fits(partitions: Iterable[Partition]) -> int:
    """Returns how many of these partitions one transaction can assign."""
    count = size = 0
    for topic, _ in partitions:
        size += 2 * (len(topic) + 60)
        if count == STARTS_PER_WRITE or size > _BYTES_PER_WRITE:
            break
        count += 1
    return count


def _by_topic(parts: Mapping[Partition, str]) -> dict[str, dict[int, str]]:
    result: dict[str, dict[int, str]] = {}
    for (topic, number), member in parts.items():
        result.setdefault(topic, {})[number] = member
    return result
