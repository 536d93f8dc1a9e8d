"""Writes a frame as Parquet files, one for each period, in Spark's workers. The driver gets only their names.

Spark's own writer would do, but on a local disk it starts about three processes (``chmod``) for each file, and a catch-up has a
hundred small files. So the rows go to Python as Arrow, which writes, hashes and syncs them in one pass: a hundred files took
0.2 to 0.6 of the time, on a busy machine. One file alone took as long, or up to twice as long.

**The same rows give the same bytes**, whatever else the job holds and wherever it runs: a file's rows go to one task and are
sorted by all columns; row groups have a fixed number of rows, however Spark splits the stream; every column is nullable; the
file does not depend on the session, for example on its time zone. (But a sum of floats may depend on the order of the rows, and
two versions of pyarrow may write different bytes.)

A task that is repeated or runs twice writes files with other names. Only the files that the successful task reports are used.

The function that runs on a worker is sent by value and imports nothing of aiokcc, so aiokcc need not be installed there.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiokcc.errors import UsageError
from aiokcc.spark.sinks.manifest import period_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from aiokcc.spark.batch import Batch

__all__ = ["WrittenFile", "check_installed", "check_schema", "check_types", "write_files", "write_state"]

_LABEL: Final = "__aiokcc_file"
_RESULT: Final = "period long, part int, name string, rows long, size long, sha256 string, host string"
_NO_PARQUET: Final = {
    "void": "it has no type; cast it to the type it should have",
    "variant": "cast it, or write it as a string with to_json",
    "interval": "cast it to a number or a string",
    "udt": "take its parts as columns of their own",
}


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that a worker has written: part ``part`` of the period that starts at ``period``."""

    period: int
    part: int
    name: str
    rows: int
    size: int
    sha256: str
    host: str


def check_installed(what: str) -> None:
    """Raise UsageError if a package that the writing needs is not installed on the driver."""
    for module in ("pyarrow", "pandas"):
        if importlib.util.find_spec(module) is None:
            raise UsageError(
                f"{what} writes through {module}, on the driver and on every worker: pip install 'pyspark[sql]'"
            )


def check_schema(frame: DataFrame) -> None:
    """Raise UsageError if a result cannot be written: no ``period``, two columns of one name, a type Parquet does not have."""
    from pyspark.sql.types import TimestampType

    names = [name.lower() for name in frame.columns]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(
            f"the result has two columns {twice!r}; rename one (Spark does not tell upper from lower case)"
        )
    if "period" not in frame.columns:
        raise UsageError("the result has no column 'period'; keep it in every groupBy, join and select")
    if not isinstance(frame.schema["period"].dataType, TimestampType):
        kind = frame.schema["period"].dataType.simpleString()
        raise UsageError(
            f"the result's column 'period' is {kind}; keep it as it was, the timestamp of the period's start"
        )
    check_types(frame.schema)


def check_types(schema: StructType, what: str = "the result") -> None:
    """Raise UsageError if a column is of a type that Parquet does not have."""
    for field in schema.fields:
        _check_type(what, field.name, field.dataType)


def _check_type(what: str, name: str, kind: Any) -> None:
    title = kind.typeName()
    for word, advice in _NO_PARQUET.items():
        if word in title or (word == "udt" and hasattr(kind, "sqlType")):
            raise UsageError(
                f"{what}'s column {name!r} is {kind.simpleString()}, which Parquet does not have: {advice}"
            )
    if title == "struct":
        for field in kind.fields:
            _check_type(what, f"{name}.{field.name}", field.dataType)
    for inner in ("elementType", "keyType", "valueType"):
        if hasattr(kind, inner):
            _check_type(what, f"{name}.{inner.removesuffix('Type')}", getattr(kind, inner))


def write_files(
    frame: DataFrame,
    batch: Batch,
    target: str,
    *,
    parts: int,
    compression: str,
    group_rows: int,
    prefix: str = "",
    storage_options: Mapping[str, str] | None = None,
) -> list[WrittenFile]:
    """Run the job: write the rows of each period to ``parts`` files in a directory, or below a URI that deltalake knows.

    The directory must exist, and be the same on all workers. Below a URI they write through the deltalake package, with these
    storage options. Empty files are not written. Return the files in the order of periods and parts.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

    plain, order, part = _numbered(frame, parts)
    period = F.col(f"c{frame.columns.index('period')}")
    labelled = plain.withColumn(_LABEL, F.unix_millis(period) * F.lit(parts) + part)
    # One file needs one task. Otherwise the session's shuffle sets the number, or fewer if they are small (adaptive execution).
    spread = labelled.repartition(1) if len(batch.periods) * parts == 1 else labelled.repartition(_LABEL)
    names = {period.start: period_name(period.start) for period in batch.periods}
    task = _writer(target, prefix, _LABEL, parts, names, frame.columns, compression, group_rows, storage_options)
    rows = spread.sortWithinPartitions(_LABEL, *order).mapInArrow(task, _RESULT).collect()
    return sorted((WrittenFile(*row) for row in rows), key=lambda file: (file.period, file.part))


def write_state(frame: DataFrame, target: str, *, parts: int, group_rows: int) -> list[WrittenFile]:
    """Run the job: write all rows to ``parts`` files in a directory, which must exist; return them. Their period is 0."""
    from pyspark.sql import functions as F  # noqa: N812

    plain, order, part = _numbered(frame, parts)
    labelled = plain.withColumn(_LABEL, part.cast("long"))
    spread = labelled.repartition(1) if parts == 1 else labelled.repartition(parts, F.col(_LABEL))
    task = _writer(target, "", _LABEL, parts, {0: "state"}, frame.columns, "zstd", group_rows)
    rows = spread.sortWithinPartitions(_LABEL, *order).mapInArrow(task, _RESULT).collect()
    return sorted((WrittenFile(*row) for row in rows), key=lambda file: file.part)


def _numbered(frame: DataFrame, parts: int) -> tuple[DataFrame, list[Column], Column]:
    """Return the frame with its columns named by their position, the order of its rows, and a row's part.

    The task restores the names: mapInArrow cannot take a name with a dot.
    """
    from pyspark.sql import functions as F  # noqa: N812

    plain = frame.toDF(*[f"c{number}" for number in range(len(frame.columns))])
    order = [_orderable(field.dataType, F.col(field.name)) for field in plain.schema.fields]
    part = F.pmod(F.xxhash64(*order), F.lit(parts)) if parts > 1 else F.lit(0)
    return plain, order, part


def _orderable(kind: Any, column: Column) -> Column:
    """Return a column that Spark can sort by. Spark cannot sort maps: they are replaced by their sorted entries, or by JSON."""
    from pyspark.sql import functions as F  # noqa: N812

    if kind.typeName() == "map" and not _holds_map(kind.keyType) and not _holds_map(kind.valueType):
        return F.sort_array(F.map_entries(column))
    return F.to_json(F.struct(column)) if _holds_map(kind) else column


def _holds_map(kind: Any) -> bool:
    if kind.typeName() == "map":
        return True
    if kind.typeName() == "struct":
        return any(_holds_map(field.dataType) for field in kind.fields)
    return kind.typeName() == "array" and _holds_map(kind.elementType)


def _writer(
    target: str,
    prefix: str,
    label: str,
    parts: int,
    names: dict[int, str],
    columns: list[str],
    compression: str,
    group_rows: int,
    storage_options: Mapping[str, str] | None = None,
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return the function of a task. It is defined in here, so it is pickled by value, with all that it needs."""

    def write(batches: Iterable[Any]) -> Iterator[Any]:
        import hashlib
        import os
        import socket
        import uuid
        from concurrent.futures import ThreadPoolExecutor

        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.fs
        import pyarrow.parquet as pq

        local, step = "://" not in target, 2**20
        remote: Any = None
        base = f"{target}/"
        if not local:
            from deltalake.fs import DeltaStorageHandler

            remote, base = pa.fs.PyFileSystem(DeltaStorageHandler(target, dict(storage_options or {}))), ""
        task_id = uuid.uuid4().hex[:12]

        class Output:
            """A file that knows its size and hash."""

            def __init__(self, name: str) -> None:
                path = f"{base}{name}"
                self.name, self.size, self.hash, self.closed = name, 0, hashlib.sha256(), False
                if local:
                    self.file: Any = open(path, "xb", buffering=0)  # noqa: PTH123, SIM115
                else:
                    # deltalake's stream takes bytes alone. Arrow makes some of what fits into its own buffer.
                    self.file = remote.open_output_stream(path, buffer_size=2 * step)

            def write(self, data: Any) -> int:
                view = memoryview(data).cast("B")
                self.hash.update(view)
                self.size += len(view)
                done = 0
                while done < len(view):
                    piece = view[done:] if local else view[done : done + step]
                    done += self.file.write(piece) or len(piece)
                return len(view)

            def tell(self) -> int:
                return self.size

            def writable(self) -> bool:
                return True

            def readable(self) -> bool:
                return False

            def seekable(self) -> bool:
                return False

            def flush(self) -> None:
                pass

            def close(self) -> None:
                self.closed = True

            def finish(self) -> None:
                if local:
                    os.fsync(self.file.fileno())
                self.file.close()

        class File:
            """The rows of one file, cut into groups of a fixed size."""

            def __init__(self, key: int, schema: Any) -> None:
                self.period, self.part = divmod(key, parts)
                if self.period not in names:
                    raise ValueError(
                        f"the result has rows of the period {self.period} (ms), which is not in this batch: "
                        f"the function must leave the column 'period' as it is"
                    )
                suffix = f"-{self.part:05d}" if parts > 1 else ""
                self.output = Output(f"{prefix}{names[self.period]}{suffix}-{task_id}.parquet")
                self.schema, self.rows, self.held = schema, 0, 0
                self.pending: list[Any] = []
                self.writer = pq.ParquetWriter(self.output, schema, compression=compression, store_schema=False)

            def add(self, piece: Any) -> None:
                self.rows += piece.num_rows
                self.held += piece.num_rows
                self.pending.append(piece)
                if self.held >= group_rows:
                    table = pa.Table.from_batches(self.pending, self.schema)
                    while table.num_rows >= group_rows:
                        self.writer.write_table(table.slice(0, group_rows).combine_chunks(), group_rows)
                        table = table.slice(group_rows)
                    self.pending, self.held = table.to_batches(), table.num_rows

            def end(self) -> None:
                if self.held:
                    table = pa.Table.from_batches(self.pending, self.schema)
                    self.writer.write_table(table.combine_chunks(), group_rows)
                self.writer.close()

        done: list[Any] = []
        current: Any = None
        key, schema = None, None
        with ThreadPoolExecutor(8) as syncing:  # files that are synced together share the disk's commits
            waiting = []
            for batch in batches:
                labels = pc.run_end_encode(batch.column(label))
                plain = batch.drop_columns([label])
                if schema is None:
                    schema = pa.schema(
                        [pa.field(name, kind) for name, kind in zip(columns, plain.schema.types, strict=True)]
                    )
                plain = pa.RecordBatch.from_arrays(plain.columns, schema=schema)
                start = 0
                for value, end in zip(labels.values.to_pylist(), labels.run_ends.to_pylist(), strict=True):
                    if value is None:
                        raise ValueError("the result has rows whose column 'period' is null")
                    if value != key:
                        if current is not None:
                            current.end()
                            waiting.append(syncing.submit(current.output.finish))
                        current, key = File(value, schema), value
                        done.append(current)
                    current.add(plain.slice(start, end - start))
                    start = end
            if current is not None:
                current.end()
                waiting.append(syncing.submit(current.output.finish))
            for sync in waiting:
                sync.result()
        host = socket.gethostname()
        if done:
            yield pa.RecordBatch.from_pydict(
                {
                    "period": pa.array([file.period for file in done], pa.int64()),
                    "part": pa.array([file.part for file in done], pa.int32()),
                    "name": [file.output.name for file in done],
                    "rows": pa.array([file.rows for file in done], pa.int64()),
                    "size": pa.array([file.output.size for file in done], pa.int64()),
                    "sha256": [file.output.hash.hexdigest() for file in done],
                    "host": [host] * len(done),
                }
            )

    return write
