"""The list of the groups under a prefix, with one line for each. It follows them through watches, in one session."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from aiokcc.core import paths
from aiokcc.core.formatting import format_elapsed
from aiokcc.core.limit import Limit, Mode, Request, RequestKind
from aiokcc.core.masking import mask_url
from aiokcc.core.periods import format_time
from aiokcc.credentials import hide_secrets
from aiokcc.dashboard.channel import Channel
from aiokcc.dashboard.feed import RETRY_SECONDS
from aiokcc.errors import AiokccError, CorruptNodeError, NoAuthError, SessionLostError
from aiokcc.stores.port import Change, Children, Node, Store, Watch

__all__ = ["Overview"]

_PAUSE_SECONDS: Final = 0.25
"""The shortest time between two versions of the list."""
_COLUMNS: Final = ("group", "state", "limit", "behind now", "limit moved", "members")


@dataclass(slots=True)
class _Line:
    """The facts about one root: its limit, its request, and the number of its members."""

    coordinator: Node | None = None
    period: Node | None = None
    members: int = 0
    refused: set[str] = field(default_factory=set)
    """The nodes that we may not read."""


class Overview:
    """Follows the root itself and the roots directly below it. ``run`` it in a task."""

    def __init__(self, store: Store, on_group: Callable[[], None] = lambda: None) -> None:
        """``on_group`` is called when it becomes known that the root is itself a group."""
        self.store = store
        self._on_group = on_group
        self.channel = Channel()
        self.groups: tuple[str, ...] = ()
        """The names of the groups directly below the root."""
        self.is_group = False
        """True if the root is itself a group."""
        self.is_known = False
        """True once the groups have been read."""
        self._lines: dict[str, _Line] = {}
        self._away = True
        self._refusal: str | None = None
        """The reason for which the store lets us read nothing."""

    async def run(self) -> None:
        """Follow until cancelled, over lost connections and sessions. Tries again where it may not read."""
        pause = RETRY_SECONDS[0]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._tick)
            while True:
                try:
                    async with self.store.session(connect_timeout=None) as session:
                        self._lines.clear()
                        self._away = False
                        with session.watch() as watch:
                            watch.add(paths.COORDINATOR)
                            while True:
                                changes = await self._changes(watch)
                                self._refusal = None
                                for change in changes:
                                    for path, children in self._apply(change):
                                        (watch.add_children if children else watch.add)(path)
                                    if change.path == "":
                                        for name in self._lines.keys() - _names(change):
                                            del self._lines[name]
                                            for node in (paths.COORDINATOR, paths.PERIOD, paths.IDS):
                                                watch.remove(f"{name}/{node}")
                                self.publish()
                                pause = RETRY_SECONDS[0]
                                await anyio.sleep(_PAUSE_SECONDS)
                except SessionLostError:
                    self._away = True
                    self.publish()
                except AiokccError as error:  # such as no permission to read
                    self._refusal = hide_secrets(str(error))
                    self.publish()
                    await anyio.sleep(pause)
                    pause = min(pause * 2, RETRY_SECONDS[1])

    async def _changes(self, watch: Watch) -> list[Change]:
        """Return the next changes. A group that may not be read is marked, and does not hide the others."""
        try:
            return await watch.changes()
        except NoAuthError as error:
            name, _, node = error.path.rpartition("/")
            if name not in self._lines:
                raise
            self._lines[name].refused.add(node)
            return []

    def _apply(self, change: Change) -> list[tuple[str, bool]]:
        """Take a change in, and return the paths to watch in addition, with whether their children are meant."""
        if change.path == paths.COORDINATOR:
            if change.now is not None and not self.is_group:
                self._on_group()
            self.is_group = change.now is not None
            return [] if self.is_group else [("", True)]
        if change.path == "":
            new = _names(change) - self._lines.keys()
            self._lines |= {name: _Line() for name in sorted(new)}
            return [
                (f"{name}/{node}", node == paths.IDS)
                for name in sorted(new)
                for node in (paths.COORDINATOR, paths.PERIOD, paths.IDS)
            ]
        name, _, node = change.path.rpartition("/")
        line = self._lines.get(name)
        if line is not None:
            line.refused.discard(node)
            if node == paths.IDS:
                line.members = len(_names(change))
            elif node == paths.COORDINATOR:
                line.coordinator = change.now if isinstance(change.now, Node) else None
            else:
                line.period = change.now if isinstance(change.now, Node) else None
        return []

    async def _tick(self) -> None:
        """Publish every second: the elapsed time changes although no node does."""
        while True:
            await anyio.sleep(1)
            if self.channel.pages:
                self.publish()

    def publish(self) -> None:
        """Put the present list into the channel."""
        now, where = time.time(), mask_url(self.store.url)
        if self._refusal is not None:
            self.channel.set_state("overview", {"missing": self._refusal, "where": where})
            return
        found = {name for name, line in self._lines.items() if line.coordinator is not None or line.refused}
        self.groups = () if self.is_group else tuple(sorted(found))
        self.is_known |= not self._away
        rows: list[tuple[str, ...]] = []
        marked: list[int] = []
        for name in self.groups:
            line = self._lines[name]
            if line.coordinator is None or line.refused:
                marked.append(len(rows))
                rows.append((name, "no permission", "", "", "", ""))
                continue
            state, limit = _state(line)
            rows.append(
                (
                    name,
                    state,
                    "" if not limit else format_time(limit),
                    "" if not limit else format_elapsed(now - limit / 1000),
                    f"{format_elapsed(now - line.coordinator.modified / 1000)} ago",
                    f"{line.members:,}",
                )
            )
            if state in {"unreadable", "no members"}:
                marked.append(len(rows) - 1)
        table: dict[str, Any] = {
            "title": f"Groups ({len(rows):,})",
            "columns": _COLUMNS,
            "rows": rows,
            "right": [3, 4, 5],
            "marked": marked,
            "note": "",
        }
        missing = None
        if not self.is_group and not rows:
            missing = f"there is no group under {where}; a member founds one when it connects"
        away = "The store does not answer." if self._away else None
        self.channel.set_state(
            "overview", {"where": where, "group": self.is_group, "table": table, "missing": missing, "away": away}
        )


def _names(change: Change) -> set[str]:
    return set(change.now.names) if isinstance(change.now, Children) else set()


def _state(line: _Line) -> tuple[str, int | None]:
    """Return the state in one word, and the limit if there is one."""
    assert line.coordinator is not None
    try:
        limit = Limit.decode(line.coordinator.path, line.coordinator.data)
        if limit.mode is not Mode.GATED:
            return ("released" if limit.mode is Mode.OPEN else "ended"), None
        if line.period is not None:
            request = Request.decode(line.period.path, line.period.data)
            if request.kind is RequestKind.HOLD:
                return "held", limit.value
    except CorruptNodeError:
        return "unreadable", None
    return ("running" if line.members else "no members"), limit.value
