"""A little world in which the real rules meet every fault: no tasks, no clock, one step at a time.

Members drive real :class:`Ledger` objects over synthetic logs; whoever is in office drives a real :class:`Leader`; all of them
meet in a :class:`~tests.property.tree.Tree` through the conditional writes of the protocol. Everything that can come between
two steps is a step of its own: what is read is seen later, or twice, or in another order; a write flies, lands or is lost, and
so is its answer; sessions expire, processes crash and start again, anybody takes office at any time, records are appended, the
operator changes his mind, partitions move.

The world watches the invariants itself, at the moment they could break, and raises :class:`Broken`. A rule of the protocol can
be switched off by its name (``World(..., without={"fresh end"})``), to see that the world would notice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from aiokcc.core import paths
from aiokcc.core.leader import Advance, Leader
from aiokcc.core.ledger import Lane, LaneState, Ledger
from aiokcc.core.limit import OPEN, Limit, Mode, Request, RequestKind
from aiokcc.core.partitions import Partition, decode_partitions, encode_partitions
from aiokcc.core.progress import Cut, Mark, Report
from aiokcc.core.run import CUT_SLOTS, Generation, Run, Settings
from aiokcc.errors import CorruptNodeError
from tests.property.tree import Check, Create, Delete, Node, Op, Refused, Set, Tree

__all__ = ["RULES", "Broken", "Member", "World", "Write"]

RULES: Final = frozenset(
    {
        "idle at T",
        "fresh end",
        "sets, not numbers",
        "check of generation",
        "take-over bump",
        "check of period",
        "check of reports",
        "level",
        "unique name",
        "deadline",
        "owner lock",
        "leader applies requests",
        "finished in cut",
        "resume at cut",
        "clamp",
        "monotone",
        "generation in report",
    }
)
NOW: Final = 10**12
ASSIGNMENTS: Final = "assignments"


class Broken(AssertionError):  # noqa: N818 - it is an invariant that is broken
    """An invariant does not hold."""


class CountingLeader(Leader):
    """Without "sets, not numbers": so many entries as there are partitions are enough."""

    def _uncovered(self) -> str | None:
        total = sum(len(report.entries) for report in self.reports.values())
        return None if total + len(self.finished) >= len(self.settings.partitions) else "somebody has not reported"


@dataclass(eq=False)
class Write:
    """A transaction on its way."""

    member: Member
    session: int
    kind: str
    """``report``, ``take`` or ``advance``."""
    ops: Sequence[Op]
    sender: str = ""
    """The incarnation that sent it."""
    generation: int = 0
    """Of the leader that sent it."""
    report: Report | None = None
    decision: Advance | None = None
    landed: bool | None = None
    """Whether it was applied; None while it flies."""
    awaited: bool = True
    """Whether its sender still waits for the answer."""
    version: int = 0
    """Of the generation, for a take-over."""


@dataclass(eq=False)
class Office:
    """What somebody who believes to lead knows."""

    leader: Leader
    generation_version: int
    request_version: int
    versions: dict[str, int] = field(default_factory=dict)
    """Of the reports it has heard."""
    flying: Write | None = None


@dataclass(eq=False)
class Member:
    """One process, whatever becomes of its sessions."""

    name: str
    ledger: Ledger = field(default_factory=Ledger)
    session: int | None = None
    """What it believes; the store may know better."""
    incarnation: str = ""
    positions: dict[Partition, int] = field(default_factory=dict)
    looked: dict[Partition, tuple[Limit, int]] = field(default_factory=dict)
    claimed: set[Partition] = field(default_factory=set)
    """Locks taken, with the limit not read since."""
    inbox: list[Limit] = field(default_factory=list)
    """Limits that were read, and not seen yet."""
    requests: list[Request] = field(default_factory=list)
    wanted: frozenset[Partition] = frozenset()
    written: Report | None = None
    reporting: Write | None = None
    generation_version: int = -1
    overdue: bool = False
    """Past the deadline: by its own clock the session may be over."""
    taking: Write | None = None
    office: Office | None = None


class World:
    """The tree, the logs, the members, and what has happened."""

    def __init__(
        self,
        logs: Mapping[Partition, list[int]],
        assignment: Mapping[Partition, str],
        *,
        period: int = 10,
        start: int | None = 0,
        end: int | None = None,
        lookahead: int = 0,
        bounded: Iterable[Partition] = (),
        without: Iterable[str] = (),
    ) -> None:
        self.without = frozenset(without)
        assert self.without <= RULES
        self.logs = {partition: list(log) for partition, log in logs.items()}
        self.ends: dict[Partition, int | None] = {p: len(log) if p in set(bounded) else None for p, log in logs.items()}
        self.committed: dict[Partition, int] = dict.fromkeys(logs, 0)
        self.processed: dict[Partition, set[int]] = {p: set() for p in logs}
        self.settings = Settings(frozenset(assignment), period, start, end, lookahead)
        self.members = {name: Member(name) for name in sorted(set(assignment.values()))}
        self.writes: list[Write] = []
        self.cuts: list[Cut] = []
        self.in_office = ""
        self._reported: set[tuple[int, str]] = set()
        self.tree = Tree()
        self._incarnations = 0
        limit = Limit.first(start, period, lookahead, end)
        self._ends_at_reign = {p: len(log) for p, log in self.logs.items()}
        found = {
            paths.GENERATION: Generation(0, "-", "founded").encode(),
            paths.RUN: Run(self.settings).encode(),
            paths.COORDINATOR: limit.encode(),
            paths.PERIOD: Request.every(period).encode(),
            paths.TOPIC_PARTITIONS: encode_partitions(assignment),
            ASSIGNMENTS: _encode_assignment(assignment),
            **{paths.cut(n, CUT_SLOTS): b"" for n in range(CUT_SLOTS)},
        }
        self.tree.commit([Create(path, data) for path, data in found.items()], lambda _before, _after: None)

    def has(self, rule: str) -> bool:
        """Whether the rule is in force."""
        assert rule in RULES
        return rule not in self.without

    # -- what stands in the tree ---------------------------------------------------------------------------------------

    @property
    def limit(self) -> Limit:
        """The limit in the store."""
        return Limit.decode("coordinator", self.tree.read(paths.COORDINATOR).data)

    @property
    def request(self) -> Request:
        """The operator's request in the store."""
        return Request.decode("period", self.tree.read(paths.PERIOD).data)

    @property
    def generation(self) -> Generation:
        """The fence in the store."""
        return Generation.decode("generation", self.tree.read(paths.GENERATION).data)

    @property
    def agreed(self) -> frozenset[Partition]:
        """The agreed set in the store."""
        return decode_partitions("topic-partitions", self.tree.read(paths.TOPIC_PARTITIONS).data)

    @property
    def assignment(self) -> dict[Partition, str]:
        """Who shall run what, by the store."""
        return {Partition.parse(p): name for p, name in json.loads(self.tree.read(ASSIGNMENTS).data).items()}

    def last_cut(self) -> Cut | None:
        """The newest cut in the ring."""
        found = [Cut.decode("cut", self.tree.read(paths.cut(n, CUT_SLOTS)).data) for n in range(CUT_SLOTS)]
        return max((cut for cut in found if cut is not None), key=lambda cut: cut.number, default=None)

    def reports(self) -> dict[str, Report]:
        """All reports in the store."""
        found = {n: Report.decode(n, self.tree.read(paths.progress(n)).data) for n in self.tree.under(paths.PROGRESS)}
        return {name: report for name, report in found.items() if report is not None}

    # -- sessions and processes ----------------------------------------------------------------------------------------

    def join(self, m: Member) -> None:
        """A new session: a new incarnation, which registers and reads what stands."""
        if m.session is not None:
            return
        m.session = self.tree.connect()
        self._incarnations += 1
        m.incarnation = f"{m.name}-{self._incarnations}" if self.has("unique name") else f"{m.name}-0"
        try:
            self._commit(Create(paths.progress(m.incarnation), b"", m.session))
        except Refused:  # our own old node, under a name that is not unique: it will do
            assert not self.has("unique name")
        m.written = m.reporting = m.taking = m.office = None
        m.generation_version = -1
        m.overdue = False
        m.claimed.clear()
        self.see_generation(m)
        m.ledger.see(self.limit)

    def expire(self, m: Member) -> None:
        """The store ends the session. By then the member's own clock is past the deadline: that much is certain."""
        if m.session is not None:
            m.overdue = True
            self.tree.expire(m.session)

    def stall(self, m: Member) -> None:
        """No answer for too long: the deadline passes, though the session may live on."""
        m.overdue = m.overdue or m.session is not None

    def answer(self, m: Member) -> None:
        """The store answers: the deadline is lifted, or the session is known to be over."""
        if m.session is None:
            return
        if m.session in self.tree.sessions:
            m.overdue = False
            return
        m.session = None
        m.overdue = False
        m.written = m.reporting = m.taking = m.office = None
        m.claimed.clear()
        m.ledger.lose()

    def crash(self, m: Member) -> None:
        """The process is gone with all it knew; its session lingers until it expires."""
        fresh = Member(m.name)
        self.members[m.name] = fresh
        for write in self.writes:
            if write.member is m:
                write.awaited = False

    # -- what a member sees --------------------------------------------------------------------------------------------

    def read_limit(self, m: Member) -> None:
        """The limit is read; it is seen whenever it is seen."""
        m.inbox.append(self.limit)

    def see_limit(self, m: Member, n: int = 0, *, keep: bool = False) -> None:
        """One of the limits that were read arrives; ``keep``: and will arrive once more."""
        if m.inbox:
            n %= len(m.inbox)
            m.ledger.see(m.inbox[n] if keep else m.inbox.pop(n))

    def see_generation(self, m: Member) -> None:
        """The present generation arrives."""
        node = self.tree.read(paths.GENERATION)
        if m.session is not None and node.version > m.generation_version:
            m.generation_version = node.version
            m.ledger.generation = self.generation.number
        if m.office is not None and m.ledger.generation != m.office.leader.generation:
            m.office = None  # somebody else has taken over, or we have ourselves, without knowing it yet

    def see_assignment(self, m: Member) -> None:
        """The present assignment arrives: what is no longer ours is given up, what is new is wanted."""
        m.wanted = frozenset(p for p, name in self.assignment.items() if name == m.name)
        for partition in [p for p in m.ledger.lanes if p not in m.wanted]:
            self._give_up(m, partition)
        for partition in m.wanted:
            if partition not in m.ledger.lanes:
                m.ledger.add(partition)

    def _give_up(self, m: Member, partition: Partition) -> None:
        """Stop, commit; then the report without it and the end of the lock, in one transaction."""
        if m.ledger.lanes[partition].owned and partition in m.positions:
            self.commit(m, partition)
        m.ledger.drop(partition)
        m.positions.pop(partition, None)
        m.looked.pop(partition, None)
        m.claimed.discard(partition)
        lock = self.tree.get(paths.owner(partition))
        if lock is not None and lock.session == m.session:
            report = m.ledger.report(even_running=True)
            content = b"" if report is None else report.encode()
            self._overtake(m)
            self._commit(Set(paths.progress(m.incarnation), content), Delete(paths.owner(partition)))
            m.written = report

    def claim(self, m: Member) -> None:
        """Take the locks of all partitions that are wanted and free."""
        if m.session is None or m.session not in self.tree.sessions:
            return
        for partition, lane in m.ledger.lanes.items():
            if lane.owned or partition in m.claimed:
                continue
            lock = self.tree.get(paths.owner(partition))
            ours = lock is not None and lock.session == m.session
            if not ours:
                check = Check(paths.GENERATION, m.generation_version)
                try:
                    self._commit(check, Create(paths.owner(partition), m.incarnation.encode(), m.session))
                except Refused:
                    if self.has("owner lock"):
                        continue
            m.claimed.add(partition)

    def start(self, m: Member) -> None:
        """Read limit and cut after the claim, and go on from there."""
        if m.session not in self.tree.sessions:
            return
        cut = self.last_cut()
        m.ledger.see(self.limit)
        if cut is not None:
            m.ledger.closed(cut.limit)
        for partition in sorted(m.claimed):
            mark = None if cut is None else cut.find(partition)
            closed = (mark.offset or 0) if mark is not None and self.has("resume at cut") else 0
            begin = max(self.committed[partition], closed)
            if begin > m.positions.get(partition, -1):
                m.positions[partition] = begin
                m.looked.pop(partition, None)
                m.ledger.drop(partition)
                m.ledger.add(partition)
        m.ledger.claim(m.claimed)
        m.claimed.clear()

    # -- what a member does --------------------------------------------------------------------------------------------

    def lane(self, m: Member, partition: Partition) -> Lane | None:
        """The member's lane, if it may still bring something."""
        lane = m.ledger.lanes.get(partition)
        return None if lane is None or lane.state is LaneState.FINISHED or partition not in m.positions else lane

    def handle(self, m: Member, partition: Partition) -> bool:
        """The next record comes to the gate. True: it passed and was processed."""
        lane = self.lane(m, partition)
        if lane is None or (m.overdue and self.has("deadline")):
            return False
        offset, log, end = m.positions[partition], self.logs[partition], self.ends[partition]
        if offset >= len(log) or (end is not None and offset >= end):
            return False
        if not m.ledger.approach(lane, log[offset], offset):
            return False
        self._check_start(m, partition, offset)
        self.processed[partition].add(offset)
        m.positions[partition] = offset + 1
        return True

    def give_up_waiting(self, m: Member, partition: Partition) -> None:
        """The task that waits at the gate is cancelled."""
        lane = self.lane(m, partition)
        if lane is not None:
            m.ledger.resume(lane)

    def look(self, m: Member, partition: Partition) -> None:
        """Look up the end of the log, under the limit seen by now."""
        if self.lane(m, partition) is not None:
            m.looked[partition] = (m.ledger.limit, len(self.logs[partition]))

    def idle(self, m: Member, partition: Partition) -> None:
        """Say idle, by the last look."""
        lane, looked = self.lane(m, partition), m.looked.get(partition)
        if lane is None or looked is None or m.positions[partition] < looked[1]:
            return
        m.ledger.idle(lane, looked[0] if self.has("fresh end") else m.ledger.limit, m.positions[partition])

    def finish(self, m: Member, partition: Partition) -> None:
        """Say finished, at the end that the run has for this partition."""
        lane, end = self.lane(m, partition), self.ends[partition]
        if lane is not None and end is not None and m.positions[partition] >= end:
            m.ledger.finish(lane, m.positions[partition])

    def commit(self, m: Member, partition: Partition) -> None:
        """Commit what was processed, but no further than where the floor was crossed."""
        lane = m.ledger.lanes.get(partition)
        if lane is None or not lane.owned or m.session not in self.tree.sessions:
            return
        offset = m.positions[partition]
        crossing = lane.crossings.get(m.ledger.limit.floor)
        if self.has("clamp") and crossing is not None and crossing[1] is not None:
            offset = min(offset, crossing[1])
        self.committed[partition] = max(self.committed[partition], offset)

    def report(self, m: Member) -> Write | None:
        """Send the report, if it says something new."""
        if m.session is None or m.overdue or m.reporting is not None:
            return None
        report = m.ledger.report()
        if report is None:
            return None
        once = m.written is None or m.written.limit != report.limit
        if not (report.supersedes(m.written) if self.has("level") else once):
            return None
        m.reporting = self._send(m, "report", [Set(paths.progress(m.incarnation), report.encode())], report=report)
        return m.reporting

    # -- writes fly, land, and are answered, or not ----------------------------------------------------------------------

    def _send(self, m: Member, kind: str, ops: Sequence[Op], **facts: object) -> Write:
        assert m.session is not None
        write = Write(m, m.session, kind, ops, m.incarnation, **facts)  # type: ignore[arg-type]
        self.writes.append(write)
        return write

    def _overtake(self, m: Member, until: Write | None = None) -> None:
        """What one session sends arrives in order: a write that lands later than one sent after it never lands."""
        for write in list(self.writes):
            if write is until:
                break
            if write.session == m.session and write.landed is None:
                self.lose(write)

    def land(self, write: Write) -> bool:
        """The write reaches the store: applied or refused."""
        assert write.landed is None
        if write.session == write.member.session:
            self._overtake(write.member, write)
        try:
            self._commit(*write.ops, writer=write)
        except Refused:
            write.landed = False
        else:
            write.landed = True
            write.version = self.tree.read(paths.GENERATION).version
        if not write.awaited:
            self.writes.remove(write)
        return write.landed

    def lose(self, write: Write) -> None:
        """The write never arrives. Its sender learns only that nobody knows."""
        self.forget(write)
        if write in self.writes:
            self.writes.remove(write)

    def forget(self, write: Write) -> None:
        """The answer is lost, and perhaps comes before the write: it may still land."""
        if write.awaited:
            write.awaited = False
            if write.landed is not None:
                self.writes.remove(write)
            if write.member.session == write.session:
                self._unknown(write.member, write)

    def reply(self, write: Write) -> None:
        """The answer arrives, if the write has landed."""
        if write.landed is None:
            return
        self.writes.remove(write)
        m = write.member
        if not write.awaited or m.session != write.session:
            return
        write.awaited = False
        if not write.landed:
            self._unknown(m, write)
        elif write.kind == "report":
            m.reporting, m.written = None, write.report
        elif write.kind == "take":
            self._enter_office(m, write)
        elif m.office is not None and m.office.flying is write:
            assert write.decision is not None
            m.office.flying = None
            m.office.leader.advanced(write.decision)
            if write.report is not None:
                m.written = write.report
            m.ledger.see(write.decision.limit)

    def _unknown(self, m: Member, write: Write) -> None:
        if write.kind == "report":
            m.reporting = None
            m.written = None if self.has("level") else write.report
            gone = self.tree.get(paths.progress(m.incarnation)) is None
            if gone and self.has("level") and m.session in self.tree.sessions:  # so that the next one has where to go
                self._commit(Create(paths.progress(m.incarnation), b"", m.session))
        elif write.kind == "take":
            m.taking = None
        elif m.office is not None and m.office.flying is write:
            m.office.flying = None
            if self.has("level"):
                m.written = None
            self.read_again(m)

    # -- the leader ----------------------------------------------------------------------------------------------------

    def take_office(self, m: Member) -> Write | None:
        """Whoever wants to: bump the generation at the version read."""
        if m.session is None or m.overdue or m.taking is not None:
            return None
        node = self.tree.read(paths.GENERATION)
        if not self.has("take-over bump"):
            self.in_office = m.incarnation
            self._enter_office(
                m, Write(m, m.session, "take", [], version=node.version, generation=self.generation.number)
            )
            return None
        mine = Generation(self.generation.number + 1, m.incarnation, "took office")
        ops = [Set(paths.GENERATION, mine.encode(), node.version)]
        m.taking = self._send(m, "take", ops, generation=mine.number)
        return m.taking

    def _enter_office(self, m: Member, write: Write) -> None:
        m.taking = None
        limit, request = self.tree.read(paths.COORDINATOR), self.tree.read(paths.PERIOD)
        cut = self.last_cut()
        kind = Leader if self.has("sets, not numbers") else CountingLeader
        leader = kind(
            replace(self.settings, partitions=self.agreed),
            write.generation,
            self.limit,
            limit.version,
            self.request,
            closed=(self.settings.start or 0) if cut is None else cut.limit,
            finished={} if cut is None or not self.has("finished in cut") else cut.finished(),
        )
        m.office = Office(leader, write.version, request.version)
        m.ledger.see(self.limit)
        self.see_generation(m)

    def read_again(self, m: Member) -> None:
        """After an unknown outcome: find out what stands now."""
        office = m.office
        if office is None or office.flying is not None:
            return
        if self.tree.read(paths.GENERATION).version != office.generation_version:
            m.office = None
            return
        reports, versions = office.leader.reports, office.versions
        generation = office.leader.generation
        self._enter_office(m, Write(m, 0, "take", [], version=office.generation_version, generation=generation))
        if m.office is not None:
            m.office.leader.reports, m.office.versions = reports, versions

    def hear(self, m: Member, name: str) -> None:
        """The leader reads one report, or learns that it is gone."""
        if m.office is None:
            return
        node = self.tree.get(paths.progress(name))
        report = None if node is None else Report.decode(name, node.data)
        if report is None:
            m.office.leader.reports.pop(name, None)
        elif node is not None:
            m.office.leader.reports[name] = report
            m.office.versions[name] = node.version

    def hear_request(self, m: Member) -> None:
        """The leader reads the operator's request."""
        if m.office is not None:
            m.office.leader.request = self.request
            m.office.request_version = self.tree.read(paths.PERIOD).version

    def decide(self, m: Member) -> Write | None:
        """The leader decides by what it knows, and sends what it decided."""
        office = m.office
        if office is None or office.flying is not None or m.session is None or m.overdue:
            return None
        leader = office.leader
        own = m.ledger.report()
        if own is None or own.generation != leader.generation:
            leader.reports.pop(m.incarnation, None)
            own = None
        else:
            leader.reports[m.incarnation] = own
        if not self.has("finished in cut"):
            leader.finished = {}
        decision = self._believing(leader).decide(NOW)
        if not isinstance(decision, Advance):
            return None
        if not self.has("monotone") and decision.limit.mode is Mode.GATED and leader.request is not None:
            least = min(report.minimum for report in leader.reports.values() if report.minimum is not None)
            anew = Limit.first(least, leader.request.period, self.settings.lookahead, self.settings.end)
            decision = replace(decision, limit=anew)
        ops: list[Op] = [Set(paths.COORDINATOR, decision.limit.encode(), leader.version)]
        if self.has("check of generation") and self.has("take-over bump"):
            ops.append(Check(paths.GENERATION, office.generation_version))
        if self.has("check of period"):
            ops.append(Check(paths.PERIOD, office.request_version))
        if decision.cut is not None:
            ops.append(Set(paths.cut(leader.version + 1, CUT_SLOTS), decision.cut.encode()))
            others = [name for name in leader.reports if name != m.incarnation] if self.has("check of reports") else []
            ops += [Check(paths.progress(name), office.versions[name]) for name in others]
        if own is not None:
            ops.append(Set(paths.progress(m.incarnation), own.encode()))
        if decision.limit.mode is Mode.END:
            ops.append(Set(paths.RUN, Run(self.settings, ended=True).encode()))
        facts = {"generation": leader.generation, "report": own, "decision": decision}
        office.flying = self._send(m, "advance", ops, **facts)
        return office.flying

    def _believing(self, leader: Leader) -> Leader:
        """The leader as it is, or one that believes more than it should."""
        if self.has("idle at T") and self.has("generation in report"):
            return leader
        reports = leader.reports
        if not self.has("idle at T"):
            reports = {name: replace(report, limit=leader.limit.floor) for name, report in reports.items()}
        if not self.has("generation in report"):
            reports = {name: replace(report, generation=leader.generation) for name, report in reports.items()}
        return replace(leader, reports=reports)

    def assign(self, m: Member, partition: Partition, name: str) -> bool:
        """The leader gives a partition to a member; a new partition joins the set by it. In one transaction with the fence."""
        office = m.office
        if office is None or office.flying is not None or m.session is None:
            return False
        if office.leader.limit.mode is not Mode.GATED:
            return False
        self._overtake(m)
        generation = Generation(office.leader.generation + 1, m.incarnation, f"{partition} to {name}")
        assignment = {**self.assignment, partition: name}
        try:
            self._commit(
                Set(paths.GENERATION, generation.encode(), office.generation_version),
                Set(paths.TOPIC_PARTITIONS, encode_partitions(assignment)),
                Set(ASSIGNMENTS, _encode_assignment(assignment)),
            )
        except Refused:
            self.read_again(m)
            return False
        self._ends_at_reign.setdefault(partition, len(self.logs[partition]))
        office.leader.generation += 1
        office.generation_version += 1
        office.leader = replace(
            office.leader, settings=replace(self.settings, partitions=self.agreed), _names=None, _templates={}
        )
        return True

    # -- the operator, and the world outside -----------------------------------------------------------------------------

    def ask(self, request: Request) -> None:
        """The operator writes a request."""
        self._commit(Set(paths.PERIOD, request.encode()))

    def watch_request(self, m: Member) -> None:
        """Without "leader applies requests": a member reads the request itself…"""
        m.requests.append(self.request)

    def obey(self, m: Member) -> None:
        """… and acts on it, whenever it arrives."""
        if m.requests and m.requests.pop(0).kind is RequestKind.OFF and not self.has("leader applies requests"):
            m.ledger.see(OPEN)

    def append(self, partition: Partition, ts: int) -> None:
        """A record arrives in the log."""
        self.logs[partition].append(ts)

    # -- the invariants ------------------------------------------------------------------------------------------------

    def _commit(self, *ops: Op, writer: Write | None = None) -> None:
        self.tree.commit(ops, lambda before, after: self._witness(before, after, writer))

    def _witness(self, before: dict[str, Node], after: dict[str, Node], writer: Write | None) -> None:
        if paths.COORDINATOR not in before:
            return
        if before[paths.GENERATION] != after[paths.GENERATION]:
            self.in_office = Generation.decode("g", after[paths.GENERATION].data).leader
        for path, node in after.items():
            if path.startswith(f"{paths.PROGRESS}/") and before.get(path) != node:
                report = Report.decode(path, node.data)
                if report is not None and not report.running:
                    self._reported |= {(report.generation, name) for name in report.entries}
        if before[paths.COORDINATOR] != after[paths.COORDINATOR]:
            assert writer is not None
            old = Limit.decode("c", before[paths.COORDINATOR].data)
            new = Limit.decode("c", after[paths.COORDINATOR].data)
            self._check_monotone(old, new)
            assert writer.decision is not None
            if writer.decision.cut is not None:
                cut = self._check_cut(writer.decision.cut, writer.generation, old, new)
                self.cuts.append(cut)
            self._check_writer(writer, Request.decode("p", before[paths.PERIOD].data))
            self._ends_at_reign = {p: len(log) for p, log in self.logs.items()}

    def _check_writer(self, writer: Write, request: Request) -> None:
        if writer.sender != self.in_office or writer.generation != self.generation.number:
            was, now = (
                f"{writer.sender} of generation {writer.generation}",
                f"{self.in_office} of {self.generation.number}",
            )
            raise Broken(f"one writer: an advance of {was} landed after {now} took over")
        if request.kind is RequestKind.HOLD:
            raise Broken("hold was acknowledged, and the limit moved")

    def _check_monotone(self, old: Limit, new: Limit) -> None:
        if not old.precedes(new):
            raise Broken(f"monotony: {old} became {new}")
        if new.mode is Mode.GATED and (new.floor <= old.floor or new.value < old.value):
            raise Broken(f"monotony: {old} became {new}")

    def _check_cut(self, text: str, generation: int, old: Limit, new: Limit) -> Cut:
        floor, last = old.floor, self.cuts[-1] if self.cuts else None
        try:
            cut = Cut.decode("cut", text.encode())
        except CorruptNodeError as error:
            raise Broken(f"completeness: {error}") from None
        assert cut is not None
        if cut.limit != floor or cut.previous != ((self.settings.start or 0) if last is None else last.limit):
            raise Broken(f"cuts tile: {cut} does not follow {last}")
        if set(cut.owners()) != self.agreed:
            raise Broken(f"completeness: the cut holds {sorted(cut.owners())} and not {sorted(self.agreed)}")
        for partition in self.agreed:
            mark, before = cut.find(partition), None if last is None else last.find(partition)
            assert mark is not None
            if before is not None and (before.offset or 0) > (mark.offset or 0):
                raise Broken(f"cuts tile: {partition} goes back from {before} to {mark}")
            gone = before is not None and before.finished
            if (generation, str(partition)) not in self._reported and not gone:
                raise Broken(f"completeness: {partition} was not reported under the generation {generation}")
            self._check_mark(partition, mark, floor, new)
        return cut

    def _check_mark(self, partition: Partition, mark: Mark, floor: int, new: Limit) -> None:
        log, at, end = self.logs[partition], mark.offset, self.ends[partition]
        assert at is not None
        where = f"the limit {floor} closed with {partition} at {at} of {log}"
        if not set(range(at)) <= self.processed[partition]:
            raise Broken(f"completeness: {where}, and only {sorted(self.processed[partition])} were processed")
        if any(ts >= floor for ts in log[:at]):
            raise Broken(f"completeness: {where}, which is not the first record past it")
        over = end is not None and at >= end
        past = at < len(log) and log[at] >= floor
        if not (over or past or at >= self._ends_at_reign[partition]):
            raise Broken(f"completeness: {where}, with records left before it")
        if new.mode is Mode.END and not over and not (past and log[at] >= (self.settings.end or 2**63)):
            raise Broken(f"completeness: the run ended with {partition} at {at} of {log}")

    def _check_start(self, m: Member, partition: Partition, offset: int) -> None:
        ts, limit = self.logs[partition][offset], self.limit
        if limit.mode is Mode.GATED and ts >= limit.value:
            raise Broken(f"alignment: {m.name} started {partition}@{offset} with ts {ts} under {limit}")
        lock = self.tree.get(paths.owner(partition))
        if lock is None or lock.session != m.session:
            raise Broken(f"one owner: {m.name} started {partition}@{offset} without holding its lock")
        cut = self.last_cut()
        mark = None if cut is None else cut.find(partition)
        if mark is not None and offset < (mark.offset or 0):
            raise Broken(f"no loss: {partition}@{offset} comes again, behind the last cut at {mark}")

    # -- the end: faults stop ------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether the run has ended, or everything that is left has been processed under an open gate."""
        limit = self.limit
        if limit.mode is Mode.OPEN:
            return all(self._complete(p) for p in self.agreed)
        return limit.mode is Mode.END

    def _complete(self, partition: Partition) -> bool:
        end = self.ends[partition]
        return set(range(len(self.logs[partition]) if end is None else end)) <= self.processed[partition]

    def settle(self, rounds: int = 60) -> None:
        """No more faults, and everybody gets all watches: the run must reach its end in so many rounds."""
        for write in list(self.writes):
            if write.landed is None:
                self.land(write)
            if write in self.writes:
                self.reply(write)
        for partition, end in self.ends.items():
            self.ends[partition] = len(self.logs[partition]) if end is None else end
        if self.request.kind is not RequestKind.OFF:
            self.ask(Request.every(self.settings.period))
        for session in set(self.tree.sessions) - {m.session for m in self.members.values()}:
            self.tree.expire(session)
        for _ in range(rounds):
            if self.over:
                break
            for m in self.members.values():
                self._round(m)
            self._lead()
        else:
            raise Broken(f"liveness: still at {self.limit} after {rounds} rounds; {self.reports()}")
        if self.limit.mode is Mode.END and self.settings.end is None:
            for partition in self.agreed:
                if not self._complete(partition):
                    raise Broken(f"no loss: {partition} was not processed to its end")

    def _round(self, m: Member) -> None:
        self.answer(m)
        self.join(m)
        self.see_generation(m)
        m.ledger.see(self.limit)
        self.see_assignment(m)
        self.claim(m)
        self.start(m)
        for partition in m.ledger.lanes:
            while self.handle(m, partition):
                pass
            self.finish(m, partition)
        write = self.report(m)
        if write is not None:
            self.land(write)
            self.reply(write)

    def _lead(self) -> None:
        leading = [m for m in self.members.values() if m.office is not None]
        m = leading[0] if leading else next(iter(self.members.values()))
        if m.office is None:
            write = self.take_office(m)
            if write is not None:
                self.land(write)
                self.reply(write)
        if m.office is None:
            return
        for name in set(self.tree.under(paths.PROGRESS)) | set(m.office.leader.reports):
            self.hear(m, name)
        self.hear_request(m)
        write = self.decide(m)
        if write is not None:
            self.land(write)
            self.reply(write)


def _encode_assignment(assignment: Mapping[Partition, str]) -> bytes:
    return json.dumps({str(p): name for p, name in sorted(assignment.items())}).encode()
