"""Reads the states that a pipeline has published with its batches, beside a ParquetSink's files or a Delta table."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from aiokcc.core.periods import MAX_LIMIT, format_time, parse_time
from aiokcc.errors import UsageError
from aiokcc.spark.sinks.delta_states import DeltaStates
from aiokcc.spark.sinks.log import HOME
from aiokcc.spark.sinks.places import local_path
from aiokcc.spark.sinks.states import States
from aiokcc.spark.tables import Time, batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_state"]


def read_state(spark: SparkSession, path: str | os.PathLike[str], at: Time | None = None) -> DataFrame:
    """Return a state that a pipeline with ``state=`` has published, as a DataFrame. ::

        aiokcc.spark.read_state(spark, "out/balances").orderBy("customer").show()

    :param path: the directory of the ParquetSink or of the DeltaSink
    :param at: a time: the state after the last period that ends at or before it; by default the last state
    :raises UsageError: no state is published there, or the one of this time is not kept any more
    """
    root = local_path(path, "path")
    if root is None:
        raise UsageError(f"{os.fspath(path)!r} is not a directory; a state is kept in a directory")
    if (root / HOME / "owner.json").exists():
        manifests = batches(root)
        states, below = (manifests[-1].states if manifests else None), root / HOME
    else:
        states, below = _delta_states(root), root
    if states is None:
        raise UsageError(f"{root}: no state is published there; a pipeline publishes one if it is run with state=")
    last = MAX_LIMIT if at is None else parse_time(at, what="at")
    found = next((state for state in reversed(states.kept) if state.end <= last), None)
    if found is None:
        kept = ", ".join(format_time(state.end) for state in states.kept)
        raise UsageError(
            f"{root}: no state from {format_time(last)} or before is kept; those after the periods that end at {kept} are"
        )
    return states.frame(spark, below, found)


def _delta_states(root: Path) -> States | None:
    """Return the states beside a Delta table; None if it has none. Raise UsageError if there is no table."""
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(root)):
        raise UsageError(f"{str(root)!r} is neither the directory of a ParquetSink nor a Delta table")
    table = DeltaTable(str(root))
    for path in sorted((root / HOME).glob("*/state.json")):
        pipeline = json.loads(path.read_bytes())["pipeline"]
        number = table.transaction_version(f"aiokcc/{pipeline}/state")
        if number:
            return DeltaStates(root, hashlib.sha256(pipeline.encode()).hexdigest()[:8]).read(number)
    return None
