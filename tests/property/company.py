"""A managed group in which the real machine meets every fault: no tasks, no clock, one step at a time.

Leaders drive real :class:`~aiokcc.core.group.Group` objects and real codecs over a :class:`~tests.property.tree.Tree`; members
follow the assignment by the protocol's rules. Everything that can come between two steps is a step of its own: what is read is
learnt later; a write flies, lands or is lost, and so is its answer; sessions expire, processes are killed, stopped and
continued; anybody takes office at any time, and whoever held it does not know; an operator isolates members; partitions come
and go.

The company watches the invariants itself, at the moment they could break: **one writer** (no leader's write lands after a
successor's take-over), **no loss** (commits never go back and never pass what was handled; a partition starts where its last
owner committed), **one owner** (nobody runs a partition without its lock, and no two run it). A rule of the protocol can be
switched off by its name, to see that the company would notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aiokcc.core import paths
from aiokcc.core.assignments import Topic, decode_assignment, encode_assignment
from aiokcc.core.group import Group, GroupSettings, Reassign, Settle
from aiokcc.core.partitions import Partition, decode_partitions, encode_partitions
from aiokcc.core.subscriptions import Registration, Subscription
from tests.property.tree import Check, Create, Delete, Node, Op, Refused, Set, Tree

__all__ = ["RULES", "Company", "Process", "Term", "Write"]

RULES = ("proof", "assignment in claim", "deadline", "take-over")


@dataclass(eq=False)
class Write:
    """A transaction on its way."""

    process: Process
    session: int
    kind: str
    ops: Sequence[Op]
    term: Term | None = None
    decision: Reassign | Settle | None = None
    partitions: frozenset[Partition] = frozenset()
    answer: str | None = None
    """None while it flies; then where it was refused, or nothing."""


@dataclass(eq=False)
class Process:
    """A member, as long as its process lives; over many sessions."""

    name: str
    wants: Subscription
    session: int | None = None
    incarnation: str = ""
    frozen: bool = False
    suspended: bool = False
    """Past its deadline: it starts nothing until the store has answered."""
    generation: int = -1
    agreed: frozenset[Partition] = frozenset()
    seen: dict[str, tuple[int, frozenset[Partition]]] = field(default_factory=dict)
    opened: set[Partition] = field(default_factory=set)
    """What it has tried to claim and not given up: it may hold these, whether it knows or not."""
    running: dict[Partition, int] = field(default_factory=dict)
    drained: dict[Partition, int] = field(default_factory=dict)
    """Ended, and to be committed before the lock goes back."""
    term: Term | None = None

    @property
    def connected(self) -> bool:
        return self.session is not None and not self.frozen and not self.suspended

    @property
    def mine(self) -> frozenset[Partition] | None:
        """What is assigned to it, as far as it knows; None while it has not read all of it."""
        if not {p.topic for p in self.agreed} <= self.seen.keys():
            return None
        return frozenset(p for _, part in self.seen.values() for p in part) & self.agreed


@dataclass(eq=False)
class Term:
    """A leader in office, or who takes itself for it."""

    process: Process
    session: int
    number: int
    version: int
    """Of the generation."""
    group: Group
    read: bool = False
    learnt: set[str] = field(default_factory=set)
    versions: dict[str, int] = field(default_factory=dict)
    """Of the nodes, by path."""
    locks_read: list[tuple[str, frozenset[int]]] = field(default_factory=list)
    """Read, and not learnt yet."""


class Company:
    """The tree, the processes, and what has happened."""

    def __init__(
        self, partitions: frozenset[Partition], settings: GroupSettings, without: frozenset[str] = frozenset()
    ) -> None:
        assert without <= set(RULES)
        self.without = without
        self.settings = settings
        self.tree = Tree()
        self.clock = 0.0
        self.processes: dict[str, Process] = {}
        self.orphans: set[int] = set()
        """Sessions whose process was killed: the store does not know yet."""
        self.writes: list[Write] = []
        self.sent = 0
        self.terms = 0
        self.incarnations = 0
        self.handled: dict[Partition, int] = {}
        self._commit(Create(paths.GENERATION, b"0"), Create(paths.TOPIC_PARTITIONS, encode_partitions(partitions)))

    def has(self, rule: str) -> bool:
        return rule not in self.without

    # -- the store -------------------------------------------------------------------------------------------------------

    def _commit(self, *ops: Op) -> None:
        self.tree.commit(ops, self._witness)

    def _witness(self, before: dict[str, Node], after: dict[str, Node]) -> None:
        for path, node in after.items():
            if path.startswith(f"{paths.OFFSETS}/"):
                topic, _, number = path.removeprefix(f"{paths.OFFSETS}/").rpartition("/")
                offset, old = int(node.data), before.get(path)
                assert offset <= self.handled.get(Partition(topic, int(number)), 0), "committed and not handled"
                assert old is None or int(old.data) <= offset, "a commit has gone back"

    @property
    def agreed(self) -> frozenset[Partition]:
        return decode_partitions("", self.tree.read(paths.TOPIC_PARTITIONS).data)

    @property
    def topics(self) -> dict[str, Topic]:
        return {
            topic: Topic.decode(
                "a", self.tree.read(paths.assignment(topic)).data, "s", self.tree.read(paths.state(topic)).data
            )
            for topic in self.tree.under(paths.ASSIGNMENTS)
        }

    def _registered(self) -> list[tuple[str, Node]]:
        return [(name, self.tree.read(paths.member(name))) for name in self.tree.under(paths.IDS)]

    def locks(self, topic: str) -> frozenset[int]:
        return frozenset(int(number) for number in self.tree.under(f"{paths.OWNERS}/{topic}"))

    def holder(self, partition: Partition) -> int | None:
        node = self.tree.get(paths.owner(partition))
        return None if node is None else node.session

    def committed(self, partition: Partition) -> int:
        node = self.tree.get(paths.offset(partition))
        return 0 if node is None else int(node.data)

    # -- processes and sessions ----------------------------------------------------------------------------------------

    def start(self, name: str, wants: Subscription) -> None:
        """A process, which may have been here before. Somebody alive with its name would have it refused."""
        if name not in self.processes:
            self.processes[name] = Process(name, wants)
            self.connect(self.processes[name])

    def connect(self, process: Process) -> None:
        """A new session: a new incarnation, which knows nothing and holds nothing."""
        self.incarnations += 1
        process.session = self.tree.connect()
        process.incarnation = f"{process.name}-{self.incarnations}"
        process.suspended = False
        process.generation = -1
        for kept in (process.seen, process.opened, process.running, process.drained):
            kept.clear()
        process.term = None
        registration = Registration(process.incarnation, process.wants, 0, "here")
        self._commit(Create(paths.member(process.incarnation), registration.encode(), process.session))

    def kill(self, process: Process) -> None:
        """Nothing more comes from it but what is on its way; the store finds out later."""
        del self.processes[process.name]
        if process.session is not None:
            self.orphans.add(process.session)
            process.session = None

    def leave(self, process: Process) -> None:
        """In good order: everything is drained and committed before the session is closed."""
        if not process.connected or self.busy(process):
            return
        self.see_generation(process)
        process.drained |= process.running
        process.running.clear()
        self._commit(*self._commits(process, process.drained))
        assert process.session is not None
        self.tree.expire(process.session)
        process.session = None
        del self.processes[process.name]

    def suspend(self, process: Process) -> None:
        """No answer up to the deadline: it stops by itself, before the store can end its session."""
        if process.session is not None:
            process.suspended = True

    def freeze(self, process: Process) -> None:
        process.frozen = True

    def thaw(self, process: Process) -> None:
        """It goes on where it stood. If its session has ended meanwhile, its deadline has passed as well."""
        process.frozen = False
        if self.has("deadline") and process.session not in self.tree.sessions:
            process.suspended = True

    def expire(self, process: Process) -> None:
        """The store ends the session: of one that is frozen, or has stopped by itself."""
        if process.session is not None and (process.frozen or process.suspended or not self.has("deadline")):
            self.tree.expire(process.session)

    def expire_orphan(self, session: int) -> None:
        self.orphans.discard(session)
        self.tree.expire(session)

    def reconnect(self, process: Process) -> None:
        """The store answers: the session goes on, or is over and a new one begins."""
        if process.frozen or not process.suspended:
            return
        if process.session in self.tree.sessions:
            process.suspended = False
        else:
            self.connect(process)

    # -- writes fly, land, and are answered, or not --------------------------------------------------------------------

    def busy(self, process: Process) -> bool:
        """Whether something is on its way: a session's requests are served in their order, so that it reads nothing newer."""
        return any(write.process is process and write.session == process.session for write in self.writes)

    def _send(self, process: Process, kind: str, ops: Sequence[Op], **facts: object) -> None:
        assert process.session is not None
        assert process.session in self.tree.sessions or not self.has("deadline")
        self.sent += 1
        self.writes.append(Write(process, process.session, kind, tuple(ops), **facts))  # type: ignore[arg-type]

    def land(self, write: Write) -> None:
        """It reaches the store, if its session is still there."""
        if write.answer is not None:
            return
        if write.session not in self.tree.sessions:
            self.writes.remove(write)
            return
        try:
            self._commit(*write.ops)
        except Refused as refused:
            write.answer = str(refused)
        else:
            write.answer = ""
            if write.term is not None:
                assert write.term.number == self.terms, "a leader's write has landed after it was deposed"

    def lose(self, write: Write) -> None:
        """It never arrives, or its answer does not. The connection is gone with it, but not the session."""
        self._end(write, lost=True)

    def answer(self, write: Write) -> None:
        if write.answer is not None and not write.process.frozen:
            self._end(write, lost=False)

    def _end(self, write: Write, *, lost: bool) -> None:
        self.writes.remove(write)
        process = write.process
        if process.session != write.session or process.suspended or write.session not in self.tree.sessions:
            return
        if write.term is not None:
            self._leader_answered(write.term, write, lost=lost)
        elif lost or write.answer is None:
            pass  # nobody knows: it finds out when it tries again
        elif write.kind == "claim":
            self._claim_answered(process, write)
        elif write.answer == paths.GENERATION:
            self.see_generation(process)
        elif write.kind == "commit":
            for partition in write.partitions:
                process.drained.pop(partition, None)
        elif write.answer == "":
            process.opened -= write.partitions

    # -- what members see and do ---------------------------------------------------------------------------------------

    def see_generation(self, process: Process) -> None:
        process.generation = self.tree.read(paths.GENERATION).version

    def see_agreed(self, process: Process) -> None:
        process.agreed = self.agreed
        for topic in process.seen.keys() - {p.topic for p in process.agreed}:
            del process.seen[topic]

    def see_assignment(self, process: Process, topic: str) -> None:
        node = self.tree.get(paths.assignment(topic))
        if node is None or topic not in {p.topic for p in process.agreed}:
            process.seen.pop(topic, None)
            return
        given = decode_assignment("", node.data)
        mine = frozenset(Partition(topic, number) for number, name in given.items() if name == process.name)
        process.seen[topic] = (node.version, mine)

    def alone(self, process: Process) -> bool:
        """Whether no older session has its name: until then it takes part in nothing."""
        others = [name for name in self.tree.under(paths.IDS) if name.rpartition("-")[0] == process.name]
        return others == [process.incarnation]

    def follow(self, process: Process) -> None:
        """The next step towards what is assigned: what is not ours any more first, then what is new."""
        mine = process.mine
        if not process.connected or self.busy(process) or not self.alone(process) or mine is None:
            return
        gone = frozenset(process.opened - mine)
        for partition in gone & process.running.keys():
            process.drained[partition] = process.running.pop(partition)
        new = frozenset(mine - process.running.keys())
        if process.drained:
            self._send(
                process, "commit", self._commits(process, process.drained), partitions=frozenset(process.drained)
            )
        elif gone:
            held = [p for p in sorted(gone) if self.holder(p) == process.session]
            ops: list[Op] = [Check(paths.GENERATION, process.generation)]
            ops += [Delete(paths.owner(p)) for p in held]
            self._send(process, "release", ops, partitions=gone)
        elif new:
            process.opened |= new
            topics = sorted({p.topic for p in new})
            rests_on: list[Op] = [Check(paths.assignment(topic), process.seen[topic][0]) for topic in topics]
            locks: list[Op] = [Create(paths.owner(p), b"", process.session) for p in sorted(new)]
            rests_on.append(Check(paths.GENERATION, process.generation))
            conditions: list[Op] = rests_on if self.has("assignment in claim") else []
            self._send(process, "claim", conditions + locks, partitions=new)

    def _claim_answered(self, process: Process, write: Write) -> None:
        if write.answer == paths.GENERATION:
            self.see_generation(process)
            return
        if write.answer and not write.answer.startswith(f"{paths.OWNERS}/"):
            return  # another assignment: to be read first
        for partition in write.partitions:
            if self.holder(partition) == process.session:
                process.running[partition] = self.committed(partition)

    def commit_running(self, process: Process) -> None:
        if process.connected and not self.busy(process) and process.running:
            self._send(process, "commit", self._commits(process, process.running))

    def _commits(self, process: Process, positions: dict[Partition, int]) -> list[Op]:
        ops: list[Op] = [Check(paths.GENERATION, process.generation)]
        for partition, position in sorted(positions.items()):
            path, node = paths.offset(partition), self.tree.get(paths.offset(partition))
            content = str(position).encode()
            if node is None:
                ops.append(Create(path, content))
            elif int(node.data) < position:
                ops.append(Set(path, content, node.version))
        return ops

    def handle(self, process: Process, partition: Partition) -> None:
        """A record starts and is handled."""
        if process.session is None or process.frozen or process.suspended or partition not in process.running:
            return
        process.running[partition] += 1
        self.handled[partition] = max(self.handled.get(partition, 0), process.running[partition])

    # -- leaders -------------------------------------------------------------------------------------------------------

    def take_office(self, process: Process) -> None:
        if not process.connected or self.busy(process) or not self.alone(process):
            return
        node = self.tree.read(paths.GENERATION)
        self.terms += 1
        if self.has("take-over"):
            self._commit(Set(paths.GENERATION, str(self.terms).encode(), node.version))
        version = self.tree.read(paths.GENERATION).version
        assert process.session is not None
        group = Group(self.settings, frozenset(), since=self.clock)
        process.term = Term(process, process.session, self.terms, version, group)

    def active(self, term: Term) -> bool:
        return term.process.connected and term.process.term is term and not self.busy(term.process)

    def read(self, term: Term) -> None:
        """All that stands, wherever the last leader stopped."""
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
                        Create(state, Topic().encode_state()),
                    )
                except Refused:
                    term.process.term = None
                    return
            nodes = self.tree.read(given), self.tree.read(state)
            group.topics[topic] = Topic.decode(given, nodes[0].data, state, nodes[1].data)
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
        """What was read a while ago: perhaps before what was written since."""
        if self.active(term) and term.locks_read:
            topic, numbers = term.locks_read.pop(0)
            term.group.locked[topic] = numbers
            self._unwatch(term)

    def _unwatch(self, term: Term) -> None:
        for topic in term.group.locked.keys() - term.group.moving:
            del term.group.locked[topic]

    def decide(self, term: Term) -> str:
        """Send what is to be written; what is waited for, if nothing is."""
        if not self.active(term) or not term.read or len(term.learnt) < 2:
            return "not in office"
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
                    ops += [Create(given), Create(state, Topic().encode_state())]
                ops.append(Set(given, encode_assignment(new.assignment), term.versions.get(given, 0)))
                ops.append(Set(state, new.encode_state(), term.versions.get(state, 0)))
            for topic in decision.gone:
                if paths.assignment(topic) in term.versions:
                    ops += [Delete(paths.assignment(topic)), Delete(paths.state(topic))]
            for partition in decision.given if self.has("proof") else ():
                ops += [Create(paths.owner(partition)), Delete(paths.owner(partition))]
        else:
            self._unwatch(term)
            return decision.reason
        self._send(term.process, "lead", ops, term=term, decision=decision)
        return ""

    def change_set(self, term: Term, partitions: frozenset[Partition]) -> None:
        """Partitions have come or gone, and the leader has heard of it."""
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
            term.group.refused(Partition(topic, int(number)))
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
        """At every moment."""
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
        sessions = {node.session: name.rpartition("-")[0] for name, node in self._registered()}
        for name, topic in self.topics.items():
            for number, member in topic.assignment.items():
                holder = sessions.get(self.holder(Partition(name, number)))
                assert holder in {None, member}, f"{name}.{number} was given to {member} before {holder} had closed it"
            assert not topic.to_close.keys() & topic.assignment.keys()
            assert topic.to_start.items() <= topic.assignment.items()

    # -- the end of all faults -----------------------------------------------------------------------------------------

    def calm(self) -> str:
        """No more faults: everybody does what there is to do, until nothing is left. What the leader says then."""
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
                self.take_office(next(iter(self.processes.values())))
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
