"""The states that a pipeline publishes with its batches: what is recorded of them, and how they are read.

A job that carries state publishes one: the state after the last period of its batch. A sink records it with the batch, in the
same manifest or the same commit, so that a reader and the next job never see one without the other. The record names the last
states, which are kept, and the files of the one that is dropped by this batch. They are removed after the batch is published,
and once more when a driver begins, because the one before may have died in between.

A batch without records leaves the state as it is.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiokcc.spark.sinks.data_file import DataFile
from aiokcc.spark.sinks.port import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from aiokcc.spark.batch import Batch
    from aiokcc.spark.sinks.disk import Disk

__all__ = ["PublishedState", "StateSink", "States"]


@dataclass(frozen=True, slots=True)
class PublishedState:
    """The state after all periods up to ``end``, published with a batch. Without rows it has no files."""

    batch: int
    end: int
    files: tuple[DataFile, ...] = ()
    place: str = ""
    """The directory that holds nothing else; empty if it lies among the files of its batch."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class States:
    """The states that are kept, oldest first, and the files that the last batch has dropped."""

    schema: str
    """Spark's JSON of the columns."""
    kept: tuple[PublishedState, ...] = ()
    dropped: tuple[str, ...] = field(default=())

    @property
    def last(self) -> PublishedState:
        """The state after the last batch with records."""
        return self.kept[-1]

    def added(self, state: PublishedState, keep: int) -> States:
        """Return the states after one more was published, of which only the last ``keep`` stay."""
        kept = (*self.kept, state)
        gone = tuple(file.path for old in kept[:-keep] for file in old.files)
        return replace(self, kept=kept[-keep:], dropped=gone)

    def carried(self) -> States:
        """Return the states after a batch without records, which drops nothing."""
        return replace(self, dropped=())

    def before(self, batch: int) -> PublishedState | None:
        """Return the state from which a batch starts: the last one of an earlier batch. None if there is none."""
        return next((state for state in reversed(self.kept) if state.batch < batch), None)

    def frame(self, spark: SparkSession, root: Path, state: PublishedState) -> DataFrame:
        """Return a state as a DataFrame that reads its files below ``root``."""
        from pyspark.sql.types import StructType

        columns = StructType.fromJson(json.loads(self.schema))
        paths = [str(root / file.path) for file in state.files]
        return spark.read.schema(columns).parquet(*paths) if paths else spark.createDataFrame([], columns)

    def remove_dropped(self, root: Path, disk: Disk) -> None:
        """Remove the files of dropped states below ``root``. Repeating it does no harm."""
        for path in self.dropped:
            disk.remove(root / path)

    def to_json(self) -> dict[str, Any]:
        """Return what a manifest holds."""
        return {
            "schema": json.loads(self.schema),
            "kept": [
                {
                    "batch": state.batch,
                    "end": state.end,
                    "files": [file.to_json() for file in state.files],
                    **({"place": state.place} if state.place else {}),
                }
                for state in self.kept
            ],
            "dropped": list(self.dropped),
        }

    @classmethod
    def from_json(cls, content: Any) -> States:
        """Read what :meth:`to_json` returned. Raise ValueError, KeyError or TypeError for anything else."""
        return cls(
            json.dumps(content["schema"]),
            tuple(
                PublishedState(
                    state["batch"],
                    state["end"],
                    tuple(map(DataFile.from_json, state["files"])),
                    state.get("place", ""),
                )
                for state in content["kept"]
            ),
            tuple(content["dropped"]),
        )


class StateSink(Sink):
    """A sink that can publish a state together with a batch."""

    @abstractmethod
    def check_state(self) -> None:
        """Raise UsageError if this sink, at its place, cannot hold a state. It is called before anything else."""

    @abstractmethod
    def state_before(self, spark: SparkSession, batch: Batch) -> DataFrame | None:
        """Return the published state from which a batch starts; None before the first. It is called after ``begin``."""

    @abstractmethod
    def stage_with_state(self, frame: DataFrame, state: DataFrame, batch: Batch, keep: int) -> object:
        """Do as :meth:`stage` does, and write the state after the batch, of which the last ``keep`` will be kept.

        :meth:`publish` makes both visible at once.
        """
