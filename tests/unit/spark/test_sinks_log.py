"""The log of manifests, without Spark: drivers that die or freeze between any two file operations, and what readers see."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from aiokcc.core.partitions import Partition
from aiokcc.errors import CoordinationError, CorruptNodeError, FencedError, PipelineMismatchError, UsageError
from aiokcc.spark.batch import Batch, Slice
from aiokcc.spark.sinks.disk import Disk
from aiokcc.spark.sinks.log import HOME, Log
from aiokcc.spark.sinks.manifest import DataFile, Manifest, PublishedPeriod, period_name
from aiokcc.spark.sinks.places import local_path
from aiokcc.spark.tables import files, manifest

HOUR = 3_600_000
ORDERS = Partition("orders", 0)


def names_in(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


class Killed(BaseException):
    """The process is dead: nothing catches this, and nothing runs after it."""


class Watched(Disk):
    """A disk on which the process dies, or `then` is called, before operation number `at`."""

    def __init__(self, at: int = -1, then: Callable[[], None] | None = None, each: Callable[[], None] | None = None):
        self.at, self.then, self.each = at, then, each
        self.operations: list[tuple[str, Path]] = []
        self._dead = self._inside = False

    def _step(self, name: str, path: Path) -> None:
        if self._dead:
            raise Killed
        if self.each is not None and not self._inside:
            self._inside = True  # the reader's own look is no operation of the driver
            self.each()
            self._inside = False
        if len(self.operations) == self.at:
            self.at = -1
            if self.then is None:
                self._dead = True
                raise Killed
            self.then()
        self.operations.append((name, path))

    def make_directory(self, path: Path) -> None:
        self._step("make_directory", path)
        super().make_directory(path)

    def ensure_directory(self, path: Path) -> None:
        self._step("ensure_directory", path)
        super().ensure_directory(path)

    def write(self, path: Path, data: bytes) -> None:
        self._step("write", path)
        path.write_bytes(data[: len(data) // 2])  # half of it is there when the process dies in between
        self._step("write the rest", path)
        path.write_bytes(data)

    def link(self, source: Path, target: Path) -> None:
        self._step("link", target)
        super().link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename", target)
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._step("remove", path)
        super().remove(path)

    def remove_directory(self, path: Path) -> None:
        self._step("remove_directory", path)
        super().remove_directory(path)

    def sync(self, path: Path) -> None:
        self._step("sync", path)

    def names(self, path: Path) -> list[str]:
        self._step("names", path)
        return super().names(path)


def hour(number: int, *, empty: bool = False) -> Slice:
    return Slice(number * HOUR, (number + 1) * HOUR, {} if empty else {ORDERS: (number * 10, number * 10 + 10)})


# One period; three of which one has no records; one without records; two. In each, a period may take two files.
BATCHES = (
    Batch("revenue", 0, (hour(0),)),
    Batch("revenue", 1, (hour(1), hour(2, empty=True), hour(3))),
    Batch("revenue", 2, (hour(4, empty=True),)),
    Batch("revenue", 3, (hour(5), hour(6))),
)


class World:
    """A directory, and the batches and attempts that the store has recorded."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.checkpoint = 0
        self.attempt = 0

    def driver(self, disk: Disk | None = None) -> Driver:
        self.attempt += 1
        return Driver(self, self.attempt, disk or Watched())

    def check_reader(self) -> None:
        """Check that a reader sees the first batches, each of them whole."""
        if not (self.root / HOME / "owner.json").exists():
            return
        seen = manifest(self.root)
        numbers = [period.start // HOUR for period in seen]
        ends = [0, 1, 4, 5, 7]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) in ends
        assert ends.index(len(numbers)) >= self.checkpoint
        for period in seen:
            for file in period.files:
                data = (self.root / HOME / file.path).read_bytes()
                assert len(data) == file.size
                assert hashlib.sha256(data).hexdigest() == file.sha256
        # And who reads all that stands at the top sees published rows only.
        published = {Path(path).stat().st_ino for path in files(self.root)}
        assert {path.stat().st_ino for path in self.root.glob("*.parquet")} <= published

    def check_end(self) -> None:
        """Check that everything is published once, and that nothing else is left."""
        self.check_reader()
        seen = manifest(self.root)
        assert [(p.start, p.end, p.ranges) for p in seen] == [
            (p.start, p.end, p.ranges) for batch in BATCHES for p in batch.periods
        ]
        assert [len(period.files) for period in seen] == [1, 2, 0, 2, 0, 2, 2]
        named = {Path(path) for path in files(self.root)}
        assert set((self.root / HOME / "data").glob("*/*")) == named
        assert all(path.parent.is_dir() and any(path.parent.iterdir()) for path in named)
        assert sorted(path.stat().st_ino for path in self.root.glob("*.parquet")) == sorted(
            path.stat().st_ino for path in named
        )
        assert len(list((self.root / HOME / "attempts").iterdir())) == 1
        assert sorted(path.name for path in (self.root / HOME).iterdir()) == ["attempts", "data", "log", "owner.json"]


class Driver:
    """Calls a log as the pipeline does."""

    def __init__(self, world: World, attempt: int, disk: Disk) -> None:
        self.world, self.attempt, self.disk = world, attempt, disk
        self.log = Log(world.root, disk)

    def begin(self) -> None:
        self.log.begin("revenue", self.attempt)

    def run(self, batches: tuple[Batch, ...] = BATCHES) -> None:
        for batch in batches[self.world.checkpoint :]:
            if not self.log.is_published(batch):
                self.do(batch)
            if self.world.attempt == self.attempt:  # the store refuses who has been followed by another
                self.world.checkpoint = batch.number + 1

    def do(self, batch: Batch) -> None:
        staged: dict[int, tuple[DataFile, ...]] = {}
        if not batch.is_empty:
            try:
                staged = self.stage(batch)
            except FileNotFoundError:  # a job that fails is run again
                staged = self.stage(batch)
        self.log.publish(batch, staged)

    def stage(self, batch: Batch) -> dict[int, tuple[DataFile, ...]]:
        place = self.log.make_stage(batch)
        parts = 1 if batch.number == 0 else 2
        staged = {
            period.start: tuple(self.file(place, period, part) for part in range(parts))
            for period in batch.periods
            if period.ranges
        }
        self.log.sync_stage(place)
        return staged

    def file(self, place: Path, period: Slice, part: int) -> DataFile:
        data = f"{period.start} {part} by attempt {self.attempt}".encode()
        name = f"{period_name(period.start)}-{part}.parquet"
        self.disk.write(place / name, data)
        return DataFile(f"data/{place.name}/{name}", 1, len(data), hashlib.sha256(data).hexdigest())


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[World]:
    return (World(tmp_path / f"{number}" / "out") for number in range(1_000_000))


def count_operations(world: World, steps: Callable[[Driver], None]) -> int:
    disk = Watched()
    steps(world.driver(disk))
    return len(disk.operations)


def begin_and_run(driver: Driver) -> None:
    driver.begin()
    driver.run()


def start_again(world: World) -> None:
    begin_and_run(world.driver())
    world.check_end()


# Crashes


def test_a_run_without_faults_publishes_everything(worlds):
    world = next(worlds)
    begin_and_run(world.driver(Watched(each=world.check_reader)))
    world.check_end()
    assert [p.rows for p in manifest(world.root)] == [1, 2, 0, 2, 0, 2, 2]


def test_a_driver_killed_before_any_operation_is_continued_by_the_next(worlds):
    total = count_operations(next(worlds), begin_and_run)
    assert total > 60
    for at in range(total):
        world = next(worlds)
        with pytest.raises(Killed):
            begin_and_run(world.driver(Watched(at)))
        world.check_reader()
        start_again(world)


def test_two_drivers_killed_one_after_the_other_are_continued_by_a_third(worlds):
    """The second driver dies as well, while it removes what the first one left, or later."""
    total = count_operations(next(worlds), begin_and_run)
    for first in range(0, total, 5):
        for second in range(first % 4, 2 * total, 7):
            world = next(worlds)
            with pytest.raises(Killed):
                begin_and_run(world.driver(Watched(first)))
            try:
                begin_and_run(world.driver(Watched(second)))
            except Killed:
                world.check_reader()
                start_again(world)
            else:
                world.check_end()
                break


def test_readers_see_whole_batches_at_every_moment_of_a_recovery(worlds):
    total = count_operations(next(worlds), begin_and_run)
    for at in range(10, total, 4):
        world = next(worlds)
        with pytest.raises(Killed):
            begin_and_run(world.driver(Watched(at)))
        begin_and_run(world.driver(Watched(each=world.check_reader)))
        world.check_end()


def test_a_driver_that_begins_and_has_nothing_to_do_changes_nothing(worlds):
    world = next(worlds)
    start_again(world)
    before = files(world.root)
    start_again(world)
    assert files(world.root) == before


def test_files_are_synced_before_their_batch_is_published(tmp_path):
    world = World(tmp_path / "out")
    disk = Watched()
    driver = world.driver(disk)
    driver.begin()
    disk.operations.clear()
    driver.do(BATCHES[0])
    done = [(name, path.relative_to(world.root / HOME).parts[0]) for name, path in disk.operations if HOME in str(path)]
    published = done.index(("link", "log"))
    data, entry = done.index(("write the rest", "data")), done.index(("sync", "data"))
    assert data < entry < done.index(("write the rest", "attempts")) < published < done.index(("sync", "log"))


def test_the_real_disk_syncs_files_and_directories(tmp_path, monkeypatch):
    synced = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda handle: (synced.append(str(Path(f"/proc/self/fd/{handle}").readlink())), real(handle))
    )
    world = World(tmp_path / "out")
    driver = world.driver(Disk())
    driver.begin()
    synced.clear()
    driver.do(BATCHES[0])
    below = [str(Path(path).relative_to(world.root / HOME)).split("/")[0] for path in synced]
    assert below == ["data", "data", "data", "attempts", "log"]


# A driver that was only asleep


def published_or_fenced(driver: Driver, steps: Callable[[Driver], None]) -> bool:
    try:
        steps(driver)
    except FencedError:
        return False
    return True


def test_a_frozen_driver_publishes_nothing_after_its_successor_has_published_everything(worlds):
    total = count_operations(next(worlds), begin_and_run)
    fenced = 0
    for at in range(total):
        world = next(worlds)
        disk = Watched(at, then=lambda world=world: begin_and_run(world.driver()))
        sleeper = world.driver(disk)
        fenced += not published_or_fenced(sleeper, begin_and_run)
        world.check_reader()
        done = {path: Path(path).read_bytes() for path in files(world.root)}
        start_again(world)  # clears up what the sleeper has left
        assert {path: Path(path).read_bytes() for path in files(world.root)} == done
    assert fenced > total / 2


def test_a_frozen_driver_publishes_nothing_after_its_successor_has_begun(worlds):
    """The successor has begun, but not published yet, when the frozen driver continues."""
    total = count_operations(next(worlds), begin_and_run)
    for at in range(total):
        world = next(worlds)
        successors: list[Driver] = []
        logs: list[list[str]] = []

        def follow(world: World = world, successors: list[Driver] = successors, logs: list[list[str]] = logs) -> None:
            successors.append(world.driver())
            successors[0].begin()
            logs.append(names_in(world.root / HOME / "log"))

        sleeper = world.driver(Watched(at, then=follow))
        published_or_fenced(sleeper, begin_and_run)
        assert names_in(world.root / HOME / "log") == logs[0], f"published after the successor began (operation {at})"
        successors[0].run()
        world.check_reader()
        assert len(manifest(world.root)) == 7
        start_again(world)


def test_no_period_is_lost_or_doubled_while_a_successor_is_frozen_in_begin(worlds):
    """The successor freezes at any operation of its begin(), and the driver before it publishes as much as it can."""
    count = next(worlds)
    count.driver().begin()
    total = count_operations(count, Driver.begin)
    results: set[bool] = set()
    for at in range(total):
        world = next(worlds)
        former = world.driver()
        former.begin()
        former.run(BATCHES[:1])

        def go_on(former: Driver = former, results: set[bool] = results) -> None:
            results.add(published_or_fenced(former, Driver.run))

        successor = world.driver(Watched(at, then=go_on))
        successor.begin()
        successor.run()
        world.check_reader()
        assert len(manifest(world.root)) == 7
        start_again(world)
    assert results == {True, False}


def test_of_two_drivers_that_begin_together_the_smaller_attempt_never_continues(worlds):
    """It does not matter which driver is faster."""
    total = count_operations(next(worlds), Driver.begin)
    for at in range(total):
        world = next(worlds)
        later = Driver(world, 2, Watched())
        earlier = Driver(world, 1, Watched(at, then=later.begin))
        with pytest.raises(FencedError):
            earlier.begin()
            earlier.do(BATCHES[0])
        later.do(BATCHES[0])
        assert [period.rows for period in manifest(world.root)] == [1]


def test_an_attempt_with_a_smaller_or_equal_number_is_refused(tmp_path):
    Log(tmp_path / "out").begin("revenue", 2)
    for number in (1, 2):
        with pytest.raises(FencedError, match=f"attempt 2 has begun there, and this is attempt {number}.*from_scratch"):
            Log(tmp_path / "out").begin("revenue", number)
    assert len(names_in(tmp_path / "out" / HOME / "attempts")) == 1
    Log(tmp_path / "out").begin("revenue", 3)


def test_a_fenced_driver_does_not_run_another_job(tmp_path):
    world = World(tmp_path / "out")
    sleeper = world.driver()
    sleeper.begin()
    world.driver().begin()
    with pytest.raises(FencedError, match="began after attempt 1"):
        sleeper.log.make_stage(BATCHES[0])
    with pytest.raises(FencedError):
        sleeper.log.publish(BATCHES[0], {})


def test_a_link_under_way_fails_when_the_successor_begins(tmp_path):
    """The kernel has found the file, and links it after the successor has removed it. That fails too."""
    world = World(tmp_path / "out")
    sleeper = world.driver()
    sleeper.begin()
    draft = next((world.root / HOME / "attempts").iterdir()) / "00000000.json"
    draft.write_bytes(b"{}")
    with draft.open() as held:
        link_open_file(held.fileno(), draft.with_name("before"))
        world.driver().begin()
        with pytest.raises(OSError) as refused:
            link_open_file(held.fileno(), world.root / HOME / "log" / "00000000.json")
    assert refused.value.errno == errno.ENOENT


def link_open_file(handle: int, target: Path) -> None:
    """Call linkat() with AT_SYMLINK_FOLLOW, which os.link cannot pass."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.linkat(-100, f"/proc/self/fd/{handle}".encode(), -100, os.fsencode(target), 0x400):
        raise OSError(ctypes.get_errno(), "linkat")


# Publishing twice, gaps, other runs


def test_publishing_again_changes_nothing(tmp_path):
    world = World(tmp_path / "out")
    driver = world.driver()
    begin_and_run(driver)
    before = {path: path.read_bytes() for path in (world.root / HOME / "log").iterdir()}
    for batch in BATCHES:
        assert driver.log.is_published(batch)
        driver.log.publish(batch, {})
    assert {path: path.read_bytes() for path in (world.root / HOME / "log").iterdir()} == before


class Failing(Watched):
    """A disk that fails once, right after a manifest was linked."""

    failed = False

    def sync(self, path: Path) -> None:
        super().sync(path)
        if path.name == "log" and not self.failed:
            self.failed = True
            raise OSError(errno.EIO, "the disk")


def test_a_publish_that_failed_after_the_link_is_repeated(tmp_path):
    """The disk failed after the link; the driver lives and tries again."""
    world = World(tmp_path / "out")
    driver = world.driver(Failing())
    driver.begin()
    with pytest.raises(OSError, match="the disk"):
        driver.do(BATCHES[0])
    driver.run()
    world.checkpoint = 4
    assert len(manifest(world.root)) == 7
    world.check_reader()


def test_what_was_published_stays_as_it_is_while_the_job_is_repeated_after_a_failure(tmp_path):
    """The pipeline runs the job of a batch again if publishing raised, and the driver may die in it."""
    world = World(tmp_path / "out")
    disk = Failing()
    driver = world.driver(disk)
    driver.begin()
    with pytest.raises(OSError, match="the disk"):
        driver.do(BATCHES[0])
    manifests = {path: (path.stat().st_ino, path.read_bytes()) for path in (world.root / HOME / "log").iterdir()}
    disk.each = world.check_reader
    driver.do(BATCHES[0])
    assert {path: (path.stat().st_ino, path.read_bytes()) for path in manifests} == manifests
    driver.run()
    world.driver().begin()  # removes what the repeated job has staged
    world.checkpoint = 4
    world.check_end()


def test_a_job_that_failed_is_staged_again(tmp_path):
    world = World(tmp_path / "out")
    driver = world.driver()
    driver.begin()
    first = driver.log.make_stage(BATCHES[0])
    (first / "half.parquet").write_bytes(b"PAR1")
    driver.run()
    assert not first.exists()
    world.check_end()


def test_another_batch_under_the_same_number_is_refused(tmp_path):
    world = World(tmp_path / "out")
    driver = world.driver()
    begin_and_run(driver)
    other = Batch("revenue", 0, (Slice(0, HOUR, {ORDERS: (0, 11)}),))
    with pytest.raises(PipelineMismatchError, match="batch 0 is published there with other periods or offsets"):
        driver.log.is_published(other)
    with pytest.raises(PipelineMismatchError):
        driver.log.publish(other, {})


def test_a_batch_that_would_leave_a_gap_is_refused(tmp_path):
    driver = World(tmp_path / "out").driver()
    driver.begin()
    with pytest.raises(PipelineMismatchError, match="ends before batch 0, and batch 3 cannot follow"):
        driver.log.publish(BATCHES[3], {})


def test_a_deleted_manifest_is_an_error(tmp_path):
    world = World(tmp_path / "out")
    begin_and_run(world.driver())
    (world.root / HOME / "log" / "00000001.json").unlink()
    with pytest.raises(CoordinationError, match="has no 00000001.json"):
        world.driver().begin()
    with pytest.raises(CoordinationError, match="has gaps"):
        files(world.root)


def test_a_damaged_manifest_is_an_error(tmp_path):
    world = World(tmp_path / "out")
    begin_and_run(world.driver())
    (world.root / HOME / "log" / "00000003.json").write_bytes(b'{"format": 2}')
    with pytest.raises(CorruptNodeError, match="00000003.json holds .* expected a manifest of format 1"):
        files(world.root)


def test_another_pipeline_in_the_same_directory_is_refused(tmp_path):
    Log(tmp_path).begin("revenue", 1)
    for attempt in (1, 2):
        with pytest.raises(PipelineMismatchError, match="the pipeline 'revenue', and this is 'returns'"):
            Log(tmp_path).begin("returns", attempt)
    with pytest.raises(PipelineMismatchError):
        Log(tmp_path).reset("returns", 2)
    assert len(names_in(tmp_path / HOME / "attempts")) == 1


@pytest.mark.parametrize("verb", ["begin", "reset"])
def test_a_directory_with_foreign_files_is_refused(tmp_path, verb):
    (tmp_path / "thesis.parquet").write_bytes(b"ten years")
    log = Log(tmp_path)
    with pytest.raises(UsageError, match="holds 'thesis.parquet', which no ParquetSink has written"):
        log.begin("revenue", 1) if verb == "begin" else log.reset("revenue", 1)
    assert (tmp_path / "thesis.parquet").read_bytes() == b"ten years"
    assert names_in(tmp_path) == ["thesis.parquet"]


def test_a_file_in_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "out").write_bytes(b"")
    with pytest.raises(UsageError, match="is a file"):
        Log(tmp_path / "out").begin("revenue", 1)


def test_a_file_system_without_hard_links_is_refused(tmp_path):
    class Exfat(Watched):
        def link(self, source: Path, target: Path) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

    with pytest.raises(UsageError, match="has no hard links .* or a DeltaSink"):
        Log(tmp_path / "out", Exfat()).begin("revenue", 1)


def test_files_that_cannot_have_a_second_name_are_published_nevertheless(tmp_path, caplog):
    """The workers run as another user, whose files the driver may read but not link (fs.protected_hardlinks)."""

    class Protected(Watched):
        def link(self, source: Path, target: Path) -> None:
            if target.suffix == ".parquet":
                raise OSError(errno.EPERM, "Operation not permitted")
            super().link(source, target)

    world = World(tmp_path / "out")
    begin_and_run(world.driver(Protected()))
    assert len(files(world.root)) == 9
    assert "aiokcc.spark.files finds the file" in caplog.text


# Further names


def test_lost_second_names_are_restored(worlds):
    world = next(worlds)
    start_again(world)
    for path in world.root.glob("*.parquet"):
        path.unlink()
    start_again(world)
    assert sorted(path.name for path in world.root.glob("*.parquet"))[:3] == [
        "19700101T000000Z.parquet",
        "19700101T010000Z-00000.parquet",
        "19700101T010000Z-00001.parquet",
    ]


# From scratch


def reset(world: World, disk: Disk | None = None) -> None:
    """Reset as a driver does that starts from scratch, with the next attempt."""
    world.checkpoint = 0
    Log(world.root, disk).reset("revenue", world.attempt + 1)


def test_after_a_reset_the_pipeline_runs_again_from_the_start(worlds):
    world = next(worlds)
    start_again(world)
    reset(world)
    assert files(world.root) == []
    assert not list(world.root.glob("*.parquet"))
    start_again(world)


def test_under_a_new_store_the_attempt_is_greater_than_those_in_the_directory(worlds):
    """The new store counts attempts from 1 again. The directory shows the greatest attempt before."""
    world = next(worlds)
    assert Log(world.root).last_attempt() == 0
    start_again(world)
    assert Log(world.root).last_attempt() == world.attempt > 0
    with pytest.raises(FencedError):
        Log(world.root).reset("revenue", world.attempt)
    assert len(manifest(world.root)) == 7
    reset(world)
    start_again(world)


def test_reset_of_a_missing_directory_does_nothing(tmp_path):
    Log(tmp_path / "out").reset("revenue", 1)
    assert not (tmp_path / "out").exists()


def test_a_driver_killed_in_a_reset_leaves_all_or_nothing_visible(worlds):
    """After that either the reset is done again, or the pipeline runs from the start."""
    count = next(worlds)
    start_again(count)
    disk = Watched()
    reset(count, disk)
    for at in range(len(disk.operations)):
        for again in (True, False):
            world = next(worlds)
            start_again(world)
            with pytest.raises(Killed):
                reset(world, Watched(at))
            assert len(manifest(world.root)) in (0, 7)
            world.attempt += 1
            if again:
                reset(world)
            if not manifest(world.root):
                start_again(world)


def test_a_frozen_driver_publishes_nothing_after_a_reset(worlds):
    total = count_operations(next(worlds), begin_and_run)
    for at in range(total):
        world = next(worlds)

        def again(world: World = world) -> None:
            reset(world)
            begin_and_run(world.driver())

        published_or_fenced(world.driver(Watched(at, then=again)), begin_and_run)
        world.check_reader()
        assert all(batch.attempt == 2 for batch in map(Log(world.root).find, range(4)) if batch is not None)
        start_again(world)


def test_a_driver_frozen_in_a_reset_removes_nothing_of_its_successor(worlds):
    """The results of the successor stay, with all its names, whenever the frozen driver continues."""
    count, disk = next(worlds), Watched()
    start_again(count)
    reset(count, disk)
    fenced = 0
    for at in range(len(disk.operations)):
        world = next(worlds)
        start_again(world)
        sleeper = world.attempt = world.attempt + 1

        def successor(world: World = world) -> None:
            begin_and_run(world.driver())

        world.checkpoint = 0
        try:
            Log(world.root, Watched(at, then=successor)).reset("revenue", sleeper)
        except FencedError:
            fenced += 1
        assert len(manifest(world.root)) == 7, disk.operations[at]
        assert len(list(world.root.glob("*.parquet"))) == 9, disk.operations[at]
        world.check_reader()
        start_again(world)
    assert fenced > 10


def test_a_reader_during_a_reset_sees_no_mixture(tmp_path, monkeypatch):
    """The log is removed after the reader has listed it. The reader sees the new state."""
    world = World(tmp_path / "out")
    start_again(world)
    real = os.listdir

    def listed(place):
        names = real(place)
        if isinstance(place, int):
            monkeypatch.setattr(os, "listdir", real)
            reset(world)
        return names

    monkeypatch.setattr(os, "listdir", listed)
    assert manifest(world.root) == []


# Reading


def test_files_are_selected_by_time(tmp_path):
    world = World(tmp_path / "out")
    begin_and_run(world.driver())
    starts = [int(Path(path).read_bytes().split()[0]) // HOUR for path in files(world.root, HOUR, 4 * HOUR)]
    assert starts == [1, 1, 3, 3]
    assert files(world.root, "1970-01-01T01:00Z", "1970-01-01T04:00+00:00") == files(world.root, HOUR, 4 * HOUR)
    assert files(str(world.root), datetime(1970, 1, 1, 5, tzinfo=UTC)) == files(world.root)[5:]
    assert files(world.root, end=1) == files(world.root)[:1]
    assert [period.start // HOUR for period in manifest(world.root, 2 * HOUR)] == [2, 3, 4, 5, 6]
    with pytest.raises(UsageError, match="no time zone"):
        files(world.root, "1970-01-01T01:00")
    with pytest.raises(UsageError, match="lies before start"):
        files(world.root, 5, 4)


@pytest.mark.parametrize("path", ["nowhere", "s3://bucket/out", "."])
def test_reading_a_directory_that_is_no_result_is_refused(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="is not the directory of a ParquetSink"):
        files(path)


def test_a_manifest_is_readable_by_people(tmp_path):
    world = World(tmp_path / "out")
    begin_and_run(world.driver())
    content = json.loads((world.root / HOME / "log" / "00000001.json").read_text())
    assert content["pipeline"] == "revenue"
    assert [period["time"] for period in content["periods"]] == [f"1970-01-01T0{n}:00:00Z" for n in (1, 2, 3)]
    assert content["periods"][0]["offsets"] == {"orders": {"0": [10, 20]}}
    assert content["periods"][1]["files"] == []
    assert content["files"] == 5


def test_a_manifest_is_encoded_and_decoded_without_loss():
    period = PublishedPeriod(5, 9, {Partition("a.b", 3): (1, 2)}, (DataFile("data/x/y.parquet", 1, 2, "ab"),))
    whole = Manifest("p", 3, 4, (period, PublishedPeriod(9, 10)), '{"type": "struct", "fields": []}', 7)
    assert Manifest.decode("x", whole.encode()) == whole


@pytest.mark.parametrize(
    ("start", "name"),
    [(1_767_225_600_000, "20260101T000000Z"), (1_767_225_600_050, "20260101T000000.050Z"), (2**60, str(2**60))],
)
def test_period_names_are_iso_times_without_special_characters(start, name):
    assert period_name(start) == name


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("/a/b", "/a/b"),
        ("file:///a/b%20c", "/a/b c"),
        ("file:/a/b", "/a/b"),
        ("s3://a/b", None),
        ("hdfs://h:1/b", None),
        ("abfss://c@a.net/b", None),
        (Path("/a:b/c"), "/a:b/c"),
    ],
)
def test_paths_and_file_uris_are_local_and_other_uris_are_not(place, path):
    assert local_path(place, "x") == (path and Path(path))


@pytest.mark.parametrize("place", ["", None, 5, b"/a"])
def test_invalid_paths_are_refused(place):
    with pytest.raises(UsageError, match="expected a directory"):
        local_path(place, "ParquetSink")
