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

from aiokcc.core.assignments import TopicAssignment, shares
from aiokcc.core.assignors import assign
from aiokcc.core.colocation import colocate
from aiokcc.core.group_settings import JOIN_WINDOW, GroupSettings
from aiokcc.core.partitions import Partition
from aiokcc.core.subscriptions import Subscription

__all__ = ["Await", "Decision", "Reassign", "RebalanceMachine", "Settle"]

STARTS_PER_WRITE: Final = 2000
"""So many partitions are given away in one transaction at most, and fewer where their topics' names are long."""
_BYTES_PER_WRITE: Final = 400_000
"""Of the store's 1 MB, for the proof that nobody holds what is given away; the assignments themselves need room too."""
_REASON: Final = 160


Basis: TypeAlias = "tuple[dict[str, Subscription], frozenset[Partition]]"


@dataclass(frozen=True, slots=True)
class Reassign:
    """Write these topics, in one transaction with the next generation, provided that nobody holds what is given away."""

    topics: Mapping[str, TopicAssignment]
    """Those that change."""
    gone: tuple[str, ...]
    """Those to delete: they have no partitions any more."""
    given: tuple[Partition, ...]
    """What is given away: their locks must not be there."""
    reason: str
    known: Basis | None
    """The members and partitions that were looked at anew; None if only what was free was placed."""
    left: frozenset[Partition] | None
    """What nobody can be given; None if some of it was left for the next transaction."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Write the states of these topics: all that was given is held. The assignment stays, and so does the generation."""

    topics: Mapping[str, TopicAssignment]


@dataclass(frozen=True, slots=True)
class Await:
    """Nothing to write until something changes, or until the clock shows ``until``."""

    reason: str
    until: float | None = None


Decision: TypeAlias = Reassign | Settle | Await


@dataclass(slots=True)
class RebalanceMachine:
    """What a leader in office knows of its group."""

    settings: GroupSettings
    partitions: frozenset[Partition]
    """The agreed set."""
    topics: dict[str, TopicAssignment] = field(default_factory=dict)
    """As they stand in the store."""
    members: dict[str, Subscription] = field(default_factory=dict)
    """Who is there, isolated or not."""
    isolated: frozenset[str] = frozenset()
    """Who an operator has set apart: whatever they hold is to go elsewhere."""
    locked: dict[str, frozenset[int]] = field(default_factory=dict)
    """Which partitions of a topic somebody holds. A topic that is missing has not been looked at: all may be held."""
    since: float | None = None
    """When the join window was opened. A new leader counts from when it joined itself: who has been there for long does not
    wait for others once more."""
    _known: Basis | None = None
    """The members and partitions that were looked at last."""
    _refused: set[Partition] = field(default_factory=set)
    """What was to be given away and turned out to be held, by whoever it may be."""
    _free: frozenset[Partition] | None = None
    """What was free when the free ones were last placed."""

    @property
    def eligible(self) -> dict[str, Subscription]:
        """Who may be given something."""
        return {name: wants for name, wants in self.members.items() if name not in self.isolated}

    @property
    def moving(self) -> frozenset[str]:
        """The topics whose locks tell what to do next."""
        moving = {name for name, topic in self.topics.items() if topic.to_start or topic.to_close}
        return frozenset(moving.union(p.topic for p in self._refused))

    @property
    def contested(self) -> Mapping[str, tuple[Partition, str]]:
        """The pipelines that get nothing: a partition that each wants, and the pipeline that has it."""
        return colocate(self.eligible, self.partitions, self._assigned()).refused

    # -- the rule -----------------------------------------------------------------------------------------------------

    def decide(self, now: float) -> Decision:
        """The next thing to write. ``now`` is any clock in seconds, the same one every time."""
        eligible = self.eligible
        held = {p: m for p, m in self._assigned().items() if m in self.members and p in self.partitions}
        closing = self._closing()
        free = self.partitions - held.keys() - closing.keys()
        basis = (eligible, self.partitions)
        changed = self._known != basis
        if not changed:
            self.since = None
        running = self._known is not None
        set_apart = any(member in self.isolated for member in held.values())
        urgent = running and (
            set_apart
            or any(wants.covers(p) for p in free for wants in eligible.values())
            or any(p not in self.partitions for p in self._assigned())
        )
        if set_apart and not eligible:
            urgent = True  # there is nobody to wait for
        if changed and not urgent:
            waiting = self._window(eligible, now)
            if waiting is not None:
                return self._settle() or waiting
        if changed or (free and free != self._free):
            decision = self._reassign(eligible, held, closing, free, basis if changed else None)
            if decision is not None:
                return decision
            self._looked(basis if changed else None, free)
        return self._settle() or self._waits(closing)

    def wrote(self, decision: Reassign | Settle) -> None:
        """The decision stands in the store."""
        self.topics.update(decision.topics)
        if isinstance(decision, Reassign):
            for topic in decision.gone:
                self.topics.pop(topic, None)
            for topic in decision.topics:
                self.locked.pop(topic, None)  # what was seen before does not tell who holds what now
            self._looked(decision.known, decision.left)

    def refused(self, partition: Partition) -> None:
        """A partition that was to be given away is held after all: whoever holds it has to let go first."""
        self._refused.add(partition)
        self.locked.pop(partition.topic, None)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _looked(self, known: Basis | None, free: frozenset[Partition] | None) -> None:
        if known is not None:
            self._known, self.since = known, None
        self._free = free

    def _assigned(self) -> dict[Partition, str]:
        result: dict[Partition, str] = {}
        for name, topic in self.topics.items():
            result.update(shares(name, topic.assignment))
        return result

    def _closing(self) -> dict[Partition, str]:
        """What is in nobody's hands by the assignment and may still be held. Who is not there holds nothing."""
        result: dict[Partition, str] = {}
        for name, topic in self.topics.items():
            locked = self.locked.get(name)
            for number, member in topic.to_close.items():
                if (locked is None or number in locked) and member in self.members:
                    result[Partition(name, number)] = member
        for partition in tuple(self._refused):
            locked = self.locked.get(partition.topic)
            if locked is not None and partition.number not in locked:
                self._refused.discard(partition)
            else:
                result.setdefault(partition, "its holder")
        return result

    def _window(self, eligible: Mapping[str, Subscription], now: float) -> Await | None:
        """Why joins are still being gathered; None when it is time to decide."""
        if not eligible:
            self.since = None
            return Await("nobody is there to be given anything")
        if self.since is None:
            self.since = now
        there, expect = len(eligible), self.settings.expect
        window = min(self.settings.join_window, JOIN_WINDOW) if self._had() else self.settings.join_window
        until = self.since + window
        if self.gathered or now >= until:
            return None
        others = "" if expect is None else f" of {expect}"
        return Await(f"gathering members, {there}{others} there", until)

    @property
    def gathered(self) -> bool:
        """Whether everybody expected is there, so that the join window may close early."""
        there, had = self.eligible.keys(), self._had()
        if self.settings.expect is not None and len(there) >= self.settings.expect:
            return True
        return self._known is None and bool(had) and had <= there

    def _had(self) -> set[str]:
        """Who has been given something, or had it a moment ago: the long wait for all who are expected is over then."""
        return {*self._assigned().values(), *(m for t in self.topics.values() for m in t.to_close.values())}

    def _reassign(
        self,
        eligible: Mapping[str, Subscription],
        held: Mapping[Partition, str],
        closing: Mapping[Partition, str],
        free: frozenset[Partition],
        basis: Basis | None,
    ) -> Reassign | None:
        settings = self.settings
        current = {p: m for p, m in held.items() if m in eligible}
        target = assign(settings.assignor, eligible, self.partitions, current, settings.weight) if eligible else {}
        moved = {p: m for p, m in held.items() if target.get(p) != m} if basis is not None else {}
        given = {p: target[p] for p in sorted(free) if p in target}
        left: frozenset[Partition] | None = free - given.keys()
        most = _fitting(given)
        if len(given) > most:
            given, left = dict(list(given.items())[:most]), None
        after = {p: m for p, m in {**held, **given}.items() if p not in moved}
        topics: dict[str, TopicAssignment] = {}
        gone: list[str] = []
        leaving_now = {p: m for p, m in {**closing, **moved}.items() if p in self.partitions and m in self.members}
        by_topic = _by_topic(after), _by_topic(given), _by_topic(leaving_now)
        agreed = {p.topic for p in self.partitions}
        for name in sorted({*self.topics, *agreed}):
            before = self.topics.get(name)
            if name not in agreed:
                gone.append(name)
                continue
            mine, starting, leaving = (part.get(name, {}) for part in by_topic)
            topic = TopicAssignment(mine, {**self._starting(name, before, mine), **starting}, leaving)
            if topic != before:
                topics[name] = topic
        if not topics and not gone:
            return None
        return Reassign(topics, tuple(gone), tuple(given), self._reason(given, moved, gone), basis, left)

    def _starting(self, name: str, before: TopicAssignment | None, assignment: Mapping[int, str]) -> dict[int, str]:
        """What was given before and is not held yet, as far as is known."""
        if before is None:
            return {}
        locked = self.locked.get(name, frozenset())
        return {n: m for n, m in before.to_start.items() if n not in locked and assignment.get(n) == m}

    def _reason(self, given: Mapping[Partition, str], moved: Mapping[Partition, str], gone: Iterable[str]) -> str:
        known = {} if self._known is None else self._known[0]
        words = [
            *(f"{name} joined" for name in sorted(self.eligible.keys() - known.keys()) if self._known is not None),
            *(f"{name} isolated" for name in sorted(known.keys() & self.isolated)),
            *(f"{name} left" for name in sorted(known.keys() - self.members.keys())),
            *(f"{len(part)} to {verb}" for part, verb in ((moved, "close"), (given, "start")) if part),
            *(f"{name} is gone" for name in gone),
        ]
        text = ", ".join(words) or "assigned"
        return text if len(text) <= _REASON else f"{text[: _REASON - 1]}…"

    def _settle(self) -> Settle | None:
        settled: dict[str, TopicAssignment] = {}
        for name, topic in self.topics.items():
            locked = self.locked.get(name)
            if locked is not None and topic.to_start and topic.to_start.keys() <= locked:
                settled[name] = replace(topic, to_start={})
        return Settle(settled) if settled else None

    def _waits(self, closing: Mapping[Partition, str]) -> Await:
        if closing:
            partition, member = min(closing.items())
            more = f" and {len(closing) - 1} more" if len(closing) > 1 else ""
            return Await(f"{member} has to close {partition}{more}")
        for name, topic in sorted(self.topics.items()):
            if topic.to_start:
                number, member = min(topic.to_start.items())
                return Await(f"{member} has to start {Partition(name, number)}")
        return Await("stable" if self.topics else "nothing to assign")


def _fitting(partitions: Iterable[Partition]) -> int:
    """How many of these can be given away in one transaction."""
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
