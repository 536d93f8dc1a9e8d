"""The sinks on a real Spark: what they write, what other programs read, and what is left when a driver dies or freezes."""

from __future__ import annotations

import datetime as dt
import decimal
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow.parquet as pq
import pytest
from aiokafka import AIOKafkaConsumer
from deltalake import DeltaTable, write_deltalake

from aiokcc.core.partitions import Partition
from aiokcc.errors import FencedError, PipelineMismatchError, SparkJobError, UsageError
from aiokcc.spark.batch import Batch, Slice
from aiokcc.spark.sinks import DeltaSink, FunctionSink, KafkaSink, ParquetSink, arrow
from aiokcc.spark.tables import files, manifest, read
from tests import kafka_topics

pytestmark = pytest.mark.timeout(240)

HOUR = 3_600_000
START = 1_767_225_600_000  # 2026-01-01T00:00Z
ORDERS = Partition("orders", 0)


def batch(number: int, *hours: int, empty: tuple[int, ...] = ()) -> Batch:
    """Return a batch of these hours of the day."""
    periods = tuple(
        Slice(START + n * HOUR, START + (n + 1) * HOUR, {} if n in empty else {ORDERS: (n * 10, n * 10 + 10)})
        for n in hours
    )
    return Batch("revenue", number, periods)


def rows_of(hours: range, per_hour: int = 40) -> list[tuple[int, str, float]]:
    return [(n, f"customer {k % 7}", k / 4) for n in hours for k in range(per_hour)]


def frame_of(spark, rows, *, partitions: int = 3):
    from pyspark.sql import functions as fn

    plain = spark.createDataFrame(rows, "hour int, customer string, amount double").repartition(partitions)
    return plain.select(
        fn.timestamp_millis(fn.col("hour").cast("long") * HOUR + START).alias("period"), "customer", "amount"
    )


def run(sink, frame, *batches: Batch, attempt: int = 1) -> None:
    """Publish batches as the pipeline does: each with the rows of its own periods."""
    sink.begin("revenue", attempt)
    for each in batches:
        do(sink, frame, each)


def do(sink, frame, each: Batch) -> None:
    staged = None if each.is_empty else sink.stage(rows_in(frame, each), each)
    sink.publish(each, staged)


def rows_in(frame, each: Batch):
    from pyspark.sql import functions as fn

    return frame.where(fn.unix_millis("period").between(each.start, each.end - 1))


def hashes(path: Path) -> dict[int, list[str]]:
    return {period.start: [file.sha256 for file in period.files] for period in manifest(path)}


def expected(rows) -> list[tuple[int, str, float]]:
    return sorted((START + n * HOUR, customer, amount) for n, customer, amount in rows)


def seen(table: pd.DataFrame) -> list[tuple[int, str, float]]:
    """Return the rows of a pandas table, with the period in milliseconds."""
    millis = [int(moment.timestamp() * 1000) for moment in pd.to_datetime(table["period"], utc=True)]
    return sorted(zip(millis, table["customer"], table["amount"], strict=True))


def collected(frame) -> list[tuple[int, str, float]]:
    """Return the rows of a Spark frame, with the period in milliseconds."""
    return sorted(map(tuple, frame.selectExpr("unix_millis(period)", "customer", "amount").collect()))


# Parquet: the same rows are the same bytes


def test_files_have_the_same_bytes_however_many_periods_a_job_has(spark, tmp_path):
    rows = rows_of(range(6))
    run(ParquetSink(tmp_path / "one"), frame_of(spark, rows), *(batch(n, n) for n in range(6)))
    run(ParquetSink(tmp_path / "all"), frame_of(spark, rows[::-1], partitions=5), batch(0, *range(6)))
    one = hashes(tmp_path / "one")
    assert len(one) == 6
    assert all(len(files) == 1 for files in one.values())
    assert len({file for files in one.values() for file in files}) == 6
    assert hashes(tmp_path / "all") == one


def test_files_have_the_same_bytes_however_spark_splits_the_stream(spark, tmp_path):
    """Large periods with several row groups, in sessions with another batch size, time zone and nullability."""
    from pyspark.sql import functions as fn

    rows = rows_of(range(2), per_hour=3_000)
    run(ParquetSink(tmp_path / "a", row_group_rows=700), frame_of(spark, rows), batch(0, 0, 1))
    assert [pq.read_metadata(path).num_row_groups for path in files(tmp_path / "a")] == [5, 5]
    settings = {"spark.sql.execution.arrow.maxRecordsPerBatch": "333", "spark.sql.session.timeZone": "Asia/Tokyo"}
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        again = frame_of(spark, rows).withColumn("amount", fn.coalesce("amount", fn.lit(0.0)))
        assert not again.schema["amount"].nullable
        run(ParquetSink(tmp_path / "b", row_group_rows=700), again, batch(0, 0), batch(1, 1))
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")


def test_a_period_is_spread_over_several_files(spark, tmp_path):
    rows = rows_of(range(4), per_hour=200)
    run(ParquetSink(tmp_path / "one", files_per_period=3), frame_of(spark, rows), *(batch(n, n) for n in range(4)))
    run(ParquetSink(tmp_path / "all", files_per_period=3), frame_of(spark, rows[::-1]), batch(0, *range(4)))
    assert [len(period.files) for period in manifest(tmp_path / "one")] == [3] * 4
    assert hashes(tmp_path / "all") == hashes(tmp_path / "one")
    assert seen(pd.read_parquet(files(tmp_path / "all"))) == expected(rows)


def test_rows_are_sorted_and_counted(spark, tmp_path):
    rows = rows_of(range(2))
    run(ParquetSink(tmp_path), frame_of(spark, rows), batch(0, 0, 1))
    for path, period in zip(files(tmp_path), manifest(tmp_path), strict=True):
        table = pd.read_parquet(path)
        found = list(zip(table["customer"], table["amount"], strict=True))
        assert found == sorted(found)
        assert period.rows == len(found) == 40
        assert period.files[0].size == Path(path).stat().st_size


def test_a_manifest_names_periods_rows_offsets_and_files(spark, tmp_path):
    """An hour without records, and one whose records gave no rows, have an entry without a file."""
    run(
        ParquetSink(tmp_path),
        frame_of(spark, rows_of(range(1))),
        batch(0, 0, 1, 2, empty=(1,)),
        batch(1, 3, empty=(3,)),
    )
    assert [(period.start, period.rows, len(period.files)) for period in manifest(tmp_path)] == [
        (START, 40, 1),
        (START + HOUR, 0, 0),
        (START + 2 * HOUR, 0, 0),
        (START + 3 * HOUR, 0, 0),
    ]
    assert manifest(tmp_path)[0].ranges == {ORDERS: (0, 10)}


# Parquet: others read it


@pytest.fixture
def published(spark, tmp_path):
    """Publish five hours in three batches; beside them are files of a dead attempt, and of a frozen one that still writes."""
    rows = rows_of(range(5))
    frame = frame_of(spark, rows)
    path = tmp_path / "out"
    dead = ParquetSink(path)
    dead.begin("revenue", 1)
    dead.stage(rows_in(frame, batch(0, 0, 1)), batch(0, 0, 1))
    living = ParquetSink(path)
    run(living, frame, batch(0, 0, 1), batch(1, 2), attempt=2)
    living.stage(rows_in(frame, batch(2, 3, 4)), batch(2, 3, 4))  # dies before it publishes
    (path / "_aiokcc" / "data" / "00000002-00000002-abc-9").mkdir()
    (path / "_aiokcc" / "data" / "00000002-00000002-abc-9" / "half.parquet").write_bytes(b"PAR1 and no more")
    return path, rows_of(range(3)), frame


def test_pandas_reads_the_files(published):
    path, rows, _ = published
    table = pd.read_parquet(files(path))
    assert seen(table) == expected(rows)
    assert str(table["period"].dtype).endswith(", UTC]")


def test_duckdb_reads_the_files(published):
    path, rows, _ = published
    with duckdb.connect() as connection:
        found = connection.read_parquet(files(path)).query(
            "t", "select epoch_ms(period), customer, amount from t order by all"
        )
        assert found.fetchall() == expected(rows)


def test_duckdb_alone_finds_the_files_through_the_manifests(published):
    """The manifests are JSON, which DuckDB reads too. The statement is the one in the documentation."""
    path, rows, _ = published
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "spark-results.md").read_text()
    statements = page.split("```sql\n")[1].split("```")[0].replace("out/revenue", str(path)).split(";")
    with duckdb.connect() as connection:
        connection.execute(statements[0])
        found = connection.execute(f"select epoch_ms(period), customer, amount from ({statements[1]}) order by all")
        assert found.fetchall() == expected(rows)


def test_spark_reads_the_rows(spark, published):
    path, rows, _ = published
    assert collected(read(spark, path)) == expected(rows)
    assert collected(spark.read.parquet(*files(path))) == expected(rows)


def test_tools_that_read_a_whole_directory_see_each_row_once(spark, published):
    """They read the second names, without a manifest and without aiokcc."""
    path, rows, _ = published
    assert seen(pd.read_parquet(path)) == expected(rows)
    assert collected(spark.read.parquet(str(path))) == expected(rows)
    with duckdb.connect() as connection:
        found = connection.sql(f"select epoch_ms(period), customer, amount from '{path}/*.parquet' order by all")
        assert found.fetchall() == expected(rows)


def test_a_range_of_periods_is_read(spark, published):
    path, _, _ = published
    begin = "2026-01-01T01:00Z"
    assert collected(read(spark, path, begin, "2026-01-01T02:00Z")) == expected(rows_of(range(1, 2)))
    assert len(files(path, begin)) == 2
    assert collected(read(spark, path, START + 9 * HOUR)) == []


def test_a_list_of_files_stays_valid_while_the_pipeline_runs(published):
    path, rows, frame = published
    before = files(path)
    run(ParquetSink(path), frame, batch(2, 3, 4), attempt=3)
    assert seen(pd.read_parquet(before)) == expected(rows)
    assert seen(pd.read_parquet(files(path))) == expected(rows_of(range(5)))
    assert len(list((path / "_aiokcc" / "data").iterdir())) == 3  # what was left lying is gone


def test_reading_an_empty_result_is_an_error(spark, tmp_path):
    sink = ParquetSink(tmp_path)
    run(sink, None, batch(0, 0, empty=(0,)))
    with pytest.raises(UsageError, match="nothing but empty periods is published there yet"):
        read(spark, tmp_path)
    assert files(tmp_path) == []


def test_values_of_every_type_are_read_back(spark, tmp_path):
    from pyspark.sql import functions as fn

    schema = """i tinyint, s smallint, n int, b bigint, f float, d double, m decimal(20,3), t string, raw binary, flag boolean,
        day date, moment timestamp, wall timestamp_ntz, list array<int>, part struct<a:int,b:struct<c:string>>,
        map map<string,int>, deep array<map<string,int>>, `odd.name` int"""
    utc = dt.UTC
    full = (
        *(1, 2, 3, 4, 0.5, 0.25, decimal.Decimal("12345.678"), "ü", b"\x00\xff", True),
        *(dt.date(2026, 1, 2), dt.datetime(2026, 1, 2, 3, 4, 5, 678901, utc), dt.datetime(2026, 1, 2, 3, 4, 5)),
        *([1, None], (1, ("x",)), {"b": 2, "a": 1}, [{"z": 1}], 7),
    )
    nothing = (None,) * len(full)
    plain = spark.createDataFrame([full, nothing, full], schema)
    frame = plain.withColumn("period", fn.timestamp_millis(fn.lit(START)))
    run(ParquetSink(tmp_path), frame, batch(0, 0))
    found = sorted(map(str, read(spark, tmp_path).select(*[f"`{name}`" for name in plain.columns]).collect()))
    assert found == sorted(map(str, plain.collect()))


# Parquet: results that cannot be


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["customer"], "no column 'period'; keep it in every groupBy"),
        (["cast(period as date) period"], "'period' is date; keep it as it was"),
        (["period", "customer", "amount as Customer"], "two columns 'customer'"),
        (["period", "null as x"], "'x' is void.*cast it"),
        (["period", "period - period as x"], "'x' is interval day to second.*cast it to a number"),
        (["period", "array(struct(null as y)) as x"], "'x.element.y' is void"),
        (["period", "parse_json('1') as x"], "'x' is variant.*to_json"),
    ],
)
def test_results_that_cannot_be_written_are_refused(spark, tmp_path, columns, message):
    sink = ParquetSink(tmp_path)
    sink.begin("revenue", 1)
    frame = frame_of(spark, rows_of(range(1), 1)).selectExpr(*columns)
    with pytest.raises(UsageError, match=message):
        sink.stage(frame, batch(0, 0))


@pytest.mark.parametrize(
    ("period", "message"),
    [("period + interval 1 day", "not in this batch"), ("cast(null as timestamp)", "'period' is null")],
)
def test_rows_of_another_period_are_refused(spark, tmp_path, period, message):
    sink = ParquetSink(tmp_path)
    sink.begin("revenue", 1)
    frame = frame_of(spark, rows_of(range(1), 1)).selectExpr(f"{period} as period", "customer")
    with pytest.raises(Exception, match=message):
        sink.stage(frame, batch(0, 0))
    assert files(tmp_path) == []


def test_files_of_a_failed_job_are_never_visible(spark, tmp_path):
    """Some files were written when a task failed. Readers never see them, and they are removed."""
    from pyspark.sql import functions as fn

    frame = frame_of(spark, rows_of(range(3)))
    sink = ParquetSink(tmp_path)
    sink.begin("revenue", 1)
    broken = frame.withColumn(
        "amount", fn.when(fn.col("amount") < 9, fn.col("amount")).otherwise(fn.raise_error(fn.lit("no")))
    )
    with pytest.raises(Exception, match="no"):
        sink.stage(broken, batch(0, 0, 1, 2))
    assert files(tmp_path) == []
    do(sink, frame, batch(0, 0, 1, 2))
    assert seen(pd.read_parquet(files(tmp_path))) == expected(rows_of(range(3)))
    assert len(list((tmp_path / "_aiokcc" / "data").iterdir())) == 1


def test_a_directory_that_the_workers_do_not_share_is_refused(spark, tmp_path, monkeypatch):
    """The workers have written to a directory that the driver does not see."""
    elsewhere = arrow.WrittenFile(START, 0, "x.parquet", 40, 1234, "00", "worker-7")
    monkeypatch.setattr("aiokcc.spark.sinks.parquet.write_files", lambda *args, **settings: [elsewhere])
    sink = ParquetSink(tmp_path)
    sink.begin("revenue", 1)
    with pytest.raises(SparkJobError, match="worker on worker-7 wrote 1234 bytes .* the driver does not see it"):
        sink.stage(frame_of(spark, rows_of(range(1))), batch(0, 0))


def test_workers_need_not_have_aiokcc(tmp_path):
    """The function of a task is sent by value: it runs in a Python that cannot import aiokcc."""
    from pyspark import cloudpickle

    task = arrow._writer(str(tmp_path), "", "label", 1, {START: "first"}, ["x"], "zstd", 10)
    (tmp_path / "task").write_bytes(cloudpickle.dumps(task))
    program = """
import pickle, sys
sys.modules["aiokcc"] = None
import pyarrow as pa
task = pickle.load(open(sys.argv[1], "rb"))
print(list(task([pa.RecordBatch.from_pydict({"label": [int(sys.argv[2])], "x": [1]})]))[0].to_pylist()[0]["rows"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "task"), str(START)], capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.returncode) == ("1", 0), done.stderr
    assert len(list(tmp_path.glob("first-*.parquet"))) == 1


# Parquet: drivers that die or sleep


def test_a_frozen_driver_cannot_publish_after_its_successor_began(spark, tmp_path):
    frame = frame_of(spark, rows_of(range(3)))
    sleeper = ParquetSink(tmp_path)
    run(sleeper, frame, batch(0, 0))
    staged = sleeper.stage(rows_in(frame, batch(1, 1)), batch(1, 1))
    successor = ParquetSink(tmp_path)
    successor.begin("revenue", 2)
    with pytest.raises(FencedError):
        sleeper.publish(batch(1, 1), staged)
    assert successor.is_published(batch(0, 0))
    assert not successor.is_published(batch(1, 1))
    do(successor, frame, batch(1, 1))
    with pytest.raises(FencedError):
        sleeper.publish(batch(1, 1), staged)
    with pytest.raises(FencedError):
        sleeper.stage(frame, batch(2, 2))
    do(successor, frame, batch(2, 2))
    assert seen(pd.read_parquet(files(tmp_path))) == expected(rows_of(range(3)))


def test_a_job_whose_successor_begins_is_fenced_and_has_not_failed(spark, tmp_path, monkeypatch):
    """The successor removes the job's directory while it runs. That does not count as a failure of the job."""
    sleeper = ParquetSink(tmp_path)
    sleeper.begin("revenue", 1)
    write = arrow.write_files

    def slowly(*args, **settings):
        ParquetSink(tmp_path).begin("revenue", 2)
        return write(*args, **settings)

    monkeypatch.setattr("aiokcc.spark.sinks.parquet.write_files", slowly)
    with pytest.raises(FencedError):
        sleeper.stage(frame_of(spark, rows_of(range(1))), batch(0, 0))


def test_from_scratch_replaces_the_results(spark, tmp_path):
    frame = frame_of(spark, rows_of(range(2)))
    run(ParquetSink(tmp_path), frame, batch(0, 0), batch(1, 1), attempt=7)
    again = ParquetSink(tmp_path)
    with pytest.raises(FencedError, match="from_scratch=True"):
        again.begin("revenue", 1)
    assert again.last_attempt("revenue") == 7
    with pytest.raises(FencedError):
        again.reset("revenue", 7)
    again.reset("revenue", 8)
    assert files(tmp_path) == []
    run(again, frame, batch(0, 0, 1), attempt=8)
    assert seen(pd.read_parquet(tmp_path)) == expected(rows_of(range(2)))


def test_a_directory_may_be_given_as_a_path_or_a_uri(tmp_path):
    assert ParquetSink(f"file://{tmp_path}/out").path == tmp_path / "out"
    assert ParquetSink(tmp_path / "out").describe() == f"Parquet in {tmp_path}/out"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": "s3://bucket/out"}, r"not on a POSIX file system.*aiokcc.spark.DeltaSink\('s3://bucket/out'\)"),
        ({"path": "hdfs://host:8020/out"}, "not on a POSIX file system"),
        ({"path": ""}, "expected a directory"),
        ({"files_per_period": 0}, "files_per_period is 0; expected a whole number from 1 to"),
        ({"files_per_period": True}, "files_per_period is True"),
        ({"row_group_rows": 1.5}, "row_group_rows is 1.5"),
        ({"compression": "zip"}, "compression is 'zip'; expected one of zstd"),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        ParquetSink(**{"path": "out", **settings})


@pytest.mark.parametrize(
    ("missing", "sink", "message"),
    [
        ("pyarrow", ParquetSink, r"pip install 'pyspark\[sql\]'"),
        ("pandas", DeltaSink, r"pip install 'pyspark\[sql\]'"),
        ("deltalake", DeltaSink, r"pip install 'aiokcc\[delta\]'"),
    ],
)
def test_missing_packages_are_named(monkeypatch, missing, sink, message):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == missing else real(name, *rest))
    with pytest.raises(UsageError, match=message):
        sink("out")


# Delta


def table_rows(path: Path) -> list[tuple[int, str, float]]:
    return seen(DeltaTable(str(path)).to_pandas())


def test_delta_holds_each_period_once(spark, tmp_path):
    frame = frame_of(spark, rows_of(range(5)))
    sink = DeltaSink(tmp_path)
    run(sink, frame, batch(0, 0, empty=(0,)), batch(1, 1, 2), batch(2, 3, empty=(3,)), batch(3, 4))
    assert table_rows(tmp_path) == expected(rows_of(range(1, 3)) + rows_of(range(4, 5)))
    staged = sink.stage(rows_in(frame, batch(3, 4)), batch(3, 4))
    sink.publish(batch(3, 4), staged)
    assert len(table_rows(tmp_path)) == 120
    assert DeltaTable(str(tmp_path)).version() == 2  # one creates the table, and an empty batch makes none


def test_delta_files_have_their_period_in_their_statistics(spark, tmp_path):
    run(DeltaSink(tmp_path), frame_of(spark, rows_of(range(3))), batch(0, 0, 1, 2))
    table = DeltaTable(str(tmp_path)).get_add_actions(flatten=True)
    assert table["num_records"].to_pylist() == [40] * 3
    hour = dt.datetime(2026, 1, 1, 1, tzinfo=dt.UTC)
    one = DeltaTable(str(tmp_path)).to_pandas(filters=[("period", "=", hour)])
    assert seen(one) == expected(rows_of(range(1, 2)))


def test_delta_files_of_a_driver_that_died_before_publishing_are_removed(spark, tmp_path):
    frame = frame_of(spark, rows_of(range(2)))
    dead = DeltaSink(tmp_path)
    run(dead, frame, batch(0, 0))
    dead.stage(rows_in(frame, batch(1, 1)), batch(1, 1))
    after = DeltaSink(tmp_path)
    after.begin("revenue", 2)
    assert after.is_published(batch(0, 0))
    assert not after.is_published(batch(1, 1))
    assert len(list(tmp_path.glob("*.parquet"))) == 1  # its files are gone
    do(after, frame, batch(1, 1))
    assert table_rows(tmp_path) == expected(rows_of(range(2)))


def test_delta_a_frozen_driver_cannot_publish_after_its_successor_began(spark, tmp_path):
    """It is refused as soon as the successor has begun, and later as well, though its snapshot is from before."""
    frame = frame_of(spark, rows_of(range(3)))
    sleeper = DeltaSink(tmp_path)
    run(sleeper, frame, batch(0, 0))
    staged = sleeper.stage(rows_in(frame, batch(1, 1)), batch(1, 1))
    successor = DeltaSink(tmp_path)
    successor.begin("revenue", 2)
    with pytest.raises(FencedError):
        sleeper.publish(batch(1, 1), staged)
    do(successor, frame, batch(1, 1))
    with pytest.raises(FencedError):
        sleeper.publish(batch(1, 1), staged)
    assert table_rows(tmp_path) == expected(rows_of(range(2)))
    with pytest.raises(FencedError, match="attempt 2 has begun there, and this is attempt 1"):
        DeltaSink(tmp_path).begin("revenue", 1)


def test_delta_other_programs_may_write_to_the_table(spark, tmp_path):
    frame = frame_of(spark, rows_of(range(2)))
    sink = DeltaSink(tmp_path)
    run(sink, frame, batch(0, 0))
    other = DeltaTable(str(tmp_path))
    write_deltalake(other, other.to_pyarrow_table().slice(0, 1), mode="append")
    DeltaTable(str(tmp_path)).optimize.compact()
    do(sink, frame, batch(1, 1))
    assert len(table_rows(tmp_path)) == 81


def of_run(sink, run: str, root: str):
    sink.identify(run, root)
    return sink


def test_the_results_of_another_run_are_refused_every_time(spark, tmp_path):
    """The same name is used under another root, and a scheduler tries again: each try is a later attempt there."""
    frame = frame_of(spark, rows_of(range(2)))
    for kind in (DeltaSink, ParquetSink):
        place = tmp_path / kind.__name__
        run(of_run(kind(place), "aaaa", "/one"), frame, batch(0, 0), batch(1, 1))
        before = sorted(place.rglob("*.parquet"))
        for attempt in (1, 2, 3):
            other = of_run(kind(place), "bbbb", "/two")
            with pytest.raises(
                PipelineMismatchError,
                match=r"'revenue' under /one \(run aaaa\), up to batch 1, .* under /two \(run bbbb\)",
            ):
                other.begin("revenue", attempt)
        assert sorted(place.rglob("*.parquet")) == before
        # It has disturbed nobody: the run goes on, and a person who asks for it gets the other one.
        of_run(kind(place), "aaaa", "/one").begin("revenue", 2)
        other.reset("revenue", 4)
        run(other, frame, batch(0, 0, 1), attempt=4)
        with pytest.raises(PipelineMismatchError, match="under /two .* under /one"):
            of_run(kind(place), "aaaa", "/one").begin("revenue", 5)
    assert table_rows(tmp_path / "DeltaSink") == expected(rows_of(range(2)))


@pytest.mark.parametrize(("number", "hours"), [(1, (1, 2)), (0, (0,))])
def test_delta_another_batch_under_the_same_number_is_refused(spark, tmp_path, number, hours):
    frame = frame_of(spark, rows_of(range(3)))
    run(DeltaSink(tmp_path), frame, batch(0, 0), batch(1, 1))
    after = DeltaSink(tmp_path)
    after.begin("revenue", 2)
    other = batch(number, *hours)
    told = (
        r"holds batch 1 of aiokcc/revenue with 2026-01-01T01:00:00Z to 2026-01-01T02:00:00Z: orders.0 10-20, "
        rf"and the store has batch {number} with 2026-01-01T0{hours[0]}:00:00Z to "
    )
    for _ in range(2):
        with pytest.raises(PipelineMismatchError, match=told):
            after.is_published(other)
        staged = after.stage(rows_in(frame, other), other)
        with pytest.raises(PipelineMismatchError, match=told):
            after.publish(other, staged)
    assert len(list(tmp_path.glob("*.parquet"))) == 2
    assert after.is_published(batch(1, 1))


def test_delta_a_batch_that_is_staged_again_leaves_nothing_behind(spark, tmp_path):
    frame = frame_of(spark, rows_of(range(1)))
    sink = DeltaSink(tmp_path)
    sink.begin("revenue", 1)
    staged = [sink.stage(frame, batch(0, 0)) for _ in range(2)]
    for each in (*staged, *staged):
        sink.publish(batch(0, 0), each)
    assert len(list(tmp_path.glob("*.parquet"))) == 1
    assert table_rows(tmp_path) == expected(rows_of(range(1)))


def test_delta_from_scratch_replaces_the_results(spark, tmp_path):
    frame = frame_of(spark, rows_of(range(2)))
    run(DeltaSink(tmp_path), frame, batch(0, 0), batch(1, 1), attempt=7)
    again = DeltaSink(tmp_path)
    assert again.last_attempt("revenue") == 7
    with pytest.raises(FencedError):
        again.reset("revenue", 7)
    again.reset("revenue", 8)
    assert table_rows(tmp_path) == []
    run(again, frame, batch(0, 0, 1), attempt=8)
    assert table_rows(tmp_path) == expected(rows_of(range(2)))
    DeltaTable(str(tmp_path)).optimize.compact()
    with pytest.raises(UsageError, match="which this pipeline has not written"):
        DeltaSink(tmp_path).reset("revenue", 9)


def test_delta_a_driver_frozen_in_a_reset_removes_nothing_of_its_successor(spark, tmp_path, monkeypatch):
    """It freezes right before its commit. What the successor has published stays."""
    frame = frame_of(spark, rows_of(range(2)))
    run(DeltaSink(tmp_path), frame, batch(0, 0))
    sleeper = DeltaSink(tmp_path)
    commit = sleeper._table._commit

    def later(*args):
        run(DeltaSink(tmp_path), frame, batch(1, 1), attempt=3)
        commit(*args)

    monkeypatch.setattr(sleeper._table, "_commit", later)
    with pytest.raises(FencedError):
        sleeper.reset("revenue", 2)
    assert table_rows(tmp_path) == expected(rows_of(range(2)))


def test_delta_a_table_with_partition_columns_is_refused(tmp_path):
    write_deltalake(str(tmp_path), pd.DataFrame({"day": ["a"], "x": [1]}), partition_by=["day"])
    with pytest.raises(UsageError, match="has partition columns"):
        DeltaSink(tmp_path).begin("revenue", 1)


def test_delta_a_table_may_be_given_as_a_uri(spark, tmp_path):
    """A file: URI is a path. URIs that go through pyarrow's file systems are tested with its local one."""
    assert DeltaSink(f"file://{tmp_path}").uri == str(tmp_path)
    files = arrow.write_files(
        frame_of(spark, rows_of(range(2))),
        batch(0, 0, 1),
        f"file://{tmp_path}",
        parts=1,
        compression="zstd",
        group_rows=1000,
        prefix="x-",
    )
    assert [(tmp_path / file.name).stat().st_size for file in files] == [file.size for file in files]
    assert seen(pd.read_parquet([tmp_path / file.name for file in files])) == expected(rows_of(range(2)))


# Kafka


async def records_of(kafka, topic: str, count: int):
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        return [await consumer.getone() for _ in range(count)]
    finally:
        await consumer.stop()


async def test_kafka_records_have_their_period_in_the_headers(spark, kafka):
    from pyspark.sql import functions as fn

    topic = await kafka_topics.create_fresh(kafka.bootstrap, "results", partitions=2)
    frame = frame_of(spark, rows_of(range(2), per_hour=3)).select(
        "period", fn.col("customer").alias("key"), fn.to_json(fn.struct("amount")).alias("value")
    )
    sink = KafkaSink(topic, bootstrap_servers=kafka.bootstrap, kafka_options={"compression.type": "gzip"})
    run(sink, frame, batch(0, 0), batch(1, 1, 2, empty=(2,)), batch(2, 3, empty=(3,)))
    found = await records_of(kafka, topic, 6)
    written = sorted(
        (dict(record.headers)["aiokcc-period"], record.key, json.loads(record.value)["amount"]) for record in found
    )
    assert written == [
        (f"2026-01-01T0{n}:00:00.000Z".encode(), f"customer {k}".encode(), k / 4) for n in range(2) for k in range(3)
    ]
    assert {dict(record.headers)["aiokcc-batch"] for record in found} == {b"revenue/0/1", b"revenue/1/1"}
    # At least once: after a restart the batch is done again, and its records say which they repeat.
    again = KafkaSink(topic, bootstrap_servers=kafka.bootstrap)
    again.begin("revenue", 2)
    assert not again.is_published(batch(1, 1))
    do(again, frame.withColumn("headers", fn.expr("array(struct('mine' as key, binary('x') as value))")), batch(1, 1))
    repeated = [dict(record.headers) for record in await records_of(kafka, topic, 9)]
    assert sum(headers.get("aiokcc-batch") == b"revenue/1/2" and headers["mine"] == b"x" for headers in repeated) == 3


async def test_kafka_the_newer_writer_of_the_connector_works_too(spark, kafka):
    """A session may choose the newer of the connector's two writers; another pipeline in it does so while it makes a frame."""
    topic = await kafka_topics.create_fresh(kafka.bootstrap, "results")
    before = spark.conf.get("spark.sql.sources.useV1SourceList")
    spark.conf.set("spark.sql.sources.useV1SourceList", "")
    try:
        frame = frame_of(spark, rows_of(range(1), per_hour=2)).selectExpr("period", "customer as value")
        run(KafkaSink(topic, bootstrap_servers=kafka.bootstrap), frame, batch(0, 0))
    finally:
        spark.conf.set("spark.sql.sources.useV1SourceList", before)
    assert sorted(record.value for record in await records_of(kafka, topic, 2)) == [b"customer 0", b"customer 1"]


def test_kafka_results_that_cannot_be_written_are_refused(spark):
    frame = frame_of(spark, rows_of(range(1), 1))
    sink = KafkaSink("results", bootstrap_servers="127.0.0.1:1")
    with pytest.raises(UsageError, match="no column 'value'.*to_json"):
        sink.stage(frame, batch(0, 0))
    with pytest.raises(UsageError, match="no column 'period'"):
        sink.stage(frame.selectExpr("customer as value"), batch(0, 0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"topic": ""}, "expected the name of a topic"),
        ({"bootstrap_servers": []}, "bootstrap_servers is"),
        ({"kafka_options": {"bootstrap.servers": "x"}}, "an argument of its own"),
    ],
)
def test_kafka_invalid_settings_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        KafkaSink(**{"topic": "results", "bootstrap_servers": "127.0.0.1:9092", **settings})


# A function


def test_a_function_is_called_with_each_batch(spark):
    calls = []
    sink = FunctionSink(lambda frame, each: calls.append((each, frame.count())))
    frame = frame_of(spark, rows_of(range(3)))
    run(sink, frame, batch(0, 0, 1), batch(1, 2), batch(2, 3, empty=(3,)))
    assert calls == [(batch(0, 0, 1), 80), (batch(1, 2), 40)]
    assert not sink.is_published(batch(0, 0, 1))
    assert not sink.exactly_once
    with pytest.raises(UsageError, match="expected a sink such as"):
        FunctionSink("out/revenue")  # type: ignore[arg-type]
