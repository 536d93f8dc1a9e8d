"""Transactions: all or nothing, one step for other sessions, and the first failure is named."""

from __future__ import annotations

import asyncio
import re

import pytest

from aiokcc.errors import (
    BadVersionError,
    EphemeralParentError,
    NodeError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    TooLargeError,
    UsageError,
)
from aiokcc.stores import ANY_VERSION, Check, Create, Delete, Op, Session, Set, Store
from tests.conformance.seen import Seen


async def test_results_come_in_the_order_of_the_operations(session: Session) -> None:
    await session.create("a", b"old")
    await session.create("b")
    results = await session.commit(
        Check("a", 0), Set("a", b"new", 0), Create("c", b"data"), Delete("b", 0), Create("e", ephemeral=True)
    )
    assert results == [None, 1, "c", None, "e"]
    assert (await session.get("a")).data == b"new"
    assert (await session.get("c")).data == b"data"
    assert (await session.get("e")).owner == session.id
    assert await session.children("") == ("a", "c", "e")


async def test_an_empty_transaction_does_nothing(session: Session) -> None:
    assert await session.commit() == []


async def test_operations_see_those_before_them(session: Session) -> None:
    assert await session.commit(
        Create("a"),
        Create("a/b", b"0"),
        Set("a/b", b"1", 0),
        Check("a/b", 1),
        Set("a/b", b"2", 1),
        Delete("a/b", 2),
        Create("a/b", b"again"),
        Check("a/b", 0),
    ) == ["a", "a/b", 1, None, 2, None, "a/b", None]
    node = await session.get("a/b")
    assert (node.data, node.version) == (b"again", 0)


async def test_a_tree_is_deleted_in_one_step(session: Session) -> None:
    await session.ensure("a/b/c")
    await session.commit(Delete("a/b/c", 0), Delete("a/b", 0), Delete("a", 0))
    assert await session.children("") == ()


async def test_sequential_nodes_in_a_transaction_are_numbered_and_named(session: Session) -> None:
    await session.create("d")
    first, _, second = await session.commit(
        Create("d/c-", b"x", sequential=True), Create("d/p"), Create("d/c-", sequential=True, ephemeral=True)
    )
    assert isinstance(first, str)
    assert isinstance(second, str)
    assert re.fullmatch(r"d/c-[^/]+-0000000000", first)
    assert re.fullmatch(r"d/c-[^/]+-0000000002", second)
    assert (await session.get(first)).data == b"x"
    assert (await session.get(second)).owner == session.id


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        (Check("missing", 0), NoNodeError),
        (Check("missing", ANY_VERSION), NoNodeError),
        (Check("there", 0), BadVersionError),
        (Check("gone", 0), NoNodeError),
        (Set("missing", b"", ANY_VERSION), NoNodeError),
        (Set("there", b"", 0), BadVersionError),
        (Set("made", b"", 1), BadVersionError),
        (Create("there"), NodeExistsError),
        (Create("made"), NodeExistsError),
        (Create("no/parent"), NoNodeError),
        (Create("no/parent-", sequential=True), NoNodeError),
        (Create("mine/child"), EphemeralParentError),
        (Delete("missing", ANY_VERSION), NoNodeError),
        (Delete("there", 0), BadVersionError),
        (Delete("full", 0), NotEmptyError),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
@pytest.mark.parametrize("more", [True, False], ids=["middle", "last"])
async def test_the_first_failure_is_raised_and_nothing_applied(
    session: Session, failing: Op, error: type[NodeError], more: bool
) -> None:
    await session.commit(
        Create("there", b"kept"), Create("gone"), Create("full"), Create("full/child"), Create("mine", ephemeral=True)
    )
    before = Create("made"), Delete("gone", 0), Set("there", b"lost", 0)
    after = (Create("later"), Check("missing", 7), Set("mine", b"lost", 0)) if more else ()
    with pytest.raises(error) as caught:
        await session.commit(*before, failing, *after)
    assert type(caught.value) is error
    assert (caught.value.path, caught.value.index) == (failing.path, 3)
    assert await session.children("") == ("full", "gone", "mine", "there")
    there = await session.get("there")
    assert (there.data, there.version) == (b"kept", 0)
    assert (await session.get("mine")).data == b""


async def test_a_transaction_of_one_operation_names_its_failure_too(session: Session) -> None:
    with pytest.raises(NoNodeError) as caught:
        await session.commit(Set("missing", b"", 0))
    assert (caught.value.path, caught.value.index) == ("missing", 0)


async def test_a_check_at_any_version_requires_only_that_the_node_exists(session: Session) -> None:
    await session.create("a")
    await session.set("a", b"x", 0)
    assert await session.commit(Check("a", ANY_VERSION), Check("a", 1)) == [None, None]


async def test_a_failed_transaction_uses_no_sequence_number(session: Session) -> None:
    await session.create("d")
    with pytest.raises(NoNodeError):
        await session.commit(Create("d/c-", sequential=True), Create("d/x"), Check("missing", 0))
    assert (await session.create("d/c-", sequential=True)).endswith("-0000000000")


async def test_a_failed_transaction_does_not_change_the_owner_of_ephemeral_nodes(
    store: Store, session: Session
) -> None:
    async with store.session() as owner:
        await owner.create("mine", b"x", ephemeral=True)
        with pytest.raises(NoNodeError):
            await session.commit(Delete("mine", 0), Create("mine", ephemeral=True), Check("missing", 0))
        assert (await session.get("mine")).owner == owner.id
        seen = Seen(session.watch())
        seen.watch.add("mine")
        await seen.until(lambda: seen.data("mine") == b"x")
    await seen.until(lambda: seen.last["mine"] is None)


async def test_of_two_transactions_that_write_one_version_one_succeeds(session: Session, other: Session) -> None:
    await session.create("generation", b"0")
    outcomes = await asyncio.gather(
        session.commit(Set("generation", b"1", 0), Create("by-session")),
        other.commit(Set("generation", b"1", 0), Create("by-other")),
        return_exceptions=True,
    )
    lost = [outcome for outcome in outcomes if isinstance(outcome, BadVersionError)]
    assert [error.index for error in lost] == [0]
    assert len(await session.children("")) == 2


async def test_nobody_sees_half_of_a_transaction(session: Session, other: Session) -> None:
    await session.create("a", b"0")
    await session.create("b", b"0")
    await other.sync()

    async def write() -> None:
        for n in range(1, 31):
            await session.commit(Set("a", b"%d" % n, n - 1), Set("b", b"%d" % n, n - 1))

    writing = asyncio.create_task(write())
    while not writing.done():
        # b is read after a, so it is at least as new; were a written first alone, b would be older.
        one, two = await asyncio.gather(other.get("a"), other.get("b"))
        assert two.version >= one.version
    await writing


async def test_the_size_limit_holds_for_the_whole_transaction(session: Session) -> None:
    half = b"x" * 480_000
    await session.create("a")
    assert await session.commit(Set("a", half, 0), Create("b", half)) == [1, "b"]
    with pytest.raises(TooLargeError) as caught:
        await session.commit(Check("a", 1), Set("a", b"y" * 530_000, 1), Set("b", b"y" * 530_000, 0))
    assert caught.value.path in ("a", "b")
    assert (await session.get("a")).version == 1
    assert (await session.get("b")).data == half


async def test_a_transaction_of_many_operations(session: Session) -> None:
    created = await session.commit(*(Create(f"n{number:04d}", b"%d" % number) for number in range(1000)))
    assert created == [f"n{number:04d}" for number in range(1000)]
    assert len(await session.children("")) == 1000


async def test_invalid_operations_are_refused_before_anything_is_sent(session: Session) -> None:
    for wrong in (Set("/a", b"", 0), Set("a", "text", 0), Check("a", -2), Delete("a//b", 0), "Check"):  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            await session.commit(Create("a"), wrong)  # type: ignore[arg-type]
    assert await session.children("") == ()
