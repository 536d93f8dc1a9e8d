"""The same history, replayed on all three stores, with processes killed at random points: the result is always the same.

The result is every record with the period that it was closed in, and the offsets of every cut; a record that came again after
a kill counts once. ``AIOKCC_CHAOS_SEED`` repeats a run's choices.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from aiokcc import local
from aiokcc.core.limit import Mode
from aiokcc.core.partitions import Partition
from tests import kafka_topics
from tests.chaos.group import Observer
from tests.chaos.replayer import Spec, work
from tests.chaos.test_replay_kills import FIRST, PARTITIONS, SEED, Process, check_handled
from tests.chaos.worker import PERIOD
from tests.kafka_topics import Row

PERIODS = 300


class Result:
    """The result that one replay has computed from the history."""

    def __init__(self, histories: list[str], observer: Observer, topic: str) -> None:
        lines = {line.partition(" ")[2].partition(" ")[2] for path in histories for line in _done(path)}
        self.digest = hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
        self.cuts = {
            cut.limit: [getattr(cut.find(Partition(topic, p)), "offset", None) for p in range(PARTITIONS)]
            for cut in observer.cuts.values()
        }


def _done(path: str) -> list[str]:
    return [line for line in Path(path).read_text().splitlines() if line.startswith("done ")]


@pytest.fixture
def urls(request: pytest.FixtureRequest, kafka: local.Kafka) -> dict[str, str]:
    """Return the beginning of a URL for each store. The servers are started here, while no event loop runs."""
    zookeeper: local.ZooKeeper = request.getfixturevalue("zookeeper")
    return {"memory": "memory://", "zookeeper": zookeeper.url(""), "kafka": f"kafka://{kafka.bootstrap}/"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rounds", [1, pytest.param(7, marks=pytest.mark.long)])
async def test_one_digest(kafka: local.Kafka, urls: dict[str, str], tmp_path: Path, rounds: int) -> None:
    print(f"AIOKCC_CHAOS_SEED={SEED}")
    chance = random.Random(SEED)
    logs = [
        [FIRST + n * PERIOD + chance.randrange(PERIOD) for n in range(PERIODS) if chance.random() < 0.7]
        for _ in range(PARTITIONS)
    ]
    topic = await kafka_topics.create_fresh(kafka.bootstrap, partitions=PARTITIONS)
    rows = [Row(p, ts, b"x" * 50) for p, stamps in enumerate(logs) for ts in stamps]
    await kafka_topics.write(kafka.bootstrap, topic, rows)
    results: list[Result] = []
    for number in range(rounds):
        for store, begin in urls.items():
            url = f"{begin}{kafka_topics.fresh_name('digest')}"
            directory = tmp_path / f"{store}-{number}"
            directory.mkdir()
            observer = Observer()
            async with observer.observing(url):
                if store == "memory":
                    histories = [str(directory / "history-0")]
                    await work(Spec(url, kafka.bootstrap, "w0", topic, list(range(PARTITIONS)), histories[0], "run"))
                else:
                    histories = await replay_with_kills(url, kafka.bootstrap, topic, directory, observer, chance)
                await observer.until(lambda observer=observer: observer.limit.mode is Mode.END)  # type: ignore[misc]
            check_handled(histories, logs, 0)
            results.append(Result(histories, observer, topic))
    assert len({result.digest for result in results}) == 1
    for result in results:
        assert len(result.cuts) > 50
        for limit in result.cuts.keys() & results[0].cuts.keys():
            assert result.cuts[limit] == results[0].cuts[limit]


async def replay_with_kills(
    url: str, bootstrap: str, topic: str, directory: Path, observer: Observer, chance: random.Random
) -> list[str]:
    """Replay in three processes, and kill one after the other at random points. Return the files of their histories."""
    async with AsyncExitStack() as stack:
        processes = []
        for number, way in enumerate(("run", "batches", "iteration")):
            history = str(directory / f"history-{number}")
            mine = list(range(number, PARTITIONS, 3))
            processes.append(Process(Spec(url, bootstrap, f"w{number}", topic, mine, history, way)))
            stack.push_async_callback(processes[-1].kill)
            await processes[-1].start()
        for victim in chance.sample(processes, 3):
            moved = observer.limit.value + 20 * PERIOD
            await observer.until(lambda moved=moved: observer.limit.value >= moved or observer.limit.mode is Mode.END)  # type: ignore[misc]
            await asyncio.sleep(chance.random() * 0.1)  # a random point is a point in time
            if not victim.over:
                await victim.kill()
                await victim.start()
        async with asyncio.timeout(120):
            for process in processes:
                await process.ended()
        return [process.spec.history for process in processes]
