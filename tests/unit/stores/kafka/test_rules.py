"""Each rule of the log, and the history that breaks without it. The rules are in ``docs/explanation/kafka-store.md``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

import pytest

from aiokcc.errors import BadVersionError
from aiokcc.stores import ANY_VERSION, Create, Set
from aiokcc.stores.kafka import records
from aiokcc.stores.kafka.contact import Deadline, Patience, SilentBefore
from aiokcc.stores.kafka.machine import ForeignLogError, Machine
from aiokcc.stores.kafka.opening import describe_difference
from aiokcc.stores.kafka.records import Kind, Record, UnknownFormatError
from aiokcc.stores.kafka.snapshot import Beginning, MissingPrefixError
from aiokcc.stores.kafka.state import LogSession, pack
from tests.kafka_log import TIMEOUT, Client, Log, Rules, join_from_start, new_genesis


class WithoutLive(Machine):
    def _find_live(self, record: Record) -> LogSession | None:
        gone = LogSession(record.session, 1000, b"", record.seq, 0, 0)
        return self.sessions.get(record.session) or (gone if record.session else None)


class WithoutSeq(Machine):
    def _is_next(self, session: LogSession, record: Record) -> bool:
        return True


class WithoutSilence(Machine):
    def _is_silent(self, session: LogSession, last: int) -> bool:
        return True


class WithoutGenesis(Machine):
    def _decode(self, raw: bytes | None) -> Record | None:
        return records.decode(raw, None)


class WithoutTail(Machine):
    def is_same(self, offset: int, raw: bytes | None) -> bool:
        return True


class WithoutChain(Machine):
    def is_outvoted(self, own: int) -> bool:
        return False


class WithoutUnreadable(Machine):
    def _decode(self, raw: bytes | None) -> Record | None:
        if (record := records.decode(raw, self.genesis)) is None:
            raise ForeignLogError
        return record


class WithoutStop(Machine):
    """A record of a newer version is skipped, as if it could not be read."""

    def _decode(self, raw: bytes | None) -> Record | None:
        try:
            return records.decode(raw, self.genesis)
        except UnknownFormatError:
            return None


class WithoutReading(Patience):
    """Time counts from the answer that came last, whether or not it shows all that is in the log by now."""

    def confirm(self, sent: float, now: float, sessions: Iterable[LogSession]) -> None:
        super().confirm(now, now, sessions)


class WithoutAnew(Patience):
    """The waiting goes on after an interruption, or a time in which the observer itself was frozen."""

    def interrupt(self) -> None:
        pass

    def confirm(self, sent: float, now: float, sessions: Iterable[LogSession]) -> None:
        for session in sessions:
            self._heard.setdefault(session.id, now)
        self._contact, self._sent = now, sent


class WithoutWhole(Patience):
    """The observer waits half of the timeout."""

    def silent(self, sessions: Iterable[LogSession]) -> Iterator[LogSession]:
        return super().silent(replace(session, timeout=session.timeout // 2) for session in sessions)


class WithoutPrefix(Beginning):
    """A log that begins anywhere is applied from there to an empty tree."""

    def feed(self, offset: int, raw: bytes | None) -> Machine | None:
        if self.machine is None and (record := records.decode(raw, None)) is not None:
            self.machine = Machine()
            self.machine.genesis, self.machine.position = record.genesis, self._start
        return self.machine


OFF: Final = {
    "live": Rules(WithoutLive),
    "seq": Rules(WithoutSeq),
    "patience: whole": Rules(patience=WithoutWhole),
    "deadline: acknowledged": Rules(confirms="acknowledged"),
    "genesis": Rules(WithoutGenesis),
    "same tail": Rules(WithoutTail),
    "chain": Rules(WithoutChain),
    "prefix": Rules(beginning=WithoutPrefix),
}
"""The rules, each with one part of it switched off, for ``tests/property/test_kafka_log.py``."""


def expire(observer: Client, session: Client) -> bytes:
    last = observer.machine.sessions[session.id].last
    return observer.seal(Kind.EXPIRE, records.encode_expire(session.id, last))


def frozen_process_writes_after_its_end(machine: type[Machine]) -> bytes:
    """A leader is frozen past its session; another takes over; the first wakes up and its append arrives."""
    log = Log.new()
    frozen, other = Client(log, machine).open(), Client(log, machine).open()
    frozen.do(Create("limit", b"10"))
    late = frozen.write(Set("limit", b"20", ANY_VERSION))
    other.read()
    log.append(expire(other, frozen))
    other.read()
    log.append(late)
    other.read()
    return other.machine.tree.nodes["/root/limit"].data


def test_live() -> None:
    assert frozen_process_writes_after_its_end(Machine) == b"10"
    assert frozen_process_writes_after_its_end(WithoutLive) == b"20"


def test_a_session_is_known_by_the_offset_of_its_open() -> None:
    log = Log.new()
    session = Client(log).open()
    assert records.decode(log.entries[session.id - 1], None).kind is Kind.OPEN  # type: ignore[union-attr]


def retried_append_is_in_the_log_twice(machine: type[Machine]) -> int:
    log = Log.new()
    writer = Client(log, machine).open()
    writer.do(Create("count", b""))
    again = writer.write(Set("count", b"", ANY_VERSION))
    log.append(again)
    log.append(again)
    writer.read()
    return writer.machine.tree.nodes["/root/count"].version


def test_seq() -> None:
    assert retried_append_is_in_the_log_twice(Machine) == 1
    assert retried_append_is_in_the_log_twice(WithoutSeq) == 2


def lagging_observer_ends_a_live_owner(machine: type[Machine]) -> bool:
    """The EXPIRE was decided before a beat of the session was read; in the log the beat comes first."""
    log = Log.new()
    owner, lagging = Client(log, machine).open(), Client(log, machine).open()
    owner.read()
    old = expire(lagging, owner)
    log.append(owner.seal(Kind.BEAT))
    log.append(old)
    owner.read()
    return owner.is_live


def test_silence() -> None:
    assert lagging_observer_ends_a_live_owner(Machine)
    assert not lagging_observer_ends_a_live_owner(WithoutSilence)


def test_two_observers_that_end_the_same_session_end_it_once() -> None:
    log = Log.new()
    silent, one, two = Client(log).open(), Client(log).open(), Client(log).open()
    one.read()
    for raw in (expire(one, silent), expire(two, silent)):
        log.append(raw)
    one.read()
    assert [applied.ended for applied in one.results if applied.ended] == [[silent.id]]


class TestPatience:
    """An observer waits the whole timeout after reading the last record, in contact all the time."""

    def test_a_silent_session_is_ended_after_its_whole_timeout(self) -> None:
        log = Log.new()
        silent, observer = Client(log).open(), Client(log).open()
        for _ in range(int(TIMEOUT)):
            assert observer.expire_silent() == []
            log.now += 1
            observer.read()
        (raw,) = observer.expire_silent()
        log.append(raw)
        observer.read()
        assert silent.id not in observer.machine.sessions

    @staticmethod
    def ended_after_an_outage(patience: type[Patience]) -> int:
        """The broker was away for longer than the timeout: everybody was silent, and nobody is dead."""
        log = Log.new()
        clients = [Client(log, rules=Rules(patience=patience)).open() for _ in range(3)]
        for client in clients:
            client.read()
        log.now += 3 * TIMEOUT
        for client in clients:
            client.interrupt()
            client.read()
        return sum(len(client.expire_silent()) for client in clients)

    def test_after_an_outage_nobody_ends_anybody(self) -> None:
        assert self.ended_after_an_outage(Patience) == 0
        assert self.ended_after_an_outage(WithoutAnew) == 6, "everybody ends everybody"

    @staticmethod
    def ended_after_a_short_interruption(patience: type[Patience]) -> int:
        """The observer loses contact for less than half of the timeout, when the session has been silent for most of it."""
        log = Log.new()
        Client(log).open()
        observer = Client(log, rules=Rules(patience=patience)).open()
        for _ in range(int(TIMEOUT * 2 / 3)):
            log.now += 1
            observer.read()
        observer.interrupt()
        log.now += TIMEOUT * 5 / 12
        observer.read()
        return len(observer.expire_silent())

    def test_after_its_own_loss_of_contact_an_observer_starts_anew_however_short_it_was(self) -> None:
        assert self.ended_after_a_short_interruption(Patience) == 0
        assert self.ended_after_a_short_interruption(WithoutAnew) == 1

    @staticmethod
    def ended_by_a_frozen_observer(patience: type[Patience]) -> int:
        """The observer was frozen, and its connection stayed: nothing was interrupted, and the log has grown meanwhile."""
        log = Log.new()
        owner, observer = Client(log).open(), Client(log, rules=Rules(patience=patience)).open()
        observer.read()
        log.now += 3 * TIMEOUT
        observer.patience.confirm(log.now, log.now, observer.machine.sessions.values())
        log.append(owner.seal(Kind.BEAT))
        return len(observer.expire_silent())

    def test_an_observer_that_was_frozen_starts_anew_although_nothing_was_interrupted(self) -> None:
        assert self.ended_by_a_frozen_observer(Patience) == 0
        assert self.ended_by_a_frozen_observer(WithoutAnew) == 1

    @staticmethod
    def ended_by_an_old_answer(patience: type[Patience]) -> int:
        """The read was sent before the session's time was over, and answered after it."""
        log = Log.new()
        Client(log).open()
        observer = Client(log, rules=Rules(patience=patience)).open()
        sessions = observer.machine.sessions.values()
        for _ in range(int(TIMEOUT) - 1):
            log.now += 1
            observer.read()
        sent, log.now = log.now, log.now + TIMEOUT / 3
        observer.patience.confirm(sent, log.now, sessions)
        return len(observer.expire_silent())

    def test_the_answer_to_an_old_read_proves_nothing(self) -> None:
        assert self.ended_by_an_old_answer(Patience) == 0
        assert self.ended_by_an_old_answer(WithoutReading) == 1

    @staticmethod
    def owners(rules: Rules) -> list[Client]:
        """An owner beats, and is then cut off; another one takes its lock as soon as it may."""
        log = Log.new()
        owner, other = Client(log, rules=rules).open(), Client(log, rules=rules).open()
        assert owner.lock()
        other.read()
        assert other.take_over()
        return [client for client in (owner, other) if client.relies_on_lock]

    def test_an_observer_that_waits_less_than_the_timeout_makes_two_owners(self) -> None:
        assert len(self.owners(Rules())) == 1
        assert len(self.owners(Rules(patience=WithoutWhole))) == 2


class TestDeadline:
    """A session is relied on for 2/3 of its timeout from the first send time of the last record read back as counted."""

    @staticmethod
    def owners_after_a_retry(rules: Rules) -> list[Client]:
        """The first attempt reached the log and its answer was lost. It is sent again, and then the owner is cut off."""
        log = Log.new()
        owner, other = Client(log, rules=rules).open(), Client(log, rules=rules).open()
        assert owner.lock()
        raw = owner.write(Create("a"))
        owner.append(raw)
        other.read()
        for _ in range(6):
            log.now += 1
            other.append(other.seal(Kind.BEAT))
            other.read()
        owner.append(raw)
        owner.read()
        assert other.take_over()
        return [client for client in (owner, other) if client.relies_on_lock]

    def test_the_first_attempt_counts_not_the_last(self) -> None:
        assert len(self.owners_after_a_retry(Rules())) == 1
        assert len(self.owners_after_a_retry(Rules(confirms="last attempt"))) == 2

    @staticmethod
    def owners_after_an_acknowledgement(rules: Rules) -> list[Client]:
        """The owner was slow and is ended; the broker acknowledges its next beat, which does not count."""
        log = Log.new()
        owner, other = Client(log, rules=rules).open(), Client(log, rules=rules).open()
        assert owner.lock()
        other.read()
        assert other.take_over()
        owner.append(owner.seal(Kind.BEAT))
        return [client for client in (owner, other) if client.relies_on_lock]

    def test_the_record_read_back_counts_not_the_acknowledgement(self) -> None:
        assert len(self.owners_after_an_acknowledgement(Rules())) == 1
        assert len(self.owners_after_an_acknowledgement(Rules(confirms="acknowledged"))) == 2

    def test_a_record_that_does_not_count_moves_nothing(self) -> None:
        """The record was read back, but the session had ended before it in the log."""
        log = Log.new()
        owner, observer = Client(log).open(), Client(log).open()
        log.append(expire(observer, owner))
        before = owner.deadline.stop_at
        log.now += 5
        log.append(owner.seal(Kind.BEAT))
        owner.read()
        assert owner.deadline.stop_at == before

    def test_it_never_goes_back(self) -> None:
        deadline = Deadline(TIMEOUT)
        deadline.confirm(5.0)
        deadline.confirm(3.0)
        assert deadline.confirmed == 5.0

    def test_it_is_two_thirds_of_the_timeout_and_the_session_is_lost_after_the_whole(self) -> None:
        log = Log.new()
        owner = Client(log).open()
        beat, sent = owner.seal(Kind.BEAT), log.now
        owner.append(beat)
        log.now += 5
        owner.read()
        assert owner.deadline.stop_at == sent + TIMEOUT * 2 / 3
        assert owner.deadline.lost_at == sent + TIMEOUT


def foreign_record_opens_a_session(machine: type[Machine]) -> int:
    """A client of the deleted topic still appends: its ids would be those of the new topic."""
    old, log = Log.new(), Log.new()
    stranger = Client(old).open()
    member = Client(log, machine).open()
    assert stranger.id == member.id
    log.append(stranger.write(Create("stranger")))
    member.read()
    return len(member.machine.tree.nodes)


def test_genesis() -> None:
    assert foreign_record_opens_a_session(Machine) < foreign_record_opens_a_session(WithoutGenesis)


def test_of_two_founders_the_first_names_the_log() -> None:
    log = Log.new()
    log.append(new_genesis())
    assert Client(log).open().machine.sessions


def test_a_log_that_does_not_begin_with_a_genesis_is_refused() -> None:
    log = Log()
    log.append(b"somebody's record")
    with pytest.raises(ForeignLogError):
        Client(log).read()


def truncated_log_has_grown_again(machine: type[Machine]) -> bool:
    """Return whether a reader that comes back notices that the log was cut and has grown past its position."""
    log = Log.new()
    reader, writer = Client(log, machine).open(), Client(log).open()
    writer.do(Create("a"))
    reader.read()
    log.truncate(writer.machine.position - 1)
    log.append(reader.seal(Kind.BEAT))
    log.append(reader.seal(Kind.BEAT))
    anchor = reader.machine.anchor
    return not reader.machine.is_same(anchor, log.entries[anchor])


def test_same_tail() -> None:
    assert truncated_log_has_grown_again(Machine)
    assert not truncated_log_has_grown_again(WithoutTail)


def test_a_log_that_was_deleted_and_made_again_is_noticed_by_its_tail() -> None:
    log = Log.new()
    reader = Client(log).open()
    again = Log.new()
    Client(again).open()
    assert reader.machine.position == again.end
    assert not reader.machine.is_same(reader.machine.anchor, again.entries[reader.machine.anchor])


def lying_snapshot(machine: type[Machine], honest: int) -> bool:
    """Return whether a newcomer that began with a wrong snapshot notices it at the records of the others."""
    log = Log.new()
    members = [Client(log).open() for _ in range(honest)]
    members[0].do(Create("limit", b"10"))
    log.append(members[0].seal(Kind.MARK))
    for member in members:
        member.read()
    mark = members[0].machine.mark
    assert mark is not None
    content = mark.content.replace(b"10", b"99")
    assert content != mark.content
    log.append(members[0].seal(Kind.SNAPSHOT, records.encode_snapshot(mark.offset, 0, 1, pack(content))))
    for member in members:
        member.read()
        log.append(member.seal(Kind.BEAT))
    assert members[0].results[-1].is_snapshot_wrong
    assert members[0].machine.trim_offset() is None, "nobody trims to it"
    for member in members:
        member.read()
        assert not member.machine.is_outvoted(member.id)
    log.trim(mark.offset)
    newcomer = join_from_start(log)
    assert newcomer is not None
    newcomer.__class__ = machine
    return newcomer.is_outvoted(0)


def test_chain() -> None:
    assert lying_snapshot(Machine, 1)
    assert lying_snapshot(Machine, 3)
    assert not lying_snapshot(WithoutChain, 3)


def test_chain_stops_the_one_that_differs_and_not_the_others() -> None:
    log = Log.new()
    members = [Client(log).open() for _ in range(3)]
    for member in members:
        member.read()
    members[2].machine.tree.nodes["/"].version = 7  # it applies records differently, for whatever reason
    log.append(members[0].seal(Kind.MARK))
    for member in members:
        member.read()
    for member in members:
        log.append(member.seal(Kind.BEAT))
    for member in members:
        member.read()
    assert [member.machine.is_outvoted(member.id) for member in members] == [False, False, True]
    assert members[0].machine.differing == (members[2].id,)


class TestPrefix:
    """A log that does not begin at 0 needs a snapshot of exactly that offset."""

    def test_a_newcomer_has_the_same_state_from_a_snapshot_as_from_the_beginning(self) -> None:
        log = Log.new()
        member = Client(log).open()
        member.do(Create("a", b"x"))
        member.do(Create("a/b", b"y", ephemeral=True))
        member.mark()
        log.append(member.seal(Kind.BEAT))
        member.read()
        target = member.machine.trim_offset()
        assert target is not None
        member.do(Set("a", b"z", 0))
        whole = join_from_start(log)
        log.trim(target)
        trimmed = join_from_start(log)
        assert whole is not None
        assert trimmed is not None
        assert trimmed.encode_state(log.end) == whole.encode_state(log.end) == member.machine.encode_state(log.end)

    def test_a_log_whose_prefix_was_deleted_is_refused(self) -> None:
        log = Log.new()
        member = Client(log).open()
        member.do(Create("limit"))
        log.trim(2)
        with pytest.raises(MissingPrefixError):
            Beginning(log.start).feed(2, log.entries[2])
        assert join_from_start(log) is None
        empty = join_from_start(log, Rules(beginning=WithoutPrefix))
        assert empty is not None
        assert "/root/limit" not in empty.tree.nodes, "a newcomer would found the run a second time"

    def test_a_mark_without_its_snapshot_is_refused(self) -> None:
        log = Log.new()
        member = Client(log).open()
        log.append(member.seal(Kind.MARK))
        log.append(member.seal(Kind.BEAT))
        log.trim(log.end - 2)
        assert join_from_start(log) is None

    def test_a_snapshot_of_another_mark_is_not_taken(self) -> None:
        """The log begins with the second mark; in it are the snapshot of the first one, and one that only says otherwise."""
        log = Log.new()
        member = Client(log).open()
        log.append(member.seal(Kind.MARK))
        member.read()
        first = member.machine.mark
        assert first is not None
        member.do(Create("limit"))
        start = log.append(member.seal(Kind.MARK))
        for claimed in (first.offset, start):
            log.append(member.seal(Kind.SNAPSHOT, records.encode_snapshot(claimed, 0, 1, pack(first.content))))
        log.trim(start)
        assert join_from_start(log) is None

    def test_the_log_is_not_trimmed_past_the_slowest_live_member(self) -> None:
        log = Log.new()
        member, slow = Client(log).open(), Client(log).open()
        member.read()
        member.mark()
        log.append(member.seal(Kind.BEAT))
        member.read()
        assert member.machine.trim_offset() is None
        slow.read()
        log.append(slow.seal(Kind.BEAT))
        member.read()
        assert member.machine.trim_offset() == member.machine.mark.offset  # type: ignore[union-attr]


class TestUnreadable:
    """A record that cannot be read changes nothing, for every reader alike; one of a newer version stops the reader."""

    @pytest.mark.parametrize("raw", [b"", b"garbage", b"aiokcc", bytes(200), b"aiokcc\1" + bytes(100)])
    def test_garbage_changes_nothing(self, raw: bytes) -> None:
        log = Log.new()
        member, strict = Client(log).open(), Client(log, WithoutUnreadable).open()
        log.append(raw)
        with pytest.raises(ForeignLogError):
            strict.read()  # without the rule one bad record stops everybody
        assert member.do(Create("a")).error is None
        assert join_from_start(log).encode_state(log.end) == member.machine.encode_state(log.end)  # type: ignore[union-attr]

    def test_a_body_that_cannot_be_read_changes_nothing_and_the_next_write_counts(self) -> None:
        log = Log.new()
        member = Client(log).open()
        for kind in Kind:
            if kind not in (Kind.CLOSE, Kind.FORMAT, Kind.SYNC):
                log.append(member.seal(kind, b"\xff\xfe" * 9, member.seq))
        assert member.do(Create("a")).counted

    @pytest.mark.parametrize("length", [None, 15])
    def test_a_record_of_a_newer_version_stops_the_reader(self, length: int | None) -> None:
        """Also if it is as short as a record can be that names its log."""
        log = Log.new()
        member = Client(log).open()
        newer = bytearray(member.seal(Kind.BEAT))
        newer[6] = 2
        log.append(bytes(newer[:length]))
        with pytest.raises(UnknownFormatError):
            member.read()

    def test_a_reader_that_skips_a_newer_record_differs_from_those_that_know_it(self) -> None:
        """The new version has a verb that this one does not know. Who skips it goes on with another tree."""
        log = Log.new()
        old, new = Client(log, WithoutStop).open(), Client(log).open()
        old.read()
        record = new.write(Create("new"))
        newer = bytearray(record)
        newer[6] = 2
        log.append(bytes(newer))
        old.read()
        new.apply(log.end - 1, record)  # this is what a member of the new version does with it
        assert "/root/new" in new.machine.tree.nodes
        assert "/root/new" not in old.machine.tree.nodes

    def test_a_raised_format_stops_the_reader(self) -> None:
        log = Log.new()
        member = Client(log).open()
        log.append(member.seal(Kind.FORMAT, b"\2"))
        with pytest.raises(UnknownFormatError):
            member.read()

    def test_a_foreign_record_of_a_newer_version_changes_nothing(self) -> None:
        log = Log.new()
        member = Client(log).open()
        newer = bytearray(new_genesis())
        newer[6] = 2
        log.append(bytes(newer))
        member.read()


def test_a_failed_write_names_the_operation() -> None:
    log = Log.new()
    member = Client(log).open()
    member.do(Create("a"))
    applied = member.do(Create("b"), Set("a", b"", 5))
    assert (applied.error, applied.index, applied.counted) == (BadVersionError, 1, True)
    assert "/root/b" not in member.machine.tree.nodes


def test_an_open_that_was_appended_twice_opens_one_session() -> None:
    log = Log.new()
    member = Client(log).open()
    log.append(log.entries[1])
    member.read()
    assert list(member.machine.sessions) == [member.id]


class TestGroupOfTwo:
    """In a group of two nobody can know who is right; each says whether its state is that of the snapshot in the log."""

    @staticmethod
    def differing() -> tuple[Log, Client, Client]:
        log = Log.new()
        writer, other = Client(log).open(), Client(log).open()
        writer.read()
        other.machine.tree.nodes["/"].version = 7  # it applies records differently, for whatever reason
        return log, writer, other

    def test_both_stop_and_the_one_that_differs_from_the_snapshot_says_so(self) -> None:
        log, writer, other = self.differing()
        writer.mark()
        for client in (writer, other):
            client.read()
            log.append(client.seal(Kind.BEAT))
        for client in (writer, other):
            client.read()
            assert client.machine.is_outvoted(client.id)
        told = describe_difference(writer.machine, "topic", writer.id)
        assert f"another history or state than session {other.id} " in told
        assert "this process has the state of the snapshot there, which this process itself wrote" in told
        told = describe_difference(other.machine, "topic", other.id)
        assert f"does not have the state of the snapshot there, which session {writer.id} wrote" in told

    def test_without_a_snapshot_that_is_said(self) -> None:
        log, writer, other = self.differing()
        log.append(writer.seal(Kind.MARK))
        for client in (writer, other):
            client.read()
            log.append(client.seal(Kind.BEAT))
        writer.read()
        assert writer.machine.is_outvoted(writer.id)
        assert "There was no snapshot" in describe_difference(writer.machine, "topic", writer.id)

    def test_a_process_that_began_with_a_snapshot_names_it(self) -> None:
        log = Log.new()
        member = Client(log).open()
        member.mark()
        log.append(member.seal(Kind.BEAT))
        member.read()
        target = member.machine.trim_offset()
        assert target is not None
        log.trim(target)
        beginning = Beginning(target)
        for offset, raw in sorted(log.entries.items()):
            beginning.feed(offset, raw)
        assert beginning.machine is not None
        told = describe_difference(beginning.machine, "topic", 0)
        assert f"This process began with the snapshot of offset {target}" in told


class TestSilentBefore:
    """The times of the records are a hint, for which opening waits, and decide nothing."""

    def session(self, number: int) -> LogSession:
        return LogSession(number, 10_000, bytes(16), 1, 0, 0)

    def test_who_was_heard_within_its_timeout_is_not_waited_for(self) -> None:
        before = SilentBefore(30.0)
        before.note(1_000, 1)
        before.note(1_001, 2)
        before.note(11_000, 3)
        before.opened(3, [self.session(number) for number in (1, 2, 3)])
        assert before.sessions == {1: 10.0}

    def test_who_is_in_the_snapshot_was_heard_before_the_first_record(self) -> None:
        before = SilentBefore(30.0)
        before.note(1_000, 0)
        before.note(11_000, 2)
        before.opened(2, [self.session(1), self.session(2)])
        assert before.sessions == {1: 10.0}

    def test_who_would_have_to_be_waited_for_too_long_is_not_waited_for(self) -> None:
        before = SilentBefore(9.9)
        before.note(1_000, 1)
        before.note(99_000, 2)
        before.opened(2, [self.session(1), self.session(2)])
        assert not before.sessions

    def test_a_clock_that_is_wrong_ends_nobody(self) -> None:
        before = SilentBefore(30.0)
        before.note(1_000, 1)
        before.note(1_000, 2)
        before.note(99_000, 3)
        before.opened(3, [self.session(number) for number in (1, 2, 3)])
        before.note(99_001, 1)
        assert before.sessions == {2: 10.0}
        before.end(2)
        assert not before.sessions
