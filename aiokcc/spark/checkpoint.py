"""The nodes that a pipeline keeps in the store, under ``pipelines/<name>``, and how its writes are fenced.

==============  ====================================================================================================
``definition``  topics, period, event time and sink, as JSON. It does not change once a batch is decided
``attempt``     a counter and the driver that took it. A driver takes it by a conditional write that adds one
``intent``      the batch that was decided last: see :class:`~aiokcc.spark.plan.Intent`
``published``   the number of the last batch that is published, and of the last one among these that had records
``error``       why the batch that was decided last has failed, as JSON; for people. It is made when a job first fails
``function``    the version and the fingerprint of the function that computed the last batch, as JSON; for people
``run``         a random text. Sinks compare their results with it, because another root may use the same name
==============  ====================================================================================================

Every write is one transaction that checks the version of ``attempt``. So a driver that was suspended while its successor began
is refused, in whatever session it writes. After a write with unknown outcome the driver reads the node and writes again if
needed. That is safe because only the holder of the attempt writes these nodes, one write at a time.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import anyio

from aiokcc.core import paths
from aiokcc.credentials import hide_secrets
from aiokcc.errors import (
    AiokccError,
    BadVersionError,
    CorruptNodeError,
    FencedError,
    MissingNodeError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
    PipelineMismatchError,
    SessionLostError,
)
from aiokcc.spark.function_version import FunctionVersion, describe_change
from aiokcc.spark.plan import Intent
from aiokcc.stores.port import Check, Create, Node, Session, Set, Store

__all__ = ["Checkpoint"]

log = logging.getLogger("aiokcc.spark")

ROOT: Final = paths.PIPELINES
_ERROR_SECONDS: Final = 5.0
_SHARED: Final = ("partitions", "subscription")
"""The parts of a definition that say which partitions of the group the pipeline runs."""
NOTHING: Final = -1
"""The number of the last published batch while there is none."""


@dataclass(slots=True)
class _Written:
    """A node that only this driver writes, with the content and version that it wrote last."""

    path: str
    data: bytes = b""
    version: int = 0


class Checkpoint:
    """Reads and writes the nodes of one pipeline. Call :meth:`begin` first."""

    def __init__(self, store: Store, name: str, session: Callable[[], Awaitable[Session]]) -> None:
        self._store = store
        self._session = session
        """Returns the present session; waits while there is none."""
        self.name = name
        base = f"{ROOT}/{name}"
        self._definition = f"{base}/definition"
        self._attempt = f"{base}/attempt"
        self._attempt_version = 0
        self._intent = _Written(f"{base}/intent")
        self._published = _Written(f"{base}/published")
        self._run = f"{base}/run"
        self._error = f"{base}/error"
        self._function = f"{base}/function"
        self._recorded_function: FunctionVersion | None = None
        self.run = ""
        """The run that the results belong to. It differs for each root, and after each start from scratch."""
        self.attempt = 0
        """The number of this driver's attempt, greater than that of every earlier driver."""
        self.intent: Intent | None = None
        """The batch that was decided last."""
        self.published = NOTHING
        """The number of the last batch that is published."""
        self.filled: int | None = NOTHING
        """The number of the last published batch that had records; None if an earlier version has not recorded it."""

    @property
    def pending(self) -> Intent | None:
        """The last decided batch, if it may not be published yet; else None."""
        return self.intent if self.intent is not None and self.intent.number > self.published else None

    async def begin(
        self,
        definition: Mapping[str, Any],
        who: str,
        *,
        from_scratch: bool = False,
        past: int = 0,
        ready: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Take over the pipeline: compare its definition, fence out earlier drivers by a new attempt, and read its state.

        The new attempt is greater than ``past``, too. ``ready`` waits until this driver may take over; it is called again after
        a lost session, because another driver may have taken over meanwhile. A definition under which nothing was decided is
        replaced. Raise PipelineMismatchError if batches were decided under another one, or it has other partitions. Cancelling
        is safe: an attempt that was taken stays taken.
        """
        while True:
            if ready is not None:
                await ready()
            session = await self._session()
            try:
                await self._begin(session, definition, who, from_scratch, past)
            except (SessionLostError, OutcomeUnknownError, BadVersionError, NodeExistsError):
                continue  # another driver, or an earlier try of this one, has written: the greater number wins
            return

    async def _begin(
        self, session: Session, definition: Mapping[str, Any], who: str, from_scratch: bool, past: int
    ) -> None:
        text = json.dumps(definition, indent=1).encode()
        redefines = False
        node = await session.find(self._definition)
        if node is None:
            await session.ensure(self._attempt.rpartition("/")[0])
            await session.commit(
                Create(self._definition, text),
                Create(self._attempt, b"0"),
                Create(self._intent.path),
                Create(self._published.path, str(NOTHING).encode()),
                Create(self._run, _new_run()),
            )
            node = await session.get(self._definition)
        elif not from_scratch:
            redefines = await self._redefines(session, node, definition)
        held = await self._get(session, self._attempt)
        number = max(self._number(held), past) + 1
        # Only under the definition that we compared: a driver of other partitions may have replaced it, from scratch.
        await session.commit(
            Check(self._definition, node.version), Set(self._attempt, f"{number} {who}".encode(), held.version)
        )
        self._attempt_version, self.attempt = held.version + 1, number
        # Read after the fence: writes that our predecessor still has under way are refused from here on.
        await self._read_state(session)
        if await session.find(self._run) is None:  # a pipeline that an earlier version started, without a run
            await session.commit(Check(self._attempt, self._attempt_version), Create(self._run, _new_run()))
        run = await self._get(session, self._run)
        self.run = run.data.decode(errors="replace")
        if redefines:
            self._decode()
            if self._has_decided:  # by the driver that was fenced out
                self._compare(node, definition)
            await session.commit(Check(self._attempt, self._attempt_version), Set(self._definition, text, node.version))
        if from_scratch:
            new = _new_run()
            await session.commit(
                Check(self._attempt, self._attempt_version),
                Set(self._definition, text, node.version),
                Set(self._intent.path, b"", self._intent.version),
                Set(self._published.path, str(NOTHING).encode(), self._published.version),
                Set(self._run, new, run.version),
            )
            self.run = new.decode()
            for written, data in ((self._intent, b""), (self._published, str(NOTHING).encode())):
                written.data, written.version = data, written.version + 1
        self._decode()

    async def check(self, session: Session, definition: Mapping[str, Any], *, leave_out: Sequence[str] = ()) -> bool:
        """Return whether the pipeline exists under this definition. Raise PipelineMismatchError as :meth:`begin` does.

        The parts of the definition that are named in ``leave_out`` are not compared.
        """
        node = await session.find(self._definition)
        return node is not None and not await self._redefines(session, node, definition, leave_out)

    async def _redefines(
        self, session: Session, node: Node, definition: Mapping[str, Any], leave_out: Sequence[str] = ()
    ) -> bool:
        """Return whether the definition is another one that replaces the recorded one: nothing was decided under that.

        So it is after a first start that the sink refused. Raise PipelineMismatchError if something was decided, or if the
        partitions are others: the locks of ours do not tell whether a driver of those is alive.
        """
        try:
            self._compare(node, definition, leave_out)
        except PipelineMismatchError:
            await self._read_state(session)
            self._decode()
            recorded = json.loads(node.data)
            if self._has_decided or any(recorded.get(part) != definition.get(part) for part in _SHARED):
                raise
            return True
        return False

    @property
    def _has_decided(self) -> bool:
        return self.intent is not None or self.published != NOTHING

    async def is_complete(self, definition: Mapping[str, Any]) -> bool:
        """Return whether the pipeline has begun and all that was decided is published, without taking over.

        A pipeline that has decided nothing had nothing to do, or its driver died before. The last cut tells which.
        PipelineMismatchError as in :meth:`begin`.
        """
        session = await self._session()
        node = await session.find(self._definition)
        if node is None:
            return False
        redefines = await self._redefines(session, node, definition)
        await self._read_state(session)
        self._decode()
        run = await session.find(self._run)
        self.run = "" if run is None else run.data.decode(errors="replace")
        return not redefines and self.pending is None

    async def _read_state(self, session: Session) -> None:
        for written in (self._intent, self._published):
            found = await self._get(session, written.path)
            written.data, written.version = found.data, found.version

    def _decode(self) -> None:
        self.intent = Intent.decode(self._store.describe(self._intent.path), self._intent.data)
        node = Node(self._published.path, self._published.data, self._published.version)
        self.published = self._number(node)
        if len(node.data.split()) > 1:
            self.filled = self._number(node, 1)
        else:
            self.filled = NOTHING if self.published == NOTHING else None

    def _compare(self, node: Node, mine: Mapping[str, Any], leave_out: Sequence[str] = ()) -> None:
        where = self._store.describe(node.path)
        try:
            theirs: Any = json.loads(node.data)
            if not isinstance(theirs, dict):
                raise ValueError(theirs)  # noqa: TRY004 - the content is wrong, not an argument
        except ValueError:
            raise CorruptNodeError(where, node.data, "a pipeline's definition as JSON") from None
        wanted = json.loads(json.dumps(mine))
        differences = [
            f"{name} was {_shown(theirs.get(name))} and is {_shown(wanted.get(name))}"
            for name in dict.fromkeys([*theirs, *wanted])
            if name not in leave_out and theirs.get(name) != wanted.get(name)
        ]
        if differences:
            raise PipelineMismatchError(
                f"the pipeline {self.name!r} under {self._store.describe('')} was started before with another definition: "
                f"{'; '.join(differences)}. Give it another name, or from_scratch=True to throw away what it has done"
            )

    async def record_intent(self, intent: Intent) -> None:
        """Record a batch before it is published. From now on a later driver carries out this batch if this driver does not."""
        await self._write(self._intent, intent.encode())
        self.intent = intent

    async def record_published(self, number: int, *, has_records: bool = True) -> None:
        """Record that a batch is published, and whether it had records."""
        filled = number if has_records else self.filled
        await self._write(self._published, (f"{number}" if filled is None else f"{number} {filled}").encode())
        self.published, self.filled = number, filled

    async def record_error(self, number: int, text: str) -> None:
        """Record why a batch failed, for the operator. Nothing depends on it: it is left out if the store does not answer."""
        data = json.dumps({"batch": number, "error": hide_secrets(text)[:2000]}).encode()
        fence = Check(self._attempt, self._attempt_version)
        with anyio.move_on_after(_ERROR_SECONDS):
            await self._record_error(number, data, fence)

    async def _record_error(self, number: int, data: bytes, fence: Check) -> None:
        try:
            session = await self._session()
            node = await session.find(self._error)
            await session.commit(
                fence, Create(self._error, data) if node is None else Set(self._error, data, node.version)
            )
        except AiokccError as error:
            log.debug("the error of batch %d was not recorded: %r", number, error)

    async def record_function(self, function: FunctionVersion, number: int) -> None:
        """Record the function that computes batches from this one on. Log a warning if it changed without a new version.

        Nothing depends on it: it is left out if the store does not answer in time, and tried again with the next batch.
        """
        if function == self._recorded_function:
            return
        fence = Check(self._attempt, self._attempt_version)
        with anyio.move_on_after(_ERROR_SECONDS):
            try:
                session = await self._session()
                node = await session.find(self._function)
                before = FunctionVersion() if node is None else FunctionVersion.decode(node.data)
                data = function.encode()
                if node is None:
                    await session.commit(fence, Create(self._function, data))
                elif before != function:
                    await session.commit(fence, Set(self._function, data, node.version))
                self._recorded_function = function
            except AiokccError as error:
                log.debug("the function of batch %d was not recorded: %r", number, error)
                return
            if sentence := describe_change(before, function, number):
                log.warning("%s: %s", self.name, sentence)

    async def is_superseded(self) -> bool:
        """Return whether another driver has taken over since."""
        try:
            await self.confirm()
        except FencedError:
            return True
        return False

    async def confirm(self) -> None:
        """Raise FencedError if another driver has taken over since. Called right before publishing."""
        while True:
            session = await self._session()
            try:
                held = await self._get(session, self._attempt)
            except SessionLostError:
                continue
            if held.version != self._attempt_version:
                raise self._fenced(held)
            return

    async def _write(self, written: _Written, data: bytes) -> None:
        while True:
            session = await self._session()
            try:
                await session.commit(
                    Check(self._attempt, self._attempt_version), Set(written.path, data, written.version)
                )
            except (BadVersionError, SessionLostError, OutcomeUnknownError) as error:
                if await self._landed(written, data):
                    return
                if isinstance(error, BadVersionError):
                    raise CorruptNodeError(
                        self._store.describe(written.path), data, "what this driver has written last"
                    ) from error
            except NoNodeError as error:
                raise MissingNodeError(self._store.describe(error.path)) from error
            else:
                written.data, written.version = data, written.version + 1
                return

    async def _landed(self, written: _Written, data: bytes) -> bool:
        """Return whether a write with unknown outcome was applied. Raise FencedError if another driver has taken over."""
        await self.confirm()
        while True:
            session = await self._session()
            try:
                found = await self._get(session, written.path)
            except SessionLostError:
                continue
            if found.version == written.version + 1 and found.data == data:
                written.data, written.version = data, found.version
                return True
            return False

    async def _get(self, session: Session, path: str) -> Node:
        node = await session.find(path)
        if node is None:
            raise MissingNodeError(self._store.describe(path))
        return node

    def _number(self, node: Node, word: int = 0) -> int:
        try:
            return int(node.data.split()[word])
        except (ValueError, IndexError):
            raise CorruptNodeError(self._store.describe(node.path), node.data, "a number") from None

    def _fenced(self, held: Node) -> FencedError:
        who = held.data.decode(errors="replace").partition(" ")[2] or "somebody"
        return FencedError(
            f"the pipeline {self.name!r} was taken over by {who}; this driver, attempt {self.attempt}, publishes nothing more"
        )


def _new_run() -> bytes:
    return uuid.uuid4().hex.encode()


def _shown(value: Any) -> str:
    text = hide_secrets(json.dumps(value)) if value is not None else "not given"
    return text if len(text) <= 200 else f"{text[:200]}…"
