"""Mistakes at the entry of connect and replay get an error that says what to write."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest

import aiokcc
from aiokcc.errors import UsageError
from tests.unit.world import PERIOD, World

BOOTSTRAP = "127.0.0.1:9"


def connecting(**more: Any) -> Any:
    return aiokcc.connect("memory://entry", **{"topics": {"orders": 1}, "period": "1m", **more})


def replaying(**more: Any) -> Any:
    return aiokcc.replay(
        "orders", **{"bootstrap_servers": BOOTSTRAP, "store": "memory://entry", "period": "1m", **more}
    )


# -- without async with


@pytest.mark.parametrize(("block", "name"), [(connecting, "aiokcc.connect"), (replaying, "aiokcc.replay")])
async def test_a_forgotten_async_with_is_named(block: Callable[..., Any], name: str) -> None:
    as_what = "group" if name == "aiokcc.connect" else "replay"
    what = rf"write 'async with {name}\(\.\.\.\) as {as_what}:'"
    with pytest.raises(UsageError, match=what):
        block().run(print)
    with pytest.raises(UsageError, match=what):
        await block()
    with pytest.raises(UsageError, match=what):
        async for _ in block():
            pass
    with pytest.raises(UsageError, match=rf"needs 'async with', not 'with'; {what}"):
        with block():
            pass
    assert not hasattr(block(), "run")  # still an AttributeError, for whoever only looks


@pytest.mark.parametrize("block", [connecting, replaying])
def test_a_block_can_be_copied_and_has_no_private_attributes(block: Callable[..., Any]) -> None:
    assert isinstance(copy.copy(block()), type(block()))
    assert not hasattr(block(), "_ipython_display_")
    with pytest.raises(AttributeError, match="has no attribute '__array__'"):
        block().__array__  # noqa: B018


async def test_a_block_is_entered_once() -> None:
    block = connecting()
    async with block:
        with pytest.raises(UsageError, match=r"was entered before.*make a new one: write 'async with aiokcc\.connect"):
            await block.__aenter__()
    with pytest.raises(UsageError, match="make a new one"):
        async with block:
            pass


def test_another_event_loop_than_asyncios_is_named() -> None:
    """As under trio: the coroutine is driven by somebody else."""
    entering = connecting().__aenter__()
    with pytest.raises(UsageError, match=r"runs on asyncio.*asyncio\.run\(main\(\)\).*instead of trio"):
        entering.send(None)


# -- keywords


@pytest.mark.parametrize(
    ("call", "wrong", "what"),
    [
        (connecting, "periode", "aiokcc.connect has no argument 'periode'; did you mean 'period'?"),
        (connecting, "sesion_timeout", "did you mean 'session_timeout'?"),
        (connecting, "auht", "did you mean 'auth'?"),
        (replaying, "periode", "aiokcc.replay has no argument 'periode'; did you mean 'period'?"),
        (replaying, "bootstrap_server", "did you mean 'bootstrap_servers'?"),
        (replaying, "latenes", "did you mean 'lateness'?"),
        (replaying, "fetch_max_byte", "did you mean 'fetch_max_bytes'?"),
    ],
)
def test_a_mistyped_keyword_is_named_with_the_right_one(call: Callable[..., Any], wrong: str, what: str) -> None:
    with pytest.raises(UsageError) as raised:
        call(**{wrong: 1})
    assert what in str(raised.value)


def test_a_mistyped_keyword_in_place_of_a_required_one_is_named() -> None:
    with pytest.raises(UsageError, match="did you mean 'period'"):
        aiokcc.connect("memory://entry", topics={"orders": 1}, periode="1m")  # type: ignore[call-arg]


# -- units


def test_a_period_that_looks_like_seconds_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    connecting(period=61)
    connecting(period=61)
    connecting(period="61ms")
    connecting(period=60_000)
    assert [r.getMessage() for r in caplog.records] == [
        'period=61 is 61 milliseconds; if seconds are meant, write period="61s"'
    ]


def test_other_durations_that_look_like_seconds_are_told_too(caplog: pytest.LogCaptureFixture) -> None:
    connecting(caught_up=63)
    connecting(ahead=63)
    connecting(ahead=0)
    replaying(lateness=63)
    replaying(lateness={"orders": 64})
    assert [r.getMessage().partition(" is ")[0] for r in caplog.records] == [
        "caught_up=63",
        "ahead=63",
        "lateness=63",
        "lateness=64",
    ]


@pytest.mark.parametrize("call", [connecting, replaying])
def test_a_plain_for_says_what_to_write(call: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match=r"is not entered; write 'async with aiokcc\..*'"):
        for _ in call():
            pass


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("user", 'it takes auth=("user", "password"), acl=, and for zks:// ca=, cert=, key='),
        ("acll", "did you mean 'acl'?"),
        ("x", "it takes"),
    ],
)
def test_an_option_that_the_store_does_not_have_is_named(option: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        aiokcc.replay("t", bootstrap_servers="h:1", store="zk://h/x", period="1m", store_options={option: "S"})
    assert f"zk:// has no option {option!r}; {hint}" in str(caught.value)
    if option != "acll":  # of an argument of connect itself the nearest is named
        options: dict[str, Any] = {option: "S"}
        with pytest.raises(UsageError) as caught:
            aiokcc.connect("zk://h/x", topics={"t": 1}, period="1m", **options)
        assert f"zk:// has no option {option!r}; {hint}" in str(caught.value)


@pytest.mark.parametrize("what", ["start", "end"])
@pytest.mark.parametrize("call", [connecting, replaying])
def test_a_time_that_looks_like_seconds_is_refused(call: Callable[..., Any], what: str) -> None:
    with pytest.raises(UsageError, match=rf"{what} 1767225600 .* looks like seconds; .* write 1767225600000"):
        call(**{what: 1767225600})


@pytest.mark.parametrize("start", [None, "2026-01-01T00:00Z"])
async def test_a_gates_timestamp_that_looks_like_seconds_is_told_once(
    world: World, caplog: pytest.LogCaptureFixture, start: str | None
) -> None:
    async with world.connect(topics={"orders": 1}, start=start) as c, c.gate("orders", 0) as gate:
        await gate.wait_until(1_767_225_600)
        assert gate.late == 0
        await gate.wait_until(1_767_225_600 + 5 * PERIOD)
        gate.finish()
    (text,) = [r.getMessage() for r in caplog.records if "seconds" in r.getMessage()]
    assert text == (
        "orders.0: the timestamp 1767225600 is read as milliseconds, 1970-01-21T10:53:45.600Z; it looks like seconds, "
        "2026-01-01T00:00:00Z: then multiply it by 1000"
    )


# -- released


async def test_released_partitions_are_logged_in_one_line(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with world.connect(topics={"orders": 3}, member="m") as c:
        async with c.gate("orders", 2), c.gate("orders", 0), c.gate("orders", 1):
            pass
    assert [r.getMessage() for r in caplog.records if "released" in r.getMessage()] == [
        "m: orders.0, orders.1, orders.2 were released before they had finished; the limit waits for their next owners"
    ]


async def test_many_released_partitions_are_logged_in_a_short_line(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.connect(topics={"orders": 100}, member="m") as c, contextlib.AsyncExitStack() as stack:
        for n in range(100):
            await stack.enter_async_context(c.gate("orders", n))
    (told,) = [r.getMessage() for r in caplog.records if "released" in r.getMessage()]
    assert "orders.19 and 80 more were released" in told


async def test_released_partitions_are_logged_while_the_block_goes_on(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.connect(member="m") as c:
        async with c.gate("orders", 1):
            pass
        await asyncio.sleep(1)
        assert "m: orders.1 was released before it had finished; the limit waits for its next owner" in caplog.text


async def test_released_partitions_are_not_logged_where_the_run_fails(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ExceptionGroup):
        async with world.connect(member="m") as c, asyncio.TaskGroup() as tasks:
            tasks.create_task(world.consume(c, 0, [5 * PERIOD]))
            async with c.gate("orders", 1):
                raise ValueError("the user's")
    assert "released" not in caplog.text
