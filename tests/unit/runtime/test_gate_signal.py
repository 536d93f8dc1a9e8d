"""The signal of a gate wakes the one task that waits for it; many are woken by one call, and each is cancelled alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio
import pytest

from aiokcc.runtime.gate_signal import GateSignal, wake_together


class Waiting:
    """Tasks that each wait for a signal of their own, and what became of them."""

    def __init__(self, count: int) -> None:
        self.signals = [GateSignal() for _ in range(count)]
        self.woken: list[int] = []
        self.tasks = [asyncio.create_task(self._wait(n)) for n in range(count)]

    async def _wait(self, n: int) -> None:
        await self.signals[n].wait()
        self.woken.append(n)


async def turns(number: int = 3) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_set_early_it_is_not_lost_and_set_twice_it_wakes_once() -> None:
    signal = GateSignal()
    signal.set()
    signal.set()
    await signal.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await signal.wait()


async def test_many_are_woken_in_order_in_one_turn() -> None:
    waiting = Waiting(5)
    await turns()
    calls = list[object]()
    loop = asyncio.get_running_loop()
    call_soon: Callable[..., asyncio.Handle] = loop.call_soon
    loop.call_soon = lambda *a, **k: calls.append(a) or call_soon(*a, **k)  # type: ignore[assignment,method-assign]
    try:
        wake_together(waiting.signals)
    finally:
        del loop.call_soon  # type: ignore[method-assign]
    await turns(1)
    assert waiting.woken == [0, 1, 2, 3, 4]
    assert len(calls) == 1
    await asyncio.gather(*waiting.tasks)


async def test_a_cancelled_one_does_not_touch_the_others() -> None:
    waiting = Waiting(3)
    await turns()
    waiting.tasks[1].cancel()
    await turns()
    assert waiting.tasks[1].cancelled()
    wake_together(waiting.signals)
    await asyncio.gather(waiting.tasks[0], waiting.tasks[2])
    assert waiting.woken == [0, 2]
    await waiting.signals[1].wait()  # it was set while nobody waited


async def test_one_that_is_cancelled_when_it_is_woken_is_cancelled() -> None:
    waiting = Waiting(2)
    await turns()
    wake_together(waiting.signals)
    waiting.tasks[0].cancel()
    await asyncio.wait(waiting.tasks)
    assert waiting.tasks[0].cancelled()
    assert waiting.woken == [1]


async def test_a_second_waiter_is_refused_and_the_first_still_woken() -> None:
    waiting = Waiting(1)
    await turns()
    with pytest.raises(RuntimeError, match="another task waits"):
        await waiting.signals[0].wait()
    waiting.signals[0].set()
    await waiting.tasks[0]


async def test_a_task_may_wait_again_at_once_and_after_a_cancelled_wait() -> None:
    signal, seen = GateSignal(), list[int]()

    async def work() -> None:
        with anyio.move_on_after(0):
            await signal.wait()
            seen.append(0)
        for n in range(1, 4):
            await signal.wait()
            seen.append(n)

    task = asyncio.create_task(work())
    for _ in range(3):
        await turns(6)
        wake_together([signal])
    await task
    assert seen == [1, 2, 3]


async def test_an_error_of_one_task_does_not_keep_the_others() -> None:
    signals = [GateSignal() for _ in range(3)]
    woken = list[int]()

    async def wait(n: int) -> None:
        await signals[n].wait()
        woken.append(n)
        if n == 0:
            raise ValueError(n)

    tasks = [asyncio.create_task(wait(n)) for n in range(3)]
    await turns()
    wake_together(signals)
    await asyncio.wait(tasks)
    assert woken == [0, 1, 2]
    assert isinstance(tasks[0].exception(), ValueError)


def test_one_that_ends_the_program_does_not_keep_the_others_from_ending() -> None:
    """Without that, the loop would wait for ever for tasks that were woken and never go on."""
    ended = list[int]()

    async def main() -> None:
        signals = [GateSignal() for _ in range(3)]

        async def wait(n: int) -> None:
            try:
                await signals[n].wait()
                if n == 0:
                    raise SystemExit(3)
            finally:
                ended.append(n)

        tasks = [asyncio.create_task(wait(n)) for n in range(3)]
        await turns()
        wake_together(signals)
        try:
            await asyncio.wait(tasks)
        finally:
            tasks[0].exception()

    with pytest.raises(SystemExit):
        asyncio.run(main())
    assert ended == [0, 1, 2]
