"""The one thread in which a replay calls Spark, and how a running job is stopped.

PySpark binds each Python thread to a Java thread and keeps the job group there. So all calls of a replay come from one thread,
one after the other. Each try of a job has a job group of its own, which all Spark jobs of that try belong to: cancelling it
also stops jobs that were not submitted yet. The group is removed from the thread after the try, or the next try would be
cancelled with it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkThread", "is_remote", "is_stopped"]

T = TypeVar("T")

log = logging.getLogger("aiokcc.spark")

_numbers: Final = itertools.count()
_PROPERTIES: Final = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


def is_remote(spark: SparkSession) -> bool:
    """Return whether the session is one of Spark Connect, which has no SparkContext."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def is_stopped(spark: SparkSession) -> bool:
    """Return whether the session was stopped, or its Java process has ended."""
    if is_remote(spark):
        return bool(getattr(spark, "is_stopped", False))
    context = getattr(spark, "_sc", None)
    if context is None:
        return False  # not a session of PySpark's; its first use shows that
    try:
        return context._jsc is None or bool(context._jsc.sc().isStopped())
    except Exception:  # noqa: BLE001 - Java is gone
        return True


class SparkThread:
    """Runs calls to Spark and to the sink in a thread, one at a time."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark: Final = spark
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="aiokcc-spark")

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run a short function that must not stop half way. When cancelled, wait for its end first."""
        return await self._wait(self._executor.submit(function, *args), lambda: None)

    async def job(self, description: str, function: Callable[..., T], *args: Any) -> T:
        """Run a function. When cancelled, stop its Spark jobs and wait until the function has ended."""
        tag = f"aiokcc-{os.getpid()}-{next(_numbers)}"
        return await self._wait(
            self._executor.submit(self._tagged, tag, description, function, *args), lambda: self._stop(tag)
        )

    def close(self) -> None:
        """End the thread after the calls that were made. No more calls are possible."""
        self._executor.shutdown(wait=False)

    async def _wait(self, future: Future[T], stop: Callable[[], None]) -> T:
        waiter = asyncio.wrap_future(future)
        try:
            await asyncio.wait([waiter])
        except BaseException:
            with anyio.CancelScope(shield=True):
                await asyncio.to_thread(stop)
                await asyncio.wait([waiter])
                if not waiter.cancelled() and waiter.exception() is not None:
                    log.debug("stopped: %r", waiter.exception())
            raise
        return waiter.result()

    def _tagged(self, tag: str, description: str, function: Callable[..., T], *args: Any) -> T:
        spark = self.spark
        if is_remote(spark):
            spark.addTag(tag)
            try:
                return function(*args)
            finally:
                spark.removeTag(tag)
        context = spark.sparkContext
        context.setJobGroup(tag, description)
        try:
            return function(*args)
        finally:
            if not is_stopped(spark):  # the function may have stopped it
                for name in _PROPERTIES:
                    context.setLocalProperty(name, None)

    def _stop(self, tag: str) -> None:
        try:
            if is_remote(self.spark):
                self.spark.interruptTag(tag)
            else:
                self.spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(tag)
        except Exception as error:  # noqa: BLE001 - a session that has stopped has no jobs
            log.warning("could not stop the running job: %r", error)
