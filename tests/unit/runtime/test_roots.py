"""Roots are found below a path, and deleted, also against a member that joins meanwhile. On a store in memory."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import aiokcc
from aiokcc.core import paths
from aiokcc.errors import CoordinationError, SessionLostError, UsageError
from aiokcc.runtime.roots import delete_root, find_roots, summarize
from aiokcc.stores.memory import Call, MemoryStore
from aiokcc.stores.port import ANY_VERSION

EVENT_TIME: dict[str, Any] = {"topics": {"orders": 1}, "start": 0, "end": 10, "period": 10, "clock": lambda: 10**13}


@pytest.fixture
def above() -> MemoryStore:
    """The store of the path that all roots of a test are below."""
    return MemoryStore(f"roots-{uuid.uuid4().hex}", "/team")


async def run_to_its_end(store: MemoryStore) -> None:
    async with aiokcc.connect(store, **EVENT_TIME) as group, group.gate("orders", 0) as gate:
        await gate.wait_until(5, 0)
        gate.finish(1)


async def nodes(store: MemoryStore) -> set[str]:
    return {path for path in store.server.nodes() if path.startswith(store.root)}


async def test_roots_are_found_at_and_below_a_path_and_not_inside_of_one(above: MemoryStore) -> None:
    for root in ("/team/b", "/team/a/january", "/team/a/january/nested", "/other"):
        await run_to_its_end(above.at(root))
    async with above.session() as session:
        assert [path async for path in find_roots(session)] == ["a/january", "b"]
        assert [path async for path in find_roots(session, "b")] == ["b"]
        assert [path async for path in find_roots(session, "", 1)] == ["b"]


async def test_a_summary_says_when_the_run_ended(above: MemoryStore) -> None:
    store = above.at("/team/a")
    async with aiokcc.connect(store, **EVENT_TIME) as group, store.session() as session:
        running = await summarize(store, session)
        assert (running.ended, len(running.status.members)) == (None, 1)
        async with group.gate("orders", 0) as gate:
            gate.finish(0)
    async with store.session() as session:
        over = await summarize(store, session)
    assert over.ended is not None
    assert running.founded == over.founded <= over.active
    assert over.run_version > running.run_version


async def test_a_deleted_root_leaves_nothing_and_another_root_below_it_stays(above: MemoryStore) -> None:
    store, below = above.at("/team/a"), above.at("/team/a/nested")
    await run_to_its_end(store)
    await run_to_its_end(below)
    kept = await nodes(below)
    async with store.session() as session:
        await session.ensure("offsets/orders")
        await session.create("offsets/orders/0", b"7")
        number = len(await nodes(store)) - len(kept)
        assert await delete_root(store, session) == number - 1, "the root itself stays: another one is below it"
    assert await nodes(store) == kept | {"/team/a"}
    async with below.session() as session:
        await delete_root(below, session)
    assert await nodes(below) == set()


@pytest.mark.parametrize("parent", ["pipelines", "offsets", "state/of", "cuts"])
@pytest.mark.parametrize("alive", [True, False])
async def test_a_root_that_is_below_a_node_of_the_group_stays(above: MemoryStore, parent: str, alive: bool) -> None:
    """Its users chose a path that looks like one of ours."""
    store, below = above.at("/team/a"), above.at(f"/team/a/{parent}/nested")
    await run_to_its_end(store)
    async with store.session() as session:
        await session.ensure("offsets/orders/0")
        await session.ensure("pipelines/totals/attempt")
    async with contextlib.AsyncExitStack() as block:
        if alive:
            await block.enter_async_context(aiokcc.connect(below, **EVENT_TIME))
        else:
            await run_to_its_end(below)
        kept = await nodes(below)
        async with store.session() as session:
            await delete_root(store, session)
        parts = parent.split("/")
        above_it = {f"/team/a/{'/'.join(parts[:n])}" for n in range(1, len(parts) + 1)}
        assert kept <= await nodes(below)
        assert await nodes(store) == await nodes(below) | above_it | {"/team/a"}
    await run_to_its_end(store)  # a new run does not mind


async def test_a_root_is_kept_while_one_of_its_pipelines_is_restated(above: MemoryStore) -> None:
    """A process that restates is no member, and the run may have ended long ago."""
    store = above.at("/team/a")
    await run_to_its_end(store)
    async with store.session() as session, store.session() as other:
        await session.ensure("pipelines/totals/definition")
        before = await nodes(store)

        async def restate() -> None:
            await other.create(paths.restating("totals"), b"somebody", ephemeral=True)

        with (
            store.server.intercept(before=first_commit(restate, 0)),
            pytest.raises(UsageError, match="is alive, with the restatement of totals; nothing was deleted"),
        ):
            await delete_root(store, session)
        with pytest.raises(UsageError, match="is alive, with the restatement of totals; nothing was deleted"):
            await delete_root(store, session)
        assert await nodes(store) == before | {"/team/a/pipelines/totals/restating"}
        await other.delete(paths.restating("totals"), ANY_VERSION)
        await delete_root(store, session)
    assert await nodes(store) == set()


async def test_a_deletion_that_is_interrupted_leaves_no_pipeline(above: MemoryStore) -> None:
    """There is no run to delete a second time, and a new one would go on where the old pipeline was, and compute nothing."""
    store = above.at("/team/a")
    await run_to_its_end(store)
    async with store.session() as session:
        await session.ensure("offsets/orders/0")
        for part in ("definition", "published"):
            await session.ensure(f"pipelines/totals/{part}")

        async def fail() -> None:
            raise SessionLostError("the process was killed")

        with store.server.intercept(before=first_commit(fail, 1)), pytest.raises(SessionLostError):
            await delete_root(store, session)
    assert await nodes(store) == {"/team/a", "/team/a/offsets", "/team/a/offsets/orders", "/team/a/offsets/orders/0"}


async def test_what_other_programs_keep_below_a_root_stays(above: MemoryStore) -> None:
    store = above.at("/team/a")
    await run_to_its_end(store)
    await run_to_its_end(above.at("/team/a/deep/er"))
    nested = await nodes(above.at("/team/a/deep"))
    async with store.session() as session:
        await session.ensure("offsets/orders")
        await session.ensure("settings/of/another/program")
        await delete_root(store, session)
    others = {"/team/a", *(f"/team/a/{path}" for path in ("settings", "settings/of", "settings/of/another"))}
    assert await nodes(store) == nested | others | {"/team/a/settings/of/another/program"}


async def test_a_root_is_kept_while_somebody_is_alive_or_if_the_run_has_changed(above: MemoryStore) -> None:
    store = above.at("/team/a")
    async with store.session() as session:
        with pytest.raises(UsageError, match="there is no group under"):
            await delete_root(store, session)
    async with aiokcc.connect(store, member="m", **EVENT_TIME) as group, store.session() as session:
        before = await nodes(store)
        with pytest.raises(UsageError, match=r"is alive, with m-\S+; nothing was deleted"):
            await delete_root(store, session)
        assert await nodes(store) == before
        version = (await summarize(store, session)).run_version
        async with group.gate("orders", 0) as gate:
            gate.finish(0)
    before = await nodes(store)
    async with store.session() as session:
        with pytest.raises(UsageError, match="has changed since it was looked at; nothing was deleted"):
            await delete_root(store, session, version=version)
    assert await nodes(store) == before


def first_commit(then: Callable[[], Awaitable[None]], number: int) -> Callable[[Call], Awaitable[None] | None]:
    """Return a hook that does something right before the transaction with this number, counted from 0."""
    left = [number]

    def hook(call: Call) -> Awaitable[None] | None:
        if call.verb == "commit":
            left[0] -= 1
            if left[0] == -1:
                return then()
        return None

    return hook


async def test_a_member_that_joins_right_before_the_deletion_keeps_the_root(above: MemoryStore) -> None:
    store = above.at("/team/a")
    await run_to_its_end(store)
    async with store.session() as session, store.session() as late:
        before = await nodes(store)

        async def register() -> None:
            await late.create(paths.member("late-1"), b"{}", ephemeral=True)

        with (
            store.server.intercept(before=first_commit(register, 0)),
            pytest.raises(UsageError, match="is alive, with late-1"),
        ):
            await delete_root(store, session)
        assert before < await nodes(store)


async def test_a_run_that_is_founded_while_the_rest_is_deleted_keeps_the_rest(above: MemoryStore) -> None:
    store = above.at("/team/a")
    await run_to_its_end(store)
    async with store.session() as session, store.session() as founder:
        await session.ensure("offsets/orders")
        await session.create("offsets/orders/0", b"7")

        async def found() -> None:
            await founder.create(paths.RUN, b"of a new run")

        with (
            store.server.intercept(before=first_commit(found, 1)),
            pytest.raises(CoordinationError, match="somebody has begun a new one there; the rest stays"),
        ):
            await delete_root(store, session)
        assert {"/team/a/run", "/team/a/offsets/orders/0"} <= await nodes(store)


async def test_a_run_that_is_written_right_before_the_deletion_is_kept(above: MemoryStore) -> None:
    store = above.at("/team/a")
    await run_to_its_end(store)
    async with store.session() as session, store.session() as other:

        async def write() -> None:
            await other.set(paths.RUN, (await other.get(paths.RUN)).data, ANY_VERSION)

        before = await nodes(store)
        with (
            store.server.intercept(before=first_commit(write, 0)),
            pytest.raises(UsageError, match="changed while it was to be deleted; nothing was deleted"),
        ):
            await delete_root(store, session)
        assert await nodes(store) == before
