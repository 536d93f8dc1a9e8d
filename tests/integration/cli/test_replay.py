"""``aiokcc replay`` as a user runs it: handlers in the current directory, a real Kafka and a real ZooKeeper."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import aiokcc
from aiokcc import local
from tests.integration.cli.commands import AIOKCC, Ended, Terminal, environment, on_terminal, run
from tests.integration.kafka.test_topic_discovery import add_partitions
from tests.kafka_topics import Row, create, create_fresh, fresh_name, write

START = 1_767_225_600_000  # 2026-01-01T00:00Z
MINUTE = 60_000
MINUTES = 10
EACH = 60
"""The number of records of a topic in a minute."""

HANDLERS = """
import asyncio, os, pathlib

def show(record):
    print(record.topic, record.partition, record.offset, record.timestamp)

def show_all(records):
    print(*{(r.topic, r.partition, r.timestamp // 60_000) for r in records}, len(records))

async def stop_in_minute_five(record):
    if record.timestamp >= 1767225600000 + 5 * 60_000 + 500:
        print("waiting", os.getpid())
        await asyncio.Event().wait()
    show(record)

going_on = None

async def wait_in_minute_eight(record):
    global going_on
    if record.timestamp >= 1767225600000 + 8 * 60_000:
        going_on = going_on or asyncio.ensure_future(asyncio.to_thread(pathlib.Path("go").read_text))
        await going_on
    show(record)

def fail(record):
    if record.timestamp >= 1767225600000 + 5 * 60_000:
        raise LookupError("no such customer")
    show(record)

def parse(record):
    import json
    json.loads("{")

async def fail_on_some(record):
    if record.offset % 100 == 0:
        raise LookupError("no such customer")

def bury(record, reason):
    pass
"""


@dataclass
class Place:
    """A directory with handlers.py in it, and topics to replay."""

    directory: Path
    topics: tuple[str, str]
    variables: dict[str, str]

    def words(self, handler: str, *more: str) -> list[str]:
        topics = [] if "--pattern" in more else [word for topic in self.topics for word in ("--topic", topic)]
        return ["replay", f"handlers:{handler}", *topics, "--period", "1m", *more]

    async def run(self, handler: str, *more: str, **variables: str) -> Ended:
        async with self.started(handler, *more, **variables) as process:
            out, err = await process.communicate()
        return Ended(process.returncode, out.decode(), err.decode())

    @asynccontextmanager
    async def started(self, handler: str, *more: str, **variables: str) -> AsyncIterator[asyncio.subprocess.Process]:
        process = await asyncio.create_subprocess_exec(
            AIOKCC,
            *self.words(handler, *more),
            cwd=self.directory,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(**{**self.variables, **variables}),
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.communicate()

    def on_terminal(self, handler: str, *more: str, **variables: str) -> AbstractAsyncContextManager[Terminal]:
        words, place = (
            self.words(handler, *more),
            {"PYTHONPATH": os.pathsep.join([str(self.directory), os.environ.get("PYTHONPATH", "")])},
        )
        return on_terminal(*words, **{**self.variables, **place, **variables})


@pytest.fixture
async def place(tmp_path: Path, kafka: local.Kafka, zk_root: str) -> Place:
    return await create_place(tmp_path, kafka, zk_root)


async def create_place(tmp_path: Path, kafka: local.Kafka, zk_root: str) -> Place:
    (tmp_path / "handlers.py").write_text(HANDLERS)
    orders = await create_fresh(kafka.bootstrap, "orders", partitions=2)
    payments = await create_fresh(kafka.bootstrap, "payments", partitions=1)
    for topic, partitions in (
        (orders, (0, 0, 0, 1)),
        (payments, (0,)),
    ):  # orders.0 holds three times what orders.1 does
        times = range(START, START + MINUTES * MINUTE, MINUTE // EACH)
        await write(kafka.bootstrap, topic, [Row(partitions[n % len(partitions)], ts) for n, ts in enumerate(times)])
    return Place(tmp_path, (orders, payments), {"AIOKCC_STORE": zk_root, "AIOKCC_BOOTSTRAP_SERVERS": kafka.bootstrap})


def handled(text: str) -> list[tuple[str, ...]]:
    """Return the records that the handler ``show`` has printed, in order."""
    return [tuple(line.split()) for line in text.splitlines() if re.fullmatch(r"\S+ \d+ \d+ \d+", line)]


def in_step(records: list[tuple[str, ...]]) -> bool:
    """Return whether no record came before one of an earlier period. The processes share the pipe, so its order is theirs."""
    minutes = [int(ts) // MINUTE for *_, ts in records]
    return minutes == sorted(minutes)


async def test_three_processes_in_step(place: Place) -> None:
    ended = await place.run("show", "--processes", "3")
    records = handled(ended.out)
    assert ended.code == 0
    assert len(records) == len(set(records)) == 2 * MINUTES * EACH
    assert len(ended.out.splitlines()) == len(records)  # messages of the command do not mix with the handler's output
    assert in_step(records)
    first, *_, last = ended.err.splitlines()
    orders, payments = place.topics
    assert first == (
        f"Replaying {orders} (2 partitions) and {payments} (1 partition) from earliest to now, "
        f"in periods of 1m, in 3 processes."
    )
    assert re.fullmatch(r"Done: 1,200 records in \d+ periods and \S+s( \([\d,]+ records/s\))?, by 3 processes\.", last)


async def test_the_result_counts_the_records_that_were_handled(place: Place) -> None:
    """Records that went to the dead-letter function are counted separately."""
    options = ("--on-error", "dead-letter", "--dead-letter", "handlers:bury")
    ended = await place.run("fail_on_some", *options, "--processes", "2")
    buried = 5 + 2 + 6  # every hundredth of 450, 150 and 600
    first, second = ended.err.splitlines()[-2:]
    assert first.startswith(f"Done: {1200 - buried:,} records in "), ended.err
    assert second == f"  {buried} went to the dead-letter function"
    one, two = place.topics
    where: dict[str, Any] = {
        "bootstrap_servers": place.variables["AIOKCC_BOOTSTRAP_SERVERS"],
        "store": "memory://the-same",
    }
    policy: dict[str, Any] = {"on_error": "dead-letter", "dead_letter": lambda record, reason: None}

    def fail_on_some(record: Any) -> None:
        if record.offset % 100 == 0:
            raise LookupError

    async with aiokcc.replay(one, two, period="1m", **where, **policy) as replay:
        summary = await replay.run(fail_on_some)
    assert (summary.records, summary.dead_lettered) == (1200 - buried, buried)


async def test_the_error_of_a_handler_names_its_line(place: Place) -> None:
    """The exception was raised in a library, whose line would not help the user."""
    ended = await place.run("parse")
    assert ended.code == 1
    assert "the handler raised JSONDecodeError" in ended.err
    line = HANDLERS.splitlines().index('    json.loads("{")') + 1
    assert f"\n  handlers.py, line {line}, in parse\n" in ended.err


async def test_several_processes_follow_partitions_that_are_added(place: Place, kafka: local.Kafka) -> None:
    """Each new partition is run by one of the processes, and the others go on."""
    orders, payments = place.topics
    expected = 2 * MINUTES * EACH
    async with place.started(
        "show", "--processes", "2", "--follow", "--consumer", "metadata_max_age_ms=200"
    ) as process:
        assert process.stdout is not None
        lines = [await process.stdout.readline() for _ in range(expected)]
        await add_partitions(kafka.bootstrap, orders, 5)
        later = START + MINUTES * MINUTE
        await write(kafka.bootstrap, orders, [Row(number, later) for number in range(2, 5)])
        lines += [await process.stdout.readline() for _ in range(3)]
        await write(kafka.bootstrap, payments, [Row(0, later + MINUTE)])
        lines.append(await process.stdout.readline())
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in err
    records = handled(b"".join([*lines, out]).decode())
    assert len(set(records)) == expected + 4
    assert records[-1] == (payments, "0", str(MINUTES * EACH), str(later + MINUTE)), (
        "which moved the limit with the new ones in the set"
    )


async def test_with_a_pattern_a_replay_follows_topics_that_are_added(place: Place, kafka: local.Kafka) -> None:
    stem = fresh_name("shop")
    await create(kafka.bootstrap, f"{stem}-a", f"{stem}-b", f"other-{stem}-a")
    for name in (f"{stem}-a", f"{stem}-b", f"other-{stem}-a"):
        await write(kafka.bootstrap, name, [Row(0, START + minute * MINUTE) for minute in range(MINUTES)])
    pattern = ("--pattern", f"{stem}-.*")
    bounded = await place.run("show", *pattern, "--processes", "2")
    assert bounded.code == 0, bounded.err
    assert {topic for topic, *_ in handled(bounded.out)} == {f"{stem}-a", f"{stem}-b"}, "the whole name must match"
    assert bounded.err.startswith(f"Replaying {stem}-a (1 partition) and {stem}-b (1 partition) from earliest to now")
    more = (*pattern, "--processes", "2", "--follow", "--consumer", "metadata_max_age_ms=200")
    async with place.started("show", *more, AIOKCC_STORE=f"{place.variables['AIOKCC_STORE']}-follow") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = (await process.stderr.readline()).decode()
        lines = [await process.stdout.readline() for _ in range(2 * MINUTES)]
        await create(kafka.bootstrap, f"{stem}-c", f"{stem}-d")
        for name in (f"{stem}-c", f"{stem}-d"):
            await write(kafka.bootstrap, name, [Row(0, START + MINUTES * MINUTE)])
        lines += [await process.stdout.readline() for _ in range(2)]
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
    assert process.returncode == 130
    assert f"and new topics that match '{stem}-.*', from earliest and then the present" in said
    assert b"Traceback" not in err
    records = handled(b"".join([*lines, out]).decode())
    assert len(records) == len(set(records)) == 2 * MINUTES + 2
    assert {topic for topic, *_ in records[-2:]} == {f"{stem}-c", f"{stem}-d"}


async def test_the_error_for_a_pattern_without_a_match_lists_the_topics(place: Place) -> None:
    ended = await place.run("show", "--pattern", "nothing-like-this.*")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("aiokcc: no topic of Kafka matches the pattern 'nothing-like-this.*'; it has ")
    assert place.topics[0] in ended.err


async def test_a_run_that_has_ended_stays_ended(place: Place, kafka: local.Kafka) -> None:
    from_to = ("--from", "2026-01-01T00:02Z", "--to", "2026-01-01T00:04Z")
    first = await place.run("show", *from_to)
    again = await place.run("show", *from_to)
    assert first.code == again.code == 0
    assert {int(ts) // MINUTE - START // MINUTE for *_, ts in handled(first.out)} == {2, 3}
    assert len(handled(first.out)) == 2 * 2 * EACH
    assert again.out == ""
    assert "has ended already; there is nothing left to do" in again.err
    assert "use another root" in again.err
    for more, difference in (
        (("--from", "2026-01-01T00:05Z"), "start is 2026-01-01T00:02:00Z there and 2026-01-01T00:05:00Z here"),
        ((*from_to, "--period", "2m"), "period is 1m there and 2m here"),
        ((*from_to, "--topic", await create_fresh(kafka.bootstrap, "refunds")), "partitions is "),
    ):
        other = await place.run("show", *more)
        assert (other.code, other.out) == (1, ""), more
        assert "has ended, and ran with other settings" in other.err
        assert difference in other.err


async def test_a_run_on_hold_says_so_and_how_to_end_the_hold(place: Place, zk_root: str) -> None:
    async with place.started("stop_in_minute_five") as process:
        assert process.stdout is not None
        while not (await process.stdout.readline()).startswith(b"waiting"):
            pass
        assert (await run("hold", zk_root)).code == 0
    os.mkfifo(place.directory / "go")
    async with place.started("wait_in_minute_eight") as process:
        assert process.stderr is not None
        announced = [(await process.stderr.readline()).decode().strip() for _ in range(4)]
        first, _, held, command = announced
        assert first.endswith("from earliest to now."), "no period is promised"
        assert held == "The run is on hold: the limit does not move until a period is set, as by:"
        assert command == "aiokcc period 1m"
        assert (await run("period", "2m", zk_root)).code == 0
        told = b"The period is 2m now; the hold is over.\n"
        while (line := await process.stderr.readline()) not in (told, b""):
            pass
        assert line == told
        await asyncio.to_thread((place.directory / "go").write_text, "on")
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert handled(out.decode())


async def test_batches_in_one_process_without_zookeeper(place: Place) -> None:
    ended = await place.run("show_all", "--batches", "--store", "memory://once")
    lists = ended.out.splitlines()
    assert ended.code == 0
    assert sum(int(line.rpartition(" ")[2]) for line in lists) == 2 * MINUTES * EACH
    assert all(line.count("(") == 1 for line in lists)  # of one partition and one minute each


async def test_a_handler_that_raises_stops_all_workers_and_is_reported_once(place: Place) -> None:
    ended = await place.run("fail", "--processes", "3")
    assert ended.code == 1
    assert ended.err.count("the handler raised LookupError('no such customer')") == 1
    assert re.search(r"^aiokcc: (orders|payments)-\w+\.\d at offset \d+: the handler raised", ended.err, re.MULTILINE)
    assert re.search(r"^  handlers\.py, line \d+, in fail$", ended.err, re.MULTILINE)
    assert "resumes at 2026-01-01T00:05:00Z" in ended.err
    assert "Traceback" not in ended.err
    verbose = await place.run("fail", "--verbose")
    assert "Traceback" in verbose.err


async def test_a_worker_that_is_killed_stops_all(place: Place) -> None:
    async with place.started("stop_in_minute_five", "--processes", "3") as process:
        assert process.stdout is not None
        while not (line := (await process.stdout.readline()).decode()).startswith("waiting"):
            pass
        os.kill(int(line.split()[1]), signal.SIGKILL)
        _, err = await process.communicate()
    assert process.returncode == 1
    assert re.search(r"^aiokcc: worker-\d was killed by SIGKILL", err.decode(), re.MULTILINE)


async def test_workers_do_not_outlive_the_command(place: Place) -> None:
    async with place.started("stop_in_minute_five", "--processes", "3") as process:
        assert process.stdout is not None
        while not (await process.stdout.readline()).startswith(b"waiting"):
            pass
        process.kill()
        await process.stdout.read()  # ends when the last worker, which holds the pipe too, is gone


async def test_a_terminal_shows_the_share_and_the_slowest_partition(place: Place) -> None:
    async with place.on_terminal("stop_in_minute_five", "--processes", "2") as terminal:
        await terminal.shows("waiting")
        await terminal.shows("50%")
        await terminal.shows("waits for ")
        await terminal.shows("2026-01-01T00:06:00Z")
        assert "\x1b[2K" in terminal.screen  # redrawn in place
        terminal.process.send_signal(signal.SIGINT)
        await terminal.shows("a second Ctrl-C stops at once")
        terminal.process.send_signal(signal.SIGINT)
        await terminal.shows("The same command resumes at 2026-01-01T00:05:00Z")
        assert await terminal.process.wait() == 130


async def test_what_is_impossible_is_an_error_before_a_worker_starts(place: Place) -> None:
    many = await place.run("show", "--processes", "4")
    alone = await place.run("show", "--processes", "2", "--store", "memory://once")
    unknown = await place.run("show", "--topic", "nope")
    nowhere = await place.run("show", AIOKCC_BOOTSTRAP_SERVERS="127.0.0.1:1")
    typo = await place.run("shw")
    assert (many.code, many.err) == (1, "aiokcc: --processes 4: there are only 3 partitions to share\n")
    assert alone.code == 2
    assert "memory://once exists only inside one process, but --processes is 2" in alone.err
    assert unknown.code == 1
    assert unknown.err.startswith("aiokcc: Kafka has no topic 'nope'; it has ")
    assert nowhere.code == 1
    assert nowhere.err.startswith("aiokcc: could not connect to Kafka at 127.0.0.1:1")
    assert "aiokcc local kafka" in nowhere.err
    assert (typo.code, typo.err) == (2, "aiokcc: handlers has no 'shw'; did you mean 'show'?\n")
    for ended in (many, alone, unknown, nowhere, typo):
        assert ended.out == ""
        assert "Traceback" not in ended.err


async def test_a_command_with_other_settings_is_told_both_settings(place: Place) -> None:
    async with place.started("stop_in_minute_five") as process:
        assert process.stdout is not None
        await process.stdout.readline()
        other = await place.run("show", "--lookahead", "2")
    assert other.code == 1
    assert other.err.count("lookahead is 0 there and 2 here") == 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--processes", "2", "memory://x"], "memory://x exists only inside one process, but --processes is 2"),
        (["zk://h/x", "--bootstrap-servers", "PLAINTEXT://h:9092"], "expected HOST:PORT, without a scheme"),
        (["zk://h/x", "--from", "committed"], "needs group_id"),
        (["zk://h/x", "--from", "2026-01-02T00:00Z", "--to", "2026-01-01T00:00Z"], "does not lie after start"),
        (["zk://h/x", "--late", "dead-letter"], "dead_letter"),
        (["zk://h/x", "--consumer", "enable_auto_commit=true"], "enable_auto_commit cannot be passed through"),
        (["zk://h/x", "--timestamp", "handlers:nope"], "handlers has no 'nope'"),
        (["zk://h/x", "--pattern", ""], "the pattern is empty"),
        (["zk://h/x", "--pattern", "orders-("], "pattern 'orders-(' is not a regular expression"),
    ],
)
async def test_invalid_arguments_are_refused_before_anything_is_connected(
    tmp_path: Path, more: list[str], message: str
) -> None:
    (tmp_path / "handlers.py").write_text(HANDLERS)
    place = Place(tmp_path, ("orders", "payments"), {"AIOKCC_BOOTSTRAP_SERVERS": "h:9092"})
    ended = await place.run("show", *more)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert "Traceback" not in ended.err
