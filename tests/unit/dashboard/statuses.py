"""Statuses for the tests of what is shown of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiokcc.core.leader import BlockerState
from aiokcc.runtime.status import Blocking, GroupState, PartitionCondition, PartitionStatus, Status

MINUTE: Final = 60_000
START: Final = 1_767_225_600_000


def status_of(states: Mapping[str, str], *, limit: int = START + MINUTE, **changed: Any) -> Status:
    """Return the status of a running group with partitions in these states."""
    facts: dict[str, Any] = {
        "where": "memory://shown/aiokcc",
        "state": GroupState.RUNNING,
        "limit": limit,
        "floor": limit,
        "closed": limit - MINUTE,
        "period": MINUTE,
        "agreed_period": MINUTE,
        "start": START,
        "end": None,
        "lookahead": 0,
        "generation": 1,
        "leader": None,
        "epoch": None,
        "members": (),
        "partitions": tuple(
            PartitionStatus(name, "one-1", PartitionCondition(state), limit + 5 if state == "waiting" else None)
            for name, state in states.items()
        ),
        "blocking": tuple(
            Blocking(name, "one-1", BlockerState(state), None)
            for name, state in states.items()
            if state in {"running", "unowned"}
        ),
        "waiting_seconds": 0.0,
        "periods_closed": 1,
        "problems": (),
    }
    return Status(**(facts | changed))
