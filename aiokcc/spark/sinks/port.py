"""The interface of a sink. The pipeline calls it from worker threads, one call at a time.

The order is always ``begin``, then for each batch ``stage`` and ``publish``. Between any two of them the driver may die; the
next one has a greater attempt number, begins again, asks whether the recorded batch is published, and publishes it if not. A
driver that was only suspended must not publish after its successor began; the attempt number serves to refuse it.

The pipeline may stage a failed job again, several times; only the last result that was staged is published.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from aiokcc.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

    from aiokcc.spark.batch import Batch
    from aiokcc.spark.function_version import FunctionVersion
    from aiokcc.spark.published import Published

__all__ = ["Sink"]


class Sink(ABC):
    """Publishes the results of a pipeline."""

    exactly_once: ClassVar[bool]
    """True if each period is in the result once, however often drivers die. If False, the result must tolerate repetitions."""

    @abstractmethod
    def describe(self) -> str:
        """Return the kind of the sink and its place, in words.

        The store records it: a pipeline that is started again with another sink is refused.
        """

    def identify(self, run: str, where: str) -> None:  # noqa: B027 - a sink that keeps nothing need not know
        """Remember the run that the results belong to (a random text, the same for all its drivers) and its root in the store.

        It is called before all other methods. Later calls raise PipelineMismatchError if they find results of another run.
        """

    def check_published(self, pipeline: str, number: int) -> None:  # noqa: B027 - a sink that keeps nothing cannot tell
        """Raise PipelineMismatchError if the batch of this number, which was published in this run, is missing.

        The number is that of the last published batch with records, -1 if there is none. It is called after :meth:`identify`
        and before :meth:`begin`, and also if the run has ended already. It changes nothing.
        """

    def computed_by(self, function: FunctionVersion) -> None:  # noqa: B027 - a sink that keeps nothing need not know
        """Remember the version and the fingerprint of the function, to record them with each batch that is published next."""

    @abstractmethod
    def begin(self, pipeline: str, attempt: int) -> None:
        """Take over: from now on nothing of an attempt with a smaller number can be published.

        Raise FencedError if a later attempt has begun already, PipelineMismatchError if the results belong to another run.
        """

    @abstractmethod
    def is_published(self, batch: Batch) -> bool:
        """Return whether the batch is published already. It is called after a restart only.

        Raise PipelineMismatchError if another batch is published under its number.
        """

    @abstractmethod
    def stage(self, frame: DataFrame, batch: Batch) -> object:
        """Run the job: write the result to a place where no reader looks. It is not called for an empty batch.

        The frame has a column ``period``, the start of each row's period. The returned object is passed to :meth:`publish`.
        """

    @abstractmethod
    def publish(self, batch: Batch, staged: object | None) -> None:
        """Make the batch visible to readers, as a whole. A second call for the same batch changes nothing.

        ``staged`` is None for an empty batch. Raise FencedError if a later attempt has begun.
        """

    def last_attempt(self, pipeline: str) -> int:
        """Return the greatest attempt that has begun in this result, also under another store; 0 if none is known.

        It is called before a pipeline starts from scratch, so that its attempt is a greater one.
        """
        return 0

    def check_reset(self, pipeline: str, result: Callable[[], DataFrame | None]) -> None:
        """Raise the error that :meth:`reset` would raise, or that the columns of the new result would raise after it.

        It is called before anything is changed for a start from scratch, and changes nothing. ``result`` returns the function's
        result without rows, for its columns; None if it is not known.
        """
        if type(self).reset is Sink.reset:
            self.reset(pipeline, 0)

    def reset(self, pipeline: str, attempt: int) -> None:
        """Remove what smaller attempts have published, so that readers no longer see it.

        It is called right before ``begin``, and only if a person asked for it. Raise FencedError if a later attempt has begun:
        what that one publishes stays, however long this driver was suspended. Raise UsageError if the sink cannot do it.
        """
        raise UsageError(f"{self.describe()} cannot be emptied by the pipeline; empty it by hand, or choose another")

    # Periods that are computed again

    def published(self, pipeline: str, last: int) -> Published:
        """Return the batches up to number ``last``, which the store has recorded as published, and all restatements.

        A batch after them is returned as well if the result shows that it is published. It changes nothing, and is called after
        :meth:`identify`. Raise UsageError if the sink does not record them.
        """
        raise UsageError(
            f"{self.describe()} does not record which offsets its periods were read from, so they cannot be restated; "
            f"ParquetSink and DeltaSink do"
        )

    def replace(self, batch: Batch, staged: Sequence[object], after: int) -> None:
        """Replace the published periods between the bounds ``batch.replaces`` by those of the batch, in one step for readers.

        ``staged`` are the results of one or more calls of :meth:`stage`, for parts of the batch; ``after`` is the number of the
        last published batch. A second call changes nothing. Raise FencedError if a later attempt has begun: nothing has
        changed then.
        """
        raise NotImplementedError
