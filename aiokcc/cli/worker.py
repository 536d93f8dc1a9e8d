"""One of the processes of ``aiokcc replay``. :mod:`aiokcc.cli.crew` starts it; nobody else has a reason to.

Its orders come as one line of JSON on standard input. When that input ends, be it that the command closes it or is gone itself,
the worker stops as after Ctrl-C. What it has to say goes, a line of JSON at a time, to the file descriptor it is given.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import os
import signal
import sys
import traceback
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import anyio

import aiokcc
from aiokcc.cli.functions import load, place
from aiokcc.errors import AiokccError, HandlerError

__all__ = ["main"]

_COUNT_SECONDS: Final = 0.2
_COUNTS_PER_STATUS: Final = 4
_BLOCKING: Final = 3


class Reports:
    """The way back to the command."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "w", buffering=1)

    def send(self, kind: str, **facts: Any) -> None:
        """One line. If nobody reads any more, the end of our input tells us so too."""
        with contextlib.suppress(BrokenPipeError):
            self._file.write(json.dumps({"kind": kind, **facts}) + "\n")


def main() -> int:
    """Do as the orders say; the exit code tells nothing that the reports do not."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command hears it, and tells us
    reports = Reports(int(sys.argv[1]))
    orders = json.loads(sys.stdin.readline())
    control = os.dup(0)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a descriptor is wanted
        os.dup2(nothing.fileno(), 0)  # a handler that reads its input does not read ours
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # Several processes share it: whole lines only, also under PYTHONUNBUFFERED.
            stream.reconfigure(line_buffering=True, write_through=False)
    if orders["verbose"]:
        form = f"%(asctime)s {orders['arguments']['member']} %(name)s: %(message)s"
        logging.basicConfig(level=logging.INFO, format=form)
    else:
        for name in ("aiokcc", "aiokafka"):
            logging.getLogger(name).addHandler(logging.NullHandler())
    try:
        asyncio.run(_until_told(control, _work(orders, reports)))
    except asyncio.CancelledError:
        return 0
    except Exception as error:  # noqa: BLE001 - whatever it is, the command says it
        if orders["verbose"]:
            traceback.print_exc()
        _tell(reports, error)
        return 1
    return 0


async def _until_told(control: int, work: Any) -> None:
    task = asyncio.current_task()
    assert task is not None

    def heard() -> None:
        if not os.read(control, 1024):
            asyncio.get_running_loop().remove_reader(control)
            task.cancel()

    asyncio.get_running_loop().add_reader(control, heard)
    await work


async def _work(orders: dict[str, Any], reports: Reports) -> None:
    arguments = dict(orders["arguments"])
    handler = load(orders["handler"], "a record")
    for name, gets, number in (("timestamp", "a record", 1), ("dead_letter", "a record and a reason", 2)):
        if orders[name] is not None:
            arguments[name] = load(orders[name], gets, number)
    if len(orders["shares"]) > 1:
        arguments["partitions"] = rule_of(orders["shares"], orders["number"])
    async with aiokcc.replay(*orders["topics"], **arguments) as replay:
        bounds = replay.bounds.values()
        total = sum(b.end - b.start for b in bounds if b.end is not None)
        reports.send("joined", total=total if all(b.end is not None for b in bounds) else None)
        counted = Counted(handler)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_keep_telling, replay, counted, reports)
                await (replay.run_batches(counted.take_list) if orders["batches"] else replay.run(counted.take))
                tasks.cancel_scope.cancel()
        finally:
            reports.send("counts", **_counts(replay, counted))
        released = replay.coordinator.released
    reports.send("done", released=released)


def rule_of(shares: list[list[Sequence[Any]]], number: int) -> Callable[[str, int], bool]:
    """Whether a partition is ours: one of our share, or, of those that were added since, one that falls to us by its name.

    All workers go by the same rule and the same shares, so each of them falls to exactly one.
    """
    owners = {(topic, partition): n for n, share in enumerate(shares) for topic, partition in share}

    def rule(topic: str, partition: int) -> bool:
        by_name = zlib.crc32(f"{topic}.{partition}".encode()) % len(shares)
        return owners.get((topic, partition), by_name) == number

    return rule


class Counted:
    """The user's handler, and how many records it has handled: all of them, not only those of finished fetches."""

    def __init__(self, handler: Callable[[Any], Any]) -> None:
        self._handler = handler
        self._waits = inspect.iscoroutinefunction(handler)
        self.records = 0

    async def take(self, record: Any) -> None:
        """One record."""
        result = self._handler(record)
        if self._waits or inspect.isawaitable(result):
            await result
        self.records += 1

    async def take_list(self, records: list[Any]) -> None:
        """Many."""
        result = self._handler(records)
        if inspect.isawaitable(result):
            await result
        self.records += len(records)


async def _keep_telling(replay: Any, counted: Counted, reports: Reports) -> None:
    turn = 0
    while True:
        reports.send("counts", **_counts(replay, counted))
        if turn % _COUNTS_PER_STATUS == 0:
            # Away for a while, or not to be read: the display stays as it is. If it matters, the replay itself says so.
            with contextlib.suppress(AiokccError):
                reports.send("status", **_status(await replay.coordinator.status()))
        turn += 1
        await asyncio.sleep(_COUNT_SECONDS)


def _counts(replay: Any, counted: Counted) -> dict[str, Any]:
    summary = replay.summary
    return {
        "records": counted.records,
        "late": summary.late,
        "outside": summary.outside,
        "poisoned": summary.poisoned,
        "retried": summary.retried,
        "dead_lettered": summary.dead_lettered,
        "periods": summary.periods,
        "limit": replay.coordinator.limit,
    }


def _status(status: aiokcc.Status) -> dict[str, Any]:
    return {
        "state": status.state,
        "closed": status.closed,
        "floor": status.floor,
        "waiting_seconds": status.waiting_seconds,
        "idle": all(p.state in {"idle", "finished"} for p in status.partitions),
        "blocking": [(b.partition, b.member) for b in status.blocking[:_BLOCKING]],
    }


def _tell(reports: Reports, error: BaseException) -> None:
    while isinstance(error, BaseExceptionGroup):
        error = next((e for e in error.exceptions if isinstance(e, AiokccError)), error.exceptions[0])
    if isinstance(error, AiokccError):
        where = place(error.__cause__) if isinstance(error, HandlerError) and error.__cause__ is not None else ""
        reports.send("failed", text=str(error), where=where)
    else:
        reports.send("failed", text=f"unexpected: {type(error).__name__}: {error}", where=place(error))


if __name__ == "__main__":
    raise SystemExit(main())
