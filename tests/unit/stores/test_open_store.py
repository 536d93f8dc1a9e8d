"""Stores opened by URL, and the errors for invalid URLs."""

from __future__ import annotations

import asyncio
import gc

import pytest

from aiokcc.errors import UsageError
from aiokcc.stores import Session, SessionState, open_store
from aiokcc.stores.memory import MemoryStore


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("memory://demo", "/aiokcc/default"),
        ("memory://demo/", "/aiokcc/default"),
        ("memory://demo/replay", "/replay"),
        ("memory://demo/replay/", "/replay"),
        ("memory://demo/a/b", "/a/b"),
    ],
)
def test_a_memory_url_names_a_tree_and_a_root(url: str, root: str) -> None:
    store = open_store(url)
    assert isinstance(store, MemoryStore)
    assert (store.root, store.url, store.server.name) == (root, f"memory://demo{root}", "demo")
    assert store.describe("coordinator") == f"{root}/coordinator"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "empty"),
        (None, "None"),
        (b"memory://demo", "memory"),
        ("demo", "not a store's URL"),
        ("127.0.0.1:2181", "not a store's URL"),
        ("zookeeper://127.0.0.1:2181/replay", "no store for 'zookeeper://'"),
        ("Memory://demo", "no store for 'Memory://'"),
        ("memory://", "which name"),
        ("memory:///root", "which name"),
        ("zk://", "which host"),
        ("zk:///replay", "which host"),
    ],
)
def test_another_url_is_refused_with_the_right_forms(url: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        open_store(url)
    assert "zk://127.0.0.1:2181/replay" in str(caught.value)
    assert "memory://demo" in str(caught.value)


@pytest.mark.parametrize("url", ["memory://demo//a", "memory://demo/a/../b", "memory://demo/a\n"])
def test_a_root_must_be_a_path(url: str) -> None:
    with pytest.raises(UsageError, match="root"):
        open_store(url)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(UsageError, match="credentials"):
        open_store("memory://demo", credentials="x")


def test_the_tree_lives_as_long_as_a_store_does() -> None:
    async def write() -> None:
        async with open_store("memory://lives").session() as session:
            await session.ensure("a")

    async def read() -> bool:
        async with open_store("memory://lives").session() as session:
            return await session.find("a") is not None

    store = open_store("memory://lives")
    asyncio.run(write())
    assert asyncio.run(read()), "two loops, one after the other, share the tree while a store is held"
    del store
    gc.collect()
    assert not asyncio.run(read())


def test_a_session_works_only_in_the_loop_it_was_opened_in() -> None:
    store = MemoryStore("loops")
    context = store.session()

    async def open_one() -> Session:
        session = await context.__aenter__()
        await session.ensure("")
        await session.create("mine", ephemeral=True)
        return session

    async def use(session: Session) -> None:
        await session.find("")

    async def find_mine() -> bool:
        async with store.session() as session:
            return await session.find("mine") is not None

    loop = asyncio.new_event_loop()
    session = loop.run_until_complete(open_one())
    with pytest.raises(UsageError, match="another event loop"):
        asyncio.run(use(session))
    with pytest.raises(UsageError, match="another event loop"):
        asyncio.run(find_mine())
    loop.run_until_complete(use(session))
    loop.close()  # and nobody left the session's context
    assert not asyncio.run(find_mine()), "a session whose loop was closed is over"
    assert session.state is SessionState.LOST
