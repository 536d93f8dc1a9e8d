"""Measures what open pages of the dashboard cost: requests to the store, and CPU time of the dashboard's server.

A group moves its limit some times a second. ``aiokcc dashboard`` runs as a process of its own, and 0, 1 and then many clients
read its stream of events as browsers do. ZooKeeper counts the packets that it receives on the connection of the dashboard; the
pages must not add to them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import aiokcc
from benchmarks.harness import Figures, Goal, Outcome, Result, note, summary
from benchmarks.server import Server, server

SUMMARY: Final = "requests to the store and CPU time of the dashboard with 0, 1 and 50 open pages"
EXAMPLES: Final = ("python -m benchmarks dashboard", "python -m benchmarks dashboard --pages 200 --partitions 1000")
REMARKS: Final = (
    "requests/s: packets that ZooKeeper receives from the dashboard's session, pings included.",
    "% of a core: CPU time of the server's process. kB/s: what all pages receive together. Samples of a second.",
    "With 0 pages the server follows the group all the same, for those that are opened later.",
)
UNITS: Final = ("requests/s", "% of a core", "kB/s")
_PERIODS_PER_SECOND: Final = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that only this benchmark has."""
    parser.add_argument("--url", help="the ensemble, zk://host:port; by default a server is started")
    parser.add_argument("--pages", type=int, default=50, metavar="N", help="how many pages are many (default 50)")
    parser.add_argument("--partitions", type=int, default=12, metavar="N", help="partitions of the group (default 12)")
    parser.add_argument("--seconds", type=int, metavar="S", help="how long each is measured (default 20; quick: 2)")


async def run(options: argparse.Namespace) -> Outcome:
    """Measure with no page, with one, and with many."""
    seconds = options.seconds or (2 if options.quick else 20)
    none: dict[str, Figures] | None = None
    results: list[Result] = []
    async with server(options.url, warm=False) as store:
        url = store.url("dashboard")
        async with moving(url, options.partitions), dashboard(url) as (address, pid):
            for pages in (0, 1, options.pages):
                note(f"{pages} pages, {seconds} s")
                figures = await measure(store, address, pid, pages, seconds)
                case = {"pages": pages, "partitions": options.partitions, "seconds": seconds}
                label = f"{pages} pages, {options.partitions} partitions"
                none = figures if none is None else none
                results += [
                    Result(
                        label, case, unit, figures[unit], {"no-page": none[unit]} if pages and none[unit]["p50"] else {}
                    )
                    for unit in UNITS
                ]
    goals = [Goal(f"{r.label}: {r.unit}, ours / no-page", r.ratios["no-page"], 1.1) for r in results[-3:-2]]
    return Outcome("dashboard", "Open pages of the dashboard", results, goals, REMARKS)


@contextlib.asynccontextmanager
async def moving(url: str, partitions: int) -> AsyncIterator[None]:
    """Run a group whose limit moves while the block runs."""
    async with aiokcc.connect(url, topics={"orders": partitions}, start=0, period="1m", member="one") as group:

        async def run_one(number: int) -> None:
            async with group.gate("orders", number) as gate:
                step = 0
                while True:
                    await gate.wait_until(step * 60_000, step)
                    step += 1
                    if number == 0:
                        await asyncio.sleep(1 / _PERIODS_PER_SECOND)

        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(run_one(number)) for number in range(partitions)]
            yield
            for task in running:
                task.cancel()


@contextlib.asynccontextmanager
async def dashboard(url: str) -> AsyncIterator[tuple[str, int]]:
    """Run ``aiokcc dashboard`` while the block runs; give its address and its process."""
    words = (sys.executable, "-m", "aiokcc", "dashboard", url, "--listen", "127.0.0.1:0")
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        while line := (await process.stdout.readline()).decode():
            if found := re.match(r"http://(\S+)", line):
                yield found[1], process.pid
                return
        raise RuntimeError("the dashboard did not start")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def measure(store: Server, address: str, pid: int, pages: int, seconds: int) -> dict[str, Figures]:
    """Open so many pages, and measure for some seconds."""
    host, _, port = address.rpartition(":")
    read = 0

    async def page(ready: asyncio.Event) -> None:
        nonlocal read
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(f"GET /events HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\n\r\n".encode())
            while data := await reader.read(65536):
                read += len(data)
                ready.set()
        finally:
            writer.close()

    async with asyncio.TaskGroup() as tasks:
        ready = [asyncio.Event() for _ in range(pages)]
        opened = [tasks.create_task(page(event)) for event in ready]
        for event in ready:
            await event.wait()
        await asyncio.sleep(1.0)  # what a page gets first is over
        samples: dict[str, list[float]] = {unit: [] for unit in UNITS}
        before = (time.monotonic(), await received(store, pid), cpu_seconds(pid), read)
        for _ in range(seconds):
            await asyncio.sleep(1.0)
            after = (time.monotonic(), await received(store, pid), cpu_seconds(pid), read)
            taken, requests, cpu, size = (a - b for a, b in zip(after, before, strict=True))
            before = after
            for unit, value in zip(UNITS, (requests, 100 * cpu, size / 1000), strict=True):
                samples[unit].append(value / taken)
        for task in opened:
            task.cancel()
    return {unit: summary(values) for unit, values in samples.items()}


async def received(store: Server, pid: int) -> int:
    """Return the number of packets that ZooKeeper has received on the connections of a process."""
    mine = _ports(pid)
    total = 0
    for address in store.hosts.split(","):
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"cons")
        for line in (await reader.read()).decode().splitlines():
            found = re.search(r"/[\d.:\[\]a-f]+:(\d+)\[.*recved=(\d+)", line)
            if found and int(found[1]) in mine:
                total += int(found[2])
        writer.close()
    return total


def _ports(pid: int) -> set[int]:
    """Return the local ports of the connections of a process."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if found := re.match(r"socket:\[(\d+)\]", str(link.readlink())):
                inodes.add(found[1])
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
