"""Gathers records into whole periods for :meth:`Replay.periods`.

While a period is gathered and worked on, the member's report is withheld: a record counts as processed only when the user asks
for the next period. See [withheld] in docs/explanation/protocol.md.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiokcc.core.limit import Mode
from aiokcc.core.partitions import Partition
from aiokcc.exception_groups import unwrapped
from aiokcc.kafka.summary import Period
from aiokcc.runtime.listener import Listener
from aiokcc.runtime.signal import Signal

if TYPE_CHECKING:
    from aiokcc.kafka.handoff import Handoff
    from aiokcc.kafka.partition_consumer import PartitionConsumer
    from aiokcc.kafka.reader import Reader

__all__ = ["PeriodCollector"]


class PeriodCollector(Listener):
    """Gathers records until every partition has arrived, hands the period over, and reports when it has been processed."""

    def __init__(self, reader: Reader, handoff: Handoff[Period]) -> None:
        self._reader = reader
        self._member = reader.group.membership
        self._handoff = handoff
        self._records: dict[Partition, list[Any]] = {}
        self._complete = Signal()
        """Set when the gathered period may be complete."""
        self._taken = asyncio.Event()
        """Set when the records that were gathered last have been processed."""

    async def run(self) -> None:
        """Read and hand over, until the run has ended or is stopped. What was not processed by then is read again."""
        progress = self._member.progress

        async def read() -> None:
            await self._reader.read(self._work, self)
            tasks.cancel_scope.cancel()

        try:
            async with unwrapped() as tasks:
                tasks.start_soon(read)
                while True:
                    await self._complete.wait()
                    if self._reader.stopped:  # the records are no complete period
                        self._taken.set()
                    elif self._records and (progress.has_arrived or self._is_released):
                        await self._hand_over()
        finally:
            if progress.withheld:  # a period that was not processed must not count as finished
                await self._member.release_all()
            progress.withheld = False

    def all_arrived(self) -> None:
        self._complete.set()

    @property
    def _is_released(self) -> bool:
        return self._member.progress.limit.mode is Mode.OPEN

    async def _work(self, consumer: PartitionConsumer) -> None:
        await consumer.run_batches(self._gather, internal=True)

    async def _gather(self, records: list[Any]) -> None:
        self._member.progress.withheld = True
        where = Partition(records[0].topic, records[0].partition)
        self._records.setdefault(where, []).extend(records)
        if self._is_released:  # there are no periods any more: this list is handed over before more is read
            self._complete.set()
            await self._taken.wait()

    async def _hand_over(self) -> None:
        progress = self._member.progress
        records, self._records = self._records, {}
        ends = {p: gathered[-1].offset + 1 for p, gathered in records.items()}
        cut = ends if self._is_released else progress.positions()
        async with self._reader.period_lock:
            await self._handoff.put(Period(progress.late_below, progress.limit.value, records, cut))
            self._taken.set()
            self._taken = asyncio.Event()
            if self._records:  # an idle partition woke meanwhile
                self._complete.set()
            else:
                progress.withheld = False
                self._member.report_if_due()
