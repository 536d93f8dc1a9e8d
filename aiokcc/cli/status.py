"""``aiokcc status``: shows the status once, or follows it."""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from dataclasses import replace
from typing import Any, Final

import anyio

from aiokcc.cli.arguments import command
from aiokcc.cli.follow import follow
from aiokcc.cli.formatting import format_elapsed
from aiokcc.cli.health import assess
from aiokcc.cli.screen import JsonLines, LogLines, Screen, choose_screen, print_view
from aiokcc.cli.status_view import build_view
from aiokcc.core.periods import format_duration, format_time
from aiokcc.runtime.status import Status, read_status
from aiokcc.stores import open_store
from aiokcc.stores.port import Store

__all__ = ["STUCK", "as_json", "resume_command", "run_status"]

STUCK: Final = 3
FORMAT: Final = 1
"""The version of the JSON. It changes when a field is removed or changes its meaning; new fields may be added at any time."""
_PACE_SECONDS: Final = 10.0


async def run_status(options: argparse.Namespace) -> int:
    """Show the status; return the exit code, which is STUCK if the group is stuck."""
    store = open_store(options.store)
    if options.watch:
        return await _StatusFollower(store, options).run()
    async with store.session(connect_timeout=options.timeout) as session:
        status = await read_status(store, session)
    now = time.time()
    health = assess(status, stuck_after=options.stuck_after, now=now)
    if options.json:
        print(json.dumps(as_json(status, stuck_after=options.stuck_after, now=now), indent=2))
    else:
        print_view(
            build_view(status, health, now=now, everything=options.all, resume=resume_command(status, options)),
        )
    return STUCK if health.stuck else 0


def as_json(status: Status, *, stuck_after: float, now: float) -> dict[str, Any]:
    """Return the object that ``--json`` prints; docs/reference/command-line.md describes its fields."""
    health = assess(status, stuck_after=stuck_after, now=now)
    return {
        "format": FORMAT,
        "verdict": health.kind.value,
        "stuck": health.stuck,
        "why": health.text,
        "limit_time": None if status.limit is None else format_time(status.limit),
        **status.as_dict(),
    }


def resume_command(status: Status, options: argparse.Namespace) -> str | None:
    """Return the command that ends a hold; None if there is none."""
    if status.state != "held":
        return None
    return command(options, "period", "PERIOD" if status.held_period is None else format_duration(status.held_period))


class _StatusFollower:
    """Runs ``status --watch``. Holds the last status, the time it was read, and the recent limits."""

    def __init__(self, store: Store, options: argparse.Namespace) -> None:
        self._store = store
        self._options = options
        self._status: Status | None = None
        self._read_at = 0.0
        self._away_since: float | None = None
        self._limits: deque[tuple[float, int]] = deque()
        self._stuck = False
        self._screen: Screen | None = None

    async def run(self) -> int:
        """Follow until the run ends; return the exit code. Cancelling leaves the last view on the terminal."""
        if self._options.json:
            await self._follow()
        else:
            with choose_screen() as screen:
                self._screen = screen
                async with anyio.create_task_group() as tasks:
                    if not isinstance(screen, LogLines):
                        tasks.start_soon(self._tick)
                    await self._follow()
                    tasks.cancel_scope.cancel()
        return STUCK if self._stuck else 0

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
            self._limits.append((self._read_at, status.limit))
            while self._read_at - self._limits[0][0] > _PACE_SECONDS:
                self._limits.popleft()
        self._draw()
        return status.state != "ended"

    def _on_missing(self, why: str) -> None:
        self._status = None
        if self._screen is not None:
            self._screen.show_text(f"{why}. Waiting for it.")

    def _on_connection(self, up: bool) -> None:
        self._away_since = None if up else self._away_since or time.monotonic()
        if self._screen is not None and isinstance(self._screen, LogLines):
            if not up:
                self._screen.show_text("the store does not answer; trying again")
        else:
            self._draw()

    def _draw(self) -> None:
        if self._status is None:
            return
        now = time.monotonic()
        status = replace(self._status, waiting_seconds=self._status.waiting_seconds + now - self._read_at)
        health = assess(status, stuck_after=self._options.stuck_after, now=time.time())
        self._stuck = health.stuck
        if self._screen is None:
            if self._away_since is None:
                JsonLines.write(as_json(status, stuck_after=self._options.stuck_after, now=time.time()))
            return
        view = build_view(
            status,
            health,
            now=time.time(),
            everything=self._options.all,
            resume=resume_command(status, self._options),
            pace=self._pace(),
        )
        note = "Ctrl-C ends this"
        if self._away_since is not None:
            note = f"the store has not answered for {format_elapsed(now - self._away_since)}; this is the last known status"
        self._screen.show(view, note)

    def _pace(self) -> str:
        """Return how fast the limit moves through event time, over the last _PACE_SECONDS; empty if it is not known."""
        if len(self._limits) < 2:
            return ""
        (begun, first), (ended, last) = self._limits[0], self._limits[-1]
        if last <= first or ended - begun < 1:
            return ""
        per_second = (last - first) / (ended - begun)
        text = f"{format_elapsed(per_second / 1000)} of event time per second"
        end = None if self._status is None else self._status.end
        return text if end is None else f"{text}   about {format_elapsed((end - last) / per_second)} to go"
