"""Gathers records into whole periods for :meth:`Replay.periods`.

While a period is gathered and worked on, its boundary is withheld from the member's report: a record counts as processed only
when the user asks for the next period. See [withheld] in docs/explanation/protocol.md.

With lookahead the partitions go on meanwhile, up to the limit. What they bring is kept by period; the first period is handed
over once every partition has crossed its end, and then the next one. So the user gets whole periods, in order.
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
        self._gathered: dict[int, dict[Partition, list[Any]]] = {}
        """The records that are not handed over yet, by the end of their period."""
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
                    elif self._is_whole:
                        await self._hand_over()
        finally:
            if progress.withheld_from is not None:  # a period that was not processed must not count as finished
                await self._member.release_all()
            progress.withheld_from = None

    def all_arrived(self) -> None:
        if self._is_whole:
            self._complete.set()

    @property
    def _is_whole(self) -> bool:
        """True if the first of the gathered periods has all its records, or there are no periods any more."""
        return bool(self._gathered) and (self._is_released or self._member.progress.has_crossed(min(self._gathered)))

    @property
    def _is_released(self) -> bool:
        return self._member.progress.limit.mode is Mode.OPEN

    async def _work(self, consumer: PartitionConsumer) -> None:
        await consumer.run_batches(lambda records: self._gather(consumer, records), internal=True)

    async def _gather(self, consumer: PartitionConsumer, records: list[Any]) -> None:
        progress = self._member.progress
        end = progress.next_boundary(consumer.gate.progress)  # it has not crossed this, so the records lie before it
        self._gathered.setdefault(end, {}).setdefault(consumer.partition, []).extend(records)
        progress.withheld_from = end if progress.withheld_from is None else min(end, progress.withheld_from)
        if self._is_released:  # there are no periods any more: this list is handed over before more is read
            self._complete.set()
            await self._taken.wait()

    async def _hand_over(self) -> None:
        progress = self._member.progress
        end = min(self._gathered)
        records = self._gathered.pop(end)
        if self._is_released:
            start, end = progress.late_below, progress.limit.value
            cut = {p: gathered[-1].offset + 1 for p, gathered in records.items()}
        else:
            start = max((b for b in progress.limit.boundaries if b < end), default=progress.late_below)
            cut = progress.positions(end)
        async with self._reader.period_lock:
            await self._handoff.put(Period(start, end, records, cut))
            self._taken.set()
            self._taken = asyncio.Event()
            # Another list of the same period may be there by now: of an idle partition that has woken.
            progress.withheld_from = min(self._gathered, default=None)
            self._member.report_if_due()
