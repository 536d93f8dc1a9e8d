"""Deals with the records that the loop of a partition cannot simply hand to the handler, as the policies say.

These are records that come late, that have no usable timestamp, that lie before the start of the run, and those on which the
handler raised. They are rare, so nothing here is written for speed.
"""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any

from aiokcc.core.periods import format_duration, format_time, looks_like_seconds
from aiokcc.errors import HandlerError, PoisonTimestampError
from aiokcc.kafka.handlers import check_result
from aiokcc.stores.port import boottime

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiokcc.kafka.consumer_policy import ConsumerPolicy
    from aiokcc.kafka.summary import Summary
    from aiokcc.runtime.gate import Gate
    from aiokcc.runtime.member import Member

__all__ = ["ExceptionalRecords", "catching", "wait_until_owned"]

log = logging.getLogger("aiokcc.kafka")


class ExceptionalRecords:
    """Carries out the policies for one partition, and counts in the summary what was done."""

    def __init__(self, policy: ConsumerPolicy, gate: Gate, member: Member, summary: Summary) -> None:
        self._policy = policy
        self._gate = gate
        self._member = member
        self._summary = summary

    def leave_out_before_start(self, record: Any, ts: int) -> None:
        """Count a record before the start: Kafka's index gives the first one at or after a time, and earlier ones may follow.

        Logs a warning, once, if the timestamp looks like seconds.
        """
        self._summary.outside += 1
        if looks_like_seconds(ts) and not self._member.warned_of_seconds:
            self._member.warned_of_seconds = True
            log.warning(
                "%s: the timestamp %d of the record at offset %d is read as milliseconds, %s, and lies before the start of "
                "the replay, so the record is left out; it looks like seconds, %s: then have timestamp= multiply it by 1000",
                self._gate.partition,
                ts,
                record.offset,
                format_time(ts),
                format_time(ts * 1000),
                extra={"partition": str(self._gate.partition), "offset": record.offset},
            )

    async def replace_timestamp(self, record: Any, ts: Any, ceiling: int, capped: int) -> int | None:
        """Return the timestamp that the policy gives to a record without a usable one; None: leave the record out.

        ``ceiling`` is the greatest usable timestamp, ``capped`` the one for the policy ``"cap"``. Raises PoisonTimestampError
        if the policy is ``"raise"``.
        """
        if type(ts) is int and ts > ceiling:
            wrong = f"the timestamp {ts} ({format_time(ts)}) lies further ahead of the clock than ahead= allows"
        elif isinstance(ts, Exception):
            wrong = f"the timestamp function raised {ts!r}"
        else:
            wrong = f"the timestamp {ts!r} is none: expected milliseconds since the Unix epoch"
        self._summary.poisoned += 1
        if self._policy.poison == "raise":
            raise PoisonTimestampError(
                f'{wrong}; timestamp= can read it from the record, poison="skip", "cap" or "dead-letter" continues without it',
                record.topic,
                record.partition,
                record.offset,
            ) from (ts if isinstance(ts, Exception) else None)
        if self._policy.poison == "cap":
            return capped
        if self._policy.poison == "dead-letter":
            await self._dead_letter(record, wrong)
        else:
            self._summary.skipped += 1
        return None

    async def admit_late(self, record: Any, ts: int) -> bool:
        """Do what the policy says about a late record, and return whether it is to be processed."""
        if not self._summary.late:  # only the first one of this process is logged: the others are counted
            log.warning(
                "%s: the record at offset %d, of %s, is %s late: its period has closed. With lateness= a period waits for "
                "records that lie so far behind others of their partition; the end of the replay says how many came late",
                self._gate.partition,
                record.offset,
                format_time(ts),
                format_duration(self._gate.progress.late_below - ts),
                extra={"partition": str(self._gate.partition), "offset": record.offset},
            )
        self._summary.late += 1
        if self._policy.late == "dead-letter":
            await self._dead_letter(record, "its period had closed")
        elif self._policy.late == "drop":
            self._summary.skipped += 1
        return self._policy.late == "deliver"

    async def retry(self, record: Any, error: Exception, handle: Callable[[Any], Awaitable[Any]]) -> bool:
        """Call the handler again up to ``retries`` times, then do what the policy says. Returns whether a call succeeded.

        Raises HandlerError if none did and the policy is ``"raise"``.
        """
        for _ in range(self._policy.retries):
            self._summary.retried += 1
            await wait_until_owned(self._gate, record.offset)
            try:
                result = await handle(record)
            except Exception as again:  # noqa: BLE001 - a handler may raise anything
                error = again
            else:
                check_result(result, record)
                return True
        if self._policy.on_error == "dead-letter":
            await self._dead_letter(record, repr(error))
            return False
        raise HandlerError(f"the handler raised {error!r}", record.topic, record.partition, record.offset) from error

    async def _dead_letter(self, record: Any, reason: str) -> None:
        """Call the dead-letter function. Raises HandlerError if that raises."""
        self._summary.dead_lettered += 1
        assert self._policy.dead_letter is not None
        try:
            result = self._policy.dead_letter(record, reason)
            if inspect.isawaitable(result):
                await result
        except Exception as error:
            raise HandlerError(
                f"dead_letter raised {error!r}", record.topic, record.partition, record.offset
            ) from error


async def wait_until_owned(gate: Gate, offset: int) -> None:
    """Return when work may start on a record that passed the gate earlier: the lock may have been lost since."""
    if boottime() >= gate.session.stop_at:
        await gate.wait_until(gate.progress.late_below, offset)


def catching(timestamp_of: Callable[[Any], int]) -> Callable[[Any], Any]:
    """Return a function that returns the error instead of raising it: the policy for unusable timestamps decides then."""

    def returning_errors(record: Any) -> Any:
        try:
            return timestamp_of(record)
        except Exception as error:  # noqa: BLE001 - a timestamp function may raise anything
            return error

    return returning_errors
