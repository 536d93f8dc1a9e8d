"""Every operation on one node: its results, its errors, and what other sessions see."""

from __future__ import annotations

import asyncio
import re

import pytest

from aiokcc.errors import (
    BadVersionError,
    EphemeralParentError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    TooLargeError,
    UsageError,
)
from aiokcc.stores import ANY_VERSION, Session, Store, open_store
from aiokcc.stores.kafka import KafkaStore

NOT_PATHS = ["/a", "a/", "a//b", "//", ".", "..", "a/../b", "a/./b", "a\0b", "a\nb", "\x7f", "\ud800", "\ue000", "🧀"]


def number(path: str) -> int:
    return int(path[-10:])


async def test_a_created_node_is_visible_to_all_sessions(session: Session, other: Session) -> None:
    assert await session.create("a", b"one") == "a"
    for reader in (session, other):
        await reader.sync()
        node = await reader.get("a")
        assert (node.path, node.data, node.version, node.owner) == ("a", b"one", 0, 0)
        assert await reader.find("a") == node
        assert await reader.children("") == ("a",)


async def test_a_node_has_the_times_of_its_creation_and_last_write(session: Session) -> None:
    await session.create("a")
    before = await session.get("a")
    assert before.created == before.modified > 1_600_000_000_000
    await session.set("a", b"x", 0)
    after = await session.get("a")
    assert after.created == before.created
    assert after.modified >= before.modified


async def test_data_is_empty_unless_given(session: Session) -> None:
    await session.create("a")
    assert (await session.get("a")).data == b""
    assert await session.set("a", b"x", 0) == 1
    assert await session.set("a", b"", 1) == 2
    assert (await session.get("a")).data == b""


async def test_data_comes_back_byte_for_byte(session: Session) -> None:
    data = bytes(range(256)) + "naïve ☃ 数据 🧀".encode()
    await session.create("a", data)
    assert (await session.get("a")).data == data


@pytest.mark.parametrize("name", ["käse", "数据", "with space", "a:b@c=d;e", "topic.with-dots_1", "%2F", "..."])
async def test_names_may_have_letters_of_any_language(session: Session, name: str) -> None:
    await session.create(name, name.encode())
    assert await session.create(f"{name}/{name}") == f"{name}/{name}"
    assert (await session.get(name)).data == name.encode()
    assert await session.children("") == (name,)
    assert await session.children(name) == (name,)


async def test_find_returns_none_if_get_raises(session: Session) -> None:
    assert await session.find("nowhere") is None
    assert await session.find("nowhere/below") is None
    for call in (session.get("nowhere"), session.children("nowhere")):
        with pytest.raises(NoNodeError) as caught:
            await call
        assert (caught.value.path, caught.value.index) == ("nowhere", None)
        assert "nowhere" in str(caught.value)


async def test_the_root_is_a_node_as_any_other(store: Store) -> None:
    async with store.session() as session:
        assert await session.find("") is None
        with pytest.raises(NoNodeError):
            await session.create("a")
        await session.ensure("")
        assert (await session.get("")).path == ""
        assert await session.set("", b"data", 0) == 1
        assert await session.children("") == ()
        with pytest.raises(NodeExistsError):
            await session.create("")
        await session.create("a")
        with pytest.raises(NotEmptyError):
            await session.delete("", ANY_VERSION)
        await session.delete("a", 0)
        await session.delete("", 1)
        assert await session.find("") is None


async def test_children_are_sorted_names(session: Session) -> None:
    await session.create("d")
    for name in ("b", "a10", "a9", "ä", "B"):
        await session.create(f"d/{name}")
    await session.create("d/b/below")
    assert await session.children("d") == ("B", "a10", "a9", "b", "ä")
    assert await session.children("d/b/below") == ()


async def test_creating_an_existing_node_is_refused(session: Session, other: Session) -> None:
    await session.create("a", b"mine")
    with pytest.raises(NodeExistsError) as caught:
        await other.create("a", b"theirs")
    assert (caught.value.path, caught.value.index) == ("a", None)
    assert (await session.get("a")).data == b"mine"


async def test_creating_a_node_without_a_parent_is_refused(session: Session) -> None:
    with pytest.raises(NoNodeError) as caught:
        await session.create("no/where")
    assert caught.value.path == "no/where"
    assert await session.children("") == ()


# Versions


async def test_each_write_adds_one_to_the_version(session: Session) -> None:
    await session.create("a")
    assert [await session.set("a", b"%d" % n, n) for n in range(5)] == [1, 2, 3, 4, 5]
    node = await session.get("a")
    assert (node.data, node.version) == (b"4", 5)


async def test_a_write_of_the_same_data_adds_one_to_the_version_too(session: Session) -> None:
    await session.create("a", b"x")
    assert await session.set("a", b"x", 0) == 1


@pytest.mark.parametrize("version", [0, 2, 7])
async def test_a_write_at_another_version_is_refused(session: Session, version: int) -> None:
    await session.create("a", b"x")
    await session.set("a", b"y", 0)
    for call in (session.set("a", b"z", version), session.delete("a", version)):
        with pytest.raises(BadVersionError) as caught:
            await call
        assert (caught.value.path, caught.value.index) == ("a", None)
    node = await session.get("a")
    assert (node.data, node.version) == (b"y", 1)


async def test_any_version_writes_and_deletes_unconditionally(session: Session) -> None:
    await session.create("a")
    assert await session.set("a", b"1", ANY_VERSION) == 1
    assert await session.set("a", b"2", ANY_VERSION) == 2
    await session.delete("a", ANY_VERSION)
    assert await session.find("a") is None


async def test_of_two_writers_that_read_the_same_version_one_succeeds(session: Session, other: Session) -> None:
    await session.create("a")
    outcomes = await asyncio.gather(
        session.set("a", b"session", 0), other.set("a", b"other", 0), return_exceptions=True
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["BadVersionError", "int"]
    winner = b"session" if outcomes[0] == 1 else b"other"
    assert (await session.get("a")).data == winner


async def test_writing_or_deleting_a_missing_node_is_refused(session: Session) -> None:
    for call in (session.set("a", b"", 0), session.delete("a", 0), session.set("a/b", b"", -1)):
        with pytest.raises(NoNodeError):
            await call


async def test_a_node_created_again_starts_at_version_0(session: Session) -> None:
    await session.create("a", b"old")
    await session.set("a", b"older", 0)
    await session.delete("a", 1)
    await session.create("a", b"new")
    node = await session.get("a")
    assert (node.data, node.version) == (b"new", 0)


async def test_a_node_with_children_cannot_be_deleted(session: Session) -> None:
    await session.create("a")
    await session.create("a/b")
    with pytest.raises(BadVersionError):  # the version is looked at first
        await session.delete("a", 3)
    with pytest.raises(NotEmptyError) as caught:
        await session.delete("a", 0)
    assert caught.value.path == "a"
    await session.delete("a/b", 0)
    await session.delete("a", 0)
    assert await session.children("") == ()


# Ephemeral nodes


async def test_an_ephemeral_node_has_the_id_of_its_owner(session: Session, other: Session) -> None:
    await session.create("mine", b"x", ephemeral=True)
    await other.sync()
    assert (await other.get("mine")).owner == session.id != other.id


async def test_an_ephemeral_node_may_be_written_and_deleted_by_others(session: Session, other: Session) -> None:
    await session.create("mine", b"x", ephemeral=True)
    assert await other.set("mine", b"y", 0) == 1
    await other.delete("mine", 1)
    await session.sync()
    assert await session.find("mine") is None


async def test_an_ephemeral_node_has_no_children(session: Session, other: Session) -> None:
    await session.create("mine", ephemeral=True)
    for owner in (session, other):
        for ephemeral in (False, True):
            with pytest.raises(EphemeralParentError) as caught:
                await owner.create("mine/child", ephemeral=ephemeral)
            assert caught.value.path == "mine/child"
    with pytest.raises(EphemeralParentError):
        await session.ensure("mine/child")
    assert await session.children("mine") == ()


async def test_ephemeral_nodes_are_deleted_with_their_own_session_only(store: Store, session: Session) -> None:
    await session.create("keeps", ephemeral=True)
    async with store.session() as leaving:
        await leaving.create("goes", ephemeral=True)
        await leaving.create("goes-", ephemeral=True, sequential=True)
        await leaving.create("stays")
        # Deleted and created again by others: no longer the leaving session's.
        await leaving.create("taken", ephemeral=True)
        await session.delete("taken", 0)
        await session.create("taken", ephemeral=True)
    with session.watch() as watch:
        watch.add_children("")
        async for change in watch:
            assert change.now is not None
            if await session.children("") == ("keeps", "stays", "taken"):
                break
    assert (await session.get("taken")).owner == session.id


# Sequential nodes


async def test_a_sequential_node_gets_a_unique_mark_and_a_number(session: Session) -> None:
    await session.create("d")
    first = await session.create("d/c-", b"x", sequential=True)
    second = await session.create("d/c-", b"y", sequential=True, ephemeral=True)
    assert re.fullmatch(r"d/c-[^/]+-0000000000", first)
    assert re.fullmatch(r"d/c-[^/]+-0000000001", second)
    assert first[:-10] != second[:-10], "the marks differ"
    assert (await session.get(first)).data == b"x"
    assert (await session.get(second)).owner == session.id
    assert set(await session.children("d")) == {first.removeprefix("d/"), second.removeprefix("d/")}


async def test_numbers_follow_the_order_of_creation_across_sessions(session: Session, other: Session) -> None:
    await session.create("d")
    made = [await who.create("d/c-", sequential=True) for who in (session, other, other, session)]
    assert [number(path) for path in made] == [0, 1, 2, 3]


async def test_numbers_count_every_creation_and_never_go_back(session: Session) -> None:
    await session.create("d")
    first = await session.create("d/c-", sequential=True)
    assert number(first) == 0
    await session.create("d/plain")
    assert number(await session.create("d/other-", sequential=True)) == 2
    await session.delete(first, 0)
    await session.delete("d/plain", 0)
    assert number(await session.create("d/c-", sequential=True)) == 3
    await session.create("d2")
    assert number(await session.create("d2/c-", sequential=True)) == 0


async def test_a_sequential_node_without_a_parent_is_refused(session: Session) -> None:
    with pytest.raises(NoNodeError) as caught:
        await session.create("no/c-", sequential=True)
    assert caught.value.path == "no/c-"


async def test_concurrent_sequential_nodes_are_all_different(session: Session, other: Session) -> None:
    await session.create("d")
    made = await asyncio.gather(*(who.create("d/c-", sequential=True) for who in (session, other) for _ in range(20)))
    assert sorted(map(number, made)) == list(range(40))
    await session.sync()
    assert len(await session.children("d")) == 40


# Ensure


async def test_ensure_creates_what_is_missing_and_leaves_the_rest(session: Session) -> None:
    await session.create("a", b"kept")
    await session.ensure("a/b/c")
    await session.ensure("a/b/c")
    assert await session.children("a/b") == ("c",)
    node = await session.get("a")
    assert (node.data, node.version) == (b"kept", 0)
    assert (await session.get("a/b/c")).owner == 0


async def test_ensure_creates_the_root_and_its_parents(store: Store) -> None:
    async with store.session() as session:
        await session.ensure("x/y")
        assert await session.children("") == ("x",)


async def test_concurrent_ensures_all_succeed(store: Store, other: Session) -> None:
    async with store.session() as one, store.session() as two:
        await asyncio.gather(*(who.ensure("r/a/b/c/d") for who in (one, two, other) for _ in range(5)))
        assert await one.children("r/a/b/c") == ("d",)


async def test_ensure_while_the_path_is_being_deleted_ends_with_the_path(session: Session, other: Session) -> None:
    async def tear_down() -> None:
        for path in ("x/y/z", "x/y", "x"):
            try:
                await other.delete(path, ANY_VERSION)
            except (NoNodeError, NotEmptyError):
                return

    for _ in range(10):
        _, ensured = await asyncio.gather(tear_down(), session.ensure("x/y/z"), return_exceptions=True)
        assert ensured is None or isinstance(ensured, NoNodeError)
        await session.ensure("x/y/z")
        assert await session.children("x/y") == ("z",)


# What is refused before it is sent


@pytest.mark.parametrize("path", NOT_PATHS)
async def test_invalid_paths_are_refused_with_the_reason(session: Session, path: str) -> None:
    for call in (
        session.find(path),
        session.get(path),
        session.children(path),
        session.create(path),
        session.create(path, sequential=True),
        session.set(path, b"", 0),
        session.delete(path, 0),
        session.ensure(path),
    ):
        with pytest.raises(UsageError, match="path"):
            await call
    with session.watch() as watch:
        for add in (watch.add, watch.add_children):
            with pytest.raises(UsageError, match="path"):
                add(path)
    assert await session.children("") == ()


async def test_data_must_be_bytes(session: Session) -> None:
    await session.create("a")
    with pytest.raises(UsageError, match="bytes"):
        await session.create("b", "text")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="bytes"):
        await session.set("a", None, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [-2, 2**31, None, "0"])
async def test_an_invalid_version_is_refused(session: Session, version: int) -> None:
    await session.create("a")
    for call in (session.set("a", b"", version), session.delete("a", version)):
        with pytest.raises(UsageError, match="version"):
            await call


async def test_large_data_is_stored_and_too_large_data_refused(session: Session) -> None:
    large = b"x" * 990_000
    await session.create("a", large)
    assert await session.set("a", large[:-1] + b"y", 0) == 1
    assert (await session.get("a")).data == large[:-1] + b"y"
    for call in (session.create("b", b"x" * 1_000_001), session.set("a", b"x" * 1_000_001, 1)):
        with pytest.raises(TooLargeError) as caught:
            await call
        assert caught.value.path in ("a", "b")
    assert await session.children("") == ("a",)
    assert (await session.get("a")).version == 1


# Stores


async def test_stores_of_one_url_share_a_tree_and_other_roots_do_not(store: Store, session: Session) -> None:
    same, elsewhere = open_store(store.url), open_store(store.url + "/below")
    await session.create("a", b"x")
    async with same.session() as one, elsewhere.session() as two:
        assert (await one.get("a")).data == b"x"
        assert await two.find("a") is None
        await two.ensure("b")
        await session.sync()
        if isinstance(store, KafkaStore):  # each root has a topic of its own
            assert await session.find("below") is None
        else:
            assert await session.children("below") == ("b",)


async def test_a_store_describes_its_nodes_for_people(store: Store) -> None:
    assert store.root.startswith("/")
    assert store.url.endswith(store.root)
    assert store.describe("owners/orders/3") == f"{store.root}/owners/orders/3"
    assert store.describe("") == store.root
