"""The members of the barrier model: their faults, what they see, and what they do."""

from __future__ import annotations

from aiokcc.core import paths
from aiokcc.core.announcement import Announcement, checksum
from aiokcc.core.limit import Limit
from aiokcc.core.partition_progress import PartitionProgress, PartitionState
from aiokcc.core.partitions import Partition
from aiokcc.core.report import Cut
from tests.property.barrier_actors import Member, Write
from tests.property.barrier_store import BarrierStore
from tests.property.tree import Check, Create, Delete, Refused, Set

__all__ = ["BarrierMembers"]


class BarrierMembers(BarrierStore):
    """The store, and the members that use it."""

    # -- sessions and processes ----------------------------------------------------------------------------------------

    def join(self, m: Member) -> None:
        """Open a new session: a new member session, which registers and reads the present state."""
        if m.session is not None:
            return
        m.session = self.tree.connect()
        self._sessions_opened += 1
        m.member_session = f"{m.name}-{self._sessions_opened}" if self.has("unique name") else f"{m.name}-0"
        try:
            self._commit(Create(paths.progress(m.member_session), b"", m.session))
        except Refused:  # our own old node, under a name that is not unique: it will do
            assert not self.has("unique name")
        m.written = m.reporting = m.taking = m.term = None
        m.generation_version = -1
        m.overdue = False
        m.claimed.clear()
        self.see_generation(m)
        m.listening = True
        self.see(m)

    def expire(self, m: Member) -> None:
        """End the session at the store. By then the member's own clock is certainly past the deadline."""
        if m.session is not None:
            m.overdue = True
            self.tree.expire(m.session)

    def stall(self, m: Member) -> None:
        """Let the deadline pass without an answer; the session may live on."""
        m.overdue = m.overdue or m.session is not None

    def answer(self, m: Member) -> None:
        """Let the store answer: the deadline is lifted, or the session is known to be lost."""
        if m.session is None:
            return
        if m.session in self.tree.sessions:
            m.overdue = False
            return
        m.session = None
        m.overdue = False
        m.written = m.reporting = m.taking = m.term = None
        m.claimed.clear()
        m.progress.lose()
        self.disconnect(m)

    def crash(self, m: Member) -> None:
        """End the process with all its knowledge; its session stays until it expires."""
        fresh = self.member(m.name)
        fresh.progress.milestone_interval = m.progress.milestone_interval
        self.members[m.name] = fresh
        for write in self.writes:
            if write.member is m:
                write.awaited = False

    # -- what a member sees --------------------------------------------------------------------------------------------

    def read_limit(self, m: Member) -> None:
        """Read the limit; the member sees it later."""
        m.inbox.append((self.limit, self.tree.read(paths.COORDINATOR).version))

    def see_limit(self, m: Member, n: int = 0, *, keep: bool = False) -> None:
        """Let one of the limits that were read arrive; with ``keep`` it will arrive once more."""
        if m.inbox:
            n %= len(m.inbox)
            self.see(m, *(m.inbox[n] if keep else m.inbox.pop(n)))

    def see(self, m: Member, limit: Limit | None = None, version: int | None = None) -> None:
        """Let a limit arrive; by default the one in the store."""
        if limit is None or version is None:
            limit, version = self.limit, self.tree.read(paths.COORDINATOR).version
        m.version = version if m.version is None else max(m.version, version)
        m.progress.see(limit)

    def disconnect(self, m: Member) -> None:
        """Break the connection: announcements that have not arrived are lost, and so are those that come now."""
        m.listening = False
        m.announced.clear()

    def connect(self, m: Member) -> None:
        """Let the watch for announcements be in place, for the first time or again."""
        if not m.listening:
            m.listening = True
            if self.has("read when in place"):
                self.read_limit(m)

    def see_announcement(self, m: Member) -> None:
        """Let the next announcement arrive. A member that cannot tell the limit by it reads, and sees that later."""
        if not m.announced:
            return
        name = m.announced.pop(0)
        if not self.has("checksum"):
            stated = ":".join(name.split(":")[:2])
            name = f"{stated}:{checksum(stated, m.leader)}"
        announcement = Announcement.parse(name, m.leader)
        if announcement is None or announcement.limit is None:
            self.read_limit(m)
        elif not self.has("whole limit"):
            self.see(m, Limit((m.progress.limit.value + self.settings.period,)), announcement.version)
        elif m.version is None or announcement.version > m.version:
            self.see(m, announcement.limit, announcement.version)

    def create_by_hand(self, path: str) -> None:
        """Let somebody who is no member create a node."""
        self._commit(Create(path))

    def catch_up(self, m: Member) -> None:
        """Let everything arrive that members are told of without asking."""
        self.connect(m)
        while m.announced:
            self.see_announcement(m)
        while m.inbox:
            self.see_limit(m)

    def see_generation(self, m: Member) -> None:
        """Let the present generation arrive."""
        node = self.tree.read(paths.GENERATION)
        if m.session is not None and node.version > m.generation_version:
            m.generation_version = node.version
            m.progress.generation, m.leader = self.generation.number, self.generation.leader
        if m.term is not None and m.progress.generation != m.term.leader.generation:
            m.term = None  # somebody else has taken over, or we have ourselves, without knowing it yet

    def see_assignment(self, m: Member) -> None:
        """Let the present assignment arrive: revoke what is no longer ours, and want what is new."""
        m.wanted = frozenset(
            p for p, name in self.assignment.items() if name == m.name or m.name in self.standbys.get(p, ())
        )
        for partition in [p for p in m.progress.partitions if p not in m.wanted]:
            self._release(m, partition)
        for partition in m.wanted:
            if partition not in m.progress.partitions:
                m.progress.add(partition)
                m.read_before = self.last_cut()

    def release(self, m: Member, partition: Partition) -> None:
        """Release a partition that the member runs, for any other member; it may want it again itself."""
        progress = m.progress.partitions.get(partition)
        if progress is not None and progress.owned and not m.overdue and m.session in self.tree.sessions:
            self._release(m, partition)

    def leave(self, m: Member) -> None:
        """End the process and its session. That takes back what it reported and no cut holds."""
        if m.session is not None:
            self._overtake(m)
            self.tree.expire(m.session)
        self.crash(m)

    def _release(self, m: Member, partition: Partition) -> None:
        """Stop and commit; then write the report without the partition and delete the lock, in one transaction."""
        if m.progress.partitions[partition].owned and partition in m.positions:
            self.commit(m, partition)
        m.progress.forget(partition)
        m.positions.pop(partition, None)
        m.looked.pop(partition, None)
        m.claimed.discard(partition)
        lock = self.tree.get(paths.owner(partition))
        if lock is not None and lock.session == m.session:
            report = m.progress.report(even_running=True)
            content = b"" if report is None else report.encode()
            self._overtake(m)
            self._commit(Set(paths.progress(m.member_session), content), Delete(paths.owner(partition)))
            m.written = report

    def claim(self, m: Member) -> None:
        """Take the locks of all partitions that are wanted and free."""
        if m.session is None or m.session not in self.tree.sessions:
            return
        for partition, progress in m.progress.partitions.items():
            if progress.owned or partition in m.claimed:
                continue
            lock = self.tree.get(paths.owner(partition))
            ours = lock is not None and lock.session == m.session
            if not ours:
                check = Check(paths.GENERATION, m.generation_version)
                try:
                    self._commit(check, Create(paths.owner(partition), m.member_session.encode(), m.session))
                except Refused:
                    if self.has("owner lock"):
                        continue
            m.claimed.add(partition)

    def start(self, m: Member) -> None:
        """Read limit and cut after the claim, and start there."""
        if m.session not in self.tree.sessions or not m.claimed:
            return
        cut = self.last_cut() if self.has("T after claim") else m.read_before
        self.see(m)
        if cut is not None:
            m.progress.closed(cut.limit)
        for partition in sorted(m.claimed):
            if partition not in m.positions:
                m.positions[partition] = self._begin(partition, cut)
                m.looked.pop(partition, None)
        m.progress.claim(m.claimed, m.member_session, cut)
        if not self.has("resume at cut, same gate"):
            for partition in m.claimed:
                if (progress := m.progress.partitions.get(partition)) is not None:
                    m.progress.locate(progress, None)
        m.claimed.clear()

    def _begin(self, partition: Partition, cut: Cut | None) -> int:
        """Return where a task starts that has not read this partition before."""
        mark = None if cut is None else cut.find(partition)
        closed = (mark.offset or 0) if mark is not None and self.has("resume at cut") else 0
        return max(self.committed[partition], closed)

    def _told(self, m: Member, progress: PartitionProgress) -> None:
        """Let the task come to its gate: if another member was further meanwhile, it gets the cut, and seeks to it."""
        partition = progress.partition
        if progress.owned and progress.displaced and not m.progress.locate(progress, m.positions[partition]):
            assert progress.resume is not None
            m.positions[partition] = progress.resume
            m.looked.pop(partition, None)

    # -- what a member does --------------------------------------------------------------------------------------------

    def progress(self, m: Member, partition: Partition) -> PartitionProgress | None:
        """Return the member's partition, if it may still have records."""
        progress = m.progress.partitions.get(partition)
        return (
            None
            if progress is None or progress.state is PartitionState.FINISHED or partition not in m.positions
            else progress
        )

    def handle(self, m: Member, partition: Partition) -> bool:
        """Bring the next record to the gate. Return True if it passed and was processed."""
        progress = self.progress(m, partition)
        if progress is None or (m.overdue and self.has("deadline")):
            return False
        self._told(m, progress)
        offset, log, end = m.positions[partition], self.logs[partition], self.ends[partition]
        if offset >= len(log) or (end is not None and offset >= end):
            return False
        if not m.progress.approach(progress, log[offset], offset):
            return False
        self._check_start(m, partition, offset)
        self.processed[partition].add(offset)
        m.positions[partition] = offset + 1
        return True

    def give_up_waiting(self, m: Member, partition: Partition) -> None:
        """Cancel the task that waits at the gate."""
        progress = self.progress(m, partition)
        if progress is not None:
            m.progress.resume(progress)

    def look(self, m: Member, partition: Partition) -> None:
        """Read the end of the log, under the limit that is seen by now."""
        if self.progress(m, partition) is not None:
            m.looked[partition] = (m.progress.limit, len(self.logs[partition]))

    def idle(self, m: Member, partition: Partition) -> None:
        """Report idle, by the end that was read last."""
        progress = self.progress(m, partition)
        if progress is not None:
            self._told(m, progress)
        looked = m.looked.get(partition)
        if progress is None or looked is None or m.positions[partition] < looked[1]:
            return
        m.progress.idle(progress, looked[0] if self.has("fresh end") else m.progress.limit, m.positions[partition])

    def finish(self, m: Member, partition: Partition) -> None:
        """Report finished, at the end that the run has for this partition."""
        progress, end = self.progress(m, partition), self.ends[partition]
        if progress is not None:
            self._told(m, progress)
        if progress is not None and end is not None and m.positions[partition] >= end:
            m.progress.finish(progress, m.positions[partition])

    def commit(self, m: Member, partition: Partition) -> None:
        """Commit what was processed, but not past the place where the floor was crossed."""
        progress = m.progress.partitions.get(partition)
        if progress is None or not progress.owned or m.session not in self.tree.sessions:
            return
        offset = m.positions.get(partition, 0)
        crossing = progress.crossings.get(m.progress.limit.floor)
        if self.has("clamp") and crossing is not None and crossing[1] is not None:
            offset = min(offset, crossing[1])
        self.committed[partition] = max(self.committed[partition], offset)

    def report(self, m: Member, *, late: bool = False) -> Write | None:
        """Send the report, if it has something new. A late one shows who is slow, and must not count."""
        if m.session is None or m.overdue or m.reporting is not None:
            return None
        report = m.progress.report(even_running=late)
        if report is None:
            return None
        once = m.written is None or m.written.limit != report.limit
        if not (report.supersedes(m.written) if self.has("level") else once):
            return None
        m.reporting = self._send(m, "report", [Set(paths.progress(m.member_session), report.encode())], report=report)
        return m.reporting
