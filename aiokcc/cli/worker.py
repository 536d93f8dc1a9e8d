"""A worker process of ``aiokcc replay``, started by :mod:`aiokcc.cli.worker_pool`.

It reads its spec as one line of JSON from standard input. A second line, or SIGTERM, requests a graceful stop: running handlers
end, offsets are committed, partitions are released. When standard input is closed, by the command or by its death, the worker
stops at once. It writes its reports, one line of JSON each, to the file descriptor given as its argument.
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
from aiokcc.cli.logs import is_json, set_up_logs
from aiokcc.cli.loops import run_on
from aiokcc.cli.replay_options import FUNCTIONS
from aiokcc.credentials import hide_secrets
from aiokcc.errors import AiokccError, HandlerError, SessionLostError, UsageError
from aiokcc.exception_groups import main_error
from aiokcc.runtime.member_health import MemberState
from aiokcc.runtime.metrics import collect
from aiokcc.runtime.progress_log import PROGRESS
from aiokcc.runtime.status import PartitionCondition

__all__ = ["main"]

log = logging.getLogger("aiokcc.cli")

_COUNT_SECONDS: Final = 0.2
"""The interval of the counts: a bar for people, which each record must not redraw."""
_STATUS_SECONDS: Final = 0.8
"""The interval of the status, which costs several reads from the store."""
_PROBE_SECONDS: Final = 1.0
"""The interval of metrics and health, which tell what changes all the time. A report is also the sign that the worker lives."""
_HEALTH_SECONDS: Final = 5.0
"""The interval at which the health is read from the store while all is well."""
_BLOCKING: Final = 3
_GRACE_SECONDS: Final = 7.0


class ReportWriter:
    """Writes reports to the command."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "w", buffering=1)

    def send(self, kind: str, **facts: Any) -> None:
        """Write one report. A closed pipe is ignored: the command is gone, so standard input is closed as well."""
        with contextlib.suppress(BrokenPipeError):
            self._file.write(json.dumps({"kind": kind, **facts}) + "\n")


def main() -> int:
    """Run the replay of the spec. The exit code adds nothing to the reports."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command handles it, and stops its workers
    reports = ReportWriter(int(sys.argv[1]))
    line, more = _first_line(0)
    if not line:  # the command ended before it wrote a spec
        return 0
    spec = json.loads(line)
    control = os.dup(0)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a descriptor is wanted
        os.dup2(nothing.fileno(), 0)  # a handler that reads stdin must not read the control messages
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # Several processes share the stream: write whole lines only, also under PYTHONUNBUFFERED.
            stream.reconfigure(line_buffering=True, write_through=False)
    set_up_logs(spec["logs"], member=spec["arguments"]["member"])
    logging.getLogger("aiokcc.runtime").addFilter(_is_not_progress)  # the command logs it, for all workers
    try:
        run_on(spec["loop"], _run_until_stopped(control, more, spec, reports))
    except asyncio.CancelledError:
        return 0
    except Exception as error:
        if is_json():
            log.debug("the replay has failed", exc_info=True)
        elif spec["verbose"]:
            print(hide_secrets(traceback.format_exc()), end="", file=sys.stderr)
        _send_failure(reports, error, [spec[name] for name in ("handler", *(f for f, _, _ in FUNCTIONS)) if spec[name]])
        return 1
    return 0


def _is_not_progress(record: logging.LogRecord) -> bool:
    return record.msg != PROGRESS


def _first_line(descriptor: int) -> tuple[bytes, bytes]:
    """Return the first line, and what was read after it. Reads without a buffer, so that no control message is lost in one."""
    data = b""
    while b"\n" not in data and (more := os.read(descriptor, 1 << 16)):
        data += more
    line, _, rest = data.partition(b"\n")
    return line, rest


class StopRequest:
    """Stops the replay gracefully when asked; if it has not begun yet, cancels the task."""

    def __init__(self) -> None:
        self._replay: Any = None
        self._task = asyncio.current_task()
        self.asked = False

    @property
    def early(self) -> bool:
        """True if the stop was requested before the replay began."""
        return self.asked and self._replay is None

    def ask(self) -> None:
        """Request the stop. Repeated requests have no effect."""
        if self.asked:
            return
        self.asked = True
        if self._replay is not None:
            self._replay.stop()
        else:
            assert self._task is not None
            self._task.cancel()

    def begin(self, replay: Any) -> None:
        """Set the replay to stop; stops it if that was requested already."""
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
    # systemd sends SIGTERM to all processes of a service; it means the same as a request from the command.
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
        reports.send("done", released=False, stopped=True)  # the replay had not begun


def _skip_aiokafka_tasks(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignore errors of tasks that aiokafka does not await when a broker goes away; the replay reports what matters."""
    coroutine = getattr(context.get("future"), "get_coro", lambda: None)()
    code = getattr(coroutine, "cr_code", None)
    if code is None or "aiokafka" not in Path(code.co_filename).parts:
        loop.default_exception_handler(context)


def _read_control(
    control: int, loop: asyncio.AbstractEventLoop, ask: Callable[[], object], cancel: Callable[[], object]
) -> None:
    """Read the control messages after the spec. Runs in a thread, because a handler may block the event loop."""
    while os.read(control, 1024):
        with contextlib.suppress(RuntimeError):  # the loop is closed: the replay is over
            loop.call_soon_threadsafe(ask)
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(cancel)
    threading.Event().wait(_GRACE_SECONDS)  # still running: the command is gone, or it would have killed us
    os._exit(1)


async def _run_replay(spec: dict[str, Any], reports: ReportWriter, stop: StopRequest) -> None:
    arguments = dict(spec["arguments"])
    handler = load_function(spec["handler"], "a record")
    for name, gets, number in FUNCTIONS:
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
                if spec["probes"]:
                    tasks.start_soon(_send_probe, replay, reports)
                await (replay.run_batches(counting.handle_list) if spec["batches"] else replay.run(counting.handle))
                tasks.cancel_scope.cancel()
        finally:
            reports.send("counts", last=True, **{**_counts(replay, counting), "records": replay.summary.records})
            if replay.summary.commit_error is not None:  # the next start repeats these records
                reports.send("trouble", text=replay.summary.commit_error)
        released, stopped = replay.group.released, stop.asked and not replay.group.ended
        if stopped and arguments.get("share_host"):
            reports.send("leaving")
    reports.send("done", released=released, stopped=stopped)


def partition_rule(shares: list[list[Sequence[Any]]], number: int) -> Callable[[str, int], bool]:
    """Return a function that says whether a partition belongs to this worker.

    Partitions that were added after the start are assigned by a hash of their name. All workers use the same rule and the same
    shares, so each partition belongs to exactly one of them.
    """
    owners = {(topic, partition): n for n, share in enumerate(shares) for topic, partition in share}

    def rule(topic: str, partition: int) -> bool:
        by_name = zlib.crc32(f"{topic}.{partition}".encode()) % len(shares)
        return owners.get((topic, partition), by_name) == number

    return rule


class CountingHandler:
    """Calls the user's handler and counts the records.

    The replay's summary counts only after all records of a fetch, which is too late for a bar.
    """

    def __init__(self, handler: Callable[[Any], Any]) -> None:
        self._handler = handler
        self._waits = inspect.iscoroutinefunction(handler)
        self.records = 0

    async def handle(self, record: Any) -> Any:
        """Handle one record. The replay checks what the handler returns."""
        result = self._handler(record)
        if self._waits or inspect.isawaitable(result):
            result = await result
        self.records += 1
        return result

    async def handle_list(self, records: list[Any]) -> Any:
        """Handle a list of records."""
        result = self._handler(records)
        if inspect.isawaitable(result):
            result = await result
        self.records += len(records)
        return result


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
            reports.send("status", state=MemberState.AWAY)
        except (
            AiokccError
        ):  # the status cannot be read: the bar keeps the last one. If it matters, the replay fails itself
            pass
        await asyncio.sleep(_STATUS_SECONDS)


async def _send_probe(replay: Any, reports: ReportWriter) -> None:
    """Report the metrics of this process every second, and its health, for the server in the command.

    The health costs as many reads from the store as a status. So while all is well it is read every five seconds.
    """
    health, due = None, 0.0
    while True:
        if health is None or not health.ready or time.monotonic() >= due:
            health, due = await replay.health(), time.monotonic() + _HEALTH_SECONDS
        values = [(each.name, each.value, dict(each.attributes)) for each in collect()]
        reports.send("probe", health=health.as_dict(), metrics=values)
        await asyncio.sleep(_PROBE_SECONDS)


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
        "waited": summary.waited,
        "round_trips": summary.round_trips,
        "limit": replay.group.limit,
        "partitions": len(replay.partitions),
        "busy": list(map(str, replay.busy)),
    }


def _status(status: aiokcc.Status) -> dict[str, Any]:
    # A member reports its slow partitions after a second; before that it is not known which of them are slow.
    slow = {p.partition for p in status.partitions if p.state is PartitionCondition.RUNNING and p.timestamp is None}
    blocking = [
        (b.partition, b.process or b.member) for b in status.blocking if b.member is None or b.partition in slow
    ]
    now = time.time() * 1000
    return {
        "state": status.state,
        "period": status.period,
        "closed": status.closed,
        "floor": status.floor,
        "waiting_seconds": status.waiting_seconds,
        "idle": all(p.at_end for p in status.partitions),
        "clock": all(p.at_end or (p.timestamp or 0) > now for p in status.partitions),
        "blocking": blocking[:_BLOCKING],
    }


def _send_failure(reports: ReportWriter, error: BaseException, functions: Sequence[str]) -> None:
    error = main_error(error, lambda each: isinstance(each, AiokccError))
    if isinstance(error, AiokccError):
        raised = error.__cause__ if isinstance(error, HandlerError) else None
        where = "" if raised is None else describe_location(raised, *functions)
        reports.send("failed", text=hide_secrets(str(error)), where=where, refused=isinstance(error, UsageError))
    else:
        text = hide_secrets(f"unexpected error: {type(error).__name__}: {error}")
        reports.send("failed", text=text, where=describe_location(error), refused=False)


if __name__ == "__main__":
    raise SystemExit(main())
