"""A signal wakes the one task that waits for it."""

from __future__ import annotations

import asyncio

import pytest

from aiokcc.runtime.signal import Signal


async def test_set_early_it_is_not_lost() -> None:
    signal = Signal()
    signal.set()
    signal.set()
    await signal.wait()
    assert not signal.wait().done()


async def test_a_second_waiter_is_refused_and_the_first_still_woken() -> None:
    signal = Signal()
    first = signal.wait()
    with pytest.raises(RuntimeError, match="another task waits"):
        signal.wait()
    signal.set()
    assert first.done()


async def test_after_a_cancelled_wait_another_may_wait() -> None:
    signal = Signal()

    async def wait() -> None:
        await signal.wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    second = signal.wait()
    signal.set()
    assert second.done()
