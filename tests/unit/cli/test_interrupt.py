"""The first signal requests a stop, the second cancels the command. The tests send signals to their own process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest

from aiokcc.cli.interrupt import Interruption


class Calls:
    """Records the calls of an interruption."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.asked, self.warned = asyncio.Event(), asyncio.Event()

    def ask(self) -> None:
        self.calls.append("ask")
        self.asked.set()

    def warn(self, what: str) -> None:
        self.calls.append(f"warn of {what}")
        self.warned.set()


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "name", "code"), [(signal.SIGINT, "Ctrl-C", 130), (signal.SIGTERM, "SIGTERM", 143)])
async def test_the_first_signal_requests_a_stop_and_the_second_cancels(
    number: signal.Signals, name: str, code: int
) -> None:
    told = Calls()
    interruption = Interruption(told.ask, told.warn)

    async def command() -> None:
        with interruption.handling():
            signal.raise_signal(number)
            signal.raise_signal(number)  # so soon after the first, it counts as the same one
            await told.warned.wait()
            assert (interruption.by, interruption.cancelled) == (number, False)
            signal.raise_signal(number)
            await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(command())
    assert told.calls == ["ask", f"warn of {name}"]
    assert (interruption.cancelled, interruption.code) == (True, code)


async def test_a_stop_that_takes_too_long_cancels_as_a_second_signal_does() -> None:
    told = Calls()
    interruption = Interruption(told.ask, told.warn, timeout=0.3, timed_out=lambda: told.calls.append("timed out"))

    async def command() -> None:
        with interruption.handling():
            signal.raise_signal(signal.SIGTERM)
            await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(command())
    assert told.calls == ["ask", "warn of SIGTERM", "timed out"]
    assert (interruption.cancelled, interruption.code) == (True, 143)


async def test_a_stop_in_time_is_not_cancelled() -> None:
    told = Calls()
    interruption = Interruption(told.ask, told.warn, timeout=0.01, timed_out=lambda: told.calls.append("timed out"))
    with interruption.handling():
        signal.raise_signal(signal.SIGTERM)
        await told.asked.wait()
    await asyncio.sleep(0.03)
    assert told.calls == ["ask"]
    assert not interruption.cancelled


async def test_after_the_block_signals_have_their_previous_effect() -> None:
    told = Calls()
    interruption = Interruption(told.ask, told.warn)
    with interruption.handling():
        pass
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert told.calls == []
    assert interruption.by is None


async def test_ctrl_c_stays_ignored_if_the_parent_process_ignores_it() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    told = Calls()
    with Interruption(told.ask, told.warn).handling():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        await told.warned.wait()
    assert told.calls == ["ask", "warn of SIGTERM"]
