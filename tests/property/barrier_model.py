"""A model of the barrier: the real rules of the core under every fault, without tasks or a clock, one step at a time.

Members drive real :class:`MemberProgress` objects over synthetic logs; whoever leads drives a real :class:`Leader`; all of
them meet in a :class:`~tests.property.tree.Tree` through the conditional writes of the protocol. Everything that can come
between two steps is a step of its own: what is read is seen later, or twice, or in another order; a write is sent, applied or
lost, and so is its answer; sessions expire, processes crash and start again, any member takes over at any time, records are
appended, the operator changes the request, partitions move.

The model checks the invariants in the step in which they could break, and raises :class:`Broken`. A rule of the protocol can be
switched off by its name (``BarrierModel(..., without={"fresh end"})``), to show that the model notices.

:mod:`tests.property.barrier_actors` has the members, leader terms and writes, :mod:`tests.property.barrier_store` the content
of the store and the invariants, :mod:`tests.property.barrier_members` what members see and do. This module has the writes in
flight, the leader, the operator, and the end of all faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aiokcc.core import paths
from aiokcc.core.announcement import Announcement
from aiokcc.core.leader import Advance, Leader
from aiokcc.core.limit import OPEN, Limit, Mode, Request, RequestKind
from aiokcc.core.partitions import Partition, encode_partitions
from aiokcc.core.report import Report
from aiokcc.core.run import CUT_SLOTS, Generation, Run
from tests.property.barrier_actors import NOW, RULES, Broken, CountingLeader, LeaderTerm, Member, Write
from tests.property.barrier_members import BarrierMembers
from tests.property.barrier_store import ASSIGNMENTS, encode_assignment
from tests.property.tree import Check, Create, Op, Refused, Set

__all__ = ["RULES", "BarrierModel", "Broken", "Member", "Write"]


class BarrierModel(BarrierMembers):
    """The tree, the logs, the members, and the history so far."""

    # -- writes fly, land, and are answered, or not ----------------------------------------------------------------------

    def _send(self, m: Member, kind: str, ops: Sequence[Op], **facts: object) -> Write:
        assert m.session is not None
        write = Write(m, m.session, kind, ops, m.member_session, **facts)  # type: ignore[arg-type]
        self.writes.append(write)
        return write

    def _overtake(self, m: Member, until: Write | None = None) -> None:
        """Drop earlier writes of the same session: what one session sends arrives in order, so they never arrive any more."""
        for write in list(self.writes):
            if write is until:
                break
            if write.session == m.session and write.landed is None:
                self.lose(write)

    def land(self, write: Write) -> bool:
        """Let the write reach the store, which applies or refuses it."""
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
        if write.announcement and self.tree.get(write.announcement) is None:
            self._commit(Create(write.announcement))
        if not write.awaited:
            self.writes.remove(write)
        return write.landed

    def lose(self, write: Write) -> None:
        """Lose the write. Its sender learns only that the outcome is unknown."""
        self.forget(write)
        if write in self.writes:
            self.writes.remove(write)

    def forget(self, write: Write) -> None:
        """Lose the answer, perhaps before the write: that may still arrive."""
        if write.awaited:
            write.awaited = False
            if write.landed is not None:
                self.writes.remove(write)
            if write.member.session == write.session:
                self._unknown(write.member, write)

    def reply(self, write: Write) -> None:
        """Let the answer arrive, if the write has arrived."""
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
            self._begin_term(m, write)
        elif m.term is not None and m.term.flying is write:
            assert write.decision is not None
            m.term.flying = None
            m.term.leader.advanced(write.decision)
            self.see(m, write.decision.limit, m.term.leader.version)

    def _unknown(self, m: Member, write: Write) -> None:
        if write.kind == "report":
            m.reporting = None
            m.written = None if self.has("level") else write.report
            gone = self.tree.get(paths.progress(m.member_session)) is None
            if gone and self.has("level") and m.session in self.tree.sessions:  # so that the next one has where to go
                self._commit(Create(paths.progress(m.member_session), b"", m.session))
        elif write.kind == "take":
            m.taking = None
        elif m.term is not None and m.term.flying is write:
            m.term.flying = None
            if self.has("level"):
                m.written = None
            self.read_again(m)

    # -- the leader ----------------------------------------------------------------------------------------------------

    def take_over(self, m: Member) -> Write | None:
        """Let a member take over: it increments the generation at the version that it read."""
        if m.session is None or m.overdue or m.taking is not None:
            return None
        node = self.tree.read(paths.GENERATION)
        if not self.has("take-over bump"):
            self.leading_session = m.member_session
            self._begin_term(
                m, Write(m, m.session, "take", [], version=node.version, generation=self.generation.number)
            )
            return None
        mine = Generation(self.generation.number + 1, m.member_session, "took office")
        ops = [Set(paths.GENERATION, mine.encode(), node.version)]
        m.taking = self._send(m, "take", ops, generation=mine.number)
        return m.taking

    def _begin_term(self, m: Member, write: Write) -> None:
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
        m.term = LeaderTerm(leader, write.version, request.version)
        self.see(m)
        self.see_generation(m)

    def read_again(self, m: Member) -> None:
        """Read the present state, after an unknown outcome."""
        term = m.term
        if term is None or term.flying is not None:
            return
        if self.tree.read(paths.GENERATION).version != term.generation_version:
            m.term = None
            return
        reports, versions = term.leader.reports, term.versions
        generation = term.leader.generation
        self._begin_term(m, Write(m, 0, "take", [], version=term.generation_version, generation=generation))
        if m.term is not None:
            m.term.leader.reports, m.term.versions = reports, versions

    def hear(self, m: Member, name: str) -> None:
        """Let the leader read one report, or learn that it is deleted."""
        if m.term is None:
            return
        node = self.tree.get(paths.progress(name))
        before = m.term.leader.reports.get(name)
        report = None if node is None else Report.decode(name, node.data, before)
        if report is None:
            m.term.leader.reports.pop(name, None)
        elif node is not None:
            m.term.leader.reports[name] = report
            m.term.versions[name] = node.version

    def hear_request(self, m: Member) -> None:
        """Let the leader read the operator's request."""
        if m.term is not None:
            m.term.leader.request = self.request
            m.term.request_version = self.tree.read(paths.PERIOD).version

    def decide(self, m: Member) -> Write | None:
        """Let the leader decide by what it knows, and send what it decided."""
        term = m.term
        if term is None or term.flying is not None or m.session is None or m.overdue:
            return None
        leader = term.leader
        own = m.progress.report()
        if own is None or own.generation != leader.generation:
            leader.reports.pop(m.member_session, None)
            own = None
        else:
            leader.reports[m.member_session] = own
        if not self.has("finished in cut"):
            leader.finished = {}
        decision = self._believing(leader).decide(NOW)
        if not isinstance(decision, Advance):
            return None
        if not self.has("monotone") and decision.limit.mode is Mode.GATED and leader.request is not None:
            least = min(report.minimum for report in leader.reports.values() if report.minimum is not None)
            anew = Limit.first(least, leader.request.period, self.settings.lookahead, self.settings.end)
            decision = replace(decision, steps=(decision.steps[0]._replace(limit=anew),))
        numbered = list(enumerate(decision.steps, leader.version))
        ops: list[Op] = [Set(paths.COORDINATOR, step.limit.encode(), version) for version, step in numbered]
        if self.has("check of generation") and self.has("take-over bump"):
            ops.append(Check(paths.GENERATION, term.generation_version))
        if self.has("check of period"):
            ops.append(Check(paths.PERIOD, term.request_version))
        if decision.closes:
            ops += [Set(paths.cut(n + 1, CUT_SLOTS), s.cut.encode()) for n, s in numbered if s.cut is not None]
            others = (
                [name for name in leader.reports if name != m.member_session] if self.has("check of reports") else []
            )
            ops += [Check(paths.progress(name), term.versions[name]) for name in others]
        announcement = paths.limit(
            Announcement(leader.version + len(decision.steps), decision.limit).name(m.member_session)
        )
        if self.has("one transaction"):
            ops.append(Create(announcement))
            announcement = ""
        if decision.limit.mode is Mode.END:
            ops.append(Set(paths.RUN, Run(self.settings, ended=True).encode()))
        facts = {"generation": leader.generation, "own": own, "decision": decision, "announcement": announcement}
        term.flying = self._send(m, "advance", ops, **facts)
        return term.flying

    def _believing(self, leader: Leader) -> Leader:
        """Return the leader, or one that believes too much because a rule is switched off."""
        if self.has("idle at T") and self.has("generation in report"):
            return leader
        reports = leader.reports
        if not self.has("idle at T"):
            reports = {name: replace(report, limit=leader.limit.floor) for name, report in reports.items()}
        if not self.has("generation in report"):
            reports = {name: replace(report, generation=leader.generation) for name, report in reports.items()}
        return replace(leader, reports=reports)

    def assign(self, m: Member, partition: Partition, name: str) -> bool:
        """Let the leader assign a partition, in one transaction with the fence. A new partition joins the set by it."""
        term = m.term
        if term is None or term.flying is not None or m.session is None:
            return False
        if term.leader.limit.mode is not Mode.GATED:
            return False
        self._overtake(m)
        generation = Generation(term.leader.generation + 1, m.member_session, f"{partition} to {name}")
        assignment = {**self.assignment, partition: name}
        try:
            self._commit(
                Set(paths.GENERATION, generation.encode(), term.generation_version),
                Set(paths.TOPIC_PARTITIONS, encode_partitions(assignment)),
                Set(ASSIGNMENTS, encode_assignment(assignment)),
            )
        except Refused:
            self.read_again(m)
            return False
        self._ends_at_advance.setdefault(partition, len(self.logs[partition]))
        term.leader.generation += 1
        term.generation_version += 1
        term.leader.change_set(replace(self.settings, partitions=self.agreed))
        return True

    # -- the operator and the logs ---------------------------------------------------------------------------------------

    def ask(self, request: Request) -> None:
        """Let the operator write a request."""
        self._commit(Set(paths.PERIOD, request.encode()))

    def watch_request(self, m: Member) -> None:
        """Let a member read the request itself, without the rule "leader applies requests"."""
        m.requests.append(self.request)

    def obey(self, m: Member) -> None:
        """Let a member act on the request that it has read itself."""
        if m.requests and m.requests.pop(0).kind is RequestKind.OFF and not self.has("leader applies requests"):
            m.progress.see(OPEN)

    def append(self, partition: Partition, ts: int) -> None:
        """Append a record to a log."""
        self.logs[partition].append(ts)

    # -- the end: faults stop ------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """True if the run has ended, or everything that is left has been processed under an open gate."""
        limit = self.limit
        if limit.mode is Mode.OPEN:
            return all(self._complete(p) for p in self.agreed)
        return limit.mode is Mode.END

    def _complete(self, partition: Partition) -> bool:
        end = self.ends[partition]
        return set(range(len(self.logs[partition]) if end is None else end)) <= self.processed[partition]

    def settle(self, rounds: int = 60) -> None:
        """Stop all faults and deliver all watches: the run must reach its end in so many rounds."""
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
        self.catch_up(m)
        self.see_assignment(m)
        self.claim(m)
        self.start(m)
        for partition in m.progress.partitions:
            while self.handle(m, partition):
                pass
            self.finish(m, partition)
        write = self.report(m)
        if write is not None:
            self.land(write)
            self.reply(write)

    def _lead(self) -> None:
        leading = [m for m in self.members.values() if m.term is not None]
        m = leading[0] if leading else next(iter(self.members.values()))
        if m.term is None:
            write = self.take_over(m)
            if write is not None:
                self.land(write)
                self.reply(write)
        if m.term is None:
            return
        for name in set(self.tree.under(paths.PROGRESS)) | set(m.term.leader.reports):
            self.hear(m, name)
        self.hear_request(m)
        write = self.decide(m)
        if write is not None:
            self.land(write)
            self.reply(write)
