"""Jobs of the function are noticed also while Spark is slow to record them, or keeps them no more. Without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j import protocol

from aiokcc.spark.function_jobs import FunctionJobs


class Context:
    """The parts of a SparkContext that are looked at, with the groups of its jobs; None: the job is not recorded."""

    def __init__(self, *, is_busy: bool) -> None:
        self.groups: list[str | None] = ["aiokcc-1-0"]
        self._is_busy = is_busy
        self._jsc = SimpleNamespace(sc=lambda: self)

    def getLocalProperty(self, _name: str) -> str:  # noqa: N802 - as Spark calls it
        return "aiokcc-1-1"

    def dagScheduler(self) -> Any:  # noqa: N802
        return SimpleNamespace(numTotalJobs=lambda: len(self.groups))

    def listenerBus(self) -> Any:  # noqa: N802
        return SimpleNamespace(waitUntilEmpty=lambda: self._fail("TimeoutException") if self._is_busy else None)

    def statusStore(self) -> Any:  # noqa: N802
        return SimpleNamespace(job=self._job)

    def _job(self, number: int) -> Any:
        group = self.groups[number]
        if group is None:
            self._fail("NoSuchElementException")
        return SimpleNamespace(jobGroup=lambda: SimpleNamespace(isDefined=lambda: bool(group), get=lambda: group))

    def _fail(self, what: str) -> None:
        raise protocol.Py4JJavaError(what, SimpleNamespace(_target_id="o1"))


@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize(
    ("groups", "were_run"),
    [
        ([], False),
        (["aiokcc-1-2"], False),
        (["aiokcc-1-2", "aiokcc-1-1"], True),
        ([""], True),
        (["mine"], True),
        ([None], True),
    ],
    ids=["none", "of-another-pipeline", "here", "in-a-thread", "in-a-group-of-the-function", "not-recorded"],
)
def test_a_job_counts_unless_it_is_known_to_be_of_another_pipeline(
    groups: list[str | None], were_run: bool, is_busy: bool
) -> None:
    """Other pipelines of the process may keep Spark so busy that it does not record all jobs in time."""
    context = Context(is_busy=is_busy)
    spark: Any = SimpleNamespace(sparkContext=context)
    jobs = FunctionJobs(spark)
    context.groups += groups
    assert jobs.were_run() is were_run
