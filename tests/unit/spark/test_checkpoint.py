"""The nodes of a pipeline in the store: which driver may write them, and what its successor reads. On the memory store."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from aiokcc.core.partitions import Partition
from aiokcc.errors import (
    CorruptNodeError,
    FencedError,
    MissingNodeError,
    PipelineMismatchError,
    SessionLostError,
    StoreUnreachableError,
)
from aiokcc.spark.checkpoint import Checkpoint
from aiokcc.spark.plan import Intent, Place
from aiokcc.stores import Session, Store, open_store
from aiokcc.stores.port import Set

DEFINITION = {"topics": ["orders"], "period": 60_000, "sink": "here"}


@pytest.fixture
def store() -> Store:
    return open_store(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
async def sessions() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def checkpoint(store: Store, sessions: AsyncExitStack, name: str = "p") -> Checkpoint:
    """Give the checkpoint of another driver, in a session of its own."""
    session: Session = await sessions.enter_async_context(store.session(timeout=10))

    async def present() -> Session:
        return session

    return Checkpoint(store, name, present)


def batch(number: int) -> Intent:
    return Intent(
        number, (), ((0, 10),), {Partition("orders", 0): (Place(number, number), Place(number + 1, number + 1))}
    )


async def test_a_successor_finds_what_was_decided_and_what_is_published(store: Store, sessions: AsyncExitStack) -> None:
    first = await checkpoint(store, sessions)
    await first.begin(DEFINITION, "one")
    assert (first.attempt, first.intent, first.published, first.pending) == (1, None, -1, None)
    await first.record_intent(batch(0))
    await first.record_published(0)
    await first.record_intent(batch(1))
    second = await checkpoint(store, sessions)
    await second.begin(DEFINITION, "two")
    assert (second.attempt, second.intent, second.published) == (2, batch(1), 0)
    assert second.pending == batch(1)
    await second.record_published(1)
    assert second.pending is None


async def test_a_replaced_driver_cannot_write(store: Store, sessions: AsyncExitStack) -> None:
    first = await checkpoint(store, sessions)
    await first.begin(DEFINITION, "one")
    await first.record_intent(batch(0))
    second = await checkpoint(store, sessions)
    await second.begin(DEFINITION, "two")
    for write in (first.confirm, lambda: first.record_published(0), lambda: first.record_intent(batch(7))):
        with pytest.raises(FencedError, match="'p' was taken over by two; this driver, attempt 1"):
            await write()
    await second.confirm()
    third = await checkpoint(store, sessions)
    await third.begin(DEFINITION, "three")
    assert (third.intent, third.published) == (batch(0), -1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"period": 1}, "period was 60000 and is 1"),
        ({"topics": ["a"]}, r'topics was \["orders"\] and is \["a"\]'),
        ({"sink": "there"}, 'sink was "here" and is "there"'),
        ({"more": 1}, "more was not given and is 1"),
    ],
)
async def test_another_definition_is_refused(
    store: Store, sessions: AsyncExitStack, change: dict[str, Any], words: str
) -> None:
    first = await checkpoint(store, sessions)
    await first.begin(DEFINITION, "one")
    await first.record_intent(batch(0))
    with pytest.raises(PipelineMismatchError, match=f"{words}.*from_scratch=True"):
        await (await checkpoint(store, sessions)).begin({**DEFINITION, **change}, "two")
    await first.confirm()  # a driver that is refused fences nobody out


async def test_a_definition_under_which_nothing_was_decided_is_replaced(store: Store, sessions: AsyncExitStack) -> None:
    """The first start named a sink that refused it. The next one names the right one."""
    first = await checkpoint(store, sessions)
    await first.begin(DEFINITION, "one")
    second = await checkpoint(store, sessions)
    await second.begin({**DEFINITION, "sink": "there"}, "two")
    assert (second.attempt, second.run) == (2, first.run)
    with pytest.raises(FencedError):
        await first.record_intent(batch(0))
    await second.record_intent(batch(0))
    with pytest.raises(PipelineMismatchError, match='sink was "there" and is "here"'):
        await (await checkpoint(store, sessions)).begin(DEFINITION, "three")


async def test_a_definition_is_not_replaced_if_its_driver_decides_meanwhile(
    store: Store, sessions: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first driver was frozen, and writes right before the second one fences it out."""
    first, second = await checkpoint(store, sessions), await checkpoint(store, sessions)
    await first.begin(DEFINITION, "one")
    redefines = second._redefines

    async def decide_then(*arguments: Any) -> bool:
        found = await redefines(*arguments)
        await first.record_intent(batch(0))
        return found

    monkeypatch.setattr(second, "_redefines", decide_then)
    with pytest.raises(PipelineMismatchError):
        await second.begin({**DEFINITION, "sink": "there"}, "two")
    third = await checkpoint(store, sessions)
    await third.begin(DEFINITION, "three")
    assert third.pending == batch(0)


@pytest.mark.parametrize("part", ["partitions", "subscription"])
async def test_a_definition_with_other_partitions_is_not_replaced(
    store: Store, sessions: AsyncExitStack, part: str
) -> None:
    """Its driver may be alive and wait for its first record: the locks of other partitions do not tell."""
    first = await checkpoint(store, sessions)
    await first.begin({**DEFINITION, part: "orders.0"}, "one")
    for mine in ("orders.1", None):
        with pytest.raises(PipelineMismatchError, match=f'{part} was "orders.0" and is'):
            await (await checkpoint(store, sessions)).begin({**DEFINITION, part: mine}, "two")
    await first.confirm()


@pytest.mark.parametrize("decides", [False, True])
@pytest.mark.parametrize("mine", ["here", "there"])
async def test_a_driver_does_not_begin_under_a_definition_that_was_replaced_meanwhile(
    store: Store, sessions: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, mine: str, decides: bool
) -> None:
    """Another driver replaces the definition after this one has compared it."""
    first, second, other = [await checkpoint(store, sessions) for _ in range(3)]
    await first.begin(DEFINITION, "one")
    redefines = second._redefines

    async def replace_then(*arguments: Any) -> bool:
        found = await redefines(*arguments)
        monkeypatch.undo()
        await other.begin({**DEFINITION, "sink": "there"}, "other")
        if decides:
            await other.record_intent(batch(0))
        return found

    monkeypatch.setattr(second, "_redefines", replace_then)
    if decides and mine == "here":
        with pytest.raises(PipelineMismatchError, match='sink was "there" and is "here"'):
            await second.begin(DEFINITION, "two")
        await other.confirm()
        return
    await second.begin({**DEFINITION, "sink": mine}, "two")
    assert second.pending == (batch(0) if decides else None)
    session: Session = await sessions.enter_async_context(store.session(timeout=10))
    assert json.loads((await session.get("pipelines/p/definition")).data)["sink"] == mine


async def test_from_scratch_replaces_the_definition_and_the_state(store: Store, sessions: AsyncExitStack) -> None:
    first = await checkpoint(store, sessions)
    await first.begin(DEFINITION, "one")
    await first.record_intent(batch(0))
    await first.record_published(0)
    second = await checkpoint(store, sessions)
    await second.begin({**DEFINITION, "period": 1}, "two", from_scratch=True)
    assert (second.attempt, second.intent, second.published) == (2, None, -1)
    await second.record_intent(batch(0))
    await second.record_published(0)
    with pytest.raises(FencedError):
        await first.confirm()


async def test_pipelines_with_different_names_are_independent(store: Store, sessions: AsyncExitStack) -> None:
    one, other = await checkpoint(store, sessions, "one"), await checkpoint(store, sessions, "other")
    await one.begin(DEFINITION, "x")
    await other.begin({"another": True}, "x")
    await one.record_intent(batch(0))
    await other.confirm()
    assert other.intent is None


async def test_a_pipeline_is_complete_only_if_every_decided_batch_is_published(
    store: Store, sessions: AsyncExitStack
) -> None:
    driver, asker = await checkpoint(store, sessions), await checkpoint(store, sessions)
    assert not await asker.is_complete(DEFINITION)
    await driver.begin(DEFINITION, "one")
    assert await asker.is_complete(DEFINITION)
    await driver.record_intent(batch(0))
    assert not await asker.is_complete(DEFINITION)
    await driver.record_published(0)
    assert await asker.is_complete(DEFINITION)
    with pytest.raises(PipelineMismatchError):
        await asker.is_complete({})
    await driver.confirm()  # asking fences nobody out


async def test_asking_under_another_definition_tells_the_run_while_nothing_is_decided(
    store: Store, sessions: AsyncExitStack
) -> None:
    """A sink that is not told the run would take the results of another run for its own."""
    driver, asker = await checkpoint(store, sessions), await checkpoint(store, sessions)
    await driver.begin(DEFINITION, "one")
    assert not await asker.is_complete({**DEFINITION, "sink": "there"})
    assert asker.run == driver.run
    await driver.confirm()


async def test_the_number_of_the_last_batch_with_records_is_recorded(store: Store, sessions: AsyncExitStack) -> None:
    """A sink may keep nothing of batches without records, so it is asked for the last batch with records."""
    first = await checkpoint(store, sessions)
    await first.begin(DEFINITION, "one")
    assert first.filled == -1
    for number, has_records, filled in ((0, False, -1), (1, True, 1), (2, False, 1)):
        await first.record_published(number, has_records=has_records)
        after = await checkpoint(store, sessions)
        await after.begin(DEFINITION, "two")
        assert (after.published, after.filled) == (number, filled)
        first = after
    await after.begin(DEFINITION, "three", from_scratch=True)
    assert (after.published, after.filled) == (-1, -1)


async def test_in_a_node_of_an_earlier_version_the_last_batch_with_records_is_unknown(
    store: Store, sessions: AsyncExitStack
) -> None:
    first = await checkpoint(store, sessions)
    await first.begin(DEFINITION, "one")
    session: Session = await sessions.enter_async_context(store.session(timeout=10))
    await session.set("pipelines/p/published", b"4", 0)
    await first.begin(DEFINITION, "two")
    assert (first.published, first.filled) == (4, None)
    await first.record_published(5, has_records=False)
    assert (await session.get("pipelines/p/published")).data == b"5"
    await first.record_published(6, has_records=True)
    assert first.filled == 6


async def test_corrupt_nodes_raise_an_error_that_names_them(store: Store, sessions: AsyncExitStack) -> None:
    first = await checkpoint(store, sessions)
    await first.begin(DEFINITION, "one")
    session: Session = await sessions.enter_async_context(store.session(timeout=10))
    await session.set("pipelines/p/intent", b"nonsense", 0)
    with pytest.raises(CorruptNodeError):
        await first.record_intent(batch(0))
    with pytest.raises(CorruptNodeError, match="a batch as JSON"):
        await (await checkpoint(store, sessions)).begin(DEFINITION, "two")
    await session.delete("pipelines/p/intent", 1)
    with pytest.raises(MissingNodeError):
        await (await checkpoint(store, sessions)).begin(DEFINITION, "two")


async def test_a_write_whose_answer_was_lost_is_not_made_twice(store: Store, sessions: AsyncExitStack) -> None:
    """The session is lost right after the write was applied. The next session shows that it was."""
    first: Session = await sessions.enter_async_context(store.session(timeout=10))
    second: Session = await sessions.enter_async_context(store.session(timeout=10))
    present = first

    async def session() -> Session:
        return present

    driver = Checkpoint(store, "p", session)
    await driver.begin(DEFINITION, "one")
    commit = first.commit

    async def applied_but_not_answered(*ops: Any) -> Any:
        nonlocal present
        await commit(*ops)
        present = second
        raise SessionLostError("lost")

    first.commit = applied_but_not_answered  # type: ignore[method-assign]
    await driver.record_intent(batch(0))
    await driver.record_published(0)
    assert (await second.get("pipelines/p/intent")).version == 1
    assert (await second.get("pipelines/p/published")).data == b"0 0"


async def test_after_a_session_lost_in_begin_ready_is_called_again(store: Store, sessions: AsyncExitStack) -> None:
    """Another driver may hold the partitions by then, and must not be fenced out."""
    first: Session = await sessions.enter_async_context(store.session(timeout=10))
    second: Session = await sessions.enter_async_context(store.session(timeout=10))
    present, asked = first, 0

    async def session() -> Session:
        return present

    async def ready() -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise StoreUnreachableError("somebody else holds them")

    commit = first.commit

    async def lost(*ops: Any) -> Any:
        nonlocal present
        if not any(op.path == "pipelines/p/attempt" and isinstance(op, Set) for op in ops):
            return await commit(*ops)
        present = second
        raise SessionLostError("lost")

    first.commit = lost  # type: ignore[method-assign]
    with pytest.raises(StoreUnreachableError):
        await Checkpoint(store, "p", session).begin(DEFINITION, "one", ready=ready)
    assert (await second.get("pipelines/p/attempt")).data == b"0"


async def test_from_scratch_the_attempt_is_greater_than_any_that_the_sink_has_seen(
    store: Store, sessions: AsyncExitStack
) -> None:
    for past, attempt in ((6, 7), (3, 8)):
        driver = await checkpoint(store, sessions)
        await driver.begin(DEFINITION, "one", from_scratch=True, past=past)
        assert driver.attempt == attempt
