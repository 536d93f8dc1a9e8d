"""A driver on a cluster: ``python -m tests.cluster_driver SPEC`` (JSON). It prints what it has published, as JSON.

The pipeline is the one that the tests run in local mode, `pipelines.totals`. A test may add a trap: the first
task that reads the record with a certain number names its process, and then hangs. Its worker has to be killed.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import aiokcc.spark
from tests.pipelines import totals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from aiokcc.spark import Periods


@dataclass(frozen=True)
class Spec:
    """The arguments of a driver."""

    master: str
    """The master of the session; empty: the one that spark-submit was given."""
    bootstrap: str
    store: str
    topics: list[str]
    out: str
    max_periods: int
    trap: list[Any]
    """A directory with a named pipe ``caught``, and the number of the record; or nothing."""


def with_trap(place: str, number: int) -> Any:
    """Return the pipeline behind a trap. The function is sent to workers by value: the tests are not installed there."""

    def catch(batches: Iterator[Any]) -> Iterator[Any]:
        import json
        import os
        import signal

        for batch in batches:
            if any(json.loads(value.as_py())["id"] == number for value in batch.column("value")):
                try:
                    os.close(os.open(f"{place}/sprung", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    pass  # by the task before us, which was killed, or by another that reads the same
                else:
                    with os.fdopen(os.open(f"{place}/caught", os.O_WRONLY), "w") as pipe:
                        pipe.write(f"{os.getpid()}\n")
                    signal.pause()
            yield batch

    def pipeline(frame: DataFrame, periods: Periods) -> DataFrame:
        return totals(frame.mapInArrow(catch, frame.schema), periods)

    return pipeline


def main(spec: Spec) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    function = with_trap(*spec.trap) if spec.trap else totals
    with (
        aiokcc.spark.session(app="cluster", master=spec.master or None) as spark,
        aiokcc.spark.replay(
            spark,
            *spec.topics,
            bootstrap_servers=spec.bootstrap,
            store=spec.store,
            name="p",
            period="1m",
            end="now",
            max_periods=spec.max_periods,
            progress=False,
        ) as replay,
    ):
        summary = replay.for_each_period(function, sink=aiokcc.spark.ParquetSink(spec.out))
    sys.stdout.write(json.dumps(asdict(summary)) + "\n")


if __name__ == "__main__":
    main(Spec(**json.loads(sys.argv[1])))
