"""Measures records per second of ``await replay.run(handle)``, against reading without a gate; and periods per second.

Twelve partitions over two topics, records of 100 bytes, every minute has records in every partition. The cost per period
is fixed, however many records it has, so this is measured with few records per minute and with many. Each way of reading
is a process of its own that reads everything once per round; the ways alternate, so that a disturbance of the machine
affects all of them, and the ratios are medians of the rounds' ratios. The first round warms up and does not count.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Final

from benchmarks.broker import Broker, broker, evenly
from benchmarks.floors import anchored
from benchmarks.harness import Figures, Goal, Outcome, Result, note, percentile, summary
from benchmarks.server import Server, server
from benchmarks.worker_pool import WorkerPool, worker_pool

SUMMARY: Final = "records per second against plain aiokafka, confluent-kafka and Quix Streams; periods per second"
EXAMPLES: Final = (
    "python -m benchmarks throughput",
    "python -m benchmarks throughput --quick --json throughput.json",
    "python -m benchmarks throughput --only records --rounds 9 --bootstrap 127.0.0.1:9092 --url zk://127.0.0.1:2181/bench",
)
PARTS: Final = ("records", "processes", "periods", "metrics")
FULL: Final = ((600_000, 120), (3_000_000, 60))
QUICK: Final = ((12_000, 60),)
MANY: Final = 50_000
"""Records in a period from which on the goals are higher."""
BEST_BATCH: Final = 500
"""The number of records per call with which ``getmany`` is fastest, of 200, 500, 1000, 4000, 20000 and no limit."""

METRICS_ROUNDS: Final = 4
"""Metrics cost less than rounds differ from each other, so these rounds are more."""

REMARKS: Final = (
    "ours: from the call of run() to the last record handled; a handler that counts is awaited for each record.",
    "async-for, getmany: plain aiokafka, from the making of the consumer to the last record; getmany gives all there is,",
    f"    and a bare loop counts it. getmany-best: in lists of up to {BEST_BATCH}, which spares the garbage collector.",
    "run_batches: lists of one partition and one period, with a bare loop over each, as getmany has it.",
    "confluent: confluent-kafka's consume(1000), tuned, a bare loop; its CPU is that of librdkafka's threads too.",
    "ungated: as getmany-best, with the same handler awaited for each record: our loop without the gate.",
    "quix-concat: Quix Streams' concat of the two topics, from its first record; ordered within a partition number only.",
    "metrics: collected every second, as aiokcc replay --metrics does, or by OpenTelemetry's SDK; the ratio is of CPU time.",
    "sdk-imported: the same program with the SDK imported and no metrics. The goal of the SDK is against this one.",
    "memory: ours on the memory store. write: one conditional write per period by our client, and nothing else.",
)


@dataclass(frozen=True, slots=True)
class Effort:
    """The size of a measurement."""

    histories: tuple[tuple[int, int], ...]
    """Pairs of a number of records and a number of minutes, which is the number of periods."""
    rounds: int
    minutes: int
    """Periods of a minute with one record in each partition."""
    seconds: int
    """Periods of a second with records in each."""

    @classmethod
    def of(cls, options: argparse.Namespace) -> Effort:
        quick: bool = options.quick
        histories = QUICK if quick else FULL
        if options.records or options.minutes:
            histories = (((options.records or histories[0][0]) // 12 * 12, options.minutes or histories[0][1]),)
        return cls(
            histories=histories,
            rounds=options.rounds or (1 if quick else 9),
            minutes=60 if quick else 1440,
            seconds=60 if quick else 1000,
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that only this benchmark has."""
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="the Kafka to read from; by default one is started")
    parser.add_argument(
        "--url", help="the ensemble, zk://host:port[,host:port…][/root]; by default a server is started"
    )
    parser.add_argument(
        "--store", choices=("zookeeper", "kafka"), default="zookeeper", help="kafka: also ours on kafka://"
    )
    parser.add_argument("--records", type=int, metavar="N", help="records to read (default: 600000, then 3000000)")
    parser.add_argument("--minutes", type=int, metavar="N", help="periods of a minute in which they lie (120, then 60)")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of each way (default 9; quick: 1)")
    parser.add_argument(
        "--lookahead",
        type=int,
        default=15,
        metavar="N",
        help="periods that partitions may lie apart, in cases of their own",
    )
    parser.add_argument("--only", choices=PARTS, help="one part of it")


async def run(options: argparse.Namespace) -> Outcome:
    """Measure all parts, one after the other."""
    effort = Effort.of(options)
    results: list[Result] = []
    async with server(options.url, warm=not options.quick) as store, broker(options.bootstrap) as kafka:
        on = f"kafka://{kafka.bootstrap}{store.root}" if options.store == "kafka" else ""
        if options.only in (None, "records", "processes"):
            for number, (records, minutes) in enumerate(effort.histories):
                note(f"writing {records:,} records, {records // minutes:,} in each period")
                history = await History.write(kafka, records // 12, minutes, "1m")
                if options.only != "processes":
                    results += await _records(store, history, effort, options.lookahead, on, quix=number == 0)
                if options.only != "records":
                    results += await _processes(store, history, effort, options.lookahead)
        if options.only in (None, "periods"):
            results += await _periods(store, kafka, effort)
        if options.only in (None, "metrics"):
            results += await _metrics(store, kafka, effort)
    return Outcome("throughput", "Throughput of a replay", results, goals(results), REMARKS)


@dataclass(frozen=True, slots=True)
class History:
    """Two topics of six partitions, all of the same size."""

    bootstrap: str
    topics: tuple[str, str]
    records: int
    minutes: float
    period: str

    @classmethod
    async def write(cls, kafka: Broker, each: int, minutes: float, period: str) -> History:
        """Write this many records into each partition, over this many minutes."""
        logs = [evenly(each, minutes) for _ in range(6)]
        topics = (await kafka.topic("orders", logs), await kafka.topic("payments", logs))
        return cls(kafka.bootstrap, topics, 12 * each, minutes, period)

    @property
    def label(self) -> str:
        """The size of the history, in the table."""
        return f"{self.records / self.minutes:,.0f} per period"

    def case(self, **more: Any) -> dict[str, Any]:
        """Return the history as it is in the JSON."""
        return {"partitions": 12, "records": self.records, "minutes": self.minutes, "period": self.period, **more}

    def plan(self, way: str, part: int = 0, parts: int = 1, **settings: Any) -> dict[str, Any]:
        """Return the plan of one of several processes: partitions of both topics, and settings for a replay."""
        mine = [(topic, number) for topic in self.topics for number in range(part, 6, parts)]
        return {
            "way": way,
            "bootstrap": self.bootstrap,
            "topics": self.topics,
            "partitions": mine,
            "records": self.records * len(mine) // 12,
            "period": self.period,
            "batch": None if way == "getmany" else BEST_BATCH,
            "settings": settings,
        }


# -- taking turns ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Way:
    """One way of reading: its processes, and their results in each round."""

    workers: WorkerPool
    store: str
    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    async def round(self, number: int) -> None:
        """Read everything once."""
        await self.workers.request(prepare=True, store=f"{self.store}-{number}")
        answers = await self.workers.request(go=True)
        if number:
            began, ended = min(a["began"] for a in answers), max(a["ended"] for a in answers)
            records = sum(a["records"] for a in answers)
            self.rates.append(records / (ended - began) * 1e9)
            self.cpu.append(sum(a["cpu"] for a in answers) / 1000 / records)

    def figures(self, factor: float = 1.0) -> Figures:
        """Return the rates, and the cost per record."""
        return {**summary([rate * factor for rate in self.rates]), "cpu_us_per_record": percentile(self.cpu, 0.5)}

    def ratio(self, other: Way) -> float:
        """Return the median of the rounds' ratios: within a round the machine is the same for both."""
        return percentile([a / b for a, b in zip(self.rates, other.rates, strict=True)], 0.5)


@contextlib.asynccontextmanager
async def ways(wanted: Mapping[str, tuple[Sequence[dict[str, Any]], str]]) -> AsyncIterator[dict[str, Way]]:
    """Start the processes of each way, by its name: their plans, and the store if the way has one."""
    async with contextlib.AsyncExitStack() as stack:
        found = {}
        for name, (plans, store) in wanted.items():
            workers = await stack.enter_async_context(worker_pool(name, plans, module="benchmarks.reader"))
            found[name] = Way(workers, store)
        yield found


async def take_turns(turns: dict[str, Way], rounds: int) -> None:
    """Run all rounds; the first one warms up."""
    for number in range(rounds + 1):
        note(f"round {number} of {rounds}" if number else "warming up")
        for way in turns.values():
            await way.round(number)


def result(label: str, case: dict[str, Any], ours: Way, anchors: dict[str, Way]) -> Result:
    """Return a result in records per second."""
    figures = {name: anchor.figures() for name, anchor in anchors.items()}
    ratios = {name: ours.ratio(anchor) for name, anchor in anchors.items()}
    return Result(label, case, "records/s", ours.figures(), figures, ratios)


# -- what is measured --------------------------------------------------------------------------------------------------


async def _records(
    store: Server, history: History, effort: Effort, lookahead: int, on_kafka: str, *, quix: bool
) -> list[Result]:
    wanted = {
        "ours-memory": ([history.plan("replay")], f"memory://throughput-{history.records}"),
        "getmany-best": ([{**history.plan("getmany"), "batch": BEST_BATCH}], ""),
        "ours-zookeeper": ([history.plan("replay")], store.url(f"throughput-{history.records}")),
        "ungated": ([history.plan("ungated")], ""),
        "ours-ahead": ([history.plan("replay", lookahead=lookahead)], store.url(f"throughput-ahead-{history.records}")),
        "ours-batches": ([history.plan("batches")], store.url(f"batches-{history.records}")),
        "ours-batches-ahead": (
            [history.plan("batches", lookahead=lookahead)],
            store.url(f"batches-ahead-{history.records}"),
        ),
        "getmany": ([history.plan("getmany")], ""),
        "async-for": ([history.plan("async-for")], ""),
    }
    if on_kafka:
        wanted["ours-kafka"] = ([history.plan("replay")], f"{on_kafka}/throughput-{history.records}")
    if find_spec("confluent_kafka") is not None:
        wanted["confluent"] = ([history.plan("confluent")], "")
    else:
        note("confluent-kafka is not installed: measured without it")
    if quix and find_spec("quixstreams") is not None:  # it has no periods: once is enough
        wanted["quix-concat"] = ([history.plan("quix")], "")
    elif quix:
        note("quixstreams is not installed: measured without it")
    async with ways(wanted) as turns:
        await take_turns(turns, effort.rounds)
    memory, zookeeper, ahead, batches, batches_ahead = (
        turns.pop(f"ours-{name}") for name in ("memory", "zookeeper", "ahead", "batches", "batches-ahead")
    )
    case = history.case(processes=1)
    on_zookeeper = {**case, "store": "zookeeper"}
    kafka = turns.pop("ours-kafka", None)
    anchors = {"memory": memory, **turns}
    found = []
    if kafka is not None:
        label = f"1 process, Kafka, {history.label}"
        found.append(result(label, {**case, "store": "kafka"}, kafka, {"zookeeper": zookeeper, **anchors}))
    return [
        *found,
        result(f"1 process, memory, {history.label}", {**case, "store": "memory"}, memory, turns),
        result(f"1 process, ZooKeeper, {history.label}", on_zookeeper, zookeeper, anchors),
        result(
            f"1 process, lookahead {lookahead}, {history.label}",
            {**on_zookeeper, "lookahead": lookahead},
            ahead,
            anchors,
        ),
        result(f"1 process, run_batches, {history.label}", {**on_zookeeper, "batches": True}, batches, turns),
        result(
            f"1 process, run_batches, lookahead {lookahead}, {history.label}",
            {**on_zookeeper, "batches": True, "lookahead": lookahead},
            batches_ahead,
            turns,
        ),
    ]


async def _processes(store: Server, history: History, effort: Effort, lookahead: int) -> list[Result]:
    ahead = [history.plan("replay", n, 3, lookahead=lookahead) for n in range(3)]
    auto = [history.plan("replay", n, 3, lookahead="auto", max_apart=f"{lookahead + 1}m") for n in range(3)]
    wanted = {
        "ours": ([history.plan("replay", n, 3) for n in range(3)], store.url(f"processes-{history.records}")),
        "ungated": ([history.plan("ungated", n, 3) for n in range(3)], ""),
        "ahead": (ahead, store.url(f"ahead-{history.records}")),
        "auto": (auto, store.url(f"auto-{history.records}")),
    }
    note("three processes")
    async with ways(wanted) as turns:
        await take_turns(turns, effort.rounds)
    anchors = {"ungated": turns["ungated"]}
    case = history.case(processes=3, store="zookeeper")
    return [
        result(f"3 processes, ZooKeeper, {history.label}", case, turns["ours"], anchors),
        result(
            f"3 processes, lookahead {lookahead}, {history.label}",
            {**case, "lookahead": lookahead},
            turns["ahead"],
            anchors,
        ),
        result(
            f"3 processes, lookahead auto, {history.label}",
            {**case, "lookahead": "auto"},
            turns["auto"],
            anchors,
        ),
    ]


async def _periods(store: Server, kafka: Broker, effort: Effort) -> list[Result]:
    """Measure one process on ZooKeeper, and between the rounds one write per period with our own client."""
    results = []
    note("writing little data")
    cases = (
        (await History.write(kafka, effort.minutes, effort.minutes, "1m"), effort.minutes, 60.0),
        (await History.write(kafka, 5 * effort.seconds, effort.seconds / 60, "1s"), effort.seconds, 1.0),
    )
    for history, periods, seconds in cases:
        async with ways({history.period: ([history.plan("replay")], store.url(f"periods-{history.period}"))}) as turns:
            (ours,) = turns.values()
            rates: list[float] = []
            async with anchored(store) as floor:
                for number in range(effort.rounds + 1):
                    note(f"periods of {history.period}: round {number} of {effort.rounds}")
                    await ours.round(number)
                    await floor.measure(min(periods, 200))
                    taken = floor.forget()["write"]
                    if number:
                        rates.append(1000 / percentile(taken, 0.5))
        label = f"periods of {history.period}, {history.records // periods // 12} records in each partition"
        case = history.case(processes=1, store="zookeeper")
        per_record = periods / history.records
        minute = history.period == "1m"  # event time against real time
        unit, factor = ("× real time", per_record * seconds) if minute else ("periods/s", per_record)
        anchors = {"write": summary([rate * (seconds if minute else 1) for rate in rates])}
        results.append(Result(label, case, unit, ours.figures(factor), anchors))
    return results


async def _metrics(store: Server, kafka: Broker, effort: Effort) -> list[Result]:
    """Measure what it costs to collect metrics every second: by CPU time per record, in many short rounds."""
    if find_spec("opentelemetry.sdk") is None:
        note("opentelemetry-sdk is not installed: measured without metrics")
        return []
    records, minutes = effort.histories[0]
    history = await History.write(kafka, records // 12, minutes, "1m")
    plan = history.plan("replay")
    wanted = {
        "off": ([plan], store.url("metrics-off")),
        "on": ([{**plan, "metrics": "on"}], store.url("metrics-on")),
        "imported": ([{**plan, "metrics": "imported"}], store.url("metrics-imported")),
        "served": ([{**plan, "metrics": "served"}], store.url("metrics-served")),
    }
    note("with metrics and without")
    async with ways(wanted) as turns:
        await take_turns(turns, effort.rounds * METRICS_ROUNDS)
    without, imported = turns["off"], turns["imported"]
    compared = (
        ("served", "metrics of aiokcc replay --metrics", {"without": without}),
        ("on", "metrics by OpenTelemetry's SDK", {"without": without, "sdk-imported": imported}),
    )
    results = []
    for way, label, anchors in compared:
        ours = turns[way].cpu
        costs = {
            name: percentile([a / b for a, b in zip(ours, anchor.cpu, strict=True)], 0.5)
            for name, anchor in anchors.items()
        }
        case = history.case(processes=1, store="zookeeper", metrics=way)
        figures = {name: summary(anchor.cpu) for name, anchor in anchors.items()}
        label = f"{label}, every second, {history.label}"
        results.append(Result(label, case, "CPU us/record", summary(ours), figures, costs))
    return results


# -- goals -------------------------------------------------------------------------------------------------------------


def goals(results: Sequence[Result]) -> list[Goal]:
    """Return the goals for what was measured. With many records in a period they are higher: its fixed cost matters less."""
    wanted: list[Goal] = []

    def at_least(found: Result, anchor: str, limit: float) -> None:
        if anchor in found.ratios:
            wanted.append(Goal(f"{found.label}: ours / {anchor}", found.ratios[anchor], limit, at_least=True))

    for found in results:
        case = found.case
        ahead, many = case.get("lookahead"), case["records"] / case["minutes"] >= MANY
        if case.get("metrics"):
            anchor = "sdk-imported" if case["metrics"] == "on" else "without"
            wanted.append(Goal(f"{found.label}: ours / {anchor}", found.ratios[anchor], 1.01))
        elif found.unit != "records/s":
            limit = 10_000 if case["period"] == "1m" else 250
            wanted.append(Goal(f"{found.label}: {found.unit}", float(found.ours["p50"] or 0), limit, at_least=True))
        elif case["processes"] == 3:
            at_least(found, "ungated", 0.92 if ahead else 0.9 if many else 0.65)
        elif case.get("batches"):
            at_least(found, "getmany-best", 1.0)
        elif case["store"] == "kafka":
            at_least(found, "zookeeper", 0.95)
        elif case["store"] == "memory":
            at_least(found, "async-for", 2)
            at_least(found, "getmany", 0.85)
            at_least(found, "getmany-best", 0.85)
            at_least(found, "quix-concat", 4)
        else:
            at_least(found, "memory", 1.0 if ahead else 0.95 if many else 0.9)
    return wanted
