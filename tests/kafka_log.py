"""A log in memory for tests of the Kafka store's machine: appended by test clients, read by each at its own pace."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from aiokcc.stores import Create, Op
from aiokcc.stores.kafka import records
from aiokcc.stores.kafka.contact import Deadline, Patience
from aiokcc.stores.kafka.machine import Applied, Machine
from aiokcc.stores.kafka.records import Kind, Record
from aiokcc.stores.kafka.snapshot import Beginning, MissingPrefixError, split_snapshot

TIMEOUT = 12.0
"""The timeout of every session, in seconds of the test's own clock."""
_names = itertools.count(1)


def new_genesis() -> bytes:
    return records.encode(Record(next(_names).to_bytes(8), Kind.GENESIS, 0, 0, 0, bytes(8), b"/test"))


@dataclass
class Log:
    """One partition. ``now`` is the time of all clients."""

    entries: dict[int, bytes] = field(default_factory=dict)
    end: int = 0
    now: float = 100.0

    @classmethod
    def new(cls) -> Log:
        log = cls()
        log.append(new_genesis())
        return log

    @property
    def start(self) -> int:
        return min(self.entries, default=self.end)

    def append(self, raw: bytes) -> int:
        self.entries[self.end] = raw
        self.end += 1
        return self.end - 1

    def truncate(self, end: int) -> None:
        self.entries = {offset: raw for offset, raw in self.entries.items() if offset < end}
        self.end = end

    def trim(self, start: int) -> None:
        self.entries = {offset: raw for offset, raw in self.entries.items() if offset >= start}


@dataclass(frozen=True)
class Rules:
    """The rules by which a client lives: the real ones, or with one of them switched off."""

    machine: type[Machine] = Machine
    patience: type[Patience] = Patience
    beginning: type[Beginning] = Beginning
    confirms: str = "counted"
    """The deadline counts from the first send time of a record read back as counted. Switched off: "acknowledged", from the
    broker's answer; "last attempt", from the last send time."""


class Client:
    """A member: its machine, what it has appended, and the two rules that need a clock."""

    def __init__(self, log: Log, machine: type[Machine] = Machine, rules: Rules | None = None) -> None:
        self.log = log
        self.rules = rules or Rules(machine)
        self.machine = self.rules.machine()
        self.id = 0
        self.seq = 1
        self.nonce = next(_names).to_bytes(16)
        self.patience, self.deadline = self.rules.patience(), Deadline(TIMEOUT)
        self.sent: dict[bytes, float] = {}
        self.results: list[Applied] = []
        self.heard: list[tuple[int, bytes]] = []
        """The records that were applied, with their offsets."""
        self.unsent: bytes | None = None
        """A write whose append was lost: it is tried again before the next one."""
        self.interrupted = False
        """Contact was lost: before it reads on, it looks whether the log is still the one it knows."""
        self.stopped = ""
        """The reason why it does not follow the log any more."""

    def seal(self, kind: Kind, body: bytes = b"", seq: int = 0) -> bytes:
        machine = self.machine
        assert machine.genesis is not None
        raw = records.encode(Record(machine.genesis, kind, self.id, seq, machine.position, machine.chain, body))
        self.sent.setdefault(raw, self.log.now)
        return raw

    def open(self) -> Client:
        self.read()
        self.log.append(self.seal(Kind.OPEN, records.encode_open(int(TIMEOUT * 1000), self.nonce)))
        self.read()
        assert self.id
        self.log.append(self.seal(Kind.ENSURE, b"", self.seq))
        self.seq += 1
        self.read()
        return self

    def append(self, raw: bytes) -> int:
        """Append a record of this client, for the first time or again, and get the broker's answer."""
        if self.rules.confirms == "last attempt":
            self.sent[raw] = self.log.now
        elif self.rules.confirms == "acknowledged":
            self.deadline.confirm(self.log.now)
        return self.log.append(raw)

    def write(self, *ops: Op) -> bytes:
        """Return the record of the next write, to be appended once, twice or never."""
        raw = self.seal(Kind.WRITE, records.encode_ops(ops), self.seq)
        self.seq += 1
        return raw

    def do(self, *ops: Op) -> Applied:
        """Append a write and read up to it; return its effects."""
        offset = self.append(self.write(*ops))
        self.read()
        return next(applied for applied in self.results if applied.offset == offset)

    def lock(self) -> bool:
        return self.do(Create("lock", b"", ephemeral=True)).error is None

    def mark(self) -> None:
        """Append a mark and its snapshot."""
        self.log.append(self.seal(Kind.MARK))
        self.read()
        assert self.machine.mark is not None
        for body in split_snapshot(self.machine.mark.offset, self.machine.mark.content, 500_000):
            self.log.append(self.seal(Kind.SNAPSHOT, body))
        self.read()

    def read(self, most: int | None = None) -> None:
        """Apply the next records, at most so many; and if that reaches the end, note the contact."""
        if self.stopped or (self.interrupted and not self.look_again()):
            return
        if self.machine.position < self.log.start:
            self.stopped = "records that it had not read were deleted"
            return
        for offset in sorted(self.log.entries):
            if offset >= self.machine.position and (most is None or most > 0):
                most = most and most - 1
                self.apply(offset, self.log.entries[offset])
        if self.machine.position == self.log.end:
            self.patience.confirm(self.log.now, self.log.now, self.machine.sessions.values())

    def interrupt(self) -> None:
        """Lose contact with the log."""
        self.interrupted = True
        self.patience.interrupt()

    def look_again(self) -> bool:
        """Compare the end of what was read with the log, as a follower does after a break. Return whether it reads on."""
        machine, log = self.machine, self.log
        if log.end < machine.anchor or log.start > machine.anchor:
            self.stopped = "the last record is gone"
        elif log.end < machine.position:
            return False  # as long as it has not grown to there, a new leader may not know how far it may tell
        elif not all(machine.is_same(at, log.entries[at]) for at in range(machine.anchor, machine.position)):
            self.stopped = "the last record is another one"
        self.interrupted = False
        return not self.stopped

    def apply(self, offset: int, raw: bytes) -> None:
        self.heard.append((offset, raw))
        applied = self.machine.apply(offset, 0, raw)
        self.results.append(applied)
        if applied.opened and self.machine.sessions[applied.opened].nonce == self.nonce:
            self.id = applied.opened
        if applied.counted and applied.record is not None:
            self.patience.hear(applied.opened or applied.record.session, self.log.now)
            if raw in self.sent:
                self.deadline.confirm(self.sent[raw])
        for ended in applied.ended:
            self.patience.forget(ended)

    def expire_silent(self) -> list[bytes]:
        """Return the EXPIRE records that are due."""
        return [
            self.seal(Kind.EXPIRE, records.encode_expire(silent.id, silent.last))
            for silent in self.patience.silent(self.machine.sessions.values())
            if silent.id != self.id
        ]

    def take_over(self) -> bool:
        """End whoever is silent, in contact and alive all the time, and take the lock. Return whether it is ours."""
        for _ in range(2 * int(TIMEOUT)):
            self.append(self.seal(Kind.BEAT))
            self.read()
            for raw in self.expire_silent():
                self.append(raw)
            self.read()
            if self.stopped or self.interrupted or not self.is_live:
                return False
            if "/root/lock" not in self.machine.tree.nodes:
                return self.lock()
            self.log.now += 1
        return False

    @property
    def is_live(self) -> bool:
        return self.id in self.machine.sessions

    @property
    def relies_on_lock(self) -> bool:
        """True if this client acts as the owner of the lock now."""
        if self.stopped:
            return False
        node = self.machine.tree.nodes.get("/root/lock")
        return node is not None and node.owner == self.id != 0 and self.log.now < self.deadline.stop_at


def join_from_start(log: Log, rules: Rules | None = None) -> Machine | None:
    """Return the machine of a newcomer that has read the whole log; None if there is no snapshot for its beginning."""
    rules = rules or Rules()
    beginning = rules.beginning(log.start)
    try:
        for offset, raw in sorted(log.entries.items()):
            if beginning.feed(offset, raw) is not None:
                break
    except MissingPrefixError:
        return None
    machine = beginning.machine
    if machine is not None:
        machine.__class__ = rules.machine
        for offset, raw in sorted(log.entries.items()):
            machine.apply(offset, 0, raw)
    return machine
