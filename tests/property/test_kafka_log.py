"""Random histories of the Kafka store's log: appends that are lost, doubled or late, readers that lag, processes that freeze,
observers that end sessions at once, foreign and unreadable records, snapshots, true and wrong ones, trimming, records that
somebody else deletes, and logs that are cut or made again.

Each client is a real machine with the real rules of time. After every step:

* *One state.* Clients that have applied the same records of the same log have the same state and the same chain.
* *One owner.* Of all clients at most one relies on the lock, whatever it has not read yet (until Kafka loses records).
* *Once.* Each write was applied at most once, and no other write was applied.
* *No life after death.* Nothing that a session has written changes anything behind the record that ended it.
* *No fork.* A client that has read a record which the log no longer has stops before it reads on.

Rules are also switched off, one by one, and then some history breaks one of these: the histories reach what the rules are for.
"""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from aiokcc.stores import ANY_VERSION, Create, Set
from aiokcc.stores.kafka import records
from aiokcc.stores.kafka.records import Kind
from aiokcc.stores.kafka.state import pack
from tests.kafka_log import TIMEOUT, Client, Log, Rules, join_from_start
from tests.unit.stores.kafka.test_rules import OFF

CLIENTS = 3
who = st.integers(0, CLIENTS - 1)


class BrokenInvariantError(Exception):
    """A history in which an invariant does not hold."""


def check(invariant: str, holds: bool) -> None:
    if not holds:
        raise BrokenInvariantError(invariant)


class LogHistory(RuleBasedStateMachine):
    """A log and its clients."""

    in_force = Rules()

    @initialize(may_lose=st.booleans())
    def start(self, may_lose: bool) -> None:
        self.may_lose = may_lose
        """True if somebody deletes records in this history, or Kafka loses them."""
        self.log = Log.new()
        self.clients = [Client(self.log, rules=self.in_force).open() for _ in range(CLIENTS)]
        self.clients[0].do(Create("count", b"0"))
        self.late: list[tuple[Client, bytes]] = []
        self.written = 0
        self.has_lost = False
        """Kafka has lost records: what was acknowledged before that may happen again."""
        self.entries: dict[int, bytes] = {}
        """All records of the present log, also those that were trimmed."""

    # -- Appends and reads ------------------------------------------------------------------------------------------------

    @rule(n=who, times=st.sampled_from([1, 1, 1, 2, 0]), late=st.booleans())
    def write(self, n: int, times: int, late: bool) -> None:
        """Count up. The append is lost, arrives, arrives twice, or arrives again later; a lost one is retried first."""
        client = self.clients[n]
        if client.unsent is not None:
            raw = client.unsent
        else:
            raw = client.write(Set("count", b"1", ANY_VERSION))
            self.written += 1
        client.unsent = raw if times == 0 else None
        for _ in range(times):
            client.append(raw)
        if late:
            self.late.append((client, raw))

    @rule(n=who)
    def lock(self, n: int) -> None:
        client = self.clients[n]
        if client.unsent is None:
            client.append(client.write(Create("lock", b"", ephemeral=True)))

    @rule(n=who, late=st.booleans())
    def beat(self, n: int, late: bool) -> None:
        client = self.clients[n]
        raw = client.seal(Kind.BEAT)
        if late:
            self.late.append((client, raw))
        else:
            client.append(raw)

    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        """An append that was on its way arrives, or one whose answer was lost is sent again."""
        if self.late:
            client, raw = self.late.pop(data.draw(st.integers(0, len(self.late) - 1)))
            client.append(raw)

    @rule(n=who, most=st.sampled_from([1, 2, 5, None]))
    def read(self, n: int, most: int | None) -> None:
        self.clients[n].read(most)

    @rule(raw=st.sampled_from([b"", b"garbage", b"aiokcc", bytes(60)]))
    def append_garbage(self, raw: bytes) -> None:
        self.log.append(raw)

    @rule(n=who)
    def append_foreign(self, n: int) -> None:
        """A client of another log of the same name still writes: its ids and numbers are those of a client of this one."""
        stranger = Client(Log.new()).open()
        stranger.id, stranger.seq = self.clients[n].id, self.clients[n].seq
        self.log.append(stranger.write(Set("count", b"2", ANY_VERSION)))

    # -- Sessions ---------------------------------------------------------------------------------------------------------

    @rule(n=who)
    def read_and_expire(self, n: int) -> None:
        client = self.clients[n]
        client.read()
        for raw in client.expire_silent():
            client.append(raw)

    @rule(n=who)
    def expire_late(self, n: int) -> None:
        """An observer decides by what it knows, and its record arrives later."""
        self.late += [(self.clients[n], raw) for raw in self.clients[n].expire_silent()]

    @rule(n=who)
    def take_over(self, n: int) -> None:
        """A client is well for a while and the others are frozen; it takes the lock as soon as it may."""
        client = self.clients[n]
        if client.is_live and client.unsent is None:
            client.take_over()

    @rule(seconds=st.sampled_from([0.5, 2.0, 4.0, TIMEOUT / 3]))
    def wait(self, seconds: float) -> None:
        self.log.now += seconds

    @rule(n=who)
    def interrupt(self, n: int) -> None:
        self.clients[n].interrupt()

    @rule()
    def outage(self) -> None:
        """The brokers are away for longer than a timeout, and come back as they were. Everybody reads; some end others."""
        self.log.now += 2 * TIMEOUT
        for client in self.clients:
            client.interrupt()
            client.read()
        for client in self.clients:
            for raw in client.expire_silent():
                client.append(raw)

    @rule(n=who)
    def replace(self, n: int) -> None:
        """A client whose session is over, or that has stopped, begins anew in another process, if the log lets it."""
        client = self.clients[n]
        client.read()
        if client.stopped or not client.is_live:
            machine = join_from_start(self.log, self.in_force)
            if machine is not None and not machine.is_outvoted(0):
                again = Client(self.log, rules=self.in_force)
                again.machine = machine
                self.clients[n] = again.open()

    # -- Snapshots --------------------------------------------------------------------------------------------------------

    @rule(n=who, all_read=st.booleans(), lies=st.sampled_from([False, False, True]))
    def snapshot(self, n: int, all_read: bool, lies: bool) -> None:
        """A client marks and writes a snapshot, before it perhaps a wrong one. If everybody has read it, the log is trimmed."""
        client = self.clients[n]
        client.read()
        if client not in self.following() or not client.is_live:
            return
        client.append(client.seal(Kind.MARK))
        client.read()
        mark = client.machine.mark
        assert mark is not None
        if lies:
            wrong = mark.content.replace(b"/count", b"/c0unt")
            client.append(client.seal(Kind.SNAPSHOT, records.encode_snapshot(mark.offset, 0, 1, pack(wrong))))
        right = records.encode_snapshot(mark.offset, 0, 1, pack(mark.content))
        client.append(client.seal(Kind.SNAPSHOT, right))
        client.read()
        if all_read:
            for other in self.clients:
                other.read()
                if not other.stopped:
                    other.append(other.seal(Kind.BEAT))
        client.read()
        self.note_entries()
        if (target := client.machine.trim_offset()) is not None:
            self.log.trim(target)

    # -- What becomes of the log ------------------------------------------------------------------------------------------

    @precondition(lambda self: self.may_lose)
    @rule(share=st.sampled_from([0.3, 0.9]))
    def delete_prefix(self, share: float) -> None:
        """Somebody else, or a retention, deletes the beginning of the log."""
        self.note_entries()
        self.log.trim(self.log.start + int(share * (self.log.end - self.log.start)))

    @precondition(lambda self: self.may_lose)
    @rule(count=st.integers(1, 4), grows=st.integers(0, 5))
    def cut(self, count: int, grows: int) -> None:
        """An unclean election loses the last records; others are written in their place. Every connection breaks."""
        self.note_entries()
        if self.log.end - count <= self.log.start:
            return
        self.log.truncate(self.log.end - count)
        self.entries = {offset: raw for offset, raw in self.entries.items() if offset < self.log.end}
        self.has_lost = True
        for client in self.clients:
            client.interrupt()
        for number in range(grows):
            self.log.append(b"other %d" % number)

    @precondition(lambda self: self.may_lose)
    @rule(grows=st.booleans())
    def make_again(self, grows: bool) -> None:
        """The topic is deleted and made again, and may have grown past where it was. Every connection breaks."""
        again = Log.new()
        stranger = Client(again).open()
        stranger.do(Create("count", b"0"))
        while grows and again.end < self.log.end + 2:
            again.append(stranger.seal(Kind.BEAT))
        self.log.entries, self.log.end = again.entries, again.end
        self.entries, self.has_lost = {}, True
        for client in self.clients:
            client.interrupt()

    # -- Invariants -------------------------------------------------------------------------------------------------------

    def note_entries(self) -> None:
        self.entries.update(self.log.entries)

    def following(self) -> list[Client]:
        """Return the clients that follow the log, and have looked at it after the last interruption."""
        return [client for client in getattr(self, "clients", ()) if not client.stopped and not client.interrupted]

    @invariant()
    def one_state(self) -> None:
        states: dict[int, tuple[bytes, bytes]] = {}
        for client in self.following():
            machine = client.machine
            now = machine.chain, machine.encode_state(machine.position)
            check("one state", states.setdefault(machine.position, now) == now)

    @invariant()
    def one_owner(self) -> None:
        owners = [client.id for client in getattr(self, "clients", ()) if client.relies_on_lock]
        check("one owner", len(owners) <= 1 or self.has_lost)

    @invariant()
    def once(self) -> None:
        for client in self.following():
            count = client.machine.tree.nodes.get("/root/count")
            check("once", count is None or count.version <= self.written or self.has_lost)
            counted = [applied.record for applied in client.results if applied.counted and applied.record is not None]
            numbers = [(record.session, record.seq) for record in counted if record.kind is Kind.WRITE]
            check("once", len(numbers) == len(set(numbers)))

    @invariant()
    def no_life_after_death(self) -> None:
        for client in self.following():
            ended: set[int] = set()
            for applied in client.results:
                record = applied.record
                check("no life after death", record is None or record.session not in ended or not applied.changed)
                ended.update(applied.ended)

    @invariant()
    def no_fork(self) -> None:
        if following := self.following():
            self.note_entries()
            for client in following:
                check("no fork", all(self.entries.get(offset, raw) == raw for offset, raw in client.heard))

    def teardown(self) -> None:
        """At the end whoever still follows agrees with everybody, and with a newcomer that the log and the others let in."""
        if not hasattr(self, "clients"):
            return
        for client in self.clients:
            client.read()
        self.one_state()
        newcomer = join_from_start(self.log, self.in_force)
        if newcomer is not None and not newcomer.is_outvoted(0):
            for client in self.following():
                if client.is_live:
                    check("one state", newcomer.encode_state(0) == client.machine.encode_state(0))


LogHistory.TestCase.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
TestLogHistory = LogHistory.TestCase


# What breaks without each rule. Random histories are not long enough for [silence], the waiting that starts anew, and the first
# attempt: those histories are in ``tests/unit/stores/kafka/test_rules.py``, as one for every rule is.
BREAKS = {
    "live": "no life after death",
    "seq": "once",
    "patience: whole": "one owner",
    "deadline: acknowledged": "one owner",
    "genesis": "once",
    "same tail": "no fork|one state",
    "chain": "one state",
    "prefix": "one state",
}


@pytest.mark.parametrize("off", BREAKS)
def test_without_a_rule_some_history_breaks(off: str) -> None:
    class Broken(LogHistory):
        in_force = OFF[off]

    search = settings(
        max_examples=1000,
        stateful_step_count=60,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        database=None,
    )
    with pytest.raises(BrokenInvariantError, match=BREAKS[off]):
        run_state_machine_as_test(Broken, settings=search)
