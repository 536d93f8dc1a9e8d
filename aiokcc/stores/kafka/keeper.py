"""The sessions keep the log: they end the silent ones, mark, write snapshots, trim, and look after the topic's settings.

Every session ends the silent ones: whoever is first, **[silence]** makes the others' records harmless. The rest is the duty of
the oldest live session, whose id is the smallest, which every client knows from the log.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import anyio

from aiokcc.errors import StoreError
from aiokcc.stores.kafka import records
from aiokcc.stores.kafka.appender import Appender, Outgoing
from aiokcc.stores.kafka.client import LogClient, LogError
from aiokcc.stores.kafka.contact import Patience
from aiokcc.stores.kafka.follower import Follower
from aiokcc.stores.kafka.records import Kind
from aiokcc.stores.kafka.snapshot import split_snapshot
from aiokcc.stores.kafka.topic import find_problems

__all__ = ["MARK_RECORDS", "Keeper"]

log = logging.getLogger("aiokcc.stores")

MARK_RECORDS: Final = 2000
"""A mark and a snapshot follow after so many records, or after so many bytes as below."""
MARK_BYTES: Final = 2**20
STATE_PER_RECORD: Final = 128
"""With a large state the next mark waits until a record has come for so many bytes of it: every session has to write the state
down at each mark, and to compare the snapshot."""
_PART_BYTES: Final = 500_000
CHECK_SECONDS: Final = 60.0
"""The topic's settings are looked at this often: Kafka does not notify of a change of them."""


class Keeper:
    """Keeps the log for one session. The session calls :meth:`tend` after each read, and runs :meth:`run`."""

    def __init__(
        self, client: LogClient, topic: str, follower: Follower, appender: Appender, patience: Patience
    ) -> None:
        self._client, self._topic = client, topic
        self._follower, self._appender, self._patience = follower, appender, patience
        self._expired: set[tuple[int, int]] = set()
        self._marked = -1
        self._snapshot_of = -1
        self._trim = asyncio.Event()
        self._may_trim = True

    def tend(self, own: int) -> None:
        """Do what is due, by what was read. Nothing waits here."""
        machine = self._follower.machine
        for silent in self._patience.silent(machine.sessions.values()):
            if silent.id != own and (silent.id, silent.last) not in self._expired:
                self._expired.add((silent.id, silent.last))
                log.info("session %d on %s is silent; it is ended", silent.id, self._topic)
                self._appender.put(Outgoing(Kind.EXPIRE, records.encode_expire(silent.id, silent.last)))
        if len(self._expired) > 64:
            self._expired = {key for key in self._expired if key[0] in machine.sessions}
        if min(machine.sessions, default=0) == own:
            self._mark()
            target = machine.trim_offset()
            if target is not None and target > self._follower.start and self._may_trim:
                self._trim.set()

    def _mark(self) -> None:
        machine = self._follower.machine
        since = machine.mark.offset if machine.mark is not None else 0
        size = len(machine.mark.content) if machine.mark is not None else 0
        has_many = machine.records_since_mark >= max(MARK_RECORDS, size // STATE_PER_RECORD)
        if has_many or machine.bytes_since_mark >= max(MARK_BYTES, 4 * size):
            if self._marked <= since:  # none is under way
                self._marked = machine.position
                self._appender.put(Outgoing(Kind.MARK))
        elif machine.mark is not None and machine.snapshot_end is None and self._snapshot_of < machine.mark.offset:
            self._snapshot_of = machine.mark.offset
            for body in split_snapshot(machine.mark.offset, machine.mark.content, _PART_BYTES):
                self._appender.put(Outgoing(Kind.SNAPSHOT, body))

    async def run(self) -> None:
        """Trim when it is due, and look after the topic's settings, until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._trim_when_due)
            tasks.start_soon(self._check_settings)

    async def _trim_when_due(self) -> None:
        while True:
            await self._trim.wait()
            self._trim.clear()
            target = self._follower.machine.trim_offset()
            if target is None or target <= self._follower.start:
                continue
            try:
                await self._client.trim(target)
            except LogError as error:
                log.debug("could not trim %s: %s", self._topic, error)
            except PermissionError:
                self._may_trim = False
                log.warning(
                    "we may not trim %s, so it grows without end: give us the permission Delete on the topic",
                    self._topic,
                )
            except StoreError as error:
                self._may_trim = False
                log.warning("we cannot trim %s, so it grows without end: %s", self._topic, error)

    async def _check_settings(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                found = await self._client.describe()
            except (LogError, PermissionError) as error:
                log.debug("could not look at the settings of %s: %s", self._topic, error)
                continue
            if found is not None and (problems := list(find_problems(found))):
                log.error("the topic %s would lose the group's agreement: %s", self._topic, "; ".join(problems))
