"""Tells whether the user's function has run Spark jobs itself, such as ``count()``: what it learns there is not in its plan.

A thread that the function starts has no job group. So every job counts that began while the function was called, unless it
belongs to another pipeline of this process.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FunctionJobs"]

_GROUP: Final = "spark.jobGroup.id"
_OF_PIPELINES: Final = "aiokcc-"
"""The beginning of the job groups of pipelines (:mod:`aiokcc.spark.spark_thread`)."""


class FunctionJobs:
    """The jobs that a classic session runs from now on."""

    def __init__(self, spark: SparkSession) -> None:
        self._context: Any = spark.sparkContext._jsc.sc()
        self._group = spark.sparkContext.getLocalProperty(_GROUP)
        self._first = self._count()

    def were_run(self) -> bool:
        """Return whether a job has begun that may be one of the function."""
        from py4j.protocol import Py4JJavaError

        jobs = range(self._first, self._count())
        if not jobs:
            return False
        # Jobs are recorded a moment after they began. Other pipelines may keep Spark too busy for that.
        with contextlib.suppress(Py4JJavaError):
            self._context.listenerBus().waitUntilEmpty()
        return any(map(self._may_be_ours, jobs))

    def _count(self) -> int:
        return int(self._context.dagScheduler().numTotalJobs())

    def _may_be_ours(self, job: int) -> bool:
        from py4j.protocol import Py4JJavaError

        try:
            found = self._context.statusStore().job(job).jobGroup()
        except Py4JJavaError:  # not recorded yet, or no more: Spark keeps the last thousand jobs
            return True
        group = found.get() if found.isDefined() else ""
        return group == self._group or not group.startswith(_OF_PIPELINES)
