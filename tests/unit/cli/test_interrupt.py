"""The first signal asks, the second ends it; signals go to this very process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest

from aiokcc.cli.interrupt import Interruption


class Told:
    """What an interruption has called, and when it warned."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.warned = asyncio.Event()

    def ask(self) -> None:
        self.calls.append("ask")

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
async def test_the_first_asks_and_the_second_cancels(number: signal.Signals, name: str, code: int) -> None:
    told = Told()
    interruption = Interruption(told.ask, told.warn)

    async def command() -> None:
        with interruption.handling():
            signal.raise_signal(number)
            signal.raise_signal(number)  # the same once more, so soon after it
            await told.warned.wait()
            assert (interruption.by, interruption.cancelled) == (number, False)
            signal.raise_signal(number)
            await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(command())
    assert told.calls == ["ask", f"warn of {name}"]
    assert (interruption.cancelled, interruption.code) == (True, code)


async def test_afterwards_nobody_is_asked() -> None:
    told = Told()
    interruption = Interruption(told.ask, told.warn)
    with interruption.handling():
        pass
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert told.calls == []
    assert interruption.by is None


async def test_ctrl_c_stays_ignored_where_whoever_started_us_has_it_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    told = Told()
    with Interruption(told.ask, told.warn).handling():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        await told.warned.wait()
    assert told.calls == ["ask", "warn of SIGTERM"]
