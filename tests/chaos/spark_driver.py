"""One driver of a pipeline: ``python -m tests.chaos.spark_driver SPEC`` (JSON). It prints what it has done.

``stop`` names a step and a batch (0 for a restatement) after which it sends itself a signal: SIGKILL ends it at once, SIGSTOP
freezes it until it is continued. The steps ``publishing`` and ``replacing`` are the moments at which the sink is called, when
every check of the store has passed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiokcc
from aiokcc.spark import Batch, DeltaSink, ParquetSink, Sink
from aiokcc.spark.pipeline import BatchStep
from aiokcc.spark.restate import prepare_restate
from tests.balances import COLUMNS, balances
from tests.loops import run
from tests.pipelines import totals
from tests.spark_gateway import attached, connected


@dataclass(frozen=True)
class Spec:
    """The arguments of a driver."""

    store: str
    bootstrap: str
    topics: list[str]
    out: str
    stop: list[Any] = field(default_factory=list)
    """The step, the number of the batch, and the signal; empty: go on to the end."""
    end: str | int = "now"
    max_periods: int = 2
    member: str | None = None
    expect: int = 0
    """The number of drivers in a managed group, of which this is one; 0: the group is not managed."""
    chain: int = 0
    """The number of periods in a job that carries the balances of customers from period to period; 0: it carries none."""
    delta: bool = False
    """True if the result is a Delta table."""
    connect: str = ""
    """The address of a Spark Connect server; empty: attach to the Java process of the tests' session."""
    available: int = 0
    """The time by the clock of a scheduled start, which publishes what is closed by then; 0: it is none."""
    restate: list[int] = field(default_factory=list)
    """The bounds of periods to restate, with doubled totals, in place of driving the pipeline."""
    endless: bool = False
    """True to compute something that never ends, by the blocking call, until somebody presses Ctrl-C."""


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


class Stopper:
    """Kills or freezes this process at one point."""

    def __init__(self, spec: Spec) -> None:
        self._at = tuple(spec.stop[:2])
        self._signal = signal.Signals(spec.stop[2]) if spec.stop else signal.SIGKILL

    def after(self, step: BatchStep, batch: Batch) -> None:
        self.reach(step.value, batch.number)

    def reach(self, step: str, number: int) -> None:
        say(step, number)
        if (step, number) == self._at:
            # To this thread: sent to the process, another thread may take it while this one goes on for a moment.
            signal.pthread_kill(threading.get_ident(), self._signal)


def stopping(kind: type[ParquetSink | DeltaSink], place: str, stopper: Stopper) -> Sink:
    """Return a sink that can be stopped before it writes anything of a batch, and before it publishes."""

    class StoppingSink(kind):  # type: ignore[valid-type]
        def _stage(self, frame: Any, batch: Batch, *more: Any) -> Any:
            stopper.reach("staging", batch.number)
            return super()._stage(frame, batch, *more)

        def publish(self, batch: Batch, staged: Any) -> None:
            stopper.reach("publishing", batch.number)
            super().publish(batch, staged)

        def replace(self, batch: Batch, staged: Any, after: int) -> None:
            stopper.reach("replacing", batch.number)
            super().replace(batch, staged, after)

    sink: Sink = StoppingSink(place)
    return sink


async def drive(spec: Spec) -> None:
    spark = await asyncio.to_thread(partial(connected, spec.connect) if spec.connect else attached)
    stopper = Stopper(spec)
    sink = stopping(DeltaSink if spec.delta else ParquetSink, spec.out, stopper)
    state: dict[str, Any] = {"state": COLUMNS, "chain": spec.chain, "keep_states": 2} if spec.chain else {}
    managed: dict[str, Any] = {"assignment": "managed", "expect": spec.expect} if spec.expect else {}
    scheduled: dict[str, Any] = {"trigger": "available_now", "clock": lambda: spec.available}
    async with aiokcc.spark.replay(
        spark,
        *spec.topics,
        bootstrap_servers=spec.bootstrap,
        store=spec.store,
        name="killed",
        member=spec.member,
        **managed,
        **(scheduled if spec.available else {"end": spec.end}),
        period="1m",
        max_periods=spec.max_periods,
        session_timeout=3.0 if spec.expect else 1.0,
        connect_timeout=60,
        claim_timeout=60,
        progress=False,
    ) as replay:
        replay.after_step = stopper.after
        await replay.for_each_period(balances if spec.chain else totals, sink, **state)


def doubled(frame: Any, periods: Any) -> Any:
    """Compute what ``totals`` computes, with each total doubled."""
    return totals(frame, periods).selectExpr("period", "customer", "2 * total AS total", "orders", "place")


async def restate(spec: Spec) -> None:
    spark = await asyncio.to_thread(attached)
    stopper = Stopper(spec)
    start, end = spec.restate
    restatement = prepare_restate(
        spark,
        doubled,
        store=spec.store,
        name="killed",
        start=start,
        end=end,
        sink=stopping(DeltaSink if spec.delta else ParquetSink, spec.out, stopper),
        bootstrap_servers=spec.bootstrap,
        max_periods=spec.max_periods,
        session_timeout=1.0,
        connect_timeout=60,
        claim_timeout=60,
    )
    restatement.after_step = lambda step: stopper.reach(step.value, 0)
    await restatement.run()


def drive_for_ever(spec: Spec) -> None:
    spark = attached()

    def endless(frame: Any, periods: Any) -> Any:
        rows = spark.range(10**13, numPartitions=1).selectExpr("sum(hash(id)) as x")
        say("computing", periods.number)
        return frame.select("period").crossJoin(rows)

    with aiokcc.spark.replay(
        spark,
        *spec.topics,
        bootstrap_servers=spec.bootstrap,
        store=spec.store,
        name="interrupted",
        end="now",
        period="1m",
        keeps_periods=True,
    ) as replay:
        replay.for_each_period(endless, sink=ParquetSink(spec.out))


def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    spec = Spec(**json.loads(sys.argv[1]))
    try:
        if spec.endless:
            drive_for_ever(spec)
        run(restate(spec) if spec.restate else drive(spec))
    except KeyboardInterrupt:
        say("interrupted")
        raise
    except aiokcc.AiokccError as error:
        say(type(error).__name__)
        raise
    say("done")


if __name__ == "__main__":
    main()
