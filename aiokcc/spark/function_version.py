"""The function of a pipeline, with its version and the fingerprint of its plan.

The store holds those of the last batch, and the sinks record them with each batch. So it is known which periods were computed
by which function, and a change of the function that nobody gave a new version is noticed, once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiokcc.errors import UsageError
from aiokcc.spark.analysed_plan import analysed_plan
from aiokcc.spark.compute import Periods, WatchedPeriods
from aiokcc.spark.fingerprint import GIVEN, fingerprint
from aiokcc.spark.spark_thread import is_remote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["FunctionVersion", "VersionedFunction", "check_version", "describe_change"]


@dataclass(frozen=True, slots=True)
class FunctionVersion:
    """The version and the fingerprint of the function that computed a batch, as far as they are known."""

    version: str | None = None
    """The version that the user gave; None if none was given."""
    fingerprint: str | None = None
    """Spark's version and the fingerprint of the plan; None if the plan is not known, or depends on the batch."""

    def encode(self) -> bytes:
        return json.dumps({"version": self.version, "fingerprint": self.fingerprint}).encode()

    @classmethod
    def decode(cls, data: bytes) -> FunctionVersion:
        """Read what the store holds. What cannot be read is taken as not known: nothing depends on it."""
        try:
            content = json.loads(data)
            return cls(content.get("version"), content.get("fingerprint"))
        except (ValueError, AttributeError):
            return cls()

    def has_another_plan(self, other: FunctionVersion) -> bool:
        """Return whether the two plans differ; False if one is not known, or they are of two versions of Spark."""
        if self.fingerprint is None or other.fingerprint is None:
            return False
        mine, theirs = self.fingerprint.split(":"), other.fingerprint.split(":")
        return mine[0] == theirs[0] and mine != theirs


def check_version(version: object) -> str | None:
    """Return the argument ``version``. Raise UsageError if it is no short text."""
    if version is None or (isinstance(version, str) and 0 < len(version) <= 100):
        return version
    raise UsageError(f'version is {version!r}; expected a short text, like "2"')


def describe_change(before: FunctionVersion, now: FunctionVersion, batch: int) -> str | None:
    """Return the sentence for a function that has changed without a new version; None if there is nothing to say."""
    if before.version != now.version or not now.has_another_plan(before):
        return None
    which = "it has no version" if now.version is None else f"its version is still {now.version!r}"
    return (
        f"the function is another one than before: its plan has changed from batch {batch} on, and {which}. What is published "
        f"stays as it is. Give version=… a new value with each change, so that `aiokcc pipeline history` tells which periods "
        f"were computed by which function"
    )


class VersionedFunction:
    """Calls the user's function, and takes the fingerprint of its plan the first time."""

    def __init__(self, function: Callable[..., Any], version: str | None) -> None:
        self._function = function
        self.known = FunctionVersion(version)
        self._is_taken = False

    def __call__(self, frame: DataFrame, periods: Periods, *state: DataFrame) -> Any:
        """Return what the function returns. It may raise anything."""
        if self._is_taken or is_remote(frame.sparkSession):
            return self._function(frame, periods, *state)  # Spark Connect shows no plan
        if not isinstance(periods, WatchedPeriods):
            periods = WatchedPeriods(periods.start, periods.end, periods.boundaries, periods.number)
        result = self._function(frame.alias(GIVEN), periods, *(each.alias(GIVEN) for each in state))
        results = result if isinstance(result, tuple) else (result,)
        if all(hasattr(each, "_jdf") for each in results):
            self._is_taken = True
            if not periods.was_read:
                digest = fingerprint(*map(analysed_plan, results))
                spark = frame.sparkSession.version
                self.known = FunctionVersion(self.known.version, f"{spark}:{digest}")
        return result
