"""One of the processes of ``aiokcc replay``. :mod:`aiokcc.cli.worker_pool` starts it; nobody else has a reason to.

Its spec come as one line of JSON on standard input. A second line asks it to stop in good order: running handlers end,
offsets are committed, the partitions are given up; so does SIGTERM. When the input ends, be it that the command closes it or
is gone itself, the worker stops where it stands. What it has to say goes, a line of JSON at a time, to the file descriptor it
is given.
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
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import anyio

import aiokcc
from aiokcc.cli.functions import describe_location, load_function
from aiokcc.core.masking import mask_text
from aiokcc.errors import AiokccError, HandlerError, SessionLostError, UsageError

__all__ = ["main"]

_COUNT_SECONDS: Final = 0.2
_STATUS_SECONDS: Final = 0.8
_BLOCKING: Final = 3
_GRACE_SECONDS: Final = 7.0


class ReportWriter:
    """The way back to the command."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "w", buffering=1)

    def send(self, kind: str, **facts: Any) -> None:
        """One line. If nobody reads any more, the end of our input tells us so too."""
        with contextlib.suppress(BrokenPipeError):
            self._file.write(json.dumps({"kind": kind, **facts}) + "\n")


def main() -> int:
    """Do as the spec say; the exit code tells nothing that the reports do not."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command hears it, and tells us
    reports = ReportWriter(int(sys.argv[1]))
    line, more = _first_line(0)
    if not line:  # the command was gone before it had said anything
        return 0
    spec = json.loads(line)
    control = os.dup(0)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a descriptor is wanted
        os.dup2(nothing.fileno(), 0)  # a handler that reads its input does not read ours
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # Several processes share it: whole lines only, also under PYTHONUNBUFFERED.
            stream.reconfigure(line_buffering=True, write_through=False)
    if spec["verbose"]:
        form = f"%(asctime)s {spec['arguments']['member']} %(name)s: %(message)s"
        logging.basicConfig(level=logging.INFO, format=form)
    else:
        for name in ("aiokcc", "aiokafka"):
            logging.getLogger(name).addHandler(logging.NullHandler())
    try:
        asyncio.run(_run_until_stopped(control, more, spec, reports))
    except asyncio.CancelledError:
        return 0
    except Exception as error:  # noqa: BLE001 - whatever it is, the command says it
        if spec["verbose"]:
            print(mask_text(traceback.format_exc()), end="", file=sys.stderr)
        _send_failure(reports, error, [spec[name] for name in ("handler", "timestamp", "dead_letter") if spec[name]])
        return 1
    return 0


def _first_line(descriptor: int) -> tuple[bytes, bytes]:
    """The first line, and what came with it: nothing is left in a buffer that nobody looks into."""
    data = b""
    while b"\n" not in data and (more := os.read(descriptor, 1 << 16)):
        data += more
    line, _, rest = data.partition(b"\n")
    return line, rest


class StopRequest:
    """Ends the replay in good order, once it is asked to and there is one."""

    def __init__(self) -> None:
        self._replay: Any = None
        self._task = asyncio.current_task()
        self.asked = False

    @property
    def early(self) -> bool:
        """Whether it was asked to before there was anything to stop."""
        return self.asked and self._replay is None

    def ask(self) -> None:
        """Somebody asks; more than once is as good as once."""
        if self.asked:
            return
        self.asked = True
        if self._replay is not None:
            self._replay.stop()
        else:
            assert self._task is not None
            self._task.cancel()

    def begin(self, replay: Any) -> None:
        """Here it is."""
        self._replay = replay
        if self.asked:
            replay.stop()


async def _run_until_stopped(control: int, more: bytes, spec: dict[str, Any], reports: ReportWriter) -> None:
    task = asyncio.current_task()
    assert task is not None
    stop = StopRequest()
    loop = asyncio.get_running_loop()
    if not spec["verbose"]:
        loop.set_exception_handler(_skip_aiokafka_tasks)
    # Who ends all processes of a service, as systemd does, means us too; the command tells us the same.
    loop.add_signal_handler(signal.SIGTERM, stop.ask)
    threading.Thread(target=_read_control, args=(control, loop, stop.ask, task.cancel), daemon=True).start()
    try:
        if more:
            stop.ask()
            await asyncio.sleep(0)
        await _run_replay(spec, reports, stop)
    except (asyncio.CancelledError, AiokccError):
        if not stop.early:
            raise
        reports.send("done", released=False, stopped=True)  # nothing was begun


def _skip_aiokafka_tasks(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Nobody waits for the tasks that aiokafka leaves behind when a broker goes away; what matters the replay says itself."""
    coroutine = getattr(context.get("future"), "get_coro", lambda: None)()
    code = getattr(coroutine, "cr_code", None)
    if code is None or "aiokafka" not in Path(code.co_filename).parts:
        loop.default_exception_handler(context)


def _read_control(
    control: int, loop: asyncio.AbstractEventLoop, ask: Callable[[], object], cancel: Callable[[], object]
) -> None:
    """Hear what comes after the spec: in a thread, for a handler may keep the loop and never give it back."""
    while os.read(control, 1024):
        with contextlib.suppress(RuntimeError):  # the loop is closed: all is done
            loop.call_soon_threadsafe(ask)
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(cancel)
    threading.Event().wait(_GRACE_SECONDS)  # if we still are, the command is gone too, or it would have killed us
    os._exit(1)


async def _run_replay(spec: dict[str, Any], reports: ReportWriter, stop: StopRequest) -> None:
    arguments = dict(spec["arguments"])
    handler = load_function(spec["handler"], "a record")
    for name, gets, number in (("timestamp", "a record", 1), ("dead_letter", "a record and a reason", 2)):
        if spec[name] is not None:
            arguments[name] = load_function(spec[name], gets, number)
    if len(spec["shares"]) > 1:
        arguments["partitions"] = partition_rule(spec["shares"], spec["number"])
    async with aiokcc.replay(*spec["topics"], **arguments) as replay:
        stop.begin(replay)
        bounds = replay.bounds.values()
        total = sum(b.end - b.start for b in bounds if b.end is not None)
        reports.send("joined", total=total if all(b.end is not None for b in bounds) else None)
        counting = CountingHandler(handler)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_send_counts, replay, counting, reports)
                tasks.start_soon(_send_status, replay, reports)
                await (replay.run_batches(counting.handle_list) if spec["batches"] else replay.run(counting.handle))
                tasks.cancel_scope.cancel()
        finally:
            reports.send("counts", last=True, **{**_counts(replay, counting), "records": replay.summary.records})
            if replay.summary.commit_error is not None:  # the next start handles these records again
                reports.send("trouble", text=replay.summary.commit_error)
        released, stopped = replay.group.released, stop.asked and not replay.group.ended
    reports.send("done", released=released, stopped=stopped)


def partition_rule(shares: list[list[Sequence[Any]]], number: int) -> Callable[[str, int], bool]:
    """Whether a partition is ours: one of our share, or, of those that were added since, one that falls to us by its name.

    All workers go by the same rule and the same shares, so each of them falls to exactly one.
    """
    owners = {(topic, partition): n for n, share in enumerate(shares) for topic, partition in share}

    def rule(topic: str, partition: int) -> bool:
        by_name = zlib.crc32(f"{topic}.{partition}".encode()) % len(shares)
        return owners.get((topic, partition), by_name) == number

    return rule


class CountingHandler:
    """The user's handler, and how many records it has handled so far.

    The summary of the replay counts the same, but only when all records of a fetch are done: too late for a bar.
    """

    def __init__(self, handler: Callable[[Any], Any]) -> None:
        self._handler = handler
        self._waits = inspect.iscoroutinefunction(handler)
        self.records = 0

    async def handle(self, record: Any) -> None:
        """One record."""
        result = self._handler(record)
        if self._waits or inspect.isawaitable(result):
            await result
        self.records += 1

    async def handle_list(self, records: list[Any]) -> None:
        """Many."""
        result = self._handler(records)
        if inspect.isawaitable(result):
            await result
        self.records += len(records)


async def _send_counts(replay: Any, counting: CountingHandler, reports: ReportWriter) -> None:
    while True:
        reports.send("counts", last=False, **_counts(replay, counting))
        await asyncio.sleep(_COUNT_SECONDS)


async def _send_status(replay: Any, reports: ReportWriter) -> None:
    reached: dict[str, int] = {}
    while True:
        try:
            status = await replay.group.status()
            reached |= {p.partition: p.offset for p in status.partitions if p.offset is not None}
            starts = {str(partition): bounds.start for partition, bounds in replay.bounds.items()}
            done = sum(max(0, offset - starts.get(name, offset)) for name, offset in reached.items())
            reports.send("status", done=done, **_status(status))
        except SessionLostError:
            reports.send("status", state="away")
        except AiokccError:  # not to be read: the display stays as it is. If it matters, the replay itself says so
            pass
        await asyncio.sleep(_STATUS_SECONDS)


def _counts(replay: Any, counting: CountingHandler) -> dict[str, Any]:
    summary = replay.summary
    return {
        "records": counting.records,
        "late": summary.late,
        "outside": summary.outside,
        "poisoned": summary.poisoned,
        "retried": summary.retried,
        "dead_lettered": summary.dead_lettered,
        "skipped": summary.skipped,
        "periods": summary.periods,
        "limit": replay.group.limit,
        "partitions": len(replay.partitions),
        "busy": list(map(str, replay.busy)),
    }


def _status(status: aiokcc.Status) -> dict[str, Any]:
    # Of a member that has not reported yet nobody can tell which of its partitions is slow; after a second it says so itself.
    slow = {p.partition for p in status.partitions if p.state == "running" and p.timestamp is None}
    blocking = [(b.partition, b.member) for b in status.blocking if b.member is None or b.partition in slow]
    now = time.time() * 1000
    return {
        "state": status.state,
        "period": status.period,
        "closed": status.closed,
        "floor": status.floor,
        "waiting_seconds": status.waiting_seconds,
        "idle": all(p.state in {"idle", "finished"} for p in status.partitions),
        "clock": all(p.state in {"idle", "finished"} or (p.timestamp or 0) > now for p in status.partitions),
        "blocking": blocking[:_BLOCKING],
    }


def _send_failure(reports: ReportWriter, error: BaseException, functions: Sequence[str]) -> None:
    while isinstance(error, BaseExceptionGroup):
        error = next((e for e in error.exceptions if isinstance(e, AiokccError)), error.exceptions[0])
    if isinstance(error, AiokccError):
        raised = error.__cause__ if isinstance(error, HandlerError) else None
        where = "" if raised is None else describe_location(raised, *functions)
        reports.send("failed", text=mask_text(str(error)), where=where, refused=isinstance(error, UsageError))
    else:
        text = mask_text(f"unexpected: {type(error).__name__}: {error}")
        reports.send("failed", text=text, where=describe_location(error), refused=False)


if __name__ == "__main__":
    raise SystemExit(main())
