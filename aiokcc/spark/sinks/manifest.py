"""A manifest: the content of one published batch. It is JSON, for people and other programs too.

::

    {"format": 1, "pipeline": "revenue", "number": 12, "attempt": 3, "files": 17, "run": "5f0c…", "root": "/replay",
     "function": {"version": "2", "fingerprint": "4.0.0:1f0c…"},
     "at": 1767230000000,
     "schema": {…, as Spark writes it},
     "periods": [{"start": 1767225600000, "end": 1767229200000, "time": "2026-01-01T00:00:00Z", "rows": 40,
                  "offsets": {"orders": {"0": [100, 180]}},
                  "files": [{"path": "data/00000012-00000003-5d1e/20260101T000000Z.parquet",
                             "rows": 40, "bytes": 2311, "sha256": "…"}]}]}

A period without rows has no files. A pipeline that carries state also has ``"state"``: the columns, the states that are kept,
each with the batch and the time that it was published with, and the files that are no longer needed. ``late`` lists late
records, which wait until their periods are restated. The manifest of a restatement also has ``replaces``, the bounds of the
periods that it replaces, and ``after``, the last batch that was published before it; its number is its own, and its ``late``
are the late records that it includes.
:mod:`aiokcc.spark.sinks.log` says where manifests and files are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from aiokcc.core.partitions import Partition
from aiokcc.core.periods import format_time
from aiokcc.errors import CorruptNodeError
from aiokcc.spark.batch import LateRecords
from aiokcc.spark.function_version import FunctionVersion
from aiokcc.spark.sinks.data_file import DataFile
from aiokcc.spark.sinks.states import States

if TYPE_CHECKING:
    from aiokcc.spark.batch import Batch

__all__ = ["DataFile", "Manifest", "PublishedPeriod", "period_name"]

FORMAT: Final = 1


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
    states: States | None = None
    """The states that are kept after this batch; None if the pipeline carries none, or had no records yet."""
    function: FunctionVersion = field(default_factory=FunctionVersion)
    """The version and the fingerprint of the function that computed it."""
    published_at: int | None = None
    """The clock of the driver when it published this, in milliseconds; None if it is not known."""
    late: tuple[LateRecords, ...] = ()
    """The late records that were found in the batch and left out; for a restatement, those that it includes."""
    replaces: tuple[int, int] | None = None
    """For a restatement, the bounds of the periods that it replaces; None for a batch."""
    after: int = -1
    """For a restatement, the number of the last batch that was published before it."""

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
            **({} if self.function == FunctionVersion() else {"function": asdict(self.function)}),
            **({} if self.published_at is None else {"at": self.published_at}),
            **({} if self.replaces is None else {"replaces": list(self.replaces), "after": self.after}),
            **({"late": [_late_content(late) for late in self.late]} if self.late else {}),
            "schema": None if self.schema is None else json.loads(self.schema),
            "periods": [
                {
                    "start": period.start,
                    "end": period.end,
                    "time": format_time(period.start),
                    "rows": period.rows,
                    "offsets": _by_topic(period.ranges),
                    "files": [file.to_json() for file in period.files],
                }
                for period in self.periods
            ],
            **({} if self.states is None else {"state": self.states.to_json()}),
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
                function=FunctionVersion(**content.get("function", {})),
                published_at=content.get("at"),
                late=tuple(
                    LateRecords(
                        late["start"],
                        late["end"],
                        Partition(late["topic"], late["partition"]),
                        late["offsets"][0],
                        late["offsets"][1],
                        late["records"],
                    )
                    for late in content.get("late", ())
                ),
                replaces=None if (bounds := content.get("replaces")) is None else (bounds[0], bounds[1]),
                after=content.get("after", -1),
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
                        files=tuple(map(DataFile.from_json, period["files"])),
                    )
                    for period in content["periods"]
                ),
                states=States.from_json(content["state"]) if "state" in content else None,
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CorruptNodeError(path, data, f"a manifest of format {FORMAT}") from None


def period_name(start: int) -> str:
    """Return a period's start as a file's name: ISO 8601 without characters that are special to shells or Hadoop."""
    return format_time(start).replace("-", "").replace(":", "")


def _late_content(late: LateRecords) -> dict[str, Any]:
    return {
        "start": late.start,
        "end": late.end,
        "topic": late.partition.topic,
        "partition": late.partition.number,
        "offsets": [late.first, late.last],
        "records": late.records,
    }


def _by_topic(ranges: Mapping[Partition, tuple[int, int]]) -> dict[str, dict[str, list[int]]]:
    result: dict[str, dict[str, list[int]]] = {}
    for partition, bounds in sorted(ranges.items()):
        result.setdefault(partition.topic, {})[str(partition.number)] = list(bounds)
    return result
