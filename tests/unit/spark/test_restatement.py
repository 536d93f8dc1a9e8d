"""The jobs of a restatement when they fail. Without Spark."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from aiokcc.errors import SparkJobError
from aiokcc.spark.restatement import Restatement

AnalysisException = type("AnalysisException", (Exception,), {"__module__": "pyspark.errors"})


class CountingThread:
    """Calls the function of a job here, and counts the calls."""

    calls = 0

    async def job(self, _what: str, function: Callable[[], Any]) -> Any:
        self.calls += 1
        return function()


@pytest.mark.parametrize(
    ("error", "calls"),
    [(TypeError, 1), (NameError, 1), (AttributeError, 1), (AnalysisException, 1), (RuntimeError, 3)],
)
async def test_only_errors_that_may_pass_are_retried(error: type[Exception], calls: int) -> None:
    def fail() -> None:
        raise error("the function's")

    options: Any = SimpleNamespace(retries=2)
    part: Any = SimpleNamespace(pipeline="p", start=0, end=60_000)
    thread: Any = CountingThread()
    restatement = Restatement(options)
    with pytest.raises(SparkJobError, match=f"failed with {error.__name__}: the function's; nothing was changed"):
        await restatement._job(thread, part, fail)
    assert (thread.calls, restatement.summary.retried) == (calls, calls - 1)
