"""The local Kafka: starts, keeps what it was given, and ends with its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from aiokcc import local
from aiokcc.errors import LocalServiceError, UsageError
from aiokcc.local import _kafka
from aiokcc.local._process import free_ports
from tests import kafka_topics
from tests.kafka_topics import Row, read
from tests.processes import ended, supervisors_of

pytestmark = [pytest.mark.service, pytest.mark.timeout(180)]  # a broker takes seconds, on a busy machine many


def running(kafka: local.Kafka) -> int:
    assert kafka.pid is not None
    return kafka.pid


async def test_what_is_written_is_read(kafka: local.Kafka) -> None:
    topic = await kafka_topics.create_fresh(kafka.bootstrap, partitions=2)
    rows = [Row(number % 2, 1_000 + number, b"%d" % number) for number in range(1000)]
    await kafka_topics.write(kafka.bootstrap, topic, rows)
    assert await read(kafka.bootstrap, topic, partitions=2) == sorted(
        [(row.partition, row.timestamp, row.value) for row in rows], key=lambda row: row[0]
    )


@pytest.mark.parametrize("codec", kafka_topics.CODECS)
async def test_every_codec(kafka: local.Kafka, codec: str | None) -> None:
    topic = await kafka_topics.create_fresh(kafka.bootstrap)
    await kafka_topics.write(kafka.bootstrap, topic, [Row(0, 1, b"a" * 1000)], codec=codec)
    assert await read(kafka.bootstrap, topic) == [(0, 1, b"a" * 1000)]


async def test_odd_event_times_are_taken_and_kept(kafka: local.Kafka) -> None:
    topic = await kafka_topics.create_fresh(kafka.bootstrap)
    times = [0, 1, 946_684_800_000, 4_102_444_800_000, 2**62]
    for time in times:
        await kafka_topics.write(kafka.bootstrap, topic, [Row(0, time)])
    assert [time for _, time, _ in await read(kafka.bootstrap, topic)] == times


async def test_transactions_committed_aborted_and_open(kafka: local.Kafka) -> None:
    topic = await kafka_topics.create_fresh(kafka.bootstrap)
    await kafka_topics.write_transaction(kafka.bootstrap, topic, [Row(0, 1, b"committed")])
    await kafka_topics.write_transaction(kafka.bootstrap, topic, [Row(0, 2, b"aborted")], abort=True)
    async with kafka_topics.open_transaction(kafka.bootstrap, topic, [Row(0, 3, b"late")]):
        seen = await read(kafka.bootstrap, topic, isolation="read_committed")
        assert [value for *_, value in seen] == [b"committed"]
    seen = await read(kafka.bootstrap, topic, isolation="read_committed")
    assert [value for *_, value in seen] == [b"committed", b"late"]


async def test_topics_do_not_come_by_themselves(kafka: local.Kafka) -> None:
    async with kafka_topics.admin(kafka.bootstrap) as admin:
        (described,) = await admin.describe_topics([kafka_topics.fresh_name("nowhere")])
    assert described["error_code"] == 3


async def test_killed_and_started_again_it_has_its_port_and_its_data(private_kafka: local.Kafka) -> None:
    kafka = private_kafka
    pid, bootstrap = running(kafka), kafka.bootstrap
    topic = await kafka_topics.create_fresh(bootstrap)
    await kafka_topics.write(bootstrap, topic, [Row(0, 1, b"before")])
    await kafka.kill()
    assert ended(pid, 0)
    assert kafka.pid is None
    with pytest.raises(LocalServiceError, match="kafka is not running"):
        kafka.freeze()
    await kafka.kill()  # again: nothing happens
    await kafka.start()
    await kafka.start()  # again: nothing happens
    assert running(kafka) != pid
    assert kafka.bootstrap == bootstrap
    await kafka_topics.write(bootstrap, topic, [Row(0, 2, b"after")])
    assert await read(bootstrap, topic) == [(0, 1, b"before"), (0, 2, b"after")]


async def test_frozen_it_does_not_answer_and_thawed_it_does(private_kafka: local.Kafka) -> None:
    topic = await kafka_topics.create_fresh(private_kafka.bootstrap)
    private_kafka.freeze()
    writing = asyncio.create_task(kafka_topics.write(private_kafka.bootstrap, topic, [Row(0, 1, b"x")]))
    done, _ = await asyncio.wait([writing], timeout=0.5)  # time is what is tested: nothing comes meanwhile
    assert not done
    private_kafka.thaw()
    await writing
    assert await read(private_kafka.bootstrap, topic) == [(0, 1, b"x")]


async def test_it_ends_with_its_context_even_if_frozen_and_leaves_nothing() -> None:
    async with local.kafka() as kafka:
        pid, home = running(kafka), kafka.log.parent
        assert "Kafka Server started" in kafka.log.read_text()
        kafka.freeze()
    assert ended(pid, 0)
    assert not home.exists()


async def test_data_stay_in_a_directory_that_the_user_chose_and_ports_may_change(tmp_path: Path) -> None:
    async with local.kafka(data_dir=tmp_path) as kafka:
        topic = await kafka_topics.create_fresh(kafka.bootstrap)
        await kafka_topics.write(kafka.bootstrap, topic, [Row(0, 1, b"kept")])
    (port,) = free_ports(1)
    async with local.kafka(data_dir=tmp_path, port=port, settings={"num.partitions": 3}) as kafka:
        assert kafka.bootstrap == f"127.0.0.1:{port}"
        assert await read(kafka.bootstrap, topic) == [(0, 1, b"kept")]
        assert "num.partitions = 3" in kafka.log.read_text()


async def test_a_port_that_is_taken(kafka: local.Kafka) -> None:
    with pytest.raises(LocalServiceError, match="Address already in use"):
        async with local.kafka(port=kafka.port):
            pass


async def test_a_port_taken_meanwhile_is_replaced(kafka: local.Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    offers = [[kafka.port, *free_ports(1)]]
    monkeypatch.setattr(_kafka, "free_ports", lambda count: offers.pop() if offers else free_ports(count))
    async with local.kafka() as second:
        assert not offers
        topic = await kafka_topics.create_fresh(second.bootstrap)
        await kafka_topics.write(second.bootstrap, topic, [Row(0, 1)])
    assert second.bootstrap != kafka.bootstrap


async def test_a_broker_that_does_not_start_shows_its_log() -> None:
    with pytest.raises(LocalServiceError, match=r"(?s)ended with exit code 1.*Invalid value .?many"):
        async with local.kafka(settings={"num.partitions": "many"}):
            pass


@pytest.mark.parametrize("port", [0, 70_000])
async def test_nonsense_is_refused(port: int) -> None:
    with pytest.raises(UsageError, match="port must be"):
        async with local.kafka(port=port):
            pass


async def test_both_at_once() -> None:
    async with local.up() as services:
        pids = [running(services.kafka), services.zookeeper.server.pid]
        assert await services.zookeeper.command("ruok") == "imok"
        assert await kafka_topics.create_fresh(services.kafka.bootstrap)
    assert all(ended(pid, 0) for pid in pids if pid)


async def test_of_both_the_one_ends_if_the_other_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("AIOKCC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AIOKCC_MAVEN", f"http://127.0.0.1:{free_ports(1)[0]}/")
    with pytest.raises(LocalServiceError, match=r"kafka-\S+ is not in the cache .*Connection refused"):
        async with local.up():
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


# The command line


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (
            ["kafka"],
            ["Kafka is up: 1 broker on 127.0.0.1, data temporary", "export AIOKCC_BOOTSTRAP_SERVERS=127.0.0.1:"],
        ),
        (
            ["kafka", "--brokers", "2"],
            ["Kafka is up: 2 brokers on 127.0.0.1, data temporary", "export AIOKCC_BOOTSTRAP_SERVERS=127.0.0.1:"],
        ),
        (
            ["up"],
            ["ZooKeeper and Kafka are up", "export AIOKCC_STORE=zk://127.0.0.1:", "export AIOKCC_BOOTSTRAP_SERVERS="],
        ),
    ],
    ids=["kafka", "cluster", "up"],
)
def test_the_command_prints_addresses_that_work_and_ends_when_told(words: list[str], shown: list[str]) -> None:
    command = [sys.executable, "-m", "aiokcc", "local", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = ""
            while "Stop " not in said:
                line = process.stdout.readline()
                assert line, f"it ended early, after: {said}"
                said += line
            assert all(text in said for text in shown)
            bootstrap = said.partition("AIOKCC_BOOTSTRAP_SERVERS=")[2].split()[0]
            assert asyncio.run(kafka_topics.create_fresh(bootstrap))
            process.send_signal(signal.SIGTERM)
            assert "stopped." in process.stdout.read()
            assert process.wait(20) == 143
        finally:
            process.kill()


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "AIOKCC_CACHE": str(tmp_path),
        "AIOKCC_MAVEN": f"http://127.0.0.1:{free_ports(1)[0]}/",
    }
    command = [sys.executable, "-m", "aiokcc", "local", "kafka"]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert "Fetching kafka-4.2.0 once: 46 jars, 44 MB, into" in answer.stdout
    assert answer.stderr.startswith("aiokcc: kafka-4.2.0 is not in the cache")
    assert "Traceback" not in answer.stderr


# The end of the parent

PARENT = """
    import asyncio, signal
    from aiokcc import local

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits that it is ignored

    async def main():
        async with local.up() as services:
            servers = [services.kafka, services.zookeeper.server]
            print(*(server.pid for server in servers), *(server.log.parent for server in servers), flush=True)
            await asyncio.Event().wait()

    asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_services_end_with_their_parent(number: signal.Signals) -> None:
    command = [sys.executable, "-c", textwrap.dedent(PARENT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        try:
            assert parent.stdout is not None
            told = parent.stdout.readline().split()
            assert len(told) == 4, "the parent ended early"
            supervisors = supervisors_of(parent.pid)
            parent.send_signal(number)
            parent.wait(20)
            assert all(ended(int(pid)) for pid in told[:2])
            assert all(ended(pid) for pid in supervisors)
            assert not any(Path(home).exists() for home in told[2:])
        finally:
            parent.kill()
