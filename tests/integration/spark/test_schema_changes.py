"""Changes of the result's columns, in both sinks, seen by every reader: one table of tests on one Spark session.

Two batches of one row each are published; the function of the second returns other columns.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import pytest
from deltalake import DeltaTable

from aiokcc.core.partitions import Partition
from aiokcc.errors import FencedError, UsageError
from aiokcc.spark import Batch, DeltaSink, ParquetSink, Slice, arrow_schema, files, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(120)

HOUR = 3_600_000
SINKS: dict[str, type[ParquetSink | DeltaSink]] = {"parquet": ParquetSink, "delta": DeltaSink}
BEFORE = "'NL' country, 7L cents, named_struct('a', 1L) o, array(named_struct('a', 1L)) l"
ADDED: dict[str, tuple[str, dict[str, Any]]] = {
    "a column": (f"{BEFORE}, 1.5D vat", {"vat": 1.5}),
    "a column in another order": (f"true paid, {BEFORE}", {"paid": True}),
    "a field of a struct": (
        "'NL' country, 7L cents, named_struct('a', 1L, 'b', 'x') o, array(named_struct('a', 1L)) l",
        {"o": {"a": 1, "b": "x"}},
    ),
    "a field in an array": (
        "'NL' country, 7L cents, named_struct('a', 1L) o, array(named_struct('a', 1L, 'b', 'x')) l",
        {"l": [{"a": 1, "b": "x"}]},
    ),
    "a column of structs that are never null": (f"{BEFORE}, struct(1L x) s", {"s": {"x": 1}}),
}
REFUSED = {
    "another type": (BEFORE.replace("7L", "7.0D"), "'cents' is double, and was long"),
    "a wider type": (BEFORE.replace("7L", "cast(7 as decimal(20,0))"), r"'cents' is decimal\(20,0\), and was long"),
    "a column removed": (BEFORE.replace(" 7L cents,", ""), "'cents' is missing"),
    "a column renamed": (BEFORE.replace("7L cents", "7L amount"), r"'cents' is missing \(renamed to 'amount'\?\)"),
    "a field removed": (BEFORE.replace("'a', 1L) o", "'b', 1L) o"), "'o.a' is missing"),
    "another case": (BEFORE.replace("7L cents", "7L CENTS"), "'cents' is missing"),
}


def hour(number: int) -> Batch:
    return Batch(
        "revenue", number, (Slice(number * HOUR, (number + 1) * HOUR, {Partition("orders", 0): (number, number + 1)}),)
    )


def result(spark: SparkSession, columns: str, number: int) -> DataFrame:
    return spark.sql(f"select timestamp_millis({number * HOUR}L) period, {columns}")


def publish(spark: SparkSession, sink: ParquetSink | DeltaSink, columns: str, number: int) -> None:
    sink.publish(hour(number), sink.stage(result(spark, columns, number), hour(number)))


def plain(value: Any) -> Any:
    """Return a value as plain Python has it, whichever reader gave it."""
    if hasattr(value, "asDict"):
        return value.asDict(recursive=True)
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list):
        return [plain(item) for item in value]
    return None if not isinstance(value, dict) and pd.isna(value) else value


def with_spark(spark: SparkSession, path: Path) -> list[dict[str, Any]]:
    paths = DeltaTable(path).file_uris() if (path / "_delta_log").exists() else files(path)
    return rows_of(spark.read.option("mergeSchema", "true").parquet(*paths))


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.orderBy("period").collect()]


def with_pandas(_spark: SparkSession, path: Path) -> list[dict[str, Any]]:
    if (path / "_delta_log").exists():
        table = DeltaTable(path).to_pandas()
        by_files = pd.read_parquet(files(path), schema=arrow_schema(path))
        assert list(by_files.columns) == list(table.columns)
        assert len(by_files) == len(table)
    else:
        table = pd.read_parquet(files(path), schema=arrow_schema(path))
    return list(table.sort_values("period").to_dict("records"))


def with_duckdb(_spark: SparkSession, path: Path) -> list[dict[str, Any]]:
    with duckdb.connect() as connection:
        if (path / "_delta_log").exists():
            found = connection.from_arrow(DeltaTable(path).to_pyarrow_dataset())
        else:
            found = connection.read_parquet(files(path), union_by_name=True)
        found = connection.sql("select * exclude (period), epoch_ms(period) as period from found order by period")
        return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


READERS: dict[str, Callable[[SparkSession, Path], list[dict[str, Any]]]] = {
    "plain Spark": with_spark,
    "pandas": with_pandas,
    "DuckDB": with_duckdb,
    "aiokcc": lambda spark, path: rows_of(read(spark, path)),
}


@pytest.mark.parametrize("change", ADDED)
@pytest.mark.parametrize("kind", SINKS)
def test_what_is_added_is_seen_by_all_readers_and_is_null_before(
    spark: SparkSession, tmp_path: Path, kind: str, change: str
) -> None:
    columns, new = ADDED[change]
    first, second = SINKS[kind](tmp_path), SINKS[kind](tmp_path)
    first.begin("revenue", 1)
    publish(spark, first, BEFORE, 0)
    second.begin("revenue", 2)  # the function is changed between two starts
    publish(spark, second, columns, 1)
    publish(spark, second, columns, 2)
    for reader, load in READERS.items():
        rows = load(spark, tmp_path)
        assert len(rows) == 3, reader
        assert {plain(row["country"]) for row in rows} == {"NL"}, reader
        for name, value in new.items():
            before, after = plain(rows[0][name]), [plain(row[name]) for row in rows[1:]]
            assert after == [value, value], (reader, name)
            if isinstance(value, dict) and name == "o":
                assert before == {"a": 1, "b": None}, reader
            elif isinstance(value, list):
                assert before == [{"a": 1, "b": None}], reader
            else:
                assert before is None, reader


@pytest.mark.parametrize("change", REFUSED)
@pytest.mark.parametrize("kind", SINKS)
def test_other_changes_are_refused_before_anything_is_published(
    spark: SparkSession, tmp_path: Path, kind: str, change: str
) -> None:
    columns, sentence = REFUSED[change]
    sink = SINKS[kind](tmp_path, schema="replace")  # which holds only as long as there are no rows
    sink.begin("revenue", 1)
    publish(spark, sink, BEFORE, 0)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=sentence):
        sink.stage(result(spark, columns, 1), hour(1))
    assert sorted(tmp_path.rglob("*")) == before
    publish(spark, sink, BEFORE, 1)
    assert len(with_pandas(spark, tmp_path)) == 2


@pytest.mark.parametrize("kind", SINKS)
def test_an_emptied_table_takes_other_columns_if_they_are_to_be_replaced(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    sink = SINKS[kind](tmp_path)
    sink.begin("revenue", 1)
    publish(spark, sink, BEFORE, 0)
    again = SINKS[kind](tmp_path, schema="replace")
    again.reset("revenue", 2)
    again.begin("revenue", 2)
    publish(spark, again, "'7' cents, 1 vat", 0)
    publish(spark, again, "'7' cents, 1 vat, 2 n", 1)
    for reader in READERS.values():
        assert [set(row) for row in reader(spark, tmp_path)] == [{"period", "cents", "vat", "n"}] * 2


@pytest.mark.parametrize("kind", SINKS)
def test_a_table_with_columns_and_without_rows_keeps_them_unless_they_are_to_be_replaced(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    sink = SINKS[kind](tmp_path)
    sink.begin("revenue", 1)
    none = result(spark, BEFORE, 0).where("false")
    sink.publish(hour(0), sink.stage(none, hour(0)))
    with pytest.raises(UsageError, match="'cents' is string, and was long"):
        sink.stage(result(spark, BEFORE.replace("7L", "'7'"), 1), hour(1))
    other = SINKS[kind](tmp_path, schema="replace")
    other.begin("revenue", 2)
    publish(spark, other, BEFORE.replace("7L", "'7'"), 1)
    assert [plain(row["cents"]) for row in with_pandas(spark, tmp_path)] == ["7"]


def test_delta_a_driver_that_was_replaced_adds_no_column(spark: SparkSession, tmp_path: Path) -> None:
    sleeper = DeltaSink(tmp_path)
    sleeper.begin("revenue", 1)
    publish(spark, sleeper, BEFORE, 0)
    staged = sleeper.stage(result(spark, f"{BEFORE}, 1 vat", 1), hour(1))
    DeltaSink(tmp_path).begin("revenue", 2)
    with pytest.raises(FencedError):
        sleeper.publish(hour(1), staged)
    assert "vat" not in {field.name for field in DeltaTable(tmp_path).schema().fields}
