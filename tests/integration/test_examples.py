"""The examples, run as the README says, each in processes of its own; what they print must be true."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

import aiokcc.spark
from aiokcc import local

ROOT = Path(__file__).parents[2]


async def python(*words: str, stdout: int = asyncio.subprocess.PIPE) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, *words, cwd=ROOT, stdout=stdout, stderr=-1)


async def output_of(*words: str) -> str:
    process = await python(*words)
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert "Traceback" not in err.decode()
    return out.decode()


def handled(text: str, form: str) -> list[tuple[int, int]]:
    """The seconds of each record, and of the limit under which it was handled, in the order of handling."""
    found = re.findall(form, text, re.MULTILINE)
    return [(int(m) * 60 + int(s), int(lm) * 60 + int(ls)) for m, s, lm, ls in found]


def aligned(records: list[tuple[int, int]], period: int) -> bool:
    """Returns True if nobody was ahead: no record of a period before the last one of the period before."""
    periods = [ts // period for ts, _ in records]
    return all(ts < limit for ts, limit in records) and periods == sorted(periods)


PLAIN = r"^  (\d\d):(\d\d)  \S+ +\(the limit is (\d\d):(\d\d)\)$"


async def test_plain_asyncio_in_one_process() -> None:
    text = await output_of("-m", "examples.plain_asyncio")
    records = handled(text, PLAIN)
    assert len(records) == 44
    assert aligned(records, 120)
    assert text.endswith("done: every partition was read to its end\n")


async def test_plain_asyncio_in_two_processes(zk_root: str) -> None:
    texts = await asyncio.gather(
        output_of("-m", "examples.plain_asyncio", zk_root, "orders.0", "orders.1"),
        output_of("-m", "examples.plain_asyncio", zk_root, "payments.0"),
    )
    each = [handled(text, PLAIN) for text in texts]
    assert [len(records) for records in each] == [30, 14]
    assert all(aligned(records, 120) for records in each)


async def test_plain_asyncio_says_what_is_wrong() -> None:
    process = await python("-m", "examples.plain_asyncio", "redis://h/x")
    _, err = await process.communicate()
    assert process.returncode == 1
    assert err.decode().startswith("there is no store for 'redis://'")


async def test_plain_asyncio_says_what_is_wrong_in_one_of_its_tasks() -> None:
    process = await python("-m", "examples.plain_asyncio", "memory://plain", "orders.9")
    _, err = await process.communicate()
    assert process.returncode == 1
    assert err.decode() == "partition 9 of 'orders' is not in the agreed set; orders has the partitions 0 to 1\n"


async def test_own_consumer_in_three_processes(zookeeper: local.ZooKeeper) -> None:
    text = await output_of("-m", "examples.own_consumer")
    records = handled(text, r"^(\d\d):(\d\d)  \w+ +offset \d+ +limit (\d\d):(\d\d)$")
    assert len(records) == 63
    assert aligned(records, 60)  # the three write to one pipe: the order of the lines is the order of the handling
    assert "The run has ended" in text
    assert text.count("finished") >= 3


@pytest.fixture
def servers(kafka: local.Kafka, zk_root: str) -> tuple[str, str]:
    """Returns the addresses for the examples on Kafka, so that they need not start their own services."""
    return kafka.bootstrap, zk_root


async def test_a_windowed_join(servers: tuple[str, str]) -> None:
    text = await output_of("-m", "examples.windowed_join", *servers)
    assert re.findall(r"^up to (\d\d:\d\d):", text, re.MULTILINE) == [
        f"{8 + n // 2:02}:{n % 2 * 30:02}" for n in range(1, 9)
    ]
    paid, unpaid, right_paid, right_unpaid, most = map(int, re.findall(r"\d+", text.splitlines()[-1]))
    assert (paid, unpaid) == (right_paid, right_unpaid)
    assert most < 300 < paid


async def test_a_month_again(servers: tuple[str, str]) -> None:
    lines = (await output_of("-m", "examples.month_again", *servers)).splitlines()
    assert [line[4:10] for line in lines[:-1]] == [f"{day:02} Jan" for day in range(1, 32)]
    assert lines[-1].startswith("20,000 records, 31 days, all of them right")


async def test_replay_then_follow(servers: tuple[str, str]) -> None:
    text = await output_of("-m", "examples.then_follow", *servers)
    first, *new, last = text.splitlines()
    assert first == "the last hour, 2,000 records, is done"
    assert len(new) == 20
    assert last.startswith("2,000 of the last hour and 20 new ones were handled")


async def test_after_a_kill(servers: tuple[str, str]) -> None:
    text = await output_of("-m", "examples.after_a_kill", *servers)
    killed, ended, verdict = text.splitlines()
    assert 3000 <= int(killed.split()[2].replace(",", "")) < 6000
    assert ended.endswith("and ended")
    lost, twice, periods = map(int, re.findall(r"\d+", verdict))
    assert lost == 0
    assert twice <= 60  # what a period holds
    assert periods <= 1


async def test_an_example_starts_its_own_services(kafka: local.Kafka) -> None:  # which has brought the jars
    text = await output_of("-m", "examples.month_again")
    assert text.startswith("Starting ZooKeeper and Kafka …\n")
    assert "all of them right" in text


async def test_an_example_that_finds_no_kafka(zk_root: str) -> None:
    process = await python("-m", "examples.month_again", "127.0.0.1:1", zk_root)
    _, err = await process.communicate()
    assert process.returncode == 1
    assert err.decode().startswith("KafkaConnectionError: Unable to bootstrap from")


@pytest.mark.timeout(600)
async def test_a_first_pipeline_on_spark(servers: tuple[str, str]) -> None:
    text = await output_of("-m", "examples.first_pipeline", *servers)
    assert re.search(r"^48 hours, 11,520 records, in \d+ Spark jobs?$", text, re.MULTILINE)
    assert "|2026-03-02 00:00:00|" in text
    assert text.count("|             5760|") == 2
    assert text.endswith("0 hours, 0 Spark jobs\n")  # run again, it has nothing to do


@pytest.mark.timeout(600)
async def test_orders_in_avro_with_a_registry_and_headers(servers: tuple[str, str]) -> None:
    text = await output_of("-m", "examples.avro_orders", *servers)
    assert "48 hours, 480 orders in Avro\n" in text
    assert "|  web|  none|" in text
    assert text.endswith("The same as by hand.\n")


@pytest.mark.timeout(600)
async def test_balances_are_carried_from_period_to_period(servers: tuple[str, str]) -> None:
    text = await output_of("-m", "examples.balances", *servers)
    assert "day 1: 4 periods, 144 bookings\n" in text
    assert "day 2: 4 periods, 144 bookings\n" in text
    found = re.search(
        r"all accounts: (-?\d+) cents after the first day, (-?\d+) after the second, (-?\d+) by hand", text
    )
    assert found
    assert found[1] != found[2] == found[3]


@pytest.mark.timeout(600)
async def test_a_nightly_pipeline_is_started_twice() -> None:
    text = await output_of("-m", "examples.nightly")
    assert "first start, over two days of orders: published 48 hours with 960 records\n" in text
    assert "second start, over two days of orders: nothing to do\nThe table has 48 files" in text
    assert text.count("|2026-03-03 23:00:00|") == text.count("|2026-03-03 22:00:00|") == 2


@pytest.mark.long  # five sessions of Spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("sink", ["parquet", "delta"])
async def test_three_days_with_kills_a_restatement_and_a_new_column(servers: tuple[str, str], sink: str) -> None:
    text = await output_of("-m", "examples.three_days", *servers, sink)
    found = re.findall(r"^(\S.*): (\d+) periods, [\d,]+ cents, as by hand$", text, re.MULTILINE)
    seen = {what: int(periods) for what, periods in found}
    whole = {
        "day 1": 6,
        "day 2": 12,
        "day 2 restated, killed": 12,
        "day 2 restated": 12,
        "day 3": 18,
        "started again": 18,
    }
    killed = {"day 1, killed", "day 2, killed", "day 3, killed"}
    assert (len(found), seen.keys() - killed) == (9, whole.keys())
    assert {what: seen[what] for what in whole} == whole
    assert all(whole[what[:5]] - 6 < seen[what] < whole[what[:5]] for what in killed), "each died with a part published"
    assert text.endswith("Every reader saw the right table after every step.\n")


@pytest.mark.timeout(600)
async def test_orders_and_payments_on_spark(servers: tuple[str, str], tmp_path: Path) -> None:
    out = tmp_path / "revenue"
    text = await output_of("-m", "examples.orders_and_payments", *servers, "--master", "local[2]", "--out", str(out))
    hours = re.findall(r"^02 (\d\d):00( +[\d,.]+){6}$", text, re.MULTILINE)
    assert [hour for hour, _ in hours] == [f"{n:02}" for n in range(24)]
    assert text.endswith("All figures are right.\n")
    assert len(aiokcc.spark.files(out)) == 24
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.timeout(600)
async def test_the_demo(tmp_path: Path, kafka: local.Kafka) -> None:
    picture = tmp_path / "demo.png"
    text = await output_of("-m", "examples.demo", "--picture", str(picture))
    rows = {m[1].strip(): (m[2], m[3]) for m in re.finditer(r"^  (.{58}) +(\S.*?)  +(\S.*?) *$", text, re.MULTILINE)}
    spread = rows["event time between first and last partition, at most"]
    assert min(map(int, re.findall(r"\d+", spread[0]))) > 30
    assert max(map(int, re.findall(r"\d+", spread[1]))) <= 10
    wrong = rows["wrong of 5,000: join that forgets after 10 m"]
    assert wrong[1] == "0 / 0"
    assert min(int(n.replace(",", "")) for n in wrong[0].split(" / ")) > 0
    assert rows["wrong: join that waits for the slowest partition"] == ("0 / 0", "0 / 0")
    assert rows["the same both times"][1] == "yes"
    assert "without the gate" in text
    assert str(picture) in text
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert re.search(r"8 periods in \d+ Spark jobs?, equal to the same in plain Python$", text)
