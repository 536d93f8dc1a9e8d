"""``python -m examples.demo``: under a minute, on a real Kafka, ZooKeeper and Spark that it starts and ends itself."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiokcc
from aiokcc import local
from examples.demo.data import END, MINUTE, ORDERS, PARTITIONS, PERIOD, START, TOPICS, WORKERS, make_log
from examples.demo.join import KEEP, Outcome
from examples.demo.picture import draw, sketch
from examples.demo.spark import compute, table
from examples.stack import Event, create, show_progress, write

_REDRAW: Final = 0.1
_BAR: Final = 40

_INTRODUCTION: Final = f"""\
Two hours of {ORDERS:,} orders and their payments are written to two Kafka topics with six partitions, unevenly: the fullest
holds six times as many records as the emptiest. Three processes replay them, each partition as fast as its handler goes (about
a millisecond a record), and two joins look for the payment of each order. First with plain aiokafka, then with aiokcc.replay
in periods of {PERIOD // MINUTE} minutes. At the end Spark joins the same history.
"""


class Workers:
    """The three processes and the one pipe they all write to."""

    def __init__(self, processes: list[asyncio.subprocess.Process], lines: asyncio.StreamReader) -> None:
        self._processes, self._lines = processes, lines

    async def read(self) -> list[str]:
        """Return the next line, split into words."""
        line = await self._lines.readline()
        if not line:
            raise SystemExit("the workers have ended early; see their error above")
        return line.decode().split()

    async def ready(self) -> None:
        """Wait until all processes are ready."""
        for _ in self._processes:
            await self.read()

    def go(self, servers: str, store: str) -> None:
        """Start a round; without a store it runs without the gate."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{servers} {store}\n".encode())


@asynccontextmanager
async def start_workers() -> AsyncIterator[Workers]:
    """Start the processes; they end when their input does."""
    reading, writing = os.pipe()
    lines = asyncio.StreamReader()
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(reading, "rb", 0)
    )
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "examples.demo.worker", str(n), stdin=asyncio.subprocess.PIPE, stdout=writing
        )
        for n in range(len(WORKERS))
    ]
    os.close(writing)
    workers = Workers(processes, lines)
    try:
        yield workers
    finally:
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        pipe.close()
        for process in processes:
            try:
                await asyncio.wait_for(process.wait(), 5)
            except TimeoutError:
                process.kill()
                await process.wait()


class Progress:
    """Bars that are redrawn in place on a terminal; elsewhere one line a second."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._drawn = 0
        self._next = 0.0

    def show(self, outcome: Outcome, at: float, *, last: bool = False) -> None:
        """Draw the progress of all partitions, if the last time is long enough ago."""
        if at < self._next and not last:
            return
        self._next = at + (_REDRAW if self._terminal else 1.0)
        lines = self._lines(outcome, at)
        if not self._terminal:
            spots = [f"{topic}.{number} {_clock(outcome.reached[topic, number])}" for topic, number in PARTITIONS]
            lines = ["  ".join((lines[0], *spots))]
        elif self._drawn:
            print(f"\x1b[{self._drawn}A", end="")
        width = shutil.get_terminal_size((120, 24)).columns if self._terminal else 400
        for line in lines:
            print(line[:width] + ("\x1b[K" if self._terminal else ""), flush=True)
        self._drawn = len(lines)

    def _lines(self, outcome: Outcome, at: float) -> list[str]:
        lines = [f"{self._title:<26} {at:4.1f} s"]
        for topic, number in PARTITIONS:
            reached = outcome.reached[topic, number]
            full = round(_BAR * (reached - START) / (END - START))
            lines.append(f"  {topic + '.' + str(number):<11} {'█' * full}{'·' * (_BAR - full)} {_clock(reached)}")
        wrong = outcome.wrong(outcome.forgetful)
        lines.append(
            f"  patient join holds {outcome.patient.held:,} records; forgetful join has {wrong:,} orders wrong"
        )
        return lines


def _clock(ts: int) -> str:
    minutes = (ts - START) // MINUTE
    return f"{minutes // 60:02}:{minutes % 60:02}"


async def write_history(servers: str) -> None:
    """Write the log to Kafka."""
    log = make_log()
    for topic, number in TOPICS.items():
        await create(servers, topic, number, fresh=False)
        events = [
            Event(partition, record.ts, f"{record.order}", f"{record.order}")
            for partition in range(number)
            for record in log.records[topic, partition]
        ]
        await write(servers, topic, events)
        print(f"{len(events):,} {topic} written to Kafka, in {number} partitions", flush=True)
    print()


async def play(workers: Workers, servers: str, store: str, title: str) -> Outcome:
    """Run one round: read everything once, and join the records as they come."""
    outcome, progress = Outcome(make_log()), Progress(title)
    workers.go(servers, store)
    left = len(WORKERS)
    begun = None
    while left:
        words = await workers.read()
        begun = begun or time.monotonic()  # the first record
        at = time.monotonic() - begun
        match words:
            case [topic, number, "finished"]:
                outcome.finish((topic, int(number)), at)
            case [topic, number, ts, order]:
                outcome.take((topic, int(number)), int(ts), int(order), at)
            case ["done"]:
                left -= 1
        progress.show(outcome, at, last=not left)
    print()
    return outcome


def report(without: list[Outcome], gated: list[Outcome]) -> str:
    """Return the table. Every number in it was counted in the rounds above."""

    def row(label: str, *cells: str) -> str:
        return f"  {label:<58} {cells[0]:>18} {cells[1]:>18}"

    def both(label: str, cell: object) -> str:
        assert callable(cell)
        return row(label, *(" / ".join(cell(o) for o in rounds) for rounds in (without, gated)))

    same = ["yes" if len({o.digest() for o in rounds}) == 1 else "no" for rounds in (without, gated)]
    return "\n".join(
        [
            row("two rounds each", "without the gate", "with the gate"),
            row("-" * 58, "-" * 18, "-" * 18),
            both("event time between first and last partition, at most", lambda o: f"{o.spread / MINUTE:.0f} m"),
            both(
                f"wrong of {ORDERS:,}: join that forgets after {KEEP // MINUTE} m",
                lambda o: f"{o.wrong(o.forgetful):,}",
            ),
            both("wrong: join that waits for the slowest partition", lambda o: f"{o.wrong(o.patient):,}"),
            both("  the most records it had to hold for that", lambda o: f"{o.patient.most:,}"),
            both("result of the forgetful join", lambda o: o.digest()),
            row("  the same both times", *same),
            both("seconds from the first record to the last", lambda o: f"{o.seconds:.1f}"),
        ]
    )


async def demo(picture: Path) -> None:
    """Run the whole demo."""
    print(_INTRODUCTION)
    print("Starting ZooKeeper and Kafka …", flush=True)
    async with start_workers() as workers, local.up(progress=show_progress) as stack:
        servers, zookeeper = stack.kafka.bootstrap, stack.zookeeper
        await write_history(servers)
        await workers.ready()
        without = [await play(workers, servers, "", f"Without the gate, round {n}") for n in (1, 2)]
        gated = [await play(workers, servers, zookeeper.url(f"demo-{n}"), f"With the gate, round {n}") for n in (1, 2)]
        print(f"{report(without, gated)}\n")
        last = (without[-1], gated[-1])
        print(f"{sketch(last)}\n")
        drawn = draw(last, picture)
        print(f"The picture: {drawn}" if drawn else "(With matplotlib installed, this would be a picture too.)")
        print("\nAnd on Spark: the same history, each quarter of an hour a DataFrame.", flush=True)
        rows, summary = await compute(servers, zookeeper.url("demo-spark"))
    print(f"\n{table(rows, summary)}")


def main() -> int:
    """Run the demo and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument(
        "--picture", type=Path, default=Path("aiokcc-demo.png"), metavar="FILE", help="where the PNG goes"
    )
    options = parser.parse_args()
    try:
        asyncio.run(demo(options.picture.absolute()))
    except aiokcc.AiokccError as error:
        print(f"the demo cannot run: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
