"""A manifest: the content of one published batch. It is JSON, for people and other programs too.

::

    {"format": 1, "pipeline": "revenue", "number": 12, "attempt": 3, "files": 17, "run": "5f0c…", "root": "/replay",
     "schema": {…, as Spark writes it},
     "periods": [{"start": 1767225600000, "end": 1767229200000, "time": "2026-01-01T00:00:00Z", "rows": 40,
                  "offsets": {"orders": {"0": [100, 180]}},
                  "files": [{"path": "data/00000012-00000003-5d1e/20260101T000000Z.parquet",
                             "rows": 40, "bytes": 2311, "sha256": "…"}]}]}

A period without rows has no files. :mod:`aiokcc.spark.sinks.log` says where manifests and files are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from aiokcc.core.partitions import Partition
from aiokcc.core.periods import format_time
from aiokcc.errors import CorruptNodeError

if TYPE_CHECKING:
    from aiokcc.spark.batch import Batch

__all__ = ["DataFile", "Manifest", "PublishedPeriod", "period_name"]

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a period: its path below ``_aiokcc``, and the rows, size and hash that it must have."""

    path: str
    rows: int
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class PublishedPeriod:
    """A period ``[start, end)`` in the result: the offsets it was read from, and the files that hold its rows."""

    start: int
    end: int
    ranges: Mapping[Partition, tuple[int, int]] = field(default_factory=dict)
    files: tuple[DataFile, ...] = ()

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class Manifest:
    """One published batch."""

    pipeline: str
    number: int
    attempt: int
    periods: tuple[PublishedPeriod, ...]
    schema: str | None = None
    """Spark's JSON of the columns; None if no job was run."""
    total_files: int = 0
    """The number of files that the log names up to this batch, with those of this batch."""
    run: str | None = None
    """The run of the pipeline that published it; None if it is not known."""
    root: str | None = None
    """The root of that run in the store."""

    def is_of(self, batch: Batch) -> bool:
        """Return whether this is the batch: the same periods, from the same offsets."""
        return self.pipeline == batch.pipeline and [(p.start, p.end, dict(p.ranges)) for p in self.periods] == [
            (p.start, p.end, dict(p.ranges)) for p in batch.periods
        ]

    def encode(self) -> bytes:
        content: dict[str, Any] = {
            "format": FORMAT,
            "pipeline": self.pipeline,
            "number": self.number,
            "attempt": self.attempt,
            "files": self.total_files,
            **({} if self.run is None else {"run": self.run, "root": self.root}),
            "schema": None if self.schema is None else json.loads(self.schema),
            "periods": [
                {
                    "start": period.start,
                    "end": period.end,
                    "time": format_time(period.start),
                    "rows": period.rows,
                    "offsets": _by_topic(period.ranges),
                    "files": [
                        {"path": file.path, "rows": file.rows, "bytes": file.size, "sha256": file.sha256}
                        for file in period.files
                    ],
                }
                for period in self.periods
            ],
        }
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def decode(cls, path: str, data: bytes) -> Manifest:
        """Read a manifest. Raise CorruptNodeError if the content is not one."""
        try:
            content = json.loads(data)
            if content["format"] != FORMAT:
                raise ValueError(content["format"])
            return cls(
                pipeline=content["pipeline"],
                number=content["number"],
                attempt=content["attempt"],
                total_files=content["files"],
                run=content.get("run"),
                root=content.get("root"),
                schema=None if content["schema"] is None else json.dumps(content["schema"]),
                periods=tuple(
                    PublishedPeriod(
                        start=period["start"],
                        end=period["end"],
                        ranges={
                            Partition(topic, int(number)): (first, last)
                            for topic, ranges in period["offsets"].items()
                            for number, (first, last) in ranges.items()
                        },
                        files=tuple(
                            DataFile(file["path"], file["rows"], file["bytes"], file["sha256"])
                            for file in period["files"]
                        ),
                    )
                    for period in content["periods"]
                ),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CorruptNodeError(path, data, f"a manifest of format {FORMAT}") from None


def period_name(start: int) -> str:
    """Return a period's start as a file's name: ISO 8601 without characters that are special to shells or Hadoop."""
    return format_time(start).replace("-", "").replace(":", "")


def _by_topic(ranges: Mapping[Partition, tuple[int, int]]) -> dict[str, dict[str, list[int]]]:
    result: dict[str, dict[str, list[int]]] = {}
    for partition, bounds in sorted(ranges.items()):
        result.setdefault(partition.topic, {})[str(partition.number)] = list(bounds)
    return result
