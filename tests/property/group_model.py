"""A model of a managed group: the real rebalance machine under every fault, without tasks or a clock, one step at a time.

Leaders drive real ``RebalanceMachine`` objects and real codecs over a :class:`~tests.property.tree.Tree`; members
follow the assignment by the protocol's rules. Everything that can come between two steps is a step of its own: what is read is
learnt later; a write is sent, applied or lost, and so is its answer; sessions expire, processes are killed, frozen and
continued; any member takes over at any time, and the leader before does not know it; an operator isolates members; partitions
join and leave the set.

The model checks the invariants in the step in which they could break: **one writer** (no leader's write lands after a
successor's take-over), **no loss** (commits never go back and never pass what was handled; a partition starts where its last
owner committed), **one owner** (nobody runs a partition without its lock, and no two run it). A rule of the protocol can be
switched off by its name, to show that the model notices.
"""

from __future__ import annotations

from aiokcc.core import paths
from aiokcc.core.assignments import TopicAssignment, encode_assignment
from aiokcc.core.partitions import Partition, encode_partitions
from aiokcc.core.rebalance import Reassign, RebalanceMachine, Settle
from aiokcc.core.subscriptions import Registration
from tests.property.group_members import RULES, GroupMembers, Process, Term, Write
from tests.property.tree import Check, Create, Delete, Op, Refused, Set

__all__ = ["RULES", "GroupModel", "Process", "Term", "Write"]


class GroupModel(GroupMembers):
    """The members, the leaders, the operator, and the invariants."""

    # -- leaders -------------------------------------------------------------------------------------------------------

    def take_over(self, process: Process) -> None:
        if not process.connected or self.busy(process) or not self.alone(process):
            return
        node = self.tree.read(paths.GENERATION)
        self.terms += 1
        if self.has("take-over"):
            self._commit(Set(paths.GENERATION, str(self.terms).encode(), node.version))
        version = self.tree.read(paths.GENERATION).version
        assert process.session is not None
        group = RebalanceMachine(self.settings, frozenset(), window_since=self.clock)
        process.term = Term(process, process.session, self.terms, version, group)

    def active(self, term: Term) -> bool:
        return term.process.connected and term.process.term is term and not self.busy(term.process)

    def read(self, term: Term) -> None:
        """Read the whole state, wherever the last leader stopped."""
        if not self.active(term):
            return
        group = term.group
        group.partitions = self.agreed
        group.topics.clear()
        term.versions.clear()
        for topic in sorted({p.topic for p in group.partitions} | set(self.tree.under(paths.ASSIGNMENTS))):
            given, state = paths.assignment(topic), paths.state(topic)
            if self.tree.get(given) is None:
                try:
                    self._commit(
                        Check(paths.GENERATION, term.version),
                        Create(given),
                        Create(state, TopicAssignment().encode_state()),
                    )
                except Refused:
                    term.process.term = None
                    return
            nodes = self.tree.read(given), self.tree.read(state)
            group.topics[topic] = TopicAssignment.decode(given, nodes[0].data, state, nodes[1].data)
            term.versions[given], term.versions[state] = nodes[0].version, nodes[1].version
        term.read = True

    def learn_members(self, term: Term) -> None:
        if self.active(term):
            found = (Registration.decode(n, self.tree.read(paths.member(n)).data) for n in self.tree.under(paths.IDS))
            term.group.members = {one.id.rpartition("-")[0]: one.subscription for one in found}
            term.learnt.add(paths.IDS)

    def learn_isolated(self, term: Term) -> None:
        if self.active(term):
            term.group.isolated = frozenset(self.tree.under(paths.ISOLATED))
            term.learnt.add(paths.ISOLATED)

    def read_locks(self, term: Term, topic: str) -> None:
        if self.active(term):
            term.locks_read.append((topic, self.locks(topic)))

    def learn_locks(self, term: Term) -> None:
        """Learn locks that were read earlier, perhaps before later writes."""
        if self.active(term) and term.locks_read:
            topic, numbers = term.locks_read.pop(0)
            term.group.locked[topic] = numbers
            self._unwatch(term)

    def _unwatch(self, term: Term) -> None:
        for topic in term.group.locked.keys() - term.group.moving:
            del term.group.locked[topic]

    def decide(self, term: Term) -> str:
        """Send what the leader decides to write. Return what it waits for, if it writes nothing."""
        if not self.active(term) or not term.read or len(term.learnt) < 2:
            return "not in its term"
        decision = term.group.decide(self.clock)
        if isinstance(decision, Settle):
            ops: list[Op] = [Check(paths.GENERATION, term.version)]
            for topic, new in decision.topics.items():
                path = paths.state(topic)
                ops.append(Set(path, new.encode_state(), term.versions[path]))
        elif isinstance(decision, Reassign):
            ops = [Set(paths.GENERATION, str(term.number).encode(), term.version)]
            for topic, new in decision.topics.items():
                given, state = paths.assignment(topic), paths.state(topic)
                if given not in term.versions:
                    ops += [Create(given), Create(state, TopicAssignment().encode_state())]
                ops.append(Set(given, encode_assignment(new.assignment), term.versions.get(given, 0)))
                ops.append(Set(state, new.encode_state(), term.versions.get(state, 0)))
            for topic in decision.removed:
                if paths.assignment(topic) in term.versions:
                    ops += [Delete(paths.assignment(topic)), Delete(paths.state(topic))]
            for partition in decision.starting if self.has("proof") else ():
                ops += [Create(paths.owner(partition)), Delete(paths.owner(partition))]
        else:
            self._unwatch(term)
            return decision.reason
        self._send(term.process, "lead", ops, term=term, decision=decision)
        return ""

    def change_set(self, term: Term, partitions: frozenset[Partition]) -> None:
        """Let partitions join or leave the set, and tell the leader."""
        if self.active(term) and term.read and partitions and partitions != self.agreed:
            version = self.tree.read(paths.TOPIC_PARTITIONS).version
            ops = [
                Set(paths.GENERATION, str(term.number).encode(), term.version),
                Set(paths.TOPIC_PARTITIONS, encode_partitions(partitions), version),
            ]
            self._send(term.process, "set", ops, term=term, partitions=partitions)

    def _leader_answered(self, term: Term, write: Write, *, lost: bool) -> None:
        if term.process.term is not term:
            return
        if not lost and write.answer == "":
            self._wrote(term, write)
        elif not lost and write.answer is not None and write.answer.startswith(f"{paths.OWNERS}/"):
            topic, _, number = write.answer.removeprefix(f"{paths.OWNERS}/").rpartition("/")
            term.group.found_locked(Partition(topic, int(number)))
        elif self.tree.read(paths.GENERATION).version != term.version:
            term.process.term = None  # deposed; perhaps by what it wrote itself
        else:
            self.read(term)

    def _wrote(self, term: Term, write: Write) -> None:
        if not isinstance(write.decision, Settle):
            term.version += 1
            term.process.generation = max(term.process.generation, term.version)
        if write.decision is None:
            term.group.partitions = write.partitions
            return
        for op in write.ops:
            if isinstance(op, Set) and op.path != paths.GENERATION:
                term.versions[op.path] = (op.version or 0) + 1
            elif isinstance(op, Delete):
                term.versions.pop(op.path, None)
        term.group.wrote(write.decision)
        self._unwatch(term)
        for topic in write.decision.topics:
            if topic in term.group.moving and topic not in term.group.locked:
                term.group.locked[topic] = self.locks(topic)

    # -- the operator --------------------------------------------------------------------------------------------------

    def isolate(self, name: str) -> None:
        if self.tree.get(paths.isolated(name)) is None:
            self._commit(Create(paths.isolated(name)))

    def rejoin(self, name: str) -> None:
        if self.tree.get(paths.isolated(name)) is not None:
            self._commit(Delete(paths.isolated(name)))

    # -- what must hold --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check the invariants that hold at every moment."""
        runners: dict[Partition, str] = {}
        for process in self.processes.values():
            if process.connected:
                for partition in process.running:
                    assert partition not in runners, f"{partition} is run by {runners[partition]} and {process.name}"
                    runners[partition] = process.name
                    assert self.holder(partition) == process.session, (
                        f"{process.name} runs {partition} without its lock"
                    )
                    assert (
                        process.running[partition] <= self.handled.get(partition, 0) or not process.running[partition]
                    )
        agreed, drivers = self.agreed, dict[str, str]()
        for process in self.processes.values():
            if (
                (pipeline := process.wants.pipeline) is not None
                and process.connected
                and process.running.keys() & agreed
            ):
                other = drivers.setdefault(pipeline, process.name)
                assert other == process.name, f"{other} and {process.name} both drive the pipeline {pipeline}"
        sessions = {node.session: name.rpartition("-")[0] for name, node in self._registered()}
        for name, topic in self.topics.items():
            for number, member in topic.assignment.items():
                holder = sessions.get(self.holder(Partition(name, number)))
                assert holder in {None, member}, f"{name}.{number} was given to {member} before {holder} had closed it"
            assert not topic.to_close.keys() & topic.assignment.keys()
            assert topic.to_start.items() <= topic.assignment.items()

    # -- the end of all faults -----------------------------------------------------------------------------------------

    def calm(self) -> str:
        """Stop all faults: all members act until nothing is left to do. Return what the leader says then."""
        for session in tuple(self.orphans):
            self.expire_orphan(session)
        for process in self.processes.values():
            if process.frozen:
                self.thaw(process)
            if process.session not in self.tree.sessions:
                process.suspended = True
            self.reconnect(process)
        for write in list(self.writes):
            self.land(write)
            if write in self.writes:
                self.lose(write)
        self.check()
        if not self.processes:
            return "stable"
        last = ""
        for _ in range(80):
            sent = self.sent
            leader = next((p.term for p in self.processes.values() if p.term and p.term.number == self.terms), None)
            if leader is None:
                self.take_over(next(iter(self.processes.values())))
                continue
            if not leader.read:
                self.read(leader)
            self.learn_members(leader)
            self.learn_isolated(leader)
            for topic in sorted(leader.group.moving):
                self.read_locks(leader, topic)
            while leader.locks_read:
                self.learn_locks(leader)
            last = self.decide(leader)
            self._serve()
            for process in list(self.processes.values()):
                self.see_generation(process)
                self.see_agreed(process)
                for topic in {p.topic for p in process.agreed}:
                    self.see_assignment(process, topic)
                self.follow(process)
                self._serve()
            self.clock += 0.5
            if last and not last.startswith("gathering") and self.sent == sent:
                return last
        raise AssertionError(f"it does not come to rest: {last}")

    def _serve(self) -> None:
        for write in list(self.writes):
            self.land(write)
            if write in self.writes:
                self.answer(write)
            self.check()
