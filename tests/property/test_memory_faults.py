"""The memory store keeps the port's promises under any order of faults, so that a failure in another test is not its own."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from aiokcc.errors import AiokccError, OutcomeUnknownError, SessionLostError
from aiokcc.stores import SessionState
from aiokcc.stores.memory import Call, MemoryStore

FAULTS = ["suspend", "resume", "freeze", "thaw", "expire", "down", "up"]
events = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 1)),
        st.tuples(st.just("write"), st.integers(0, 1)),
        st.tuples(st.just("answer"), st.integers(0, 30)),
        st.tuples(st.just("trips"), st.integers(0, 4)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.sampled_from(FAULTS), st.integers(0, 1)),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(script=events, slow=st.booleans())
def test_every_outcome_is_true_and_every_watch_ends_on_the_last_state(
    script: list[tuple[str, int]], slow: bool
) -> None:
    asyncio.run(play(script, slow))


async def play(script: list[tuple[str, int]], slow: bool) -> None:
    store = MemoryStore(uuid.uuid4().hex)
    server = store.server
    ticks = itertools.count()
    server.wall_clock = lambda: float(next(ticks))  # so that Node.created is the order of application
    delayed: list[asyncio.Event] = []

    def delay(call: Call) -> Any:
        if slow and call.session is not witness:
            delayed.append(event := asyncio.Event())
            return event.wait()
        return None

    async with store.session() as witness, store.session() as one, store.session() as two:
        sessions = one, two
        await witness.ensure("log")
        watch = witness.watch()
        watch.add_children("log")
        await watch.changes()
        writes: list[tuple[str, asyncio.Task[str]]] = []
        interception = server.intercept(before=delay, after=delay)
        for verb, number in script:
            match verb:
                case "write":
                    name = f"log/{number}-{len(writes):02d}-"
                    writes.append((name, asyncio.create_task(sessions[number].create(name + "x"))))
                    await asyncio.sleep(0)  # it is called now, in this order
                case "answer" if number < len(delayed):
                    delayed[number].set()
                case "trips":
                    for _ in range(number):
                        await asyncio.sleep(0)
                case "cancel" if number < len(writes):
                    writes[number][1].cancel()
                case "suspend" | "resume" | "freeze" | "thaw" | "expire":
                    getattr(server, verb)(sessions[number])
                case "down":
                    server.suspend()
                case "up":
                    server.resume()
                case _:
                    pass
        # Everything is repaired: so everything ends.
        interception.close()
        server.resume()
        for session in sessions:
            server.thaw(session)
        async with asyncio.timeout(10):
            while not all(task.done() for _, task in writes):
                for event in delayed:
                    event.set()
                await asyncio.sleep(0)
        names = await witness.children("log")
        applied = {name for name, _ in writes if f"{name}x".removeprefix("log/") in names}
        for name, task in writes:
            if task.cancelled():
                continue
            error = task.exception()
            assert error is None or isinstance(error, AiokccError)
            if error is None:
                assert name in applied
            elif isinstance(error, SessionLostError):
                assert name not in applied
            else:
                assert isinstance(error, OutcomeUnknownError)
        for number, session in enumerate(sessions):
            assert session.state in (SessionState.CONNECTED, SessionState.LOST)
            made = [node.created for path, node in server.nodes().items() if f"/log/{number}-" in path]
            assert made == sorted(made)
        if names:
            async with asyncio.timeout(10):
                while getattr((await watch.changes())[-1].now, "names", None) != names:
                    pass
