"""Chooses the event loop of a worker process: uvloop where it is installed, or the one of asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from importlib.util import find_spec
from typing import Any, Final, TypeVar

from aiokcc.errors import UsageError

__all__ = ["AUTO", "LOOPS", "LOOP_VARIABLE", "choose_loop", "run_on"]

T = TypeVar("T")

AUTO: Final = "auto"
LOOPS: Final = (AUTO, "asyncio", "uvloop")
LOOP_VARIABLE: Final = "AIOKCC_LOOP"


def choose_loop(name: str) -> str:
    """Return ``asyncio`` or ``uvloop``: for ``auto`` uvloop if it is installed.

    Raises UsageError for another name, and for ``uvloop`` if it is not installed.
    """
    if name not in LOOPS:
        raise UsageError(f"{name!r} is no event loop; expected {', '.join(LOOPS)}")
    installed = find_spec("uvloop") is not None
    if name == "uvloop" and not installed:
        raise UsageError("uvloop is not installed: pip install 'aiokcc[uvloop]', or choose the loop 'auto'")
    return ("uvloop" if installed else "asyncio") if name == AUTO else name


def run_on(name: str, work: Coroutine[Any, Any, T]) -> T:
    """Run the work as asyncio.run() does, on the loop of this name. Raises UsageError as :func:`choose_loop` does."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    try:
        if choose_loop(name) == "uvloop":
            import uvloop

            factory = uvloop.new_event_loop
    except BaseException:
        work.close()  # otherwise Python warns that it was never awaited
        raise
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)
