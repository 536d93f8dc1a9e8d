"""Restatements in the log of manifests, without Spark: killed or frozen between any two file operations, and read meanwhile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aiokcc.errors import FencedError, UsageError
from aiokcc.spark.batch import Batch, LateRecords
from aiokcc.spark.published import Published
from aiokcc.spark.sinks.disk import Disk
from aiokcc.spark.sinks.log import HOME, Log
from aiokcc.spark.sinks.manifest import Manifest, PublishedPeriod
from aiokcc.spark.tables import files, manifest, published
from tests.unit.spark.test_sinks_log import BATCHES, HOUR, ORDERS, Killed, Watched, World, hour, start_again, worlds

__all__ = ["worlds"]

START, END = HOUR, 6 * HOUR


class Restater:
    """Computes the hours 1 to 5 again, of which hour 3 gets no rows; each file says which restatement wrote it."""

    def __init__(self, world: World, text: str, disk: Disk | None = None) -> None:
        world.attempt += 1
        self.attempt, self.text = world.attempt, text
        self.disk = disk or Watched()
        self.log = Log(world.root, self.disk)

    def begin(self) -> Batch:
        self.log.begin("revenue", self.attempt)
        return self.log.published().restatement("revenue", START, END, HOUR)

    def run(self) -> None:
        self.publish(self.begin())

    def publish(self, batch: Batch) -> None:
        import hashlib

        from aiokcc.spark.sinks.manifest import DataFile

        staged = {}
        for part in (batch.part(0, 2), batch.part(2, 3)):
            place = self.log.make_stage(part)
            for period in part.periods:
                if not period.ranges or period.start == 3 * HOUR:
                    continue
                data = f"{period.start} {self.text}".encode()
                self.disk.write(place / f"{period.start}.parquet", data)
                digest = hashlib.sha256(data).hexdigest()
                path = f"data/{place.name}/{period.start}.parquet"
                staged[period.start] = (DataFile(path, 1, len(data), digest),)
            self.log.sync_stage(place)
        self.log.replace(batch, staged, after=3)


def contents(world: World, **at: object) -> dict[int, list[str]]:
    """Return the texts of the files of each hour."""
    return {
        period.start // HOUR: [(world.root / HOME / file.path).read_text().split(" ", 1)[1] for file in period.files]
        for period in manifest(world.root, **at)  # type: ignore[arg-type]
    }


OLD = {0: ["0 by attempt 1"], **{n: [f"{p} by attempt 1" for p in (0, 1)] for n in (1, 3, 5, 6)}, 2: [], 4: []}


def new(text: str) -> dict[int, list[str]]:
    return {**OLD, 1: [text], 3: [], 5: [text]}


def check_names(world: World) -> None:
    """Check that the further names are those of what is published."""
    assert {path.stat().st_ino for path in world.root.glob("*.parquet")} == {
        Path(path).stat().st_ino for path in files(world.root)
    }


def test_a_restatement_replaces_exactly_its_periods(worlds):
    world = next(worlds)
    start_again(world)
    assert contents(world) == OLD
    Restater(world, "again").run()
    assert contents(world) == new("again")
    check_names(world)
    Restater(world, "once more").run()
    assert contents(world) == new("once more")
    check_names(world)
    assert [(p.start, p.end, p.ranges) for p in manifest(world.root)] == [
        (p.start, p.end, p.ranges) for batch in BATCHES for p in batch.periods
    ]


def test_a_driver_continues_after_a_restatement(worlds):
    world = next(worlds)
    driver = world.driver()
    driver.begin()
    driver.run()
    Restater(world, "again").run()
    driver = world.driver()
    driver.begin()
    driver.run((*BATCHES, Batch("revenue", 4, (hour(7),))))
    assert contents(world) == {**new("again"), 7: ["7 by attempt 3".replace("7", f"{0}"), "1 by attempt 3"]}
    check_names(world)
    for path in world.root.glob("*.parquet"):
        path.unlink()
    world.driver().begin()
    check_names(world)


def test_a_restatement_killed_before_any_operation_is_as_if_it_had_not_begun_or_done(worlds):
    world = next(worlds)
    start_again(world)
    disk = Watched()
    Restater(world, "again", disk).run()
    outcomes = []
    for at in range(len(disk.operations)):
        world = next(worlds)
        start_again(world)

        def look(world: World = world) -> None:
            assert contents(world) in (OLD, new("again")), "a reader sees neither the old nor the new"

        with pytest.raises(Killed):
            Restater(world, "again", Watched(at, each=look)).run()
        seen = contents(world)
        assert seen in (OLD, new("again"))
        outcomes.append(seen == OLD)
        world.driver().begin()  # the next driver puts the names right, and removes what was left
        assert contents(world) == seen
        check_names(world)
        named = {Path(path).parent.name for path in files(world.root)}
        staged = {path.name for path in (world.root / HOME / "data").iterdir() if path.name.startswith("restate-")}
        assert staged == {name for name in named if name.startswith("restate-")}
        Restater(world, "last").run()
        assert contents(world) == new("last")
        check_names(world)
    assert outcomes == sorted(outcomes, reverse=True)
    assert not all(outcomes)
    assert any(outcomes)


@pytest.mark.parametrize("other", ["a driver", "another restatement"])
def test_a_frozen_restatement_publishes_nothing_after_another_has_begun(worlds, other):
    world = next(worlds)
    start_again(world)
    disk = Watched()
    Restater(world, "again", disk).run()
    linked = next(n for n, (name, path) in enumerate(disk.operations) if name == "link" and path.parent.name == "log")
    for at in range(linked + 1):
        world = next(worlds)
        start_again(world)

        def then(world: World = world) -> None:
            if other == "a driver":
                world.driver().begin()
            else:
                Restater(world, "the other").run()

        frozen = Restater(world, "frozen", Watched(at, then))
        with pytest.raises((FencedError, FileNotFoundError)):
            frozen.run()
        assert contents(world) == (OLD if other == "a driver" else new("the other"))
        check_names(world)


def test_a_driver_frozen_before_it_names_its_files_does_not_show_replaced_ones(worlds):
    world = next(worlds)
    disk = Watched()
    driver = world.driver(disk)
    driver.begin()
    driver.run()
    count = len(disk.operations)
    for at in range(count - 12, count):
        world = next(worlds)

        def then(world: World = world) -> None:
            driver = world.driver()
            driver.begin()
            driver.run()
            Restater(world, "again").run()

        frozen = world.driver(Watched(at, then))
        frozen.begin()
        try:
            frozen.run()
        except FencedError:
            pass
        assert {n: contents(world)[n] for n in (1, 3, 5)} == {1: ["again"], 3: [], 5: ["again"]}
        check_names(world)


def test_publishing_a_restatement_again_changes_nothing(worlds):
    world = next(worlds)
    start_again(world)
    restater = Restater(world, "again")
    batch = restater.begin()
    restater.publish(batch)
    restater.log.replace(batch, {}, after=3)
    assert contents(world) == new("again")
    assert len(published(world.root).restates) == 1


# -- as of an earlier moment -------------------------------------------------------------------------------------------


def test_reading_as_of_a_batch(worlds):
    world = next(worlds)
    start_again(world)
    Restater(world, "again").run()
    driver = world.driver()
    driver.begin()
    driver.run((*BATCHES, Batch("revenue", 4, (hour(7),))))
    assert contents(world, as_of=3) == OLD
    assert contents(world, as_of=1) == {n: OLD[n] for n in range(4)}
    assert contents(world, as_of=4).items() > new("again").items()
    with pytest.raises(UsageError, match="batch 5 is not published; the last one is 4"):
        files(world.root, as_of=5)
    with pytest.raises(UsageError, match="as_of is True"):
        files(world.root, as_of=True)


def test_reading_as_of_a_time(worlds, monkeypatch):
    world = next(worlds)
    clock = 1_000_000
    monkeypatch.setattr("aiokcc.spark.sinks.log.time.time_ns", lambda: clock * 1_000_000)
    driver = world.driver()
    driver.begin()
    for batch in BATCHES:
        driver.do(batch)
        clock += 1000
    world.checkpoint = 4
    Restater(world, "again").run()
    assert contents(world, as_of="1970-01-01T00:16:39Z") == {}
    assert contents(world, as_of="1970-01-01T00:16:41Z") == {n: OLD[n] for n in range(4)}
    assert contents(world, as_of="1970-01-01T00:16:43.999Z") == OLD
    assert contents(world, as_of="1970-01-01T00:16:44Z") == new("again")


# -- which periods -----------------------------------------------------------------------------------------------------


def log_of(*batches: Batch) -> Published:
    return Published(
        tuple(
            Manifest("p", b.number, 1, tuple(PublishedPeriod(p.start, p.end, p.ranges) for p in b.periods), late=b.late)
            for b in batches
        )
    )


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [
        (HOUR + 1, 3 * HOUR, r"start 1970-01-01T01:00:00.001Z lies inside .* give start='1970-01-01T01:00:00Z' or"),
        (HOUR, 3 * HOUR + 5, r"end .* lies inside the period .* or end='1970-01-01T04:00:00Z'"),
        (3 * HOUR, 3 * HOUR, "is not before end"),
        (6 * HOUR, 9 * HOUR, "not published as a whole; published is 1970-01-01T00:00:00Z to 1970-01-01T07:00:00Z"),
    ],
)
def test_bounds_that_are_no_boundaries_are_refused_and_the_right_ones_named(start, end, message):
    with pytest.raises(UsageError, match=message):
        log_of(*BATCHES).restatement("p", start, end, HOUR)


def test_nothing_published_is_refused():
    with pytest.raises(UsageError, match="nothing is published yet"):
        Published(()).restatement("p", 0, HOUR, HOUR)


def test_a_range_that_cuts_batches_has_the_offsets_of_its_periods_only():
    batch = log_of(*BATCHES).restatement("p", 3 * HOUR, 6 * HOUR, HOUR)
    assert [p.start // HOUR for p in batch.periods] == [3, 4, 5]
    assert batch.ranges == {ORDERS: (30, 60)}
    assert batch.behind == {ORDERS: 20}, "records before it belong to earlier periods, under a bound on lateness"
    assert (batch.number, batch.replaces) == (0, (3 * HOUR, 6 * HOUR))


def late(hour: int, first: int, last: int) -> LateRecords:
    return LateRecords(hour * HOUR, (hour + 1) * HOUR, ORDERS, first, last, 1)


def test_late_records_wait_until_a_restatement_after_their_batch():
    batches = [replace(b, late=(late(0, 10 * b.number + 5, 10 * b.number + 6),) if b.number else ()) for b in BATCHES]
    found = log_of(*batches)
    assert [(one.start, one.records) for one in found.late()] == [(0, 3)]
    batch = found.restatement("p", 0, HOUR, HOUR)
    assert [one.first for one in batch.included] == [15, 25, 35]
    restate = Manifest("p", 0, 2, (), replaces=(0, HOUR), after=2)
    assert [(one.start, one.records) for one in Published(found.batches, (restate,)).late()] == [(0, 1)]
    assert [one.first for one in Published(found.batches, (restate,)).restatement("p", 0, HOUR, HOUR).included] == [
        15,
        25,
        35,
    ]
    other = Manifest("p", 0, 2, (), replaces=(HOUR, 2 * HOUR), after=3)
    assert [(one.start, one.records) for one in Published(found.batches, (other,)).late()] == [(0, 3)]


def test_late_records_of_a_time_without_periods_get_a_period_of_their_own():
    batches = [BATCHES[0], Batch("p", 1, (hour(5),), late=(late(3, 51, 52),))]
    batch = log_of(*batches).restatement("p", HOUR, 5 * HOUR, HOUR)
    assert [(p.start // HOUR, p.ranges) for p in batch.periods] == [(3, {})]
    assert batch.full == [0]
    assert not batch.is_empty
    with pytest.raises(UsageError, match="no period is published between"):
        log_of(*batches).restatement("p", HOUR, 3 * HOUR, HOUR)
