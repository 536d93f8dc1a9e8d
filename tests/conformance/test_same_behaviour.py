"""The memory store is a verified fake: random programs run on memory, on ZooKeeper and on Kafka, with the same results.

Each program is run by two sessions of each store, step by step. After every step the results are the same, with errors
compared by kind and attributes. At the end, and whenever the program says ``look``, the trees are the same too, and the
watches of a third session end on the content of its store. Only what must differ is translated: session ids, the
unique marks of sequential nodes, and times.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aiokcc.errors import NodeError
from aiokcc.stores import ANY_VERSION, Check, Create, Delete, Node, Op, Session, Set, Store
from tests.conformance.conftest import let_readers_lag, new_store
from tests.conformance.kept import kept
from tests.conformance.seen import PATIENCE, Seen

PATHS = ["", "a", "b", "a/a", "a/b"]  # few, so that operations meet
WATCHED = [path for path in PATHS if path]

paths = st.sampled_from(WATCHED)
places = st.sampled_from(PATHS)
data = st.sampled_from([b"", b"x", b"yy"])
versions = st.sampled_from([ANY_VERSION, ANY_VERSION, ANY_VERSION, 0, 0, 1])
creations = st.builds(Create, paths, data, st.booleans(), st.sampled_from([False, False, True]))
ops: st.SearchStrategy[Op] = st.one_of(
    creations,
    st.builds(Set, places, data, versions),
    st.builds(Delete, paths, versions),
    st.builds(Delete, paths, st.just(ANY_VERSION)),
    st.builds(Check, places, versions),
)


@dataclass(frozen=True)
class Step:
    """One step of a program: a verb, the session that does it, and its arguments."""

    who: int
    verb: str
    ops: tuple[Op, ...] = ()
    path: str = ""


who = st.integers(0, 1)
kinds = {
    "op": st.builds(Step, who, st.just("op"), st.tuples(ops)),
    "commit": st.builds(Step, who, st.just("commit"), st.lists(ops, max_size=4).map(tuple)),
    "read": st.builds(Step, who, st.sampled_from(["find", "get", "children"]), path=places),
    "ensure": st.builds(Step, who, st.just("ensure"), path=places),
    "reopen": st.builds(Step, who, st.just("reopen")),
    "look": st.builds(Step, who, st.just("look")),
}
weights = [*["op"] * 8, *["commit"] * 6, "read", "read", "ensure", "reopen", "look"]
steps = st.sampled_from(weights).flatmap(lambda kind: kinds[kind])
locked = Step(1, "op", (Create("a", b"", ephemeral=True),))
starts = st.sampled_from([[], [locked], *([Step(0, "ensure", path=path)] for path in WATCHED)])
programs = st.builds(
    lambda start, rest: [*start, *rest],
    starts,
    st.lists(steps, min_size=25, max_size=35),  # long: short ones seldom reach a node with children, or a retry
)


class World:
    """One store with two sessions, and the translations that a comparison with another store needs."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.sessions: list[Session] = []
        self.open: list[contextlib.AsyncExitStack] = []
        self.names: dict[int, str] = {0: "nobody"}

    async def start(self) -> None:
        for number in range(2):
            self.open.append(contextlib.AsyncExitStack())
            self.sessions.append(await self.enter(number))
        await self.sessions[0].ensure("")
        self.open.append(contextlib.AsyncExitStack())
        witness = await self.open[2].enter_async_context(kept(self.store))
        self.nodes, self.below = Seen(witness.watch()), Seen(witness.watch())
        for path in WATCHED:
            self.nodes.watch.add(path)
            self.below.watch.add_children(path)

    async def enter(self, number: int) -> Session:
        session = await self.open[number].enter_async_context(kept(self.store))
        self.names[session.id] = f"session {len(self.names)}"
        return session

    async def look(self) -> Any:
        """Return the whole tree, after the watches have reported it."""
        tree = await self.tree(self.sessions[0])
        await self.nodes.until(lambda: arrived(self.nodes, tree))
        await self.below.until(lambda: arrived_below(self.below, tree))
        return self.plain(tree)

    async def end(self) -> None:
        for stack in self.open:
            await stack.aclose()

    async def run(self, step: Step) -> Any:
        """Run one step, and return what a user would see of it."""
        session = self.sessions[step.who]
        try:
            return self.plain(await self.call(session, step))
        except NodeError as error:
            return type(error), error.path if step.verb != "ensure" else None, error.index

    async def call(self, session: Session, step: Step) -> Any:
        if step.verb == "reopen":
            return await self.reopen(step.who)
        if step.verb == "commit":
            return await session.commit(*step.ops)
        if step.verb != "op":
            await session.sync()
            return await getattr(session, step.verb)(step.path)
        match step.ops[0]:
            case Create(path, content, ephemeral, sequential):
                return await session.create(path, content, ephemeral=ephemeral, sequential=sequential)
            case Set(path, content, version):
                return await session.set(path, content, version)
            case Delete(path, version):
                return await session.delete(path, version)
            case check:
                return await session.commit(check)

    async def reopen(self, number: int) -> None:
        """Close a session and open another one. Return when the other session has seen the ephemeral nodes go."""
        left, witness = self.sessions[number], self.sessions[1 - number]
        owned = [path for path, node in (await self.tree(witness)).items() if node.owner == left.id]
        await self.open[number].aclose()
        with witness.watch() as watch:
            seen = Seen(watch)
            for path in owned:
                watch.add(path)
            await seen.until(lambda: all(path in seen.last and seen.last[path] is None for path in owned))
        self.sessions[number] = await self.enter(number)

    async def tree(self, session: Session, path: str = "") -> dict[str, Node]:
        """Return every node below a path, as one session reads it."""
        if not path:
            await session.sync()
        node = await session.find(path)
        if node is None:
            return {}
        found = {path: node}
        for name in await session.children(path):
            found |= await self.tree(session, f"{path}/{name}" if path else name)
        return found

    def plain(self, result: Any) -> Any:
        """Return the value without marks, ids and times, which differ between stores."""
        if isinstance(result, str):
            return re.sub(r"[^/]*-(\d{10})$", r"*\1", result)
        if isinstance(result, Node):
            return self.plain(result.path), result.data, result.version, self.names[result.owner]
        if isinstance(result, list):
            return [self.plain(one) for one in result]
        if isinstance(result, tuple):
            return tuple(sorted(self.plain(one) for one in result))
        if isinstance(result, dict):
            return sorted(self.plain(node) for node in result.values())
        return result


async def compare(program: list[Step], stores: tuple[Store, Store]) -> None:
    worlds = [World(store) for store in stores]
    try:
        for world in worlds:
            await world.start()
        for step in [*program, Step(0, "look")]:
            if step.verb == "look":
                one, two = [await world.look() for world in worlds]
            else:
                one, two = [await world.run(step) for world in worlds]
            assert one == two, step
    finally:
        for world in worlds:
            await world.end()


def arrived(seen: Seen, tree: dict[str, Node]) -> bool:
    return all(path in seen.last and seen.last[path] == tree.get(path) for path in WATCHED)


def arrived_below(seen: Seen, tree: dict[str, Node]) -> bool:
    return all(path in seen.last and seen.names(path) == below(path, tree) for path in WATCHED)


def below(path: str, tree: dict[str, Node]) -> tuple[str, ...] | None:
    if path not in tree:
        return None
    return tuple(sorted(one.removeprefix(f"{path}/") for one in tree if re.fullmatch(f"{re.escape(path)}/[^/]+", one)))


@pytest.mark.service
@pytest.mark.parametrize("kind", ["zookeeper", "kafka"])
def test_random_programs_behave_alike_on_memory_and_a_real_server(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_readers_lag(monkeypatch)  # those of Kafka
    request.getfixturevalue(kind)  # started before the first example, which is timed by Hypothesis otherwise

    @settings(max_examples=60 if kind == "zookeeper" else 30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(program=programs)
    def check(program: list[Step]) -> None:
        async def run() -> None:
            async with asyncio.timeout(PATIENCE):
                await compare(program, (new_store("memory", request), new_store(kind, request)))

        asyncio.run(run())

    check()


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(program=programs)
def test_a_random_program_behaves_alike_on_two_memory_stores(program: list[Step]) -> None:
    """This tests the comparison without a service: only what it translates differs."""
    request: Any = None
    asyncio.run(compare(program, (new_store("memory", request), new_store("memory", request))))
