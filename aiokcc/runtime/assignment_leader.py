"""The leader of a managed group: it sees who is there, has the machine decide, and writes what it decides.

It watches the registrations, who is isolated, and the locks of the topics that have something on its way; all else it knows
because it wrote it. Every change of an assignment is one transaction: the next generation, the assignments and states of all
topics that change, and for each partition that is given away the proof that nobody holds it (its lock is created and deleted
again, which fails if there is one). Since a claim in turn rests on the assignment, from then on only the one to whom
it was given can take it. A leader that was deposed changes nothing, for the generation has moved on without it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import anyio

from aiokcc.core import paths
from aiokcc.core.assignments import TopicAssignment, encode_assignment
from aiokcc.core.delayed import DelayedOperation, Purgatory
from aiokcc.core.limit import Mode
from aiokcc.core.partitions import Partition
from aiokcc.core.rebalance import Await, Reassign, RebalanceMachine, Settle
from aiokcc.core.subscriptions import Registration, Subscription
from aiokcc.errors import BadVersionError, CorruptNodeError, NodeExistsError, NoNodeError, OutcomeUnknownError
from aiokcc.runtime.share import member_of
from aiokcc.runtime.signal import Signal
from aiokcc.runtime.timer import Timeout, timers
from aiokcc.stores.port import ANY_VERSION, Check, Children, Create, Delete, Node, Op, Set

if TYPE_CHECKING:
    from aiokcc.runtime.incarnation import Incarnation
    from aiokcc.runtime.office import Office

__all__ = ["AssignmentLeader"]

log = logging.getLogger("aiokcc.group")


class _Deadlines:
    """The timing wheel of the event loop, in milliseconds of its clock."""

    def add(self, deadline: int, what: Callable[[], object], /) -> Timeout:
        return timers().call_at(deadline / 1000, what)


class AssignmentLeader:
    """One leader's term, as far as it assigns partitions."""

    def __init__(self, office: Office, incarnation: Incarnation) -> None:
        self._office = office
        self._us = incarnation
        self._session = incarnation.session
        self._store = incarnation.store
        settings = incarnation.member.group
        assert settings is not None
        self.machine = RebalanceMachine(settings, frozenset(), since=incarnation.joined_at)
        self.due = False
        """Whether something has changed since the last decision."""
        self._assignments: dict[str, int] = {}
        """The versions of the nodes, by topic."""
        self._states: dict[str, int] = {}
        self._nodes: dict[str, tuple[Node | None, Node | None]] = {}
        """Of the topics, as they were read and have not been looked at yet: the assignment and the state."""
        self._registered: dict[str, Subscription | None] = {}
        """By incarnation; None where the registration cannot be read."""
        self._seen: set[str] = set()
        """What has been read at least once in this term: nothing is decided before all of it has."""
        self._watched: frozenset[str] = frozenset()
        self._gathering = Purgatory(_Deadlines())
        self._window: DelayedOperation | None = None
        """The join window: it closes when everybody expected is there, at its deadline at the latest."""
        self._said = ""
        self._contested: Mapping[str, object] = {}
        self._stepped = Signal()
        """Set when all that was due has been written."""
        self._over = False

    # -- taking office ------------------------------------------------------------------------------------------------

    async def read(self) -> None:
        """Read how the assignment stands and who is there, side by side."""
        await asyncio.gather(self._read_topics(), self._read_members())

    async def take(self, partitions: frozenset[Partition]) -> None:
        """Go on from what was read, with this agreed set; whoever led before us may have stopped anywhere.

        CorruptNodeError if a node cannot be read: who may run what is not guessed.
        """
        self.machine.partitions = partitions
        agreed = {p.topic for p in partitions}
        await self._read_nodes(agreed - self._nodes.keys())  # topics that have joined the set since we saw it
        for topic, (given, state) in sorted(self._nodes.items()):
            if given is not None and state is not None:
                self.machine.topics[topic] = TopicAssignment.decode(
                    self._store.describe(given.path), given.data, self._store.describe(state.path), state.data
                )
                self._assignments[topic], self._states[topic] = given.version, state.version
            elif topic in agreed or given is not None:
                await self._found(topic, given, state)
        self._nodes.clear()
        self.due = True

    async def _read_topics(self) -> None:
        """Of the agreed set as we know it, and of all that were ever assigned."""
        there = {p.topic for p in self._us.member.settings.partitions}
        await self._read_nodes(there.union(await self._session.children(paths.ASSIGNMENTS)))

    async def _read_nodes(self, topics: Iterable[str]) -> None:
        topics = list(topics)
        nodes = await asyncio.gather(
            *(self._session.find(paths.assignment(topic)) for topic in topics),
            *(self._session.find(paths.state(topic)) for topic in topics),
        )
        self._nodes.update(zip(topics, zip(nodes[: len(topics)], nodes[len(topics) :], strict=True), strict=True))

    async def _read_members(self) -> None:
        async def isolated() -> None:
            self.machine.isolated = frozenset(await self._names(paths.ISOLATED))

        async def members() -> None:
            await self._learn_members(await self._names(paths.IDS))

        await asyncio.gather(isolated(), members())
        self._seen |= {paths.IDS, paths.ISOLATED}

    async def _names(self, path: str) -> tuple[str, ...]:
        try:
            return await self._session.children(path)
        except NoNodeError:
            return ()

    async def _found(self, topic: str, given: Node | None, state: Node | None) -> None:
        """A topic that has no nodes yet, or only one: then it begins anew."""
        await self._session.ensure(f"{paths.OWNERS}/{topic}")
        remains = [Delete(node.path, node.version) for node in (given, state) if node is not None]
        await self._session.commit(
            Check(paths.GENERATION, self._office.generation_version), *remains, *self.creations(topic)
        )
        self.founded(topic)

    @staticmethod
    def creations(topic: str) -> list[Op]:
        """The nodes of a topic of which nobody has been given anything."""
        return [Create(paths.assignment(topic)), Create(paths.state(topic), TopicAssignment().encode_state())]

    def founded(self, topic: str) -> None:
        """Those nodes have been made."""
        self.machine.topics[topic] = TopicAssignment()
        self._assignments[topic] = self._states[topic] = 0

    # -- what the leader sees -----------------------------------------------------------------------------------------

    async def observe(self) -> None:
        """Follow who is there, who is isolated, and the locks of what is on its way, until cancelled."""
        try:
            with self._session.watch() as watch:
                self._watch = watch
                watch.add_children(paths.IDS)
                watch.add_children(paths.ISOLATED)
                self._watch_locks()
                while True:
                    for change in await watch.changes():
                        names = change.now.names if isinstance(change.now, Children) else ()
                        if change.path == paths.IDS:
                            await self._learn_members(names)
                        elif change.path == paths.ISOLATED:
                            self.machine.isolated = frozenset(names)
                        else:
                            self._learn_locks(change.path.removeprefix(f"{paths.OWNERS}/"), names)
                        self._seen.add(change.path)
                    self.wake()
        finally:
            if self._window is not None:
                self._window.withdraw()
            self._over = True
            self._stepped.set()

    async def handed_over(self) -> None:
        """Wait until nothing is assigned to us any more, now that we have left; or until there is nobody to give it to."""
        name, machine = self._us.member.name, self.machine
        while not self._over and (
            name in machine.members or any(name in topic.assignment.values() for topic in machine.topics.values())
        ):
            if not machine.eligible.keys() - {name}:
                return
            await self._stepped.wait()

    def wake(self) -> None:
        """Decide again."""
        self.due = True
        self._office.wake.set()

    async def _learn_members(self, names: tuple[str, ...]) -> None:
        for gone in self._registered.keys() - set(names):
            del self._registered[gone]
        new = [name for name in names if name not in self._registered]
        nodes = await asyncio.gather(*(self._session.find(paths.member(name)) for name in new))
        for name, node in zip(new, nodes, strict=True):
            if node is not None:
                self._registered[name] = self._decode(node)
        self.machine.members = {member_of(name): wants for name, wants in self._registered.items() if wants is not None}

    def _decode(self, node: Node) -> Subscription | None:
        try:
            return Registration.decode(self._store.describe(node.path), node.data).subscription
        except CorruptNodeError as error:
            log.error("%s; it is given nothing", error)
            return None

    def _learn_locks(self, topic: str, names: tuple[str, ...]) -> None:
        self.machine.locked[topic] = frozenset(int(name) for name in names if name.isdecimal())

    def _watch_locks(self) -> None:
        moving = self.machine.moving
        for topic in moving - self._watched:
            self._watch.add_children(f"{paths.OWNERS}/{topic}")
        for topic in self._watched - moving:
            self._watch.remove(f"{paths.OWNERS}/{topic}")
        for topic in self.machine.locked.keys() - moving:
            del self.machine.locked[topic]
        self._watched = moving

    # -- what the leader does -----------------------------------------------------------------------------------------

    async def step(self) -> None:
        """Write what is to be written, one thing after the other, until there is something to wait for."""
        while self.due and self._office.mode is not Mode.END:
            self.due = False
            if not self._seen >= {paths.IDS, paths.ISOLATED}:
                return
            decision = self.machine.decide(asyncio.get_running_loop().time())
            if isinstance(decision, Await):
                self._wait(decision)
            elif isinstance(decision, Settle):
                await self._settle(decision)
            else:
                await self._reassign(decision)
            self._watch_locks()
        self._stepped.set()

    def _wait(self, decision: Await) -> None:
        contested, before = self.machine.contested, self._contested
        for pipeline, (partition, other) in contested.items():
            if pipeline not in before:
                log.warning(
                    "the pipelines %s and %s both want %s: %s is given nothing while %s is there",
                    other,
                    pipeline,
                    partition,
                    pipeline,
                    other,
                )
        self._contested = contested
        if decision.reason != self._said:
            self._said = decision.reason
            log.info("assignment: %s", decision.reason)
        if self._window is not None:
            self._window.withdraw()
            self._window = None
        if decision.until is not None:
            self._window = self._gathering.put(
                lambda: self.machine.gathered,
                lambda _: self.wake(),
                keys=[paths.IDS],
                deadline=math.ceil(decision.until * 1000),
            )

    async def _settle(self, decision: Settle) -> None:
        topics = list(decision.topics)
        self.due = True
        try:
            await self._session.commit(
                Check(paths.GENERATION, self._office.generation_version),
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
                ops += self.creations(topic)
                await self._session.ensure(f"{paths.OWNERS}/{topic}")
            given = encode_assignment(new.assignment)
            ops.append(Set(paths.assignment(topic), given, self._assignments.get(topic, 0)))
            ops.append(Set(paths.state(topic), new.encode_state(), self._states.get(topic, 0)))
        for topic in decision.gone:
            if topic in self._assignments:
                ops.append(Delete(paths.assignment(topic), self._assignments[topic]))
                ops.append(Delete(paths.state(topic), self._states[topic]))
        for partition in decision.given:  # nobody holds it, or the whole transaction fails
            ops += [Create(paths.owner(partition)), Delete(paths.owner(partition), ANY_VERSION)]
        try:
            await self._office.bump(decision.reason, ops)
        except NodeExistsError as error:
            topic, _, number = error.path.removeprefix(f"{paths.OWNERS}/").rpartition("/")
            if not error.path.startswith(f"{paths.OWNERS}/") or not number.isdecimal():
                raise
            self.machine.refused(Partition(topic, int(number)))
            return
        except (BadVersionError, NoNodeError, OutcomeUnknownError) as error:
            await self._read_again(error)
            return
        log.info("generation %d: %s", self._office.epoch, decision.reason)
        for topic in decision.topics:
            self._assignments[topic] = self._assignments.get(topic, 0) + 1
            self._states[topic] = self._states.get(topic, 0) + 1
        for topic in decision.gone:
            self._assignments.pop(topic, None)
            self._states.pop(topic, None)
        self.machine.wrote(decision)
        self._watch_locks()
        # What was seen before this assignment does not tell who holds what under it.
        await self._look_at_locks([topic for topic in decision.topics if topic in self.machine.moving])

    async def _look_at_locks(self, topics: list[str]) -> None:
        found = await asyncio.gather(*(self._session.children(f"{paths.OWNERS}/{topic}") for topic in topics))
        for topic, names in zip(topics, found, strict=True):
            if topic not in self.machine.locked:  # else the watch has told meanwhile, and tells whatever comes after
                self._learn_locks(topic, names)

    async def _read_again(self, error: BadVersionError | NoNodeError | OutcomeUnknownError) -> None:
        """A write was refused, or nobody knows: deposed, or somebody has written our nodes by hand."""
        await self._office.read_again(error)
        await anyio.lowlevel.checkpoint()
        self.machine.topics.clear()
        self._assignments.clear()
        self._states.clear()
        await self._read_topics()
        await self.take(self.machine.partitions)
