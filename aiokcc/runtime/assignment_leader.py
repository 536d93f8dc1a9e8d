"""The leader's part of a managed group: it observes the members, lets the rebalance machine decide, and writes the decisions.

It watches the registrations (those that cannot be read also one by one), the isolated members, the assignments, which somebody
may write by hand, and the locks of the topics that are moving; it knows the rest because it wrote it. Each change of an
assignment is one transaction. It holds the next generation, the assignments and states of the topics that change, and for each
partition that it assigns the proof that nobody holds it: its lock is created and deleted again, which fails if there is one. A
claim in turn checks the assignment, so from then on only the new owner can take the lock. A deposed leader changes nothing,
because the generation has moved on.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import anyio

from aiokcc.core import paths
from aiokcc.core.assignments import TopicAssignment, decode_assignment, encode_assignment
from aiokcc.core.delayed import DelayedOperation, Purgatory
from aiokcc.core.limit import Mode
from aiokcc.core.partitions import Partition
from aiokcc.core.rebalance import Await, Reassign, RebalanceMachine, Settle
from aiokcc.core.subscriptions import Registration, Subscription
from aiokcc.errors import BadVersionError, CorruptNodeError, NodeExistsError, NoNodeError, OutcomeUnknownError
from aiokcc.runtime.assignment_follower import member_of
from aiokcc.runtime.children import list_children
from aiokcc.runtime.signal import Signal
from aiokcc.runtime.timer import timers
from aiokcc.stores.port import ANY_VERSION, Change, Check, Children, Create, Delete, Node, Op, OpResult, Set, Watch

if TYPE_CHECKING:
    from aiokcc.core.group_settings import GroupSettings
    from aiokcc.runtime.member import Member
    from aiokcc.stores.port import Session

__all__ = ["AssignmentLeader"]

log = logging.getLogger("aiokcc.runtime")


class Term(Protocol):
    """The part of a leader term that the assignment of partitions uses."""

    epoch: int
    generation_version: int
    wake: Signal

    @property
    def mode(self) -> Mode:
        """The mode of the limit."""

    async def bump(self, reason: str, ops: list[Op]) -> list[OpResult]:
        """Write these together with the next generation and return their results."""

    async def read_again(self, error: NoNodeError | BadVersionError | OutcomeUnknownError) -> None:
        """Read the state again after a write was refused or its outcome is unknown. End the term if it is over."""


class AssignmentLeader:
    """The part of one leader's term that assigns partitions."""

    def __init__(
        self, term: Term, member: Member, session: Session, settings: GroupSettings, window_since: float
    ) -> None:
        self._term = term
        self._member = member
        self._session = session
        self._store = member.store
        self.machine = RebalanceMachine(settings, frozenset(), window_since=window_since)
        self.due = False
        """True if something has changed since the last decision."""
        self._assignments: dict[str, int] = {}
        """The versions of the nodes ``assignments/<topic>``."""
        self._states: dict[str, int] = {}
        """The versions of the nodes ``state/<topic>``."""
        self._nodes: dict[str, tuple[Node | None, Node | None]] = {}
        """The assignment and state nodes that were read and not decoded yet, by topic."""
        self._registered: dict[str, Subscription | None] = {}
        """The subscriptions by member session; None if the registration cannot be read."""
        self._seen: set[str] = set()
        """The paths that were read at least once in this term. The first decision waits for all that it needs."""
        self._watched: frozenset[str] = frozenset()
        self._followed: frozenset[str] = frozenset()
        """Topics whose assignments are watched: somebody else may write them by hand."""
        self._changed: dict[str, object] = {}
        """The assignments that have changed since the last decision, as the watch reported them, by topic."""
        self._unreadable: set[str] = set()
        """Registrations that could not be read, and are watched."""
        self._watch: Watch | None = None
        self._purgatory = Purgatory(timers())
        self._window: DelayedOperation | None = None
        """The join window. An arrival that makes it needless completes it; its deadline ends it otherwise."""
        self._logged = ""
        self._contested: Mapping[str, object] = {}
        self._stepped = Signal()
        """Set when all that was due has been written."""
        self._over = False

    # -- the start of the term ----------------------------------------------------------------------------------------

    async def read(self) -> None:
        """Read the assignments and the members, concurrently."""
        await asyncio.gather(self._read_topics(), self._read_members())

    async def take_over(self, partitions: frozenset[Partition]) -> None:
        """Continue from what was read, with this agreed set. The leader before us may have stopped at any point.

        CorruptNodeError if a node cannot be read: an assignment is never guessed.
        """
        self.machine.partitions = partitions
        agreed = {p.topic for p in partitions}
        await self._read_nodes(agreed - self._nodes.keys())  # topics that joined the set after our last look
        for topic, (assigned, state) in sorted(self._nodes.items()):
            if assigned is not None and state is not None:
                self.machine.topics[topic] = TopicAssignment.decode(
                    self._store.describe(assigned.path), assigned.data, self._store.describe(state.path), state.data
                )
                self._assignments[topic], self._states[topic] = assigned.version, state.version
            elif topic in agreed or assigned is not None:
                await self._create_topic(topic, assigned, state)
        self._nodes.clear()
        self.due = True

    async def _read_topics(self) -> None:
        """Read the nodes of the topics in the agreed set, as far as we know it, and of all topics that have an assignment."""
        agreed = {p.topic for p in self._member.settings.partitions}
        await self._read_nodes(agreed.union(await self._session.children(paths.ASSIGNMENTS)))

    async def _read_nodes(self, topics: Iterable[str]) -> None:
        topics = list(topics)
        nodes = await asyncio.gather(
            *(self._session.find(paths.assignment(topic)) for topic in topics),
            *(self._session.find(paths.state(topic)) for topic in topics),
        )
        self._nodes.update(zip(topics, zip(nodes[: len(topics)], nodes[len(topics) :], strict=True), strict=True))

    async def _read_members(self) -> None:
        async def isolated() -> None:
            self.machine.isolated = frozenset(await list_children(self._session, paths.ISOLATED))

        async def members() -> None:
            await self._learn_members(await list_children(self._session, paths.IDS))

        await asyncio.gather(isolated(), members())
        self._seen |= {paths.IDS, paths.ISOLATED}

    async def _create_topic(self, topic: str, assigned: Node | None, state: Node | None) -> None:
        """Create the nodes of a topic that has none. One that has only one of the two starts again without it."""
        await self._session.ensure(f"{paths.OWNERS}/{topic}")
        remnants = [Delete(node.path, node.version) for node in (assigned, state) if node is not None]
        await self._session.commit(
            Check(paths.GENERATION, self._term.generation_version), *remnants, *self._creations(topic)
        )
        self._created(topic)

    @staticmethod
    def _creations(topic: str) -> list[Op]:
        """Return the operations that create the nodes of a topic with nothing assigned."""
        return [Create(paths.assignment(topic)), Create(paths.state(topic), TopicAssignment().encode_state())]

    def _created(self, topic: str) -> None:
        """Note that the nodes of this topic were created."""
        self.machine.topics[topic] = TopicAssignment()
        self._assignments[topic] = self._states[topic] = 0

    # -- observing ----------------------------------------------------------------------------------------------------

    async def observe(self) -> None:
        """Follow the members, the isolated members, the assignments, and the locks of moving topics, until it is cancelled."""
        try:
            with self._session.watch() as watch:
                self._watch = watch
                watch.add_children(paths.IDS)
                watch.add_children(paths.ISOLATED)
                self._watch_topics()
                self._watch_unreadable()
                while True:
                    only_arrivals = True
                    for change in await watch.changes():
                        names = change.now.names if isinstance(change.now, Children) else ()
                        if change.path == paths.IDS:
                            before = self.machine.members
                            await self._learn_members(names)
                            only_arrivals &= before.items() <= self.machine.members.items()
                        elif change.path.startswith(f"{paths.IDS}/"):
                            self._learn_member(change)
                            only_arrivals = False
                        elif change.path.startswith(f"{paths.ASSIGNMENTS}/"):
                            self._changed[change.path.removeprefix(f"{paths.ASSIGNMENTS}/")] = change.now
                            only_arrivals = False
                        else:
                            self._learn_children(change.path, names)
                            only_arrivals = False
                        self._seen.add(change.path)
                    if only_arrivals and self._window is not None and self._window.waiting:
                        self._members_arrived()
                    else:
                        self.wake()
        finally:
            if self._window is not None:
                self._window.cancel()
            self._over = True
            self._stepped.set()

    def _learn_children(self, path: str, names: tuple[str, ...]) -> None:
        if path == paths.ISOLATED:
            self.machine.isolated = frozenset(names)
        else:
            self._learn_locks(path.removeprefix(f"{paths.OWNERS}/"), names)

    def _members_arrived(self) -> None:
        """Complete the join window, if it waits for nobody else."""
        if not self._purgatory.complete(paths.IDS) and (waits_for := self.machine.gathering) is not None:
            self._log(waits_for)

    async def handed_over(self) -> None:
        """Wait until nothing is assigned to us any more, after we have left, or until no other member is eligible.

        Cancelling ends the wait and changes nothing.
        """
        name, machine = self._member.name, self.machine
        while not self._over and (
            name in machine.members or any(name in topic.assignment.values() for topic in machine.topics.values())
        ):
            if not machine.eligible.keys() - {name}:
                return
            await self._stepped.wait()

    def wake(self) -> None:
        """Let the leader decide again."""
        self.due = True
        self._term.wake.set()

    async def _learn_members(self, names: tuple[str, ...]) -> None:
        for gone in self._registered.keys() - set(names):
            del self._registered[gone]
        new = [name for name in names if name not in self._registered]
        nodes = await asyncio.gather(*(self._session.find(paths.member(name)) for name in new))
        for name, node in zip(new, nodes, strict=True):
            if node is not None:
                self._registered[name] = self._decode(node)
        self._publish_members()
        self._watch_unreadable()

    def _publish_members(self) -> None:
        self.machine.members = {member_of(name): wants for name, wants in self._registered.items() if wants is not None}

    def _watch_unreadable(self) -> None:
        """Look again at registrations that could not be read: their members write them again."""
        unreadable = {paths.member(name) for name, wants in self._registered.items() if wants is None}
        if self._watch is not None:
            for path in unreadable - self._unreadable:
                self._watch.add(path)
            for path in self._unreadable - unreadable:
                self._watch.remove(path)
            self._unreadable = unreadable

    def _learn_member(self, change: Change) -> None:
        name = change.path.removeprefix(f"{paths.IDS}/")
        if name in self._registered and isinstance(change.now, Node):
            self._registered[name] = self._decode(change.now)
            self._publish_members()
            self._watch_unreadable()

    def _decode(self, node: Node) -> Subscription | None:
        try:
            return Registration.decode(self._store.describe(node.path), node.data).subscription
        except CorruptNodeError as error:
            log.error("%s; this member is assigned nothing", error)
            return None

    def _learn_locks(self, topic: str, names: tuple[str, ...]) -> None:
        self.machine.locked[topic] = frozenset(int(name) for name in names if name.isdecimal())

    def _watch_topics(self) -> None:
        """Watch the assignments of all topics, and the locks of those that are moving."""
        if self._watch is None:
            return
        assigned = frozenset(self._assignments)
        for topic in assigned - self._followed:
            self._watch.add(paths.assignment(topic))
        for topic in self._followed - assigned:
            self._watch.remove(paths.assignment(topic))
        self._followed = assigned
        moving = self.machine.moving
        for topic in moving - self._watched:
            self._watch.add_children(f"{paths.OWNERS}/{topic}")
        for topic in self._watched - moving:
            self._watch.remove(f"{paths.OWNERS}/{topic}")
        for topic in self.machine.locked.keys() - moving:
            del self.machine.locked[topic]
        self._watched = moving

    # -- writing ------------------------------------------------------------------------------------------------------

    async def step(self) -> None:
        """Write decisions, one after the other, until the machine awaits something.

        Safe to cancel: each write is one conditional transaction, and the next term starts from what is in the store.
        """
        while self.due and self._term.mode is not Mode.END:
            self.due = False
            if not self._seen >= {paths.IDS, paths.ISOLATED}:
                return
            if self._changed and not await self._repair():
                continue
            decision = self.machine.decide(asyncio.get_running_loop().time())
            if isinstance(decision, Await):
                self._wait(decision)
            elif isinstance(decision, Settle):
                await self._settle(decision)
            else:
                await self._reassign(decision)
            self._watch_topics()
        self._stepped.set()

    async def _repair(self) -> bool:
        """Write assignments again that lack partitions, or cannot be read, because somebody else has written them.

        One that was edited by hand and still covers the same partitions stands. Returns False if a write was refused.
        """
        changed, self._changed = self._changed, {}
        for topic, node in changed.items():
            known, ours = self._assignments.get(topic), self.machine.topics.get(topic)
            if known is None or ours is None or not isinstance(node, Node) or node.version <= known:
                continue
            where = self._store.describe(node.path)
            try:
                if decode_assignment(where, node.data).keys() == ours.assignment.keys():
                    continue
            except CorruptNodeError:
                pass
            content = encode_assignment(ours.assignment)
            log.error(
                "%s holds %r, which is not what was assigned; %r is written again", where, node.data[:200], content
            )
            try:
                (version,) = await self._term.bump(f"repaired {topic}", [Set(node.path, content, node.version)])
            except (BadVersionError, NoNodeError, OutcomeUnknownError) as error:
                self.due = True
                await self._read_again(error)
                return False
            assert isinstance(version, int)
            self._assignments[topic] = version
        return True

    def _wait(self, decision: Await) -> None:
        contested, before = self.machine.contested, self._contested
        for pipeline, (partition, other) in contested.items():
            if pipeline not in before:
                log.warning(
                    "the pipelines %s and %s both want %s: %s is assigned nothing while %s is there",
                    other,
                    pipeline,
                    partition,
                    pipeline,
                    other,
                )
        self._contested = contested
        self._log(decision.reason)
        if self._window is not None:
            self._window.cancel()
            self._window = None
        if decision.until is not None:
            self._window = self._purgatory.put(
                lambda: self.machine.gathering is None,
                lambda _: self.wake(),
                keys=[paths.IDS],
                deadline=math.ceil(decision.until * 1000),
            )

    def _log(self, waits_for: str) -> None:
        if waits_for != self._logged:
            self._logged = waits_for
            log.info("assignment: %s", waits_for, extra={"generation": self._term.epoch})

    async def _settle(self, decision: Settle) -> None:
        topics = list(decision.topics)
        self.due = True
        try:
            await self._session.commit(
                Check(paths.GENERATION, self._term.generation_version),
                *(Set(paths.state(t), decision.topics[t].encode_state(), self._states[t]) for t in topics),
            )
        except (BadVersionError, NoNodeError, OutcomeUnknownError) as error:
            await self._read_again(error)
            return
        for topic in topics:
            self._states[topic] += 1
        self.machine.wrote(decision)

    async def _reassign(self, decision: Reassign) -> None:
        self.due = True
        ops: list[Op] = []
        for topic, new in decision.topics.items():
            if topic not in self._assignments:
                ops += self._creations(topic)
                await self._session.ensure(f"{paths.OWNERS}/{topic}")
            content = encode_assignment(new.assignment)
            ops.append(Set(paths.assignment(topic), content, self._assignments.get(topic, 0)))
            ops.append(Set(paths.state(topic), new.encode_state(), self._states.get(topic, 0)))
        for topic in decision.removed:
            if topic in self._assignments:
                ops.append(Delete(paths.assignment(topic), self._assignments[topic]))
                ops.append(Delete(paths.state(topic), self._states[topic]))
        for partition in decision.starting:  # if a lock exists, the whole transaction fails
            ops += [Create(paths.owner(partition)), Delete(paths.owner(partition), ANY_VERSION)]
        try:
            await self._term.bump(decision.reason, ops)
        except NodeExistsError as error:
            topic, _, number = error.path.removeprefix(f"{paths.OWNERS}/").rpartition("/")
            if not error.path.startswith(f"{paths.OWNERS}/") or not number.isdecimal():
                raise
            self.machine.found_locked(Partition(topic, int(number)))
            return
        except (BadVersionError, NoNodeError, OutcomeUnknownError) as error:
            await self._read_again(error)
            return
        log.info("generation %d: %s", self._term.epoch, decision.reason, extra={"generation": self._term.epoch})
        for topic in decision.topics:
            self._assignments[topic] = self._assignments.get(topic, 0) + 1
            self._states[topic] = self._states.get(topic, 0) + 1
        for topic in decision.removed:
            self._assignments.pop(topic, None)
            self._states.pop(topic, None)
        self.machine.wrote(decision)
        self._watch_topics()
        # Locks that were read before this write say nothing about the time after it.
        await self._read_locks([topic for topic in decision.topics if topic in self.machine.moving])

    async def _read_locks(self, topics: list[str]) -> None:
        found = await asyncio.gather(*(self._session.children(f"{paths.OWNERS}/{topic}") for topic in topics))
        for topic, names in zip(topics, found, strict=True):
            if topic not in self.machine.locked:  # otherwise the watch was faster, and reports all that follows
                self._learn_locks(topic, names)

    async def _read_again(self, error: BadVersionError | NoNodeError | OutcomeUnknownError) -> None:
        """Read everything again after a write was refused or its outcome is unknown.

        If we are deposed, the term is cancelled here. Otherwise somebody has changed our nodes, or our own write succeeded.
        """
        await self._term.read_again(error)
        await anyio.lowlevel.checkpoint()
        self.machine.topics.clear()
        self._assignments.clear()
        self._states.clear()
        await self._read_topics()
        await self.take_over(self.machine.partitions)
