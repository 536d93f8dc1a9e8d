"""``aiokcc status``: shows the status of a group once, or follows it."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from typing import Any, Final

import anyio

from aiokcc.cli.render import Display, open_status_display, print_status
from aiokcc.cli.verb import STUCK_AFTER, Verb, argument, command, open_existing
from aiokcc.core.formatting import format_elapsed
from aiokcc.core.periods import format_duration, format_time
from aiokcc.runtime.follow import follow
from aiokcc.runtime.health import assess
from aiokcc.runtime.status import GroupState, Status
from aiokcc.runtime.status_reader import read_status
from aiokcc.stores.port import Store
from aiokcc.views.meters import RateMeter
from aiokcc.views.status_view import build_view

__all__ = ["VERB", "as_json", "resume_command"]

_STUCK: Final = 3
"""The exit code for a group that is stuck."""
_FORMAT: Final = 1
"""The version of the JSON. It changes when a field is removed or changes its meaning; new fields may be added at any time."""


async def _run(options: argparse.Namespace) -> int:
    store = open_existing(options)
    if options.watch:
        return await _StatusFollower(store, options).run()
    async with store.session(connect_timeout=options.timeout) as session:
        status = await read_status(store, session)
    now = time.time()
    health = assess(status, stuck_after=options.stuck_after, now=now)
    if options.json:
        print(json.dumps(as_json(status, stuck_after=options.stuck_after, now=now), indent=2))
    else:
        view = build_view(status, health, now=now, everything=options.all, resume=resume_command(status, options))
        print_status(view)
    return _STUCK if health.stuck else 0


def as_json(status: Status, *, stuck_after: float, now: float) -> dict[str, Any]:
    """Return the object that ``--json`` prints; docs/reference/command-line.md describes its fields."""
    health = assess(status, stuck_after=stuck_after, now=now)
    return {
        "format": _FORMAT,
        "verdict": health.kind,
        "stuck": health.stuck,
        "why": health.text,
        "limit_time": None if status.limit is None else format_time(status.limit),
        **status.as_dict(),
    }


def resume_command(status: Status, options: argparse.Namespace) -> str | None:
    """Return the command that ends a hold; None if there is none."""
    if status.state is not GroupState.HELD:
        return None
    return command(options, "period", "PERIOD" if status.held_period is None else format_duration(status.held_period))


class _StatusFollower:
    """Runs ``status --watch``. Holds the last status, the time it was read, and the speed of the limit."""

    def __init__(self, store: Store, options: argparse.Namespace) -> None:
        self._store = store
        self._options = options
        self._status: Status | None = None
        self._read_at = 0.0
        self._away_since: float | None = None
        self._limit_rate = RateMeter(seconds=10.0, least=1.0)
        self._stuck = False
        self._display: Display | None = None
        """The display; None if JSON is printed."""

    async def run(self) -> int:
        """Follow until the run ends; return the exit code. Cancelling leaves the last view on the terminal."""
        if self._options.json:
            await self._follow()
        else:
            with open_status_display() as self._display:
                async with anyio.create_task_group() as tasks:
                    if self._display.live:
                        tasks.start_soon(self._tick)
                    await self._follow()
                    tasks.cancel_scope.cancel()
        return _STUCK if self._stuck else 0

    async def _follow(self) -> None:
        await follow(
            self._store,
            timeout=self._options.timeout,
            on_status=self._on_status,
            on_missing=self._on_missing,
            on_connection=self._on_connection,
        )

    async def _tick(self) -> None:
        """Redraw every second: the elapsed time changes although no node does."""
        while True:
            await anyio.sleep(1)
            self._draw()

    def _on_status(self, status: Status) -> bool:
        self._status, self._read_at = status, time.monotonic()
        if status.limit is not None:
            self._limit_rate.add(status.limit, self._read_at)
        self._draw()
        return status.state is not GroupState.ENDED

    def _on_missing(self, why: str) -> None:
        self._status = None
        if self._display is not None:
            self._display.show(f"{why}. Waiting for it.")

    def _on_connection(self, up: bool) -> None:
        self._away_since = None if up else self._away_since or time.monotonic()
        if self._display is None or self._display.live:
            self._draw()
        elif not up:
            self._display.show("the store does not answer; trying again")

    def _draw(self) -> None:
        if self._status is None:
            return
        now, wall = time.monotonic(), time.time()
        status = replace(self._status, waiting_seconds=self._status.waiting_seconds + now - self._read_at)
        health = assess(status, stuck_after=self._options.stuck_after, now=wall)
        self._stuck = health.stuck
        if self._display is None:
            if self._away_since is None:
                print(json.dumps(as_json(status, stuck_after=self._options.stuck_after, now=wall)), flush=True)
            return
        resume, everything = resume_command(status, self._options), self._options.all
        view = build_view(status, health, now=wall, everything=everything, resume=resume, pace=self._pace(status))
        note = "Ctrl-C ends this"
        if self._away_since is not None:
            note = f"the store has not answered for {format_elapsed(now - self._away_since)}; this is the last known status"
        self._display.show(replace(view, note=note))

    def _pace(self, status: Status) -> str:
        """Return how fast the limit moves through event time; empty if it is not known."""
        per_second = self._limit_rate.per_second()
        if not per_second or per_second < 0:
            return ""
        text = f"{format_elapsed(per_second / 1000)} of event time per second"
        if status.end is None or status.limit is None:
            return text
        return f"{text}   about {format_elapsed((status.end - status.limit) / per_second)} to go"


VERB: Final = Verb(
    name="status",
    brief="which partition blocks, on which member, for how long",
    usage="[URL] [--watch] [--json] [--all] [--stuck-after TIME]",
    arguments=(
        argument("-w", "--watch", action="store_true", help="follow the status until the run ends"),
        argument("--json", action="store_true", help="one JSON object (docs/reference/command-line.md has its fields)"),
        argument("--all", action="store_true", help="list every partition"),
        STUCK_AFTER,
    ),
    run=_run,
    description="""\
Show the state of a group; first of all which partition blocks, on which member,
for how long.
""",
    epilog="""\
examples:
  aiokcc status zk://127.0.0.1:2181/replay
  aiokcc status --watch                      follow it; ends when the run ends
  aiokcc status --all                        every partition, however many
  aiokcc status --json | jq -r .limit_time   an object; --watch: one per line
  aiokcc status --stuck-after 5m || page-me  for a cron job

exit codes:
  0  the group moves, waits for new records, is on hold, was released, or has
     ended
  3  the group is stuck: the limit has stood for longer than --stuck-after
     because of a partition that still has records before it or is unowned;
     or a node cannot be read (then at once)

terms:
  limit    records before it are processed; no record at or past it is
  waiting  the partition has reached the limit and waits for the others
  running  it still has records before the limit: the others wait for it
  idle     its log holds no more records at present
""",
)
