"""A feed follows one group through the store's watches and puts what it sees into a channel, for all pages at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

import anyio

from aiokcc.core.formatting import format_elapsed
from aiokcc.core.masking import mask_url
from aiokcc.core.periods import format_duration, format_time
from aiokcc.credentials import hide_secrets
from aiokcc.dashboard.channel import Channel, encode_event
from aiokcc.dashboard.history import History, Staircase
from aiokcc.errors import AiokccError
from aiokcc.runtime.follow import follow
from aiokcc.runtime.health import Health, assess
from aiokcc.runtime.status import GroupState, Status
from aiokcc.stores.port import Store
from aiokcc.views.model import Table
from aiokcc.views.pace import GroupPace, Pace
from aiokcc.views.status_view import build_view

__all__ = ["GroupFeed"]

_MOST_ROWS: Final = 2000
"""Up to this number of partitions each has a row of its own; above it, each topic."""
RETRY_SECONDS: Final = (1.0, 15.0)
"""The shortest and the longest pause before a store is asked again that refuses us, or whose topic does not exist yet.
Neither can be watched."""
_TABLES_SECONDS: Final = 1.0
"""The shortest time between two versions of the tables, which can be long."""
_AGES_SECONDS: Final = 10.0
"""The time between two versions of the tables where nothing changes but how long ago a member has joined."""


class GroupFeed:
    """Follows one group. ``run`` it in a task; any number of pages read its channel."""

    def __init__(
        self, store: Store, *, keep: float, stuck_after: float, clock: Callable[[], float] = time.time
    ) -> None:
        self.store = store
        self.channel = Channel()
        self.status: Status | None = None
        """The last status; None while there is no group."""
        self.away = True
        """True if the store does not answer at present."""
        self._stuck_after = stuck_after
        self._clock = clock
        self._history = History(keep)
        self._staircase = Staircase()
        self._pace = GroupPace()
        self._read_at = 0.0
        self._away_since = time.monotonic()
        self._tables_at = 0.0
        self._stale_tables = False
        self._retry = RETRY_SECONDS[0]

    async def run(self) -> None:
        """Follow the group until cancelled, over lost connections and sessions. Tries again where it may not read."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._tick)
            while True:
                try:
                    await follow(
                        self.store,
                        timeout=None,
                        on_status=self._on_status,
                        on_missing=self._on_missing,
                        on_connection=self._on_connection,
                    )
                except* AiokccError as errors:  # such as no permission to read
                    self._on_missing(hide_secrets("; ".join(str(error) for error in errors.exceptions)))
                await anyio.sleep(self._retry)
                self._retry = min(self._retry * 2, RETRY_SECONDS[1])

    def begin(self, since: int) -> Iterable[bytes]:
        """Return what a page gets first: the kept samples that are newer than ``since``. What it gets next is as of now."""
        self._publish()  # without a page nobody does, while nothing changes
        yield encode_event("history", [sample.as_dict() for sample in self._history.since(since)])

    async def known(self) -> None:
        """Wait until there is a status."""
        while self.status is None:
            await self.channel.changed()

    def health(self) -> Health | None:
        """Return the health as of now; None while there is no group."""
        status = self.present()
        return None if status is None else assess(status, stuck_after=self._stuck_after, now=self._clock())

    def pace(self) -> Pace | None:
        """Return the pace; None while there is no group."""
        return None if self.status is None else self._pace.pace(self.status)

    # -- what the store tells -------------------------------------------------------------------------------------------------

    def _on_status(self, status: Status) -> bool:
        self.status, self._read_at, self._retry = status, time.monotonic(), RETRY_SECONDS[0]
        sample = self._staircase.sample(status, int(self._clock() * 1000))
        if sample is not None:
            self._history.add(sample)
            self.channel.add_moment("sample", sample.as_dict())
        self._stale_tables = True
        self._publish()
        return True  # a run that has ended stays on the page, and a new one under the same root appears

    def _on_missing(self, why: str) -> None:
        self.status = None
        self.channel.set_state("view", {"missing": why, "where": mask_url(self.store.url)})

    def _on_connection(self, up: bool) -> None:
        if self.away == up:
            self.away, self._away_since = not up, time.monotonic()
            self._publish()

    async def _tick(self) -> None:
        """Publish every second: the elapsed time changes although no node does. This reads nothing from the store."""
        while True:
            await anyio.sleep(1)
            if self.channel.pages:
                self._publish()

    # -- what the pages get ---------------------------------------------------------------------------------------------------

    def present(self) -> Status | None:
        """Return the last status as of now; None while there is no group."""
        if self.status is None:
            return None
        return replace(self.status, waiting_seconds=self.status.waiting_seconds + time.monotonic() - self._read_at)

    def _publish(self) -> None:
        status, now = self.present(), self._clock()
        if status is None:
            if self.away:
                self.channel.set_state(
                    "view", {"missing": "the store does not answer", "where": mask_url(self.store.url)}
                )
            return
        self._pace.add(status, time.monotonic())  # where nothing changes, the rates go down
        health = assess(status, stuck_after=self._stuck_after, now=now)
        view = build_view(status, health, now=now, everything=len(status.partitions) <= _MOST_ROWS)
        pace = self._pace.pace(status)
        away = None
        if self.away:
            how_long = format_elapsed(time.monotonic() - self._away_since)
            away = f"The store has not answered for {how_long}. This is the last known status."
        self.channel.set_state(
            "view",
            {
                "where": mask_url(status.where),
                "state": status.state,
                "verdict": health.kind.value,
                "stuck": health.stuck,
                "why": health.text,
                "away": away,
                "tiles": _tiles(status, pace, now),
                "share": pace.share,
                "blocking": None if view.blocking is None else _plain(view.blocking),
                "blockers": [b.partition for b in status.blocking] if view.blocking is not None else [],
                "facts": view.facts,
                "problems": view.problems,
                "period": None if status.agreed_period is None else format_duration(status.agreed_period),
                "managed": status.group is not None,
                "members": [] if status.group is None else [(w.name, w.isolated) for w in status.group.workers],
            },
        )
        if time.monotonic() - self._tables_at >= (_TABLES_SECONDS if self._stale_tables else _AGES_SECONDS):
            self._tables_at, self._stale_tables = time.monotonic(), False
            self.channel.set_state("tables", [_plain(table) for table in view.tables])


def _plain(table: Table) -> dict[str, Any]:
    return {
        "title": table.title,
        "columns": table.columns,
        "rows": table.rows,
        "right": sorted(table.right),
        "marked": sorted(table.marked),
        "note": table.note,
    }


def _tiles(status: Status, pace: Pace, now: float) -> list[tuple[str, str, str]]:
    """Return the figures at the top of the page: a name, a value, and a remark."""
    tiles = []
    if status.limit:
        tiles.append(("limit", format_time(status.limit), ""))
        tiles.append(("behind now", format_elapsed(now - status.limit / 1000), ""))
    if status.state is GroupState.RUNNING:
        faster = "" if not pace.event_time else f"{pace.event_time:,.0f} times as fast as the clock"
        tiles.append(("periods/s", _rate(pace.periods), faster))
        if any(p.offset is not None for p in status.partitions):
            tiles.append(("records/s", _rate(pace.records), ""))
    if pace.seconds_left is not None:
        tiles.append(("time left", f"about {format_elapsed(pace.seconds_left)}", ""))
    if pace.share is not None:
        done = f"{status.offsets_done:,} of {status.offsets_total:,} offsets" if status.offsets_total else ""
        tiles.append(("done", f"{pace.share:.1%}", done))
    return tiles


def _rate(per_second: float | None) -> str:
    if per_second is None or per_second < 0:
        return "–"
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"
