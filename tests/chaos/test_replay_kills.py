"""Three processes replay a real topic. Again and again one of them is killed at a random point and started again.

Afterwards every record has been handled, none past the limit, none again after its period had closed, and the cuts tile the
logs. ``AIOKCC_CHAOS_SEED`` repeats a run's choices.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path

import pytest

from aiokcc import local
from aiokcc.core.limit import Mode
from aiokcc.core.partitions import Partition
from aiokcc.core.report import Cut
from tests import kafka_topics
from tests.chaos.group import Observer
from tests.chaos.replayer import Spec
from tests.chaos.worker import PERIOD
from tests.kafka_topics import Row

SEED = int(os.environ.get("AIOKCC_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
PARTITIONS = 6
PERIODS = 1500
FIRST = 1_700_000_040_000


class Process:
    """One process of the replay."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.log = Path(f"{spec.history}.log")
        self.running: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self.log.open("ab") as log:
            self.running = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.chaos.replayer", json.dumps(asdict(self.spec)), stderr=log
            )

    @property
    def over(self) -> bool:
        return self.running is not None and self.running.returncode is not None

    async def kill(self) -> None:
        if self.running is not None and self.running.returncode is None:
            self.running.kill()
            await self.running.wait()

    async def ended(self) -> None:
        assert self.running is not None
        code = await self.running.wait()
        assert code == 0, "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])


def make_logs(chance: random.Random, lateness: int) -> list[list[int]]:
    """Return timestamps by partition: in order, or out of order by no more than the bound; some periods are empty."""
    logs = []
    for _ in range(PARTITIONS):
        stamps = [
            FIRST + period * PERIOD + chance.randrange(PERIOD) for period in range(PERIODS) if chance.random() < 0.7
        ]
        if lateness:
            stamps = sorted(stamps, key=lambda ts: ts + chance.randrange(lateness))
        logs.append(stamps)
    return logs


@pytest.fixture
def url(request: pytest.FixtureRequest, kafka: local.Kafka, store: str) -> str:
    """Return a fresh root. The store that the test asks for is started here, while no event loop runs."""
    root = kafka_topics.fresh_name("kills")
    if store == "kafka":
        return f"kafka://{kafka.bootstrap}/{root}"
    zookeeper: local.ZooKeeper = request.getfixturevalue("zookeeper")
    return zookeeper.url(root)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("store", "kills", "lateness", "offsets", "lookahead", "share_host"),
    [
        ("zookeeper", 20, 0, "", 0, False),
        ("zookeeper", 6, 5 * PERIOD, "", 0, True),
        ("zookeeper", 6, 0, "kafka", 8, False),
        ("zookeeper", 6, 5 * PERIOD, "store", 0, False),
        ("zookeeper", 6, 0, "store", 3, True),
        ("zookeeper", 3, 5 * PERIOD, "", 0, False),
        ("zookeeper", 3, 0, "store", 3, False),
        ("zookeeper", 6, 5 * PERIOD, "store", 7, False),
        ("zookeeper", 6, 5 * PERIOD, "kafka", -6, True),
        ("kafka", 10, 0, "", 0, False),
        ("kafka", 6, 5 * PERIOD, "store", -6, True),
    ],
)
async def test_processes_killed_at_random_points(
    kafka: local.Kafka,
    url: str,
    tmp_path: Path,
    kills: int,
    lateness: int,
    offsets: str,
    lookahead: int,
    share_host: bool,
) -> None:
    print(f"AIOKCC_CHAOS_SEED={SEED}")
    chance = random.Random(SEED)
    logs = make_logs(chance, lateness)
    topic = await kafka_topics.create_fresh(kafka.bootstrap, partitions=PARTITIONS)
    rows = [Row(p, ts, b"x" * 50) for p, stamps in enumerate(logs) for ts in stamps]
    await kafka_topics.write(kafka.bootstrap, topic, rows)
    observer = Observer()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(observer.observing(url))
        processes = []
        for number, way in enumerate(["run", "periods" if lateness or lookahead == 3 else "batches", "iteration"]):
            mine = list(range(number, PARTITIONS, 3))
            history = str(tmp_path / f"history-{number}")
            how = (way, lateness, offsets, lookahead)
            process = Process(
                Spec(url, kafka.bootstrap, f"w{number}", topic, mine, history, *how, share_host=share_host)
            )
            processes.append(process)
            stack.push_async_callback(process.kill)
            await process.start()
        killed = 0
        for _ in range(kills):
            moved = observer.limit.value + PERIOD
            await observer.until(lambda moved=moved: observer.limit.value >= moved or observer.limit.mode is Mode.END)  # type: ignore[misc]
            await asyncio.sleep(chance.random() * 0.1)  # a random point is a point in time
            victim = chance.choice(processes)
            if observer.limit.mode is Mode.END or victim.over:
                break
            await victim.kill()
            await victim.start()
            killed += 1
        async with asyncio.timeout(120):
            for process in processes:
                await process.ended()
        await observer.until(lambda: observer.limit.mode is Mode.END)
    assert killed == kills, f"the run was over after {killed} kills"
    check_handled([process.spec.history for process in processes], logs, abs(lookahead))
    check_cuts(observer, topic, logs)


def check_handled(histories: list[str], logs: list[list[int]], lookahead: int) -> None:
    """Check that every record was handled, that none started before all earlier periods were done, and that none came too late.

    With lookahead, the periods that are so many periods earlier count.
    """
    first_done: dict[tuple[int, int], int] = {}
    starts: dict[tuple[int, int], list[int]] = {}
    lines = [line.split(" ") for path in histories for line in Path(path).read_text().splitlines()]
    for what, when, partition, offset in sorted(lines, key=lambda line: int(line[1])):
        place = int(partition), int(offset)
        if what == "done":
            first_done.setdefault(place, int(when))
        else:
            starts.setdefault(place, []).append(int(when))
    opened: dict[int, int] = {}  # when the first record of this period or a later one was started
    for (partition_number, number), whens in starts.items():
        period = logs[partition_number][number] // PERIOD
        opened[period] = min(whens[0], opened.get(period, whens[0]))
    later: float = float("inf")
    next_opened: dict[int, float] = {}
    for period in range(max(opened) + lookahead, min(opened) - 1, -1):
        next_opened[period - lookahead] = later
        later = min(later, opened.get(period, later))
    for p, stamps in enumerate(logs):
        for number, ts in enumerate(stamps):
            done = first_done.get((p, number))
            assert done is not None, f"record {number} of partition {p} was never handled"
            assert done <= next_opened[ts // PERIOD], (
                f"record {number} of partition {p} was done after a later period began"
            )
            for again in starts[p, number][1:]:
                assert again <= next_opened[ts // PERIOD], f"record {number} of partition {p} came again behind the cut"


def check_cuts(observer: Observer, topic: str, logs: list[list[int]]) -> None:
    """Check that limits only grow, that boundaries follow each other, and that each cut is exactly where the log has it."""
    for (_, limit), (_, after) in zip(observer.seen, observer.seen[1:], strict=False):
        assert limit.precedes(after)
    assert len(observer.cuts) > 50
    before: Cut | None = None
    for number in sorted(observer.cuts):
        cut = observer.cuts[number]
        if before is not None and before.number == number - 1:
            assert cut.previous == before.limit
            assert cut.generation >= before.generation
        before = cut
        for p, stamps in enumerate(logs):
            mark = cut.find(Partition(topic, p))
            assert mark is not None
            assert mark.offset is not None
            low, high = int(mark.offset), getattr(mark.offset, "high", int(mark.offset))
            right = next((n for n, ts in enumerate(stamps) if ts >= cut.limit), len(stamps))
            assert low == right, f"cut {number} lies at {low} in partition {p}, not at {right}"
            last = max((n for n, ts in enumerate(stamps) if ts < cut.limit), default=-1)
            assert last < high, f"cut {number} closes at {high} in partition {p}, before record {last}"
