"""Reads the log and applies it to a machine: finds the beginning, catches up, follows, and looks again after interruptions.

**[same tail]** After an interruption, the record that was applied last is read again before anything else. If it is another
one, or is gone, the log is not the one that we know, and :class:`LogChangedError` says what has become of it.

An interruption is a read that failed, and also a read that shows that the partition has changed its leader or its log since the
read before: a process that was frozen between two reads has seen none fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from aiokcc.errors import StoreError
from aiokcc.stores.kafka import records
from aiokcc.stores.kafka.client import LogClient, LogEntry, LogError, LogSlice, OutOfRangeError
from aiokcc.stores.kafka.history import LogHistory
from aiokcc.stores.kafka.machine import Applied, ForeignLogError, Machine
from aiokcc.stores.kafka.records import Kind, Record, UnknownFormatError
from aiokcc.stores.kafka.snapshot import Beginning, MissingPrefixError
from aiokcc.stores.port import boottime

__all__ = ["Follower", "LogChangedError", "LogTrimmedError"]

log = logging.getLogger("aiokcc.stores")

_RETRY_SECONDS: Final = 0.05
"""The pause after a read that failed: a broker that is away does not tell when it is back."""
_LONGEST_WAIT: Final = 0.5
_MANY: Final = 8
"""With more sessions than this, an idle one reads again only after a rest."""
_REST_SECONDS: Final = 0.01
"""The length of that rest for each session."""
_YIELDS: Final = 3
"""The turns of the event loop that are left to the tasks that a record wakes, before the next read: it wakes the caller of a
write or a watch, which wakes the partitions that wait for a new limit."""
LOOKS: Final = 6
LOOK_SECONDS: Final = 0.3
"""A log that seems to be cut is looked at so many times, with so many seconds between. A broker that was the leader, and does
not know yet that it no longer is, has a log that ends earlier. Each time another broker may be asked who leads."""


class LogChangedError(Exception):
    """The log is not one that we can follow: the message says why. It will not get better by trying again."""


class LogTrimmedError(LogChangedError):
    """Records that we had not read were deleted. If we have no live session, others may trim the log, and we begin again."""


class Follower:
    """Follows the log of one topic.

    :param on_applied: called with every record, right after it was applied
    :param on_read: called with the send time of each read whose answer reached the end of the log, after it was applied
    :param on_contact: called with False when contact is lost, and with True when the log is followed again
    :param is_idle: returns whether the session neither waits for a record nor has written lately
    """

    def __init__(
        self,
        client: LogClient,
        topic: str,
        on_applied: Callable[[Applied], None],
        on_read: Callable[[float], None],
        on_contact: Callable[[bool], None],
        is_idle: Callable[[], bool],
    ) -> None:
        self._client, self._topic = client, topic
        self._on_applied, self._on_read, self._on_contact = on_applied, on_read, on_contact
        self._is_idle = is_idle
        self._hurried = asyncio.Event()
        self.machine = Machine()
        self.start = 0
        """The offset at which the log begins, by the last answer."""
        self.last_problem = ""
        """The reason why the last read failed; empty if it did not."""
        self._epoch: int | None = None
        """The epoch of the leader that the last record was appended by."""

    async def catch_up(self, genesis: Record, known: LogHistory) -> None:
        """Apply the whole log up to its present end. If it is empty, append this GENESIS first.

        ``known`` is the log as an earlier session has seen it. Raises LogError, and LogChangedError if it is another one now.
        """
        while True:
            start, end = await self._client.find_range()
            if end == 0:
                if known.genesis is not None:
                    raise LogChangedError(self._made_again())
                await self._client.append([records.encode(genesis)])
                continue
            try:
                await self._begin(start, end, known)
                break
            except OutOfRangeError:  # it was trimmed meanwhile
                continue
        if known.genesis not in (None, self.machine.genesis):
            raise LogChangedError(self._made_again())
        self._compare_chain(known)

    async def _begin(self, start: int, end: int, known: LogHistory) -> None:
        beginning = Beginning(start)
        offset, self.start = start, start
        held: list[LogEntry] = []
        try:
            while offset < end:
                found = await self._client.fetch(offset, 0.1)
                for entry in found.entries:
                    offset = entry.offset + 1
                    held.append(entry)
                    if (machine := beginning.feed(entry.offset, entry.raw)) is not None:
                        self.machine = machine
                        for one in held:
                            self._compare_chain(known)
                            self._apply(one)
                        held.clear()
        except MissingPrefixError:
            beginning.machine = None
        except UnknownFormatError as error:
            raise LogChangedError(_describe_format(self._topic, error.version)) from None
        if beginning.machine is None:
            raise LogChangedError(
                f"the topic {self._topic!r} begins at offset {start}, and not with a mark that has a snapshot: records "
                f"at its beginning were deleted by somebody else (retention, for example), and the group's agreement with "
                f"them. Stop all members, delete the topic, and start them again to begin anew"
            )

    def _compare_chain(self, known: LogHistory) -> None:
        """Raise LogChangedError if an earlier session has read up to here, and these are not the records that it has read."""
        machine = self.machine
        is_there = machine.position == known.position and machine.genesis == known.genesis
        if is_there and machine.chain != known.chain:
            raise LogChangedError(self._lost(known.position, "has other records before that now"))

    def _apply(self, entry: LogEntry) -> Applied:
        try:
            applied = self.machine.apply(entry.offset, entry.timestamp, entry.raw)
        except ForeignLogError:
            raise LogChangedError(
                f"the topic {self._topic!r} has records that are not of aiokcc's log; "
                f"give the store a topic of its own: kafka://host:9092/root?topic=NAME"
            ) from None
        except UnknownFormatError as error:
            raise LogChangedError(_describe_format(self._topic, error.version)) from None
        if applied.is_snapshot_wrong:
            session = applied.record.session if applied.record is not None else 0
            log.error(
                "session %d has written a snapshot to %s that is not our state; it is ignored", session, self._topic
            )
        self._epoch = entry.epoch
        self._on_applied(applied)
        return applied

    async def follow(self) -> None:
        """Read and apply, until cancelled. Raises LogChangedError."""
        failures = looks = 0
        again = False
        compared: LogEntry | None = None
        while True:
            sent = boottime()
            machine = self.machine
            try:
                found = await self._client.fetch(machine.anchor if again else machine.position, self._longest_wait())
            except PermissionError as error:
                raise StoreError(f"Kafka no longer lets us read the topic {self._topic!r}: {error}") from None
            except LogError as error:
                looks += isinstance(error, OutOfRangeError)
                if looks == LOOKS:
                    raise await self._diagnose() from None
                failures, again = failures + 1, True
                self._note_problem(str(error), failures)
                await self._recover(failures, LOOK_SECONDS if looks else _RETRY_SECONDS * failures)
                continue
            self.start = found.start
            if (
                found.end < machine.position
            ):  # a new leader does not know at once how far it may tell; an old one never learns
                failures, again = failures + 1, True
                self._note_problem(f"the broker knows the log up to {found.end}", failures)
                await self._recover(failures, _RETRY_SECONDS * failures)
                continue
            if again:
                await self._compare(found)
                again = False
            elif self._shows_a_change(found) and found.entries[0] != compared:
                # A broker reads one file at a time, so the next answer may end before the record that we have just seen.
                again, compared = True, found.entries[0]
                continue
            looks = 0
            if failures:
                failures, self.last_problem = 0, ""
                self._on_contact(True)
            only_beats = True
            for entry in found.entries:
                if entry.offset >= machine.position:
                    applied = self._apply(entry)
                    only_beats = only_beats and applied.record is not None and applied.record.kind is Kind.BEAT
            if machine.position >= found.end:
                self._on_read(sent)
            if not found.entries:
                continue
            if only_beats and len(machine.sessions) > _MANY and self._is_idle():
                await self._rest()
            # To send the next request takes longer than all of the above; who waits for these records goes first.
            for _ in range(_YIELDS):
                await asyncio.sleep(0)

    def _note_problem(self, problem: str, failures: int) -> None:
        self.last_problem = problem
        if failures == 1:
            log.debug("lost contact with %s: %s", self._topic, problem)
            self._on_contact(False)

    def _shows_a_change(self, found: LogSlice) -> bool:
        """Return whether new records come from another leader than the last one, or are of another log of ours.

        What was written in the place of lost records was written after the leader had changed.
        """
        genesis = self.machine.genesis
        if found.entries and found.entries[0].epoch != self._epoch:
            return True
        return any(records.is_of_another_log(entry.raw, genesis) for entry in found.entries)

    def _longest_wait(self) -> float:
        """Return for how many seconds nothing need be read: contact is confirmed often enough for the shortest timeout."""
        return min(_LONGEST_WAIT, min((one.timeout for one in self.machine.sessions.values()), default=8000) / 8000)

    async def _rest(self) -> None:
        """Wait before the next read, so that the beats of many sessions come together; :meth:`hurry` ends it.

        Without it, each beat of each session would cost every session an answer and another request.
        """
        self._hurried.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(self._longest_wait(), len(self.machine.sessions) * _REST_SECONDS)):
                await self._hurried.wait()

    def hurry(self) -> None:
        """Read on at once: somebody waits for a record."""
        self._hurried.set()

    async def _compare(self, found: LogSlice) -> None:
        machine = self.machine
        known = [entry for entry in found.entries if entry.offset < machine.position]
        if not known or known[0].offset != machine.anchor:
            raise await self._diagnose()
        if not all(machine.is_same(entry.offset, entry.raw) for entry in known):
            raise await self._diagnose()

    async def _recover(self, failures: int, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.5))
        try:
            # If the brokers that we know are gone, ask those that were given.
            await (self._client.reconnect() if failures % 5 == 0 else self._client.refresh())
        except LogError as error:
            self.last_problem = str(error)

    async def _diagnose(self) -> LogChangedError:
        """Return the error that says what has become of the log."""
        machine, topic = self.machine, self._topic
        try:
            start, end = await self._client.find_range()
            first = (await self._client.fetch(start, 0)).entries if end > start else []
            record = records.decode(first[0].raw, None) if first else None
        except (LogError, PermissionError, UnknownFormatError) as error:
            return LogChangedError(f"the topic {topic!r} no longer has the record at offset {machine.anchor} ({error})")
        if record is None or record.genesis != machine.genesis:
            return LogChangedError(self._made_again())
        if start > machine.anchor:
            return LogTrimmedError(
                f"the topic {topic!r} begins at offset {start} now, and we had read it up to {machine.position}: records that "
                f"we had not read were deleted by somebody else (retention, for example)"
            )
        return LogChangedError(self._lost(machine.position, f"ends at {end} now or has other records there"))

    def _lost(self, position: int, found: str) -> str:
        return (
            f"the topic {self._topic!r} no longer has the records that we have read: we had read it up to offset {position}, "
            f"and it {found}. Kafka has lost acknowledged records (an unclean leader election, or disks that were lost). The "
            f"group's agreement may have gone back; stop all members, check their results, delete the topic, and start them "
            f"again"
        )

    def _made_again(self) -> str:
        return (
            f"the topic {self._topic!r}, which held the group's agreement, was deleted and made again while this process ran; "
            f"stop all members and start them again to begin anew"
        )


def _describe_format(topic: str, version: int) -> str:
    return (
        f"the topic {topic!r} has records of format {version}, and this version of aiokcc knows format {records.VERSION}; "
        f"let all members run the same version"
    )


def make_genesis(name: bytes, root: str) -> Record:
    """Return the first record of a log: its name, and the root that it is for."""
    return Record(name, Kind.GENESIS, 0, 0, 0, bytes(8), root.encode())
