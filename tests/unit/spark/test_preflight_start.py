"""The check that no record past a run's start was deleted, as far as the logs show it. Without Spark and without Kafka."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aiokcc.core.partitions import Partition
from aiokcc.errors import KafkaError
from aiokcc.spark.finder import Found
from aiokcc.spark.preflight import check_not_deleted, check_start

START = 1_767_225_600_000  # 2026-01-01T00:00Z


class Logs:
    """The logs of one topic: for each partition its first offset, and the times of the remaining records."""

    def __init__(self, *logs: tuple[int, list[int]]) -> None:
        self._logs = {Partition("t", number): log for number, log in enumerate(logs)}

    async def begins(self, partitions: Any) -> dict[Partition, int]:
        return {p: self._logs[p][0] for p in partitions}

    async def ends(self, partitions: Any) -> dict[Partition, int]:
        return {p: self._logs[p][0] + len(self._logs[p][1]) for p in partitions}

    async def at(self, times: Any) -> dict[Partition, Found | None]:
        return {p: self._first(*self._logs[p], ts) for p, ts in times.items()}

    def _first(self, begin: int, stamps: list[int], ts: int) -> Found | None:
        return next((Found(begin + n, stamp) for n, stamp in enumerate(stamps) if stamp >= ts), None)


async def check(*logs: tuple[int, list[int]], accept: bool = False) -> None:
    finder: Any = Logs(*logs)
    tracks: Any = [SimpleNamespace(partition=Partition("t", number)) for number in range(len(logs))]
    await check_start(finder, tracks, START, accept=accept)


WHOLE = (0, [START - 1, START + 1])
REACHES_BACK = (5, [START - 1, START + 1])


@pytest.mark.parametrize(
    "log", [(0, []), (0, [START + 1]), (5, [START - 1]), REACHES_BACK, (5, [START, START + 1])], ids=str
)
async def test_a_log_that_has_lost_no_record_of_the_range_is_accepted(log: tuple[int, list[int]]) -> None:
    await check(WHOLE, log)
    await check(log)


@pytest.mark.parametrize("others", [[], [WHOLE], [REACHES_BACK]], ids=str)
@pytest.mark.parametrize(
    ("log", "left", "remedy"),
    [
        ((5, [START + 60_000]), "with a record of 2026-01-01T00:01:00Z", 'start="2026-01-01T00:01:00Z" or later, '),
        ((5, []), "without a record", ""),
    ],
    ids=["some", "all"],
)
async def test_a_log_that_may_have_lost_records_of_the_range_is_refused(
    log: tuple[int, list[int]],
    left: str,
    remedy: str,
    others: list[tuple[int, list[int]]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It does not matter what other partitions of the topic still have: each log is deleted by itself."""
    with pytest.raises(KafkaError) as told:
        await check(*others, log)
    assert f"t.{len(others)} begins at offset 5, {left}, and what stood before was deleted" in str(told.value)
    assert f'Pass {remedy}start="earliest" for whatever is left, or accept_deleted=True' in str(told.value)
    assert not caplog.messages
    await check(*others, log, accept=True)
    assert [f"begins at offset 5, {left}" in message for message in caplog.messages] == [True]


async def test_the_error_names_a_start_that_suits_all_logs() -> None:
    with pytest.raises(
        KafkaError, match=r"t\.0 begins .* \(and 1 more partitions likewise\).*start=\"2026-01-01T00:02:00Z\""
    ):
        await check((5, [START + 60_000]), (7, [START + 120_000]))
    with pytest.raises(KafkaError, match='Pass start="earliest"'):  # no time suits a log without a record
        await check((5, [START + 60_000]), (7, []))


@pytest.mark.parametrize(
    ("log", "place", "said"),
    [
        ((3, [START] * 2), 3, None),
        ((3, [START] * 2), 5, None),
        ((0, []), 0, None),
        ((3, [START] * 2), 2, "begins at 3 now: the records from 2 on"),
        (
            (0, [START] * 2),
            3,
            "ends at 2 now, and the pipeline 'p' has published it up to 3: the topic was deleted",
        ),
    ],
    ids=str,
)
async def test_a_log_must_reach_from_what_is_published_on(
    log: tuple[int, list[int]], place: int, said: str | None
) -> None:
    def track(*, is_complete: bool) -> Any:
        at = SimpleNamespace(low=place)
        return SimpleNamespace(partition=Partition("t", 0), place=at, is_finished=False, is_complete=is_complete)

    finder: Any = Logs(log)
    await check_not_deleted(finder, [track(is_complete=True)], "p")
    if said is None:
        await check_not_deleted(finder, [track(is_complete=False)], "p")
    else:
        with pytest.raises(KafkaError, match=said):
            await check_not_deleted(finder, [track(is_complete=False)], "p")
