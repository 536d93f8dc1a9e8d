"""What a sink does. The pipeline calls it from worker threads, one call at a time.

The order is always ``begin``, then for each batch ``stage`` and ``publish``. Between any two of them the driver may die; the
next one has a greater attempt number, begins again, asks whether the recorded batch is published, and does it if not. A driver
that only was asleep must not publish after its successor began: that is what the attempt number is for.

A job that failed is staged again, as often as the pipeline likes; only the last result that was staged is published.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from aiokcc.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from aiokcc.spark.batch import Batch

__all__ = ["Sink"]


class Sink(ABC):
    """Where the results of a pipeline go."""

    exactly_once: ClassVar[bool]
    """Whether a period is in the result once, however often drivers die. If not, the result must bear repetitions."""

    @abstractmethod
    def describe(self) -> str:
        """What it is and where, in words: a pipeline that is started again with another sink is refused."""

    def identify(self, run: str, where: str) -> None:  # noqa: B027 - a sink that keeps nothing need not know
        """Take note of the run whose results these are: a random text, the same for all its drivers; and its root in the store.

        Called before all else. A sink that finds the results of another run under the pipeline's name refuses to go on.
        """

    def check_published(self, pipeline: str, number: int) -> None:  # noqa: B027 - a sink that keeps nothing cannot tell
        """Raise PipelineMismatchError if the batch of this number, which was published in this run, is not there any more.

        The number is that of the last published batch with records, -1 if there is none. Called after :meth:`identify` and
        before :meth:`begin`, and where the run has ended already. It changes nothing.
        """

    @abstractmethod
    def begin(self, pipeline: str, attempt: int) -> None:
        """A driver takes over: from now on nothing of an attempt with a smaller number can be published.

        FencedError if a later attempt has begun already. PipelineMismatchError if what is there comes from another run.
        """

    @abstractmethod
    def is_published(self, batch: Batch) -> bool:
        """Return whether the batch is published already; asked after a restart only.

        PipelineMismatchError if another batch is published under its number.
        """

    @abstractmethod
    def stage(self, frame: DataFrame, batch: Batch) -> object:
        """Run the job: write the result to where no reader looks. Not called for an empty batch.

        The frame has a column ``period``, the start of each row's period. What is returned goes to :meth:`publish`.
        """

    @abstractmethod
    def publish(self, batch: Batch, staged: object | None) -> None:
        """Let readers see the batch, all of it at once. Doing it again changes nothing.

        FencedError if a later attempt has begun. ``staged`` is None for an empty batch.
        """

    def last_attempt(self, pipeline: str) -> int:
        """The greatest attempt that has begun here, also under a store that is gone; 0 if there was none, or nobody knows.

        Asked before a pipeline starts from scratch: its attempt is a greater one.
        """
        return 0

    def reset(self, pipeline: str, attempt: int) -> None:
        """Start from nothing: what smaller attempts have published is no longer seen.

        Called right before ``begin``, and only where a person asked for it. FencedError if a later attempt has begun: what that
        one publishes stays, however long we were asleep. UsageError where a sink cannot do that.
        """
        raise UsageError(f"{self.describe()} cannot be emptied by the pipeline; empty it by hand, or choose another")
