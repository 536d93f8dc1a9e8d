"""The members of the group model: processes, their sessions, writes in flight, and what members see and do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aiokcc.core import paths
from aiokcc.core.assignments import TopicAssignment, decode_assignment
from aiokcc.core.group_settings import GroupSettings
from aiokcc.core.partitions import Partition, decode_partitions, encode_partitions
from aiokcc.core.rebalance import Reassign, RebalanceMachine, Settle
from aiokcc.core.subscriptions import Registration, Subscription
from tests.property.tree import Check, Create, Delete, Node, Op, Refused, Set, Tree

__all__ = ["RULES", "GroupMembers", "Process", "Term", "Write"]

RULES = ("proof", "assignment in claim", "deadline", "take-over", "set after claim")


@dataclass(eq=False)
class Write:
    """A transaction in flight."""

    process: Process
    session: int
    kind: str
    ops: Sequence[Op]
    term: Term | None = None
    decision: Reassign | Settle | None = None
    partitions: frozenset[Partition] = frozenset()
    answer: str | None = None
    """The place at which it was refused, or nothing; None while it is under way."""


@dataclass(eq=False)
class Process:
    """A member while its process lives, over many sessions."""

    name: str
    wants: Subscription
    session: int | None = None
    member_session: str = ""
    frozen: bool = False
    suspended: bool = False
    """True past its deadline: it starts nothing until the store has answered."""
    generation: int = -1
    agreed: frozenset[Partition] = frozenset()
    seen: dict[str, tuple[int, frozenset[Partition]]] = field(default_factory=dict)
    opened: set[Partition] = field(default_factory=set)
    """The partitions that it has tried to claim and not released: it may hold these, whether it knows or not."""
    running: dict[Partition, int] = field(default_factory=dict)
    drained: dict[Partition, int] = field(default_factory=dict)
    """The partitions that have ended, and whose offsets are committed before the lock is released."""
    term: Term | None = None

    @property
    def connected(self) -> bool:
        return self.session is not None and not self.frozen and not self.suspended

    @property
    def mine(self) -> frozenset[Partition] | None:
        """Return what is assigned to it, as far as it knows; None while it has not read all of it."""
        if not {p.topic for p in self.agreed} <= self.seen.keys():
            return None
        return frozenset(p for _, part in self.seen.values() for p in part) & self.agreed

    @property
    def whole(self) -> frozenset[Partition]:
        """Return what a driver's pipeline runs, as far as it knows. The driver starts with all of that or not at all."""
        return frozenset(filter(self.wants.covers, self.agreed))


@dataclass(eq=False)
class Term:
    """A leader in its term, or a deposed one that does not know it."""

    process: Process
    session: int
    number: int
    version: int
    """The version of the generation."""
    group: RebalanceMachine
    read: bool = False
    learnt: set[str] = field(default_factory=set)
    versions: dict[str, int] = field(default_factory=dict)
    """The versions of the nodes, by path."""
    locks_read: list[tuple[str, frozenset[int]]] = field(default_factory=list)
    """The locks that were read, and are not learnt yet."""


class GroupMembers:
    """The tree, the processes, and the history so far."""

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
        self.sessions_opened = 0
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
    def topics(self) -> dict[str, TopicAssignment]:
        return {
            topic: TopicAssignment.decode(
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
        """Start a process, which may have run before. It is refused while a living process has its name."""
        if name not in self.processes:
            self.processes[name] = Process(name, wants)
            self.connect(self.processes[name])

    def connect(self, process: Process) -> None:
        """Open a new session: a new member session, which knows nothing and holds nothing."""
        self.sessions_opened += 1
        process.session = self.tree.connect()
        process.member_session = f"{process.name}-{self.sessions_opened}"
        process.suspended = False
        process.generation = -1
        for kept in (process.seen, process.opened, process.running, process.drained):
            kept.clear()
        process.term = None
        registration = Registration(process.member_session, process.wants, 0, "here")
        self._commit(Create(paths.member(process.member_session), registration.encode(), process.session))

    def kill(self, process: Process) -> None:
        """Kill a process. Only its writes in flight may still arrive; the store notices later."""
        del self.processes[process.name]
        if process.session is not None:
            self.orphans.add(process.session)
            process.session = None

    def leave(self, process: Process) -> None:
        """Leave in good order: everything is drained and committed before the session is closed."""
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
        """Let the deadline pass without an answer: the process stops by itself, before the store can end its session."""
        if process.session is not None:
            process.suspended = True

    def freeze(self, process: Process) -> None:
        process.frozen = True

    def thaw(self, process: Process) -> None:
        """Continue a frozen process. If its session has ended meanwhile, its deadline has passed as well."""
        process.frozen = False
        if self.has("deadline") and process.session not in self.tree.sessions:
            process.suspended = True

    def expire(self, process: Process) -> None:
        """End the session of a process that is frozen, or has stopped by itself."""
        if process.session is not None and (process.frozen or process.suspended or not self.has("deadline")):
            self.tree.expire(process.session)

    def expire_orphan(self, session: int) -> None:
        self.orphans.discard(session)
        self.tree.expire(session)

    def reconnect(self, process: Process) -> None:
        """Let the store answer: the session continues, or it is lost and a new one begins."""
        if process.frozen or not process.suspended:
            return
        if process.session in self.tree.sessions:
            process.suspended = False
        else:
            self.connect(process)

    # -- writes fly, land, and are answered, or not --------------------------------------------------------------------

    def busy(self, process: Process) -> bool:
        """Return whether a write is in flight: a session's requests are served in order, so it reads nothing newer."""
        return any(write.process is process and write.session == process.session for write in self.writes)

    def _send(self, process: Process, kind: str, ops: Sequence[Op], **facts: object) -> None:
        assert process.session is not None
        assert process.session in self.tree.sessions or not self.has("deadline")
        self.sent += 1
        self.writes.append(Write(process, process.session, kind, tuple(ops), **facts))  # type: ignore[arg-type]

    def land(self, write: Write) -> None:
        """Let a write reach the store, if its session still exists."""
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
        """Lose a write or its answer. The connection is lost with it, but not the session."""
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
        """Return whether no older session has its name: until then it takes part in nothing."""
        others = [name for name in self.tree.under(paths.IDS) if name.rpartition("-")[0] == process.name]
        return others == [process.member_session]

    def follow(self, process: Process) -> None:
        """Take the next step towards the assignment: first release what is no longer ours, then claim what is new."""
        mine = process.mine
        if not process.connected or self.busy(process) or not self.alone(process) or mine is None:
            return
        gone = frozenset(process.opened - mine)
        if process.wants.pipeline is not None and (gone or not (process.running or process.whole <= mine)):
            gone, mine = frozenset(process.opened), frozenset()  # whatever is taken away, all of it stops
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
        held = [p for p in sorted(write.partitions) if self.holder(p) == process.session]
        if process.wants.pipeline is not None and not process.running and self.has("set after claim"):
            self.see_agreed(process)  # it has the locks; now it looks whether that is still all there is
            if not process.whole <= set(held):
                return
        for partition in held:
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
        """Start and handle a record."""
        if process.session is None or process.frozen or process.suspended or partition not in process.running:
            return
        process.running[partition] += 1
        self.handled[partition] = max(self.handled.get(partition, 0), process.running[partition])

    def _leader_answered(self, term: Term, write: Write, *, lost: bool) -> None:
        raise NotImplementedError
