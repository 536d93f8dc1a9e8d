"""The lookups of the planner, and its cache while a job runs. Without Kafka and Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from aiokcc.core.limit import Limit
from aiokcc.core.partition_progress import PartitionState
from aiokcc.core.partitions import Partition
from aiokcc.core.run import Bounds
from aiokcc.errors import KafkaError
from aiokcc.spark import planner as planners
from aiokcc.spark.batch_sizer import BatchSizer
from aiokcc.spark.finder import Finder, Found
from aiokcc.spark.participant import Track
from aiokcc.spark.plan import Place
from aiokcc.spark.planner import Plan, Planner

P0, P1 = Partition("t", 0), Partition("t", 1)


class ScanIndex(Finder):
    """An index over lists of timestamps. It counts the lookups."""

    looks_ahead = True

    def __init__(self, logs: Mapping[Partition, list[int]]) -> None:
        self.logs = logs
        self.asked: list[int] = []
        self.asked_for_ends = 0
        self.is_down = False

    async def _ask(self, times: Mapping[Partition, int]) -> dict[Partition, Found | None]:
        if self.is_down:
            raise KafkaError("down")
        self.asked += times.values()
        return {p: next((Found(n, t) for n, t in enumerate(self.logs[p]) if t >= ts), None) for p, ts in times.items()}

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        wanted = list(partitions)
        self.asked_for_ends += len(wanted)
        return {p: len(self.logs[p]) for p in wanted}


class Participant:
    """Replaces the group."""

    has_arrived = False

    def __init__(self, logs: Mapping[Partition, list[int]], *, bounded: bool, lookahead: int) -> None:
        self.tracks = {
            p: Track(
                SimpleNamespace(partition=p, progress=SimpleNamespace(state=PartitionState.RUNNING)),  # type: ignore[arg-type]
                Bounds(0, len(log) if bounded else None),
                Place(0, 0),
            )
            for p, log in logs.items()
        }
        self.member = SimpleNamespace(settings=SimpleNamespace(ahead=10**6, lookahead=lookahead))
        self.limit = Limit((0,))
        self.walked: list[Any] = []
        self.told: dict[Partition, Any] = {}
        """The last word on each partition: "finished", "idle", or the time of its next record."""

    def report_crossings(self, crossed: Any) -> None:
        self.walked += crossed

    def report_finished(self, track: Track) -> None:
        self.told[track.partition] = "finished"
        track.gate.progress.state = PartitionState.FINISHED

    def report_idle(self, track: Track) -> None:
        if track.end_seen is not None:
            self.told[track.partition] = "idle"

    def report_next(self, track: Track, ts: int) -> None:
        self.told[track.partition] = ts

    def write_report(self) -> None:
        pass


def planning(
    logs: Mapping[Partition, list[int]],
    *,
    bounded: bool = True,
    now: int = 10**6,
    lookahead: int = 0,
    max_periods: int = 1,
    lateness: int = 0,
    end: int | None = None,
    clock: Callable[[], int] | None = None,
) -> tuple[Planner, ScanIndex, Participant]:
    index, participant = ScanIndex(logs), Participant(logs, bounded=bounded, lookahead=lookahead)
    planner = Planner(
        participant,  # type: ignore[arg-type]
        index,
        BatchSizer(max_periods, 10.0, 10**9),
        period=10,
        start=0,
        end=end,
        lateness={"t": lateness} if lateness else {},
        alone=True,
        clock=clock or (lambda: now),
    )
    return planner, index, participant


def limit(count: int, first: int = 10) -> Limit:
    return Limit(tuple(range(first, first + 10 * count, 10)))


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("lateness", [0, 7])
async def test_a_batch_that_was_looked_up_ahead_is_planned_without_a_request(bounded: bool, lateness: int) -> None:
    logs = {P0: list(range(0, 100, 3)), P1: list(range(1, 100, 4))}
    planner, index, _ = planning(logs, bounded=bounded, lateness=lateness)
    plain, _, _ = planning(logs, bounded=bounded, lateness=lateness)
    for number in range(6):
        now = limit(1, 10 * (number + 1))
        for each in (planner, plain):
            await each.find_next_records(now)
        index.asked.clear()
        index.asked_for_ends = 0
        plan, expected = await planner.plan(number, now), await plain.plan(number, now)
        assert plan is not None
        assert plan == expected
        if number:
            assert (index.asked, index.asked_for_ends) == ([], 0)
        await planner.look_ahead(plan)
        for each in (planner, plain):
            each.record_published(plan)


async def test_boundaries_past_a_short_batch_are_not_requested_again() -> None:
    logs = {P0: list(range(0, 400, 2))}
    planner, index, _ = planning(logs, max_periods=2, lookahead=50)
    await planner.find_next_records(limit(40))
    numbers = []
    for number in range(5):
        plan = await planner.plan(number, limit(40))
        assert plan is not None
        numbers.append(len(plan.intent.periods))
        planner.record_published(plan)
    assert numbers == [2] * 5
    assert len(index.asked) == len(set(index.asked)), "a time was asked for twice"


async def test_the_end_of_a_followed_log_is_never_cached() -> None:
    logs = {P0: [1, 5, 11, 25], P1: [2, 12]}
    planner, index, _ = planning(logs, bounded=False)
    await planner.find_next_records(limit(1))
    plan = await planner.plan(0, limit(1))
    assert plan is not None
    await planner.look_ahead(plan)  # nothing at or past 20 in P1 yet
    logs[P1] += [13, 14]
    planner.record_published(plan)
    index.asked.clear()
    plan = await planner.plan(1, limit(1, 20))
    assert plan is not None
    assert index.asked == [20]
    assert index.asked_for_ends >= 1
    assert plan.intent.batch("p").ranges == {P0: (2, 3), P1: (1, 4)}


async def test_a_limit_that_was_not_expected_is_looked_up() -> None:
    """An operator has set a shorter period while the job ran."""
    planner, index, _ = planning({P0: list(range(0, 100, 2))})
    await planner.find_next_records(limit(1))
    plan = await planner.plan(0, limit(1))
    assert plan is not None
    await planner.look_ahead(plan)
    planner.record_published(plan)
    index.asked.clear()
    plan = await planner.plan(1, Limit((15,)))
    assert plan is not None
    assert (plan.intent.periods, index.asked) == (((10, 15),), [15])


async def test_a_failed_lookup_ahead_is_raised_when_its_result_is_needed() -> None:
    planner, index, _ = planning({P0: list(range(0, 100, 2))})
    await planner.find_next_records(limit(1))
    plan = await planner.plan(0, limit(1))
    assert plan is not None
    index.is_down = True
    await planner.look_ahead(plan)
    planner.record_published(plan)
    with pytest.raises(KafkaError):
        await planner.plan(1, limit(1, 20))


async def test_the_cache_does_not_grow() -> None:
    logs = {P0: list(range(0, 5000, 5))}
    planner, _, _ = planning(logs, lookahead=3, max_periods=1)
    await planner.find_next_records(limit(1))
    for number in range(400):
        plan = await planner.plan(number, limit(4, 10 * (number + 1)))
        assert plan is not None
        await planner.look_ahead(plan)
        planner.record_published(plan)
    assert sum(map(len, planner._remembered.values())) <= 4


@pytest.mark.parametrize(
    ("now", "seconds"), [(1000, 9.007), (9_999, 0.02), (34_000, 1.007), (35_006, 0.02), (35_007, None)]
)
async def test_it_waits_for_the_clock_up_to_the_end_and_not_after_it(now: int, seconds: float | None) -> None:
    """Past the end nothing more is due. A planner that went on looking would only use the processor."""
    planner, _, _ = planning({P0: []}, bounded=False, now=now, lateness=7, end=35_000)
    planner._period = 10_000
    await planner.find_next_records(limit(1))
    assert planner.seconds_to_next_look() == seconds


async def test_a_batch_is_bounded_by_the_size_of_its_intent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planners, "MAX_INTENT", 100)
    planner, _, participant = planning({P0: list(range(0, 400, 2))}, lookahead=39)
    await planner.find_next_records(limit(40))
    number = 0
    while plan := await planner.plan(number, limit(40)):
        assert len(plan.intent.encode()) <= 100
        planner.record_published(plan)
        number += 1
    assert 1 < number < 10
    participant.limit = limit(40, 10 * number + 10)
    assert await planner.plan(number, participant.limit) is not None


class Clock:
    """A clock that the test moves."""

    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


@pytest.mark.parametrize(
    ("bounded", "end", "now"),
    [(True, None, 10**6), (True, 100, 10**6), (False, 100, 10**6), (False, 100, 50), (False, None, 50)],
    ids=["now", "past", "future, then past", "future", "followed"],
)
async def test_a_restarted_pipeline_plans_all_remaining_records(bounded: bool, end: int | None, now: int) -> None:
    """The batch in the store says where it ends, and nothing about the records after it."""
    logs = {P0: list(range(0, 40, 2)), P1: list(range(1, 40, 4))}
    planner, _, _ = planning(logs, bounded=bounded, now=now, end=end)
    await planner.find_next_records(limit(1))
    first = await planner.plan(0, limit(1))
    assert first is not None
    again, _, participant = planning(logs, bounded=bounded, now=now, end=end)
    again.record_published(Plan(first.intent))
    again.report(limit(1))
    assert participant.told == {}, "nothing was read yet, so there is nothing to say"
    await again.find_next_records(limit(1, 20))
    again.report(limit(1, 20))
    assert participant.told == {P0: 10, P1: 13}
    plan = await again.plan(1, limit(1, 20))
    assert plan is not None
    assert plan.intent.batch("p").ranges == {P0: (5, 10), P1: (3, 5)}


async def test_a_future_end_is_passed_only_if_the_log_was_read_after_it() -> None:
    """While a job runs, the clock passes the end, and a record with a time before the end arrives."""
    clock = Clock(15)
    logs = {P0: [1, 5]}
    planner, _, participant = planning(logs, bounded=False, end=30, clock=clock)
    await planner.find_next_records(limit(1))
    plan = await planner.plan(0, limit(1))
    assert plan is not None
    logs[P0].append(29)
    clock.now = 31
    planner.record_published(plan)
    planner.report(limit(1, 20))
    assert participant.told == {}
    await planner.find_next_records(limit(1, 20))
    planner.report(limit(1, 20))
    assert participant.told == {P0: 29}


async def test_the_log_is_read_once_more_when_the_end_has_come() -> None:
    """Otherwise a driver that read the log just before the end would wait for ever."""
    clock = Clock(29)
    planner, index, participant = planning({P0: []}, bounded=False, end=30, clock=clock)
    ends = index.ends

    async def slow(partitions: Iterable[Partition]) -> dict[Partition, int]:
        answer = await ends(partitions)
        clock.now = 30
        return answer

    index.ends = slow  # type: ignore[method-assign]
    await planner.find_next_records(limit(1, 30))
    planner.report(limit(1, 30))
    assert participant.told == {}
    assert planner.seconds_to_next_look() == 0.02
    await planner.find_next_records(limit(1, 30))
    planner.report(limit(1, 30))
    assert participant.told == {P0: "finished"}


async def test_a_partition_is_idle_only_if_its_log_was_read_when_the_boundary_was_due() -> None:
    clock = Clock(15)
    logs = {P0: [1, 5], P1: [2, 3]}
    planner, _, participant = planning(logs, bounded=False, clock=clock)
    await planner.find_next_records(limit(1))
    plan = await planner.plan(0, limit(1))
    assert plan is not None
    logs[P0].append(18)
    clock.now = 21
    planner.record_published(plan)
    planner.report(limit(1, 20))
    assert participant.told == {}
    await planner.find_next_records(limit(1, 20))
    planner.report(limit(1, 20))
    assert participant.told == {P0: 18, P1: "idle"}


async def test_a_period_is_due_only_if_the_logs_were_read_after_it_was_over() -> None:
    clock = Clock(19)
    logs = {P0: [11, 15]}
    planner, index, _ = planning(logs, bounded=False, clock=clock)
    ends = index.ends

    async def slow(partitions: Iterable[Partition]) -> dict[Partition, int]:
        answer = await ends(partitions)
        clock.now = 20
        return answer

    await planner.find_next_records(limit(1, 20))
    index.ends = slow  # type: ignore[method-assign]
    assert await planner.plan(0, limit(1, 20)) is None
    assert planner.seconds_to_next_look() == 0.02
    logs[P0].append(19)
    await planner.find_next_records(limit(1, 20))
    plan = await planner.plan(0, limit(1, 20))
    assert plan is not None
    assert plan.intent.batch("p").ranges == {P0: (0, 3)}


@pytest.mark.parametrize("bounded", [True, False])
async def test_late_records_right_before_the_end_are_published_too(bounded: bool) -> None:
    """A record that comes after its period was published belongs to the next published period, also if that is the last one."""
    logs = {P0: [1, 5]}
    planner, _, participant = planning(logs, bounded=False, end=50, now=10)
    await planner.find_next_records(limit(1))
    plan = await planner.plan(0, limit(1))
    assert plan is not None
    planner.record_published(plan)
    logs[P0] += [7, 8, 60, 61]  # the first two are late, the others lie past the end
    if bounded:
        track = participant.tracks[P0]
        track.bounds = Bounds(0, 4)
    await planner.find_next_records(limit(1, 50))
    planner.report(limit(1, 50))
    assert participant.told == {P0: 10}
    plan = await planner.plan(1, limit(1, 50))
    assert plan is not None
    assert plan.intent.batch("p").ranges == {P0: (2, 4)}
    planner.record_published(plan)
    planner.report(limit(1, 50))
    assert participant.told == {P0: "finished"}
