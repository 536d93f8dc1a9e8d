"""Reads what Spark pipelines have recorded under a root, for the operator's tools. It needs neither Spark nor Kafka.

:mod:`aiokcc.spark.checkpoint` writes these nodes, below ``pipelines/<name>``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from aiokcc.core import paths
from aiokcc.core.periods import format_time
from aiokcc.errors import CorruptNodeError
from aiokcc.runtime.children import list_children
from aiokcc.stores.port import Session, Store

__all__ = ["PipelineStatus", "read_pipeline", "read_pipelines"]


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """The state of a pipeline: how far it has come, and who drives it."""

    name: str
    topics: tuple[str, ...]
    period: int
    sink: str
    batch: int
    """The number of the last published batch; -1 if there is none."""
    published_to: int | None
    """Everything before this time is published; None if nothing is."""
    attempt: int
    driver: str
    """The member that drives the pipeline, or was the last to do so."""
    is_driven: bool
    """True if that member is connected."""
    pending: tuple[int, int, int] | None
    """The batch that was decided and is not published: its number, and the bounds of its periods."""
    is_shared: bool
    """True if it runs only some partitions of its group, or takes part in a managed group."""
    error: str | None
    """The reason why the pending batch failed the last time; None if it has not."""
    version: str | None = None
    """The version of the function that computed the last batch, as its user gave it; None if none was given."""
    restated_by: str | None = None
    """The process that restates the pipeline at the moment; None if none does."""
    restates_late: bool = False
    """True if late records are left out and listed, until their periods are restated."""
    late: int | None = None
    """The number of late records that wait; None if that is not known. The result has it, not the store."""

    def as_dict(self) -> dict[str, Any]:
        """Return the object for ``--json``."""
        published = None if self.published_to is None else format_time(self.published_to)
        return {**asdict(self), "published_to_time": published}


async def read_pipelines(store: Store, session: Session, problems: list[str]) -> tuple[PipelineStatus, ...]:
    """Return all pipelines under the root, by name. Nodes that cannot be read are added to ``problems``."""
    found = []
    for name in await list_children(session, paths.PIPELINES):
        try:
            pipeline = await read_pipeline(store, session, name)
        except CorruptNodeError as error:
            problems.append(str(error))
        else:
            found += [] if pipeline is None else [pipeline]
    return tuple(found)


async def read_pipeline(store: Store, session: Session, name: str) -> PipelineStatus | None:
    """Return one pipeline; None if there is none of this name. Raise CorruptNodeError if a node cannot be read."""
    base = f"{paths.PIPELINES}/{name}"
    connected = await list_children(session, paths.IDS)
    nodes = {}
    for part in ("definition", "attempt", "intent", "published", "error", "function", "restating"):
        node = await session.find(f"{base}/{part}")
        if node is None and part == "definition":
            return None
        nodes[part] = b"" if node is None else node.data
    try:
        definition: Mapping[str, Any] = json.loads(nodes["definition"])
        intent: Mapping[str, Any] = json.loads(nodes["intent"] or b"{}")
        error: Mapping[str, Any] = json.loads(nodes["error"] or b"{}")
        function: Mapping[str, Any] = json.loads(nodes["function"] or b"{}")
        batch = int((nodes["published"] or b"-1").split()[0])
        number, _, driver = nodes["attempt"].decode(errors="replace").partition(" ")
        decided = int(intent.get("number", -1))
        periods = [(int(start), int(end)) for start, end in intent.get("periods", ())]
        is_pending = decided > batch and bool(periods)
        published_to = None
        if periods:
            published_to = (periods[0][0] if batch >= 0 else None) if is_pending else periods[-1][1]
        return PipelineStatus(
            name,
            tuple(definition.get("topics", ())),
            int(definition.get("period", 0)),
            str(definition.get("sink", "")),
            batch,
            published_to,
            int(number or 0),
            driver,
            bool(driver) and any(paths.is_session_of(one, driver) for one in connected),
            (decided, periods[0][0], periods[-1][1]) if is_pending else None,
            any(definition.get(part) is not None for part in ("partitions", "subscription")),
            str(error["error"]) if is_pending and error.get("batch") == decided else None,
            function.get("version"),
            nodes["restating"].decode(errors="replace") or None,
            definition.get("late") == "restate",
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CorruptNodeError(store.describe(base), nodes["definition"], "the nodes of a pipeline") from None
