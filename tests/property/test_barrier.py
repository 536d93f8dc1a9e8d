"""Any interleaving of members, leaders, operators and faults keeps the invariants, and ends when the faults do.

The invariants are checked by the model itself, in the step in which they would break: alignment and one owner when a record
starts; completeness, monotony, one writer and the tiling of the cuts when the limit moves; liveness at the end of each history.
``HYPOTHESIS_PROFILE=deep`` explores longer.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from aiokcc.core import paths
from aiokcc.core.limit import Mode, Request, RequestKind
from aiokcc.core.partitions import Partition
from tests.property.barrier_model import BarrierModel, Write

PARTITIONS = [Partition("a", 0), Partition("a", 1), Partition("b", 0)]
NAMES = ["x", "y", "z"]

timestamps = st.integers(0, 60)
logs = st.lists(timestamps, max_size=6).map(sorted) | st.lists(timestamps, max_size=4)
which = st.integers(0, 2)
names = st.sampled_from(["x", "x", "y", "y", "z"])


class WorldMachine(RuleBasedStateMachine):
    """Takes steps in any order. The fine steps find races; the coarse ones bring the run to where races matter."""

    model: BarrierModel
    without: frozenset[str] = frozenset()
    """Rules to leave out: name one, and see how long it takes to break something."""

    @initialize(
        contents=st.tuples(logs, logs, logs),
        owners=st.lists(names, min_size=3, max_size=3),
        size=st.integers(1, 3),
        start=st.sampled_from([None, 0, 0, 15]),
        end=st.sampled_from([None, None, 45]),
        lookahead=st.integers(0, 4),
        chooses=st.booleans(),
        gathers=st.sampled_from([0, 0, 20, 30]),
        bounded=st.sets(st.sampled_from(PARTITIONS)),
        before=st.integers(0, 4),
        standbys=st.dictionaries(st.sampled_from(PARTITIONS), st.sets(st.sampled_from(NAMES))),
    )
    def found(
        self,
        contents: tuple[list[int], ...],
        owners: list[str],
        size: int,
        start: int | None,
        end: int | None,
        lookahead: int,
        chooses: bool,
        gathers: int,
        bounded: set[Partition],
        before: int,
        standbys: dict[Partition, set[str]],
    ) -> None:
        self.model = BarrierModel(
            dict(zip(PARTITIONS, contents, strict=True)),
            dict(list(zip(PARTITIONS, owners, strict=True))[:size]),
            start=start,
            end=end,
            lookahead=lookahead,
            max_apart=10 * (lookahead + 1) if chooses and lookahead else None,
            bounded=bounded,
            standbys=standbys,
            without=self.without,
        )
        for name in NAMES:
            self.model.members.setdefault(name, self.model.member(name)).progress.milestone_interval = gathers
        for _ in range(before):
            self.period(None, "land")

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.model.settle()

    def write(self, n: int) -> Write | None:
        """Draw one of the writes in flight."""
        return self.model.writes[n % len(self.model.writes)] if self.model.writes else None

    # -- coarse steps ---------------------------------------------------------------------------------------------------

    @rule(name=names, end=st.sampled_from(["land", "fly", "lost"]))
    def take_part(self, name: str, end: str) -> None:
        """Join if needed, claim, process what passes, and report."""
        model, m = self.model, self.model.members[name]
        model.join(m)
        model.answer(m)
        model.see_generation(m)
        model.see_assignment(m)
        model.claim(m)
        model.start(m)
        for partition in m.progress.partitions:
            while model.handle(m, partition):
                pass
            model.finish(m, partition)
            model.look(m, partition)
            model.idle(m, partition)
        self._end(model.report(m), end)

    @rule(absent=st.none() | names, end=st.sampled_from(["land", "land", "fly", "lost"]))
    def period(self, absent: str | None, end: str) -> None:
        """Let all members that are not away take part, and the leader decide."""
        for name in NAMES:
            if name != absent:
                self.see_everything(name)
                self.take_part(name, "land")
        self.lead("?", end)

    @rule(name=names)
    def see_everything(self, name: str) -> None:
        """Let the limit arrive."""
        self.model.see(self.model.members[name])

    @rule(
        name=names, step=st.sampled_from(["see_announcement", "see_announcement", "catch_up", "disconnect", "connect"])
    )
    def announcements(self, name: str, step: str) -> None:
        """Let announcements arrive, or be missed."""
        m = self.model.members[name]
        if m.session is not None:
            getattr(self.model, step)(m)

    @rule(name=st.sampled_from(["?", "?", "?", "x", "y"]), end=st.sampled_from(["land", "land", "fly", "lost"]))
    def lead(self, name: str, end: str) -> None:
        """Let the leader read all reports and decide; ``?`` is the present leader, another one has to take over first."""
        leading = [m.name for m in self.model.members.values() if m.term is not None]
        model, m = self.model, self.model.members[name if name != "?" else (leading or NAMES)[0]]
        model.join(m)
        model.answer(m)
        if m.term is None:
            self._end(model.take_over(m), "land")
        for report in model.tree.under(paths.PROGRESS):
            model.hear(m, report)
        model.hear_request(m)
        self._end(model.decide(m), end)

    def _end(self, write: Write | None, end: str) -> None:
        if write is None or end == "fly":
            return
        self.model.land(write)
        if end == "land":
            self.model.reply(write)
        else:
            self.model.forget(write)

    # -- sessions and processes ------------------------------------------------------------------------------------------

    @rule(
        name=names,
        step=st.sampled_from(["join", "expire", "stall", "answer", "crash", "leave", "end of a crashed session"]),
    )
    def session(self, name: str, step: str) -> None:
        model, m = self.model, self.model.members[name]
        if step == "end of a crashed session":
            for session in model.tree.sessions - {other.session for other in model.members.values()}:
                model.tree.expire(session)
                break
        else:
            getattr(model, step)(m)

    # -- fine steps of a member -------------------------------------------------------------------------------------------

    @rule(name=names, n=which, keep=st.booleans())
    def see_limit(self, name: str, n: int, keep: bool) -> None:
        self.model.see_limit(self.model.members[name], n, keep=keep)

    @rule(
        name=names, step=st.sampled_from(["read_limit", "see_generation", "see_assignment", "claim", "start", "report"])
    )
    def member(self, name: str, step: str) -> None:
        getattr(self.model, step)(self.model.members[name])

    @rule(
        name=names,
        n=which,
        step=st.sampled_from(["handle", "handle", "look", "idle", "finish", "commit", "give_up_waiting", "release"]),
    )
    def partition(self, name: str, n: int, step: str) -> None:
        getattr(self.model, step)(self.model.members[name], PARTITIONS[n])

    # -- writes in flight --------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.writes)
    @rule(n=st.integers(0, 5), step=st.sampled_from(["land", "land and reply", "reply", "forget", "lose"]))
    def flight(self, n: int, step: str) -> None:
        write = self.write(n)
        if write is None:
            return
        if step.startswith("land") and write.landed is None:
            self.model.land(write)
        if step.endswith("reply") and write in self.model.writes:
            self.model.reply(write)
        if step == "forget":
            self.model.forget(write)
        if step == "lose" and write.landed is None:
            self.model.lose(write)

    # -- fine steps of a leader --------------------------------------------------------------------------------------------

    @rule(name=names, step=st.sampled_from(["take_over", "hear_request", "decide", "read_again"]))
    def term(self, name: str, step: str) -> None:
        getattr(self.model, step)(self.model.members[name])

    @rule(name=names, lookahead=st.integers(0, 5))
    def choose(self, name: str, lookahead: int) -> None:
        """Let the leader choose another lookahead, if the run leaves it to the leader. Each leader may choose another one."""
        term = self.model.members[name].term
        if term is not None:
            term.leader.chosen = lookahead

    @rule(name=names, n=which)
    def hear(self, name: str, n: int) -> None:
        reports = self.model.tree.under(paths.PROGRESS)
        if reports:
            self.model.hear(self.model.members[name], reports[n % len(reports)])

    @precondition(lambda self: any(m.term is not None for m in self.model.members.values()))
    @rule(name=names, n=which, to=names)
    def assign(self, name: str, n: int, to: str) -> None:
        """Move a partition, or let a new one join the set."""
        self.model.assign(self.model.members[name], PARTITIONS[n], to)

    # -- the operator and the logs ---------------------------------------------------------------------------------------

    @rule(request=st.sampled_from([Request.every(10), Request.every(7), Request.every(25), Request(RequestKind.HOLD)]))
    def operator(self, request: Request) -> None:
        self.model.ask(request)

    @precondition(lambda self: self.model.limit.mode is Mode.GATED and len(self.model.cuts) > 1)
    @rule()
    def release(self) -> None:
        self.model.ask(Request(RequestKind.OFF))

    @rule(n=which, ts=timestamps)
    def append(self, n: int, ts: int) -> None:
        """Append a record, perhaps to a partition that was idle, perhaps late."""
        self.model.append(PARTITIONS[n], ts)


WorldMachine.TestCase.settings = settings(
    max_examples=max(settings().max_examples, 300), stateful_step_count=50 if settings().max_examples <= 300 else 90
)
TestWorld = WorldMachine.TestCase
