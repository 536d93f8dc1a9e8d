"""A Delta table refuses drivers of other runs and replaced drivers, before and after the table exists.

The table is a real one. Spark's job is replaced by a function that writes the same files, so no Spark runs here.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

import aiokcc.spark
from aiokcc.core.partitions import Partition
from aiokcc.errors import FencedError, PipelineMismatchError, UsageError
from aiokcc.spark import tables
from aiokcc.spark.batch import Batch, Slice
from aiokcc.spark.history import delta_history
from aiokcc.spark.sinks import DeltaSink, FunctionSink, ParquetSink, Sink, delta
from aiokcc.spark.sinks.arrow import WrittenFile
from aiokcc.spark.sinks.delta_identity import TableIdentity

MINUTE = 60_000
START = 1_767_225_600_000  # 2026-01-01T00:00Z
ORDERS = Partition("orders", 0)


@pytest.fixture(autouse=True)
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the Spark job: write one file with one row, the text of the frame; no file if there is no text."""

    def write_files(frame: Any, batch: Batch, place: str, *, prefix: str, **_: Any) -> list[WrittenFile]:
        if frame.text is None:
            return []
        path = Path(place) / f"{prefix}0.parquet"
        period = dt.datetime.fromtimestamp(batch.start / 1000, dt.UTC)
        pq.write_table(pa.table({"period": pa.array([period], pa.timestamp("us", "UTC")), "text": [frame.text]}), path)
        return [WrittenFile(batch.start, 0, path.name, 1, path.stat().st_size, "", "here")]

    monkeypatch.setattr(delta, "write_files", write_files)


def frame(text: str | None, kind: Any = None) -> Any:
    schema = StructType([StructField("period", TimestampType()), StructField("text", kind or StringType())])
    return SimpleNamespace(columns=schema.names, schema=schema, text=text)


def batch(number: int, first: int = 0, *, empty: bool = False) -> Batch:
    start = START + number * MINUTE
    ranges = {} if empty else {ORDERS: (first + number, first + number + 1)}
    return Batch("revenue", number, (Slice(start, start + MINUTE, ranges),))


def driver(place: Path, run: str, attempt: int) -> DeltaSink:
    sink = DeltaSink(place)
    sink.identify(run * 32, f"zk://host/{run}")
    sink.begin("revenue", attempt)
    return sink


def do(sink: DeltaSink, each: Batch, text: str | None) -> None:
    sink.publish(each, None if each.is_empty else sink.stage(frame(text), each))


def texts(place: Path) -> list[str]:
    return sorted(DeltaTable(str(place)).to_pyarrow_table()["text"].to_pylist())


def orphans(place: Path) -> set[str]:
    """Return the files that no commit names."""
    return {path.name for path in place.glob("*.parquet")} - {
        Path(uri).name for uri in DeltaTable(str(place)).file_uris()
    }


class TestNoTableYet:
    """Two drivers begin before there is a table that could hold an attempt number."""

    @pytest.mark.parametrize("numbers", [(1, 1), (1, 2), (2, 1)], ids=str)
    def test_of_two_runs_with_one_name_the_second_is_refused(self, tmp_path: Path, numbers: tuple[int, int]) -> None:
        one, two = (driver(tmp_path, run, number) for run, number in zip("ab", numbers, strict=True))
        for number in range(3):
            do(one, batch(number), f"one {number}")
            with pytest.raises(
                PipelineMismatchError, match=r"under zk://host/a \(run aaaa.* under zk://host/b \(run bbbb"
            ):
                do(two, batch(number, first=1000), f"two {number}")
        assert texts(tmp_path) == ["one 0", "one 1", "one 2"]
        assert orphans(tmp_path) == set()

    def test_of_two_pipelines_the_second_is_refused_while_the_first_has_no_rows(self, tmp_path: Path) -> None:
        """The first has just created the table, or its batches gave no rows; the second leaves nothing behind."""
        one, two = driver(tmp_path, "a", 1), DeltaSink(tmp_path)
        two.identify("b" * 32, "zk://host/b")
        two.begin("costs", 7)
        nothing = replace(batch(0, empty=True), pipeline="costs")
        two.publish(nothing, None)
        do(one, batch(0), None)
        for _ in range(2):
            with pytest.raises(PipelineMismatchError, match=r"'revenue' under zk://host/a .*'costs' under zk://host/b"):
                two.stage(frame("two"), replace(batch(1), pipeline="costs"))
        again = DeltaSink(tmp_path)
        again.identify("b" * 32, "zk://host/b")
        with pytest.raises(PipelineMismatchError, match=r"'revenue' under zk://host/a"):
            again.begin("costs", 8)
        with pytest.raises(PipelineMismatchError, match=r"'revenue' under zk://host/a"):
            again.reset("costs", 9)  # from scratch: it may replace its own results only
        do(one, batch(1), "one")
        assert texts(tmp_path) == ["one"]
        assert orphans(tmp_path) == set()
        assert [path.name for path in (tmp_path / "_aiokcc").iterdir()] == ["a" * 32]

    def test_a_driver_frozen_before_publish_is_fenced(self, tmp_path: Path) -> None:
        """Its successor removes what it has staged, so it must not publish any more."""
        sleeper = driver(tmp_path, "a", 1)
        staged = sleeper.stage(frame("sleeper"), batch(0))
        successor = driver(tmp_path, "a", 2)
        with pytest.raises(FencedError):
            sleeper.publish(batch(0), staged)
        do(successor, batch(0), "successor 0")
        do(successor, batch(1), "successor 1")
        assert texts(tmp_path) == ["successor 0", "successor 1"]
        assert orphans(tmp_path) == set()

    def test_a_driver_frozen_between_begin_and_stage_is_fenced(self, tmp_path: Path) -> None:
        sleeper, successor = driver(tmp_path, "a", 1), driver(tmp_path, "a", 2)
        do(successor, batch(0), "successor 0")
        with pytest.raises(FencedError):
            sleeper.stage(frame("sleeper"), batch(0))
        assert texts(tmp_path) == ["successor 0"]
        assert orphans(tmp_path) == set()

    def test_the_creator_of_the_table_is_fenced_by_a_later_attempt(self, tmp_path: Path) -> None:
        """The successor has begun without a table; it finds one when it stages, and takes over there."""
        sleeper, successor = driver(tmp_path, "a", 1), driver(tmp_path, "a", 2)
        staged = sleeper.stage(frame("sleeper"), batch(0))
        do(successor, batch(0), "successor 0")
        with pytest.raises((FencedError, PipelineMismatchError)):
            sleeper.publish(batch(0), staged)
        assert texts(tmp_path) == ["successor 0"]
        assert orphans(tmp_path) == set()

    def test_of_drivers_that_create_the_table_at_the_same_moment_one_wins(self, tmp_path: Path) -> None:
        """The others are refused, and the table holds only what the first has written."""
        for round_ in range(10):
            place = tmp_path / str(round_)
            drivers = [driver(place, run, 1) for run in "abcd"]
            barrier = threading.Barrier(len(drivers))

            def run(sink: DeltaSink, barrier: threading.Barrier = barrier) -> str | None:
                barrier.wait()
                try:
                    do(sink, batch(0), sink._table.where)
                except PipelineMismatchError:
                    return None
                return sink._table.where

            with ThreadPoolExecutor(len(drivers)) as threads:
                winners = [where for where in threads.map(run, drivers) if where is not None]
            assert texts(place) == winners
            assert len(winners) == 1
            assert DeltaTable(str(place)).version() == 1


def test_a_commit_of_another_run_is_not_taken_for_our_own(tmp_path: Path) -> None:
    """After a refused commit the table shows whether it was ours. Attempt and number alone can be another run's."""
    one = driver(tmp_path, "a", 1)
    do(one, batch(0), "one")
    two = DeltaSink(tmp_path)
    two.identify("b" * 32, "zk://host/b")
    two._table.open("revenue", 1)
    assert not two._table.was_added_by_us(batch(0))
    assert one._table.was_added_by_us(batch(0))
    assert not one._table.was_added_by_us(batch(0, first=1000))


def test_as_of_a_batch_after_a_start_from_scratch(tmp_path: Path) -> None:
    """Numbers of batches begin again: those of the earlier run are not meant, and their files may be gone."""
    old = driver(tmp_path, "a", 1)
    for number in range(3):
        do(old, batch(number), f"old {number}")
    sink = DeltaSink(tmp_path)
    sink.identify("b" * 32, "zk://host/a")
    sink.reset("revenue", 2)
    sink.begin("revenue", 2)
    do(sink, batch(0), "new 0")
    do(sink, batch(1), "new 1")
    files = aiokcc.spark.files(tmp_path, as_of=0)
    assert [pq.read_table(file)["text"].to_pylist() for file in files] == [["new 0"]]
    with pytest.raises(UsageError, match="batch 2 is not in a commit .*the last one is 1"):
        aiokcc.spark.files(tmp_path, as_of=2)


def test_as_of_a_time_is_by_the_commits_and_not_by_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the table has other times of its files; and Delta deletes its oldest commits."""
    place, moments = tmp_path / "out", [dt.datetime.now(dt.UTC)]

    def wait_for_the_clock() -> None:
        while dt.datetime.now(dt.UTC) - moments[-1] < dt.timedelta(milliseconds=5):
            pass

    sink = driver(place, "a", 1)
    for number in range(3):
        wait_for_the_clock()
        do(sink, batch(number), f"{number}")
        wait_for_the_clock()
        moments.append(dt.datetime.now(dt.UTC))
        wait_for_the_clock()
    for path in sorted(place.rglob("*.json")):
        os.utime(path)

    def rows(moment: dt.datetime) -> list[str]:
        files = aiokcc.spark.files(place, as_of=moment)
        return sorted(text for file in files for text in pq.read_table(file)["text"].to_pylist())

    assert [rows(moment) for moment in moments] == [[], ["0"], ["0", "1"], ["0", "1", "2"]]
    table = DeltaTable(str(place))
    table.create_checkpoint()
    for path in sorted((place / "_delta_log").glob("*.json"))[:-1]:
        path.unlink()  # as a cleanup of the log does
    assert rows(moments[3]) == ["0", "1", "2"]
    with pytest.raises(UsageError, match=r"has no version as of .* any more; the first that it has is of"):
        rows(moments[1])


def test_the_history_has_all_periods_of_a_large_batch_and_its_rows_after_a_compaction(tmp_path: Path) -> None:
    """Delta's commit has room for some of the periods only; and a compaction replaces the files that have the rows."""
    sink = driver(tmp_path, "a", 1)
    slices = [Slice(START + n * MINUTE, START + (n + 1) * MINUTE, {ORDERS: (n, n + 1)}) for n in range(50)]
    do(sink, Batch("revenue", 0, tuple(slices)), "all")
    do(sink, replace(batch(50), number=1), "more")
    again = sink.published("revenue", 1).restatement("revenue", START, START + 2 * MINUTE, MINUTE)
    sink.replace(again, [sink.stage(frame("again"), again)], 1)
    DeltaTable(str(tmp_path)).optimize.compact()
    shown = [
        (one["batch"], one.get("restatement"), one["from"], one["to"], one["periods"], one["rows"], one["offsets"])
        for one in delta_history(str(tmp_path), "revenue")
    ]
    assert shown == [
        (0, None, "2026-01-01T00:00:00Z", "2026-01-01T00:50:00Z", 50, 1, "orders.0 0-50"),
        (1, None, "2026-01-01T00:50:00Z", "2026-01-01T00:51:00Z", 1, 1, "orders.0 50-51"),
        (1, 0, "2026-01-01T00:00:00Z", "2026-01-01T00:02:00Z", 2, 1, "orders.0 0-2"),
    ]


def test_restating_where_nothing_had_records_changes_nothing(tmp_path: Path) -> None:
    """There is no table yet that could be changed."""
    do(driver(tmp_path, "a", 1), batch(0, empty=True), None)
    sink = driver(tmp_path, "a", 2)
    again = sink.published("revenue", 0).restatement("revenue", START, START + MINUTE, MINUTE)
    sink.replace(again, [], 0)
    assert not DeltaTable.is_deltatable(str(tmp_path))
    assert sink.published("revenue", 0).restates == ()


def with_columns(*names: str) -> Any:
    made = frame(None)
    made.schema = StructType([*made.schema.fields, *(StructField(name, StringType()) for name in names)])
    made.columns = made.schema.names
    return made


def test_a_restatement_in_several_jobs_adds_the_columns_of_all_of_them(tmp_path: Path) -> None:
    sink = driver(tmp_path, "a", 1)
    do(sink, batch(0), "zero")
    do(sink, batch(1), "one")
    again = sink.published("revenue", 1).restatement("revenue", START, START + 2 * MINUTE, MINUTE)
    staged = [sink.stage(with_columns(*names), again.part(n)) for n, names in enumerate(["b", "bc"])]
    sink.replace(again, staged, 1)
    assert DeltaTable(str(tmp_path)).schema().to_arrow().names == ["period", "text", "b", "c"]


@pytest.mark.parametrize("kind", [DeltaSink, ParquetSink])
def test_a_column_that_only_an_earlier_job_of_a_restatement_adds_is_refused(tmp_path: Path, kind: Any) -> None:
    """As it is if a batch lacks a column that the batch before has added: no reader would see it."""
    sink = kind(tmp_path)
    sink.identify("a" * 32, "zk://host/a")
    sink.begin("revenue", 1)
    for number in range(2):
        result = {"schema": frame(None).schema.json(), "files": [], "states": None}
        one = batch(number)
        sink.publish(one, sink.stage(frame(None), one) if kind is DeltaSink else result)
    again = sink.published("revenue", 1).restatement("revenue", START, START + 2 * MINUTE, MINUTE)
    parts = [with_columns("b"), with_columns("c")]
    staged = [
        sink.stage(part, again.part(n)) if kind is DeltaSink else {"schema": part.schema.json(), "files": []}
        for n, part in enumerate(parts)
    ]
    with pytest.raises(UsageError, match="'b' is missing"):
        sink.replace(again, staged, 1)
    assert sink.published("revenue", 1).restates == ()


def test_a_restatement_follows_a_batch_that_the_store_does_not_know_to_be_published(tmp_path: Path) -> None:
    """A driver died after it published batch 1, before the store recorded it. A restatement then adds a column."""
    sink = ParquetSink(tmp_path / "out")
    sink.identify("a" * 32, "zk://host/a")
    sink.begin("revenue", 1)
    for number in range(2):
        sink.publish(batch(number), {"schema": frame(None).schema.json(), "files": [], "states": None})
    found = sink.published("revenue", 0)
    again = found.restatement("revenue", START, START + MINUTE, MINUTE)
    sink.replace(again, [{"schema": with_columns("b").schema.json(), "files": []}], found.batches[-1].number)
    assert aiokcc.spark.arrow_schema(tmp_path / "out").names == ["period", "text", "b"]
    assert tables.published(tmp_path / "out", as_of=1).restates == ()


class TestResultsThatAreGone:
    """The store has recorded batches as published. A driver that begins must not continue without them."""

    def test_a_dropped_table_is_refused(self, tmp_path: Path) -> None:
        do(driver(tmp_path, "a", 1), batch(0), "zero")
        sink = DeltaSink(tmp_path)
        sink.check_published("revenue", 0)
        shutil.rmtree(tmp_path)
        with pytest.raises(PipelineMismatchError, match=r"batch 0 .*'revenue'.* does not exist"):
            sink.check_published("revenue", 0)
        sink.check_published("revenue", -1)  # nothing is missed

    def test_a_table_that_was_created_again_is_refused(self, tmp_path: Path) -> None:
        do(driver(tmp_path, "a", 1), batch(0), "zero")
        schema = DeltaTable(str(tmp_path)).schema()
        shutil.rmtree(tmp_path)
        DeltaTable.create(str(tmp_path), schema)
        with pytest.raises(PipelineMismatchError, match="holds no batch of it"):
            DeltaSink(tmp_path).check_published("revenue", 0)

    def test_an_older_copy_of_the_table_is_refused(self, tmp_path: Path) -> None:
        table, copy = tmp_path / "table", tmp_path / "copy"
        sink = driver(table, "a", 1)
        do(sink, batch(0), "zero")
        shutil.copytree(table, copy)
        do(sink, batch(1), "one")
        shutil.rmtree(table)
        copy.rename(table)
        with pytest.raises(PipelineMismatchError, match="ends at batch 0"):
            DeltaSink(table).check_published("revenue", 1)

    def test_a_table_of_another_run_is_refused(self, tmp_path: Path) -> None:
        do(driver(tmp_path, "a", 1), batch(0), "zero")
        sink = DeltaSink(tmp_path)
        sink.identify("b" * 32, "zk://host/b")
        with pytest.raises(PipelineMismatchError, match="under zk://host/a .* under zk://host/b"):
            sink.check_published("revenue", 0)

    def test_a_batch_without_rows_counts_as_published(self, tmp_path: Path) -> None:
        """The number is in the table also if the result has no rows. A batch without records has no number."""
        sink = driver(tmp_path, "a", 1)
        do(sink, batch(0), None)
        do(sink, batch(1, empty=True), None)
        DeltaSink(tmp_path).check_published("revenue", 0)
        assert DeltaSink(tmp_path).last_attempt("revenue") == 1
        assert texts(tmp_path) == []

    def test_a_parquet_directory_of_another_run_or_a_deleted_one_is_refused(self, tmp_path: Path) -> None:
        place = tmp_path / "out"
        sink = ParquetSink(place)
        sink.identify("a" * 32, "zk://host/a")
        sink.begin("revenue", 1)
        sink.publish(batch(0, empty=True), None)
        sink.check_published("revenue", 0)
        sink.identify("b" * 32, "zk://host/b")
        with pytest.raises(PipelineMismatchError, match="under zk://host/a .* under zk://host/b"):
            sink.check_published("revenue", 0)
        shutil.rmtree(place)
        with pytest.raises(PipelineMismatchError, match="batch 0 .* not there any more"):
            sink.check_published("revenue", 0)
        with pytest.raises(PipelineMismatchError, match="the directory was removed while this driver was at work"):
            sink.publish(batch(1, empty=True), None)
        assert not place.exists()


def test_a_restatement_keeps_rows_of_others_that_have_no_period(tmp_path: Path) -> None:
    """Others may write to the table. After a compaction their rows are in one file with the periods."""
    sink = driver(tmp_path, "a", 1)
    for number in range(2):
        do(sink, batch(number), f"old {number}")
    write_deltalake(str(tmp_path), pa.table({"text": ["theirs"]}), mode="append", schema_mode="merge")
    for is_compacted in (False, True):
        if is_compacted:
            DeltaTable(str(tmp_path)).optimize.compact()
        found = sink.published("revenue", 1)
        again = found.restatement("revenue", START, START + MINUTE, MINUTE)
        sink.replace(again, [sink.stage(frame(f"new {is_compacted}"), again)], 1)
        assert texts(tmp_path) == [f"new {is_compacted}", "old 1", "theirs"]


class TestCheckBeforeAReset:
    """A reset finds out before it deletes anything what it, or the first batch after it, would refuse."""

    @pytest.mark.parametrize("kind", [DeltaSink, ParquetSink])
    def test_results_of_another_pipeline_or_program(self, tmp_path: Path, kind: Any) -> None:
        sink = kind(tmp_path / "ours")
        sink.check_reset("revenue", lambda: frame(None))  # there is nothing yet
        sink.identify("a" * 32, "zk://host/a")
        sink.begin("revenue", 1)
        one = batch(0)
        result = {"schema": frame(None).schema.json(), "files": [], "states": None}
        sink.publish(one, sink.stage(frame(None), one) if kind is DeltaSink else result)
        foreign = tmp_path / "foreign"
        if kind is DeltaSink:
            write_deltalake(str(foreign), pa.table({"n": [1]}))
        else:
            foreign.mkdir()
            (foreign / "mine.txt").touch()
        before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
        kind(tmp_path / "ours").check_reset("revenue", lambda: frame(None))
        with pytest.raises(PipelineMismatchError, match="'revenue'.*'costs'"):
            kind(tmp_path / "ours").check_reset("costs", lambda: frame(None))
        with pytest.raises(UsageError, match=r"mine.txt|results of another program"):
            kind(foreign).check_reset("revenue", lambda: frame(None))
        assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before

    def test_columns_that_the_emptied_table_would_not_take(self, tmp_path: Path) -> None:
        do(driver(tmp_path, "a", 1), batch(0), "zero")
        with pytest.raises(UsageError, match="'text' is long, and was string"):
            DeltaSink(tmp_path).check_reset("revenue", lambda: frame(None, LongType()))
        DeltaSink(tmp_path, schema="replace").check_reset("revenue", lambda: frame(None, LongType()))
        DeltaSink(tmp_path).check_reset("revenue", lambda: None)  # not known before the first job
        assert texts(tmp_path) == ["zero"]

    def test_a_sink_that_cannot_be_emptied(self) -> None:
        class Own(FunctionSink):
            reset = Sink.reset

        with pytest.raises(UsageError, match="cannot be emptied by the pipeline"):
            Own(print).check_reset("revenue", lambda: None)
        FunctionSink(print).check_reset("revenue", lambda: None)


class TestTableThatIsReplacedMeanwhile:
    """Somebody drops the table while a driver is at work, and makes another one in its place."""

    @pytest.mark.parametrize("commits", [1, 2, 3, 7])
    @pytest.mark.parametrize("is_staged", [False, True], ids=["before the job", "after the job"])
    def test_nothing_is_written_to_the_other_one(self, tmp_path: Path, commits: int, *, is_staged: bool) -> None:
        """However long its log is: Delta looks at the number of the next commit only."""
        place = tmp_path / "out"
        sink = driver(place, "a", 1)
        do(sink, batch(0), "zero")
        staged = sink.stage(frame("one"), batch(1)) if is_staged else None
        shutil.rmtree(place)
        theirs = pa.table({"period": pa.array([0], pa.timestamp("us", "UTC")), "text": ["theirs"]})
        for _ in range(commits):
            write_deltalake(str(place), theirs, mode="append")
        before = sorted(place.rglob("*"))
        with pytest.raises(PipelineMismatchError, match="was dropped and made again, while this driver was at work"):
            if staged is None:
                sink.stage(frame("one"), batch(1))
            else:
                sink.publish(batch(1), staged)
        with pytest.raises(PipelineMismatchError, match="was dropped and made again"):
            sink.publish(batch(1, empty=True), None)
        assert sorted(place.rglob("*")) == before
        assert texts(place) == ["theirs"] * commits

    def test_a_restatement_writes_nothing_to_the_other_one(self, tmp_path: Path) -> None:
        place = tmp_path / "out"
        sink = driver(place, "a", 1)
        do(sink, batch(0), "zero")
        again = sink.published("revenue", 0).restatement("revenue", START, START + MINUTE, MINUTE)
        staged = sink.stage(frame("new"), again)
        shutil.rmtree(place)
        for n in range(5):
            write_deltalake(str(place), pa.table({"n": [n]}), mode="append")
        with pytest.raises(PipelineMismatchError, match="was dropped and made again"):
            sink.replace(again, [staged], 0)
        assert DeltaTable(str(place)).to_pyarrow_table().num_rows == 5

    def test_a_dropped_table_is_not_made_again(self, tmp_path: Path) -> None:
        place = tmp_path / "out"
        sink = driver(place, "a", 1)
        do(sink, batch(0), "zero")
        shutil.rmtree(place)
        with pytest.raises(PipelineMismatchError, match="does not exist any more, while this driver was at work"):
            sink.stage(frame("one"), batch(1))
        assert not place.exists()

    def test_an_older_copy_is_refused_and_the_same_table_is_not(self, tmp_path: Path) -> None:
        place, copy = tmp_path / "out", tmp_path / "copy"
        sink = driver(place, "a", 1)
        do(sink, batch(0), "zero")
        shutil.copytree(place, copy)
        do(sink, batch(1), "one")
        shutil.copytree(place, tmp_path / "now")
        shutil.rmtree(place)
        (tmp_path / "now").rename(place)  # the files are others, and their content is the same
        do(sink, batch(2), "two")
        assert texts(place) == ["one", "two", "zero"]
        shutil.rmtree(place)
        copy.rename(place)
        with pytest.raises(PipelineMismatchError, match="was replaced by an older copy, which ends at version"):
            sink.stage(frame("three"), batch(3))


def test_a_table_that_is_in_no_directory_is_looked_at_once_in_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    uri, row = f"file://{tmp_path / 'out'}", pa.table({"n": [1]})
    write_deltalake(uri, row)
    identity = TableIdentity(uri, uri, None, DeltaTable(uri))
    clock[0] += 5
    identity.check()
    shutil.rmtree(tmp_path / "out")
    write_deltalake(uri, row)
    clock[0] += 0.5
    identity.check()
    clock[0] += 1
    with pytest.raises(PipelineMismatchError, match="was dropped and made again"):
        identity.check()


def test_credentials_in_the_uri_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are neither in messages nor in the description, which is written to the store."""
    place = "s3://AKIAKEY:s3cr3t/part@bucket/revenue"
    sink = DeltaSink(place)
    assert sink.uri == place  # what deltalake gets
    said = [repr(sink), sink.describe()]
    with pytest.raises(UsageError) as refused:
        ParquetSink(place)
    said.append(str(refused.value))
    monkeypatch.setattr(sink._table, "_load", lambda: None)
    with pytest.raises(PipelineMismatchError) as missed:
        sink.check_published("revenue", 0)
    said.append(str(missed.value))
    for text in said:
        assert "s3://***@bucket/revenue" in text
        assert "AKIAKEY" not in text
        assert "s3cr3t" not in text


def test_a_local_path_is_shown_unchanged(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "me:you@here")
    assert sink.describe() == f"Delta table {tmp_path / 'me:you@here'}"
