"""What becomes of a member, what it sees, and what it does."""

from __future__ import annotations

from aiokcc.core import paths
from aiokcc.core.lane import Lane, LaneState
from aiokcc.core.partitions import Partition
from aiokcc.core.progress import Cut
from tests.property.actors import Member, Write
from tests.property.ground import Ground
from tests.property.tree import Check, Create, Delete, Refused, Set

__all__ = ["Members"]


class Members(Ground):
    """The ground, and those who walk on it."""

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
        fresh = self.member(m.name)
        fresh.ledger.gathers = m.ledger.gathers
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
        m.wanted = frozenset(
            p for p, name in self.assignment.items() if name == m.name or m.name in self.standbys.get(p, ())
        )
        for partition in [p for p in m.ledger.lanes if p not in m.wanted]:
            self._give_up(m, partition)
        for partition in m.wanted:
            if partition not in m.ledger.lanes:
                m.ledger.add(partition)

    def release(self, m: Member, partition: Partition) -> None:
        """The member gives a partition up that it runs, for whoever wants it; it may want it again itself."""
        lane = m.ledger.lanes.get(partition)
        if lane is not None and lane.owned and not m.overdue and m.session in self.tree.sessions:
            self._give_up(m, partition)

    def leave(self, m: Member) -> None:
        """The process ends, and its session with it. What it has said and is not in a cut is taken back by that."""
        if m.session is not None:
            self._overtake(m)
            self.tree.expire(m.session)
        self.crash(m)

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
            if partition not in m.positions:
                m.positions[partition] = self._begin(partition, cut)
                m.looked.pop(partition, None)
        m.ledger.claim(m.claimed, m.incarnation, cut)
        if not self.has("resume at cut, same gate"):
            for partition in m.claimed:
                if (lane := m.ledger.lanes.get(partition)) is not None:
                    m.ledger.locate(lane, None)
        m.claimed.clear()

    def _begin(self, partition: Partition, cut: Cut | None) -> int:
        """Where a task starts that has not read this partition before."""
        mark = None if cut is None else cut.find(partition)
        closed = (mark.offset or 0) if mark is not None and self.has("resume at cut") else 0
        return max(self.committed[partition], closed)

    def _told(self, m: Member, lane: Lane) -> None:
        """The task comes to its gate: if another member was further meanwhile, it is told, and seeks to the cut."""
        partition = lane.partition
        if lane.owned and lane.displaced and not m.ledger.locate(lane, m.positions[partition]):
            assert lane.resume is not None
            m.positions[partition] = lane.resume
            m.looked.pop(partition, None)

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
        self._told(m, lane)
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
        lane = self.lane(m, partition)
        if lane is not None:
            self._told(m, lane)
        looked = m.looked.get(partition)
        if lane is None or looked is None or m.positions[partition] < looked[1]:
            return
        m.ledger.idle(lane, looked[0] if self.has("fresh end") else m.ledger.limit, m.positions[partition])

    def finish(self, m: Member, partition: Partition) -> None:
        """Say finished, at the end that the run has for this partition."""
        lane, end = self.lane(m, partition), self.ends[partition]
        if lane is not None:
            self._told(m, lane)
        if lane is not None and end is not None and m.positions[partition] >= end:
            m.ledger.finish(lane, m.positions[partition])

    def commit(self, m: Member, partition: Partition) -> None:
        """Commit what was processed, but no further than where the floor was crossed."""
        lane = m.ledger.lanes.get(partition)
        if lane is None or not lane.owned or m.session not in self.tree.sessions:
            return
        offset = m.positions.get(partition, 0)
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
