"""The store and the logs of the barrier model, and the invariants of both.

Every write goes through :meth:`BarrierStore._commit`, which compares the store before and after it, and raises
:class:`~tests.property.barrier_actors.Broken` if the write breaks an invariant.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from aiokcc.core import paths
from aiokcc.core.limit import Limit, Mode, Request, RequestKind
from aiokcc.core.marks import Mark
from aiokcc.core.member_progress import MemberProgress
from aiokcc.core.partitions import Partition, decode_partitions, encode_partitions
from aiokcc.core.report import Cut, Report
from aiokcc.core.run import CUT_SLOTS, Generation, Run, Settings
from aiokcc.errors import CorruptNodeError
from tests.property.barrier_actors import RULES, Broken, HastyMemberProgress, Member, WaitingMemberProgress, Write
from tests.property.tree import Create, Node, Op, Tree

__all__ = ["ASSIGNMENTS", "BarrierStore", "encode_assignment"]

ASSIGNMENTS: Final = "assignments"


class BarrierStore(ABC):
    """The tree, the logs, and the history so far."""

    def __init__(
        self,
        logs: Mapping[Partition, list[int]],
        assignment: Mapping[Partition, str],
        *,
        period: int = 10,
        start: int | None = 0,
        end: int | None = None,
        lookahead: int = 0,
        max_apart: int | None = None,
        bounded: Iterable[Partition] = (),
        standbys: Mapping[Partition, Iterable[str]] | None = None,
        without: Iterable[str] = (),
    ) -> None:
        self.without = frozenset(without)
        assert self.without <= RULES
        self.logs = {partition: list(log) for partition, log in logs.items()}
        self.ends: dict[Partition, int | None] = {p: len(log) if p in set(bounded) else None for p, log in logs.items()}
        self.committed: dict[Partition, int] = dict.fromkeys(logs, 0)
        self.processed: dict[Partition, set[int]] = {p: set() for p in logs}
        self.settings = Settings(frozenset(assignment), period, start, end, lookahead, max_apart=max_apart)
        self.standbys = {partition: frozenset(names) for partition, names in (standbys or {}).items()}
        """The members that want a partition besides the one that it is assigned to: whoever takes the lock runs it."""
        names = set(assignment.values()).union(*self.standbys.values())
        self.members = {name: self.member(name) for name in sorted(names)}
        self.writes: list[Write] = []
        self.cuts: list[Cut] = []
        self.leading_session = ""
        self._reported: set[tuple[int, str]] = set()
        self.tree = Tree()
        self._sessions_opened = 0
        limit = Limit.first(start, period, self.settings.first_lookahead, end)
        self._ends_at_advance = {p: len(log) for p, log in self.logs.items()}
        found = {
            paths.GENERATION: Generation(0, "-", "founded").encode(),
            paths.RUN: Run(self.settings).encode(),
            paths.COORDINATOR: limit.encode(),
            paths.PERIOD: Request.every(period).encode(),
            paths.TOPIC_PARTITIONS: encode_partitions(assignment),
            ASSIGNMENTS: encode_assignment(assignment),
            **{paths.cut(n, CUT_SLOTS): b"" for n in range(CUT_SLOTS)},
        }
        self.tree.commit([Create(path, data) for path, data in found.items()], lambda _before, _after: None)

    def member(self, name: str) -> Member:
        """Add a process that has just started."""
        if not self.has("withheld"):
            return Member(name, HastyMemberProgress())
        return Member(name, MemberProgress() if self.has("owned only") else WaitingMemberProgress())

    def has(self, rule: str) -> bool:
        """Return whether the rule is switched on."""
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
        """The assignment in the store."""
        return {Partition.parse(p): name for p, name in json.loads(self.tree.read(ASSIGNMENTS).data).items()}

    def last_cut(self) -> Cut | None:
        """The newest cut in the store."""
        found = [Cut.decode("cut", self.tree.read(paths.cut(n, CUT_SLOTS)).data) for n in range(CUT_SLOTS)]
        return max((cut for cut in found if cut is not None), key=lambda cut: cut.number, default=None)

    def reports(self) -> dict[str, Report]:
        """All reports in the store."""
        found = {n: Report.decode(n, self.tree.read(paths.progress(n)).data) for n in self.tree.under(paths.PROGRESS)}
        return {name: report for name, report in found.items() if report is not None}

    # -- writes in flight ------------------------------------------------------------------------------------------------

    @abstractmethod
    def _send(self, m: Member, kind: str, ops: Sequence[Op], **facts: object) -> Write:
        """Send a write."""

    @abstractmethod
    def _overtake(self, m: Member, until: Write | None = None) -> None:
        """Drop earlier writes of the same session; the model overrides it."""

    # -- the invariants ------------------------------------------------------------------------------------------------

    def _commit(self, *ops: Op, writer: Write | None = None) -> None:
        self.tree.commit(ops, lambda before, after: self._witness(before, after, writer))

    def _witness(self, before: dict[str, Node], after: dict[str, Node], writer: Write | None) -> None:
        if paths.COORDINATOR not in before:
            return
        for path in after.keys() - before.keys():
            if path.startswith(f"{paths.LIMITS}/"):
                for m in self.members.values():
                    if m.listening and m.session in self.tree.sessions:
                        m.announced.append(path.removeprefix(f"{paths.LIMITS}/"))
        if before[paths.GENERATION] != after[paths.GENERATION]:
            self.leading_session = Generation.decode("g", after[paths.GENERATION].data).leader
        for path, node in after.items():
            if path.startswith(f"{paths.PROGRESS}/") and before.get(path) != node:
                report = Report.decode(path, node.data)
                if report is not None and not report.running:
                    self._reported |= {(report.generation, str(partition)) for partition in report.partitions}
        if before[paths.COORDINATOR] != after[paths.COORDINATOR]:
            assert writer is not None
            if writer.own is not None:
                self._reported |= {(writer.own.generation, str(partition)) for partition in writer.own.partitions}
            old = Limit.decode("c", before[paths.COORDINATOR].data)
            assert writer.decision is not None
            for step in writer.decision.steps:
                self._check_monotone(old, step.limit)
                if step.cut is not None:
                    self.cuts.append(self._check_cut(step.cut, writer.generation, old, step.limit))
                old = step.limit
            if old != Limit.decode("c", after[paths.COORDINATOR].data):
                raise Broken(f"the limit is not {old}, to which the cuts lead")
            self._check_writer(writer, Request.decode("p", before[paths.PERIOD].data))
            self._ends_at_advance = {p: len(log) for p, log in self.logs.items()}

    def _check_writer(self, writer: Write, request: Request) -> None:
        if writer.sender != self.leading_session or writer.generation != self.generation.number:
            was, now = (
                f"{writer.sender} of generation {writer.generation}",
                f"{self.leading_session} of {self.generation.number}",
            )
            raise Broken(f"one writer: an advance of {was} landed after {now} took over")
        if request.kind is RequestKind.HOLD:
            raise Broken("hold was acknowledged, and the limit moved")

    def _check_monotone(self, old: Limit, new: Limit) -> None:
        if not old.precedes(new):
            raise Broken(f"monotony: {old} became {new}")
        if new.mode is Mode.GATED and (new.floor <= old.floor or new.value < old.value):
            raise Broken(f"monotony: {old} became {new}")
        apart = self.settings.max_apart
        if apart is not None and new.mode is Mode.GATED and new.value - new.floor >= apart:
            raise Broken(f"bound: {new} lets partitions lie further apart than {apart}")
        if apart is not None and not new.fits(self.settings.lookahead, self.settings.end, least=0):
            raise Broken(f"bound: members do not accept {new}")

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
        if not (over or past or at >= self._ends_at_advance[partition]):
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


def encode_assignment(assignment: Mapping[Partition, str]) -> bytes:
    return json.dumps({str(p): name for p, name in sorted(assignment.items())}).encode()
